"""Packets as clients and jobs send them, and a relay between two fake legs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ssh_gateway.core.packets import CHANNEL_OPEN, CHANNEL_REQUEST, GLOBAL_REQUEST, RelayPolicy, text
from ssh_gateway.session.relay import Relay
from ssh_gateway.session.terminals import TerminalLine

WINDOW, PACKET = 2**20, 2**15


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def global_request(name: bytes, rest: bytes = b"", *, reply: bool = True) -> bytes:
    return bytes([GLOBAL_REQUEST]) + text(name) + bytes([reply]) + rest


def channel_request(name: bytes, rest: bytes = b"", channel: int = 0, *, reply: bool = True) -> bytes:
    return bytes([CHANNEL_REQUEST]) + number(channel) + text(name) + bytes([reply]) + rest


def channel_open(
    kind: bytes, rest: bytes = b"", channel: int = 0, window: int = WINDOW, longest: int = PACKET
) -> bytes:
    return bytes([CHANNEL_OPEN]) + text(kind) + number(channel) + number(window) + number(longest) + rest


def confirmation(client: int, pod: int) -> bytes:
    return bytes([91]) + number(client) + number(pod) + bytes(8)


def data(channel: int, content: bytes = b"x") -> bytes:
    return bytes([94]) + number(channel) + text(content)


def pty_request(channel: int) -> bytes:
    return channel_request(b"pty-req", channel=channel)


def close(channel: int) -> bytes:
    return bytes([97]) + number(channel)


@dataclass(eq=False)
class FakeLeg:
    """A leg that remembers what it was told."""

    rekeying: bool = False
    full: bool = False
    sent: list[bytes] = field(default_factory=list)
    reading: bool = True
    ended: tuple[int, str] | None = None
    disconnect_reason: tuple[int, str] | None = None
    receive: Any = None
    flow_changed: Any = None

    @property
    def blocked(self) -> bool:
        return self.full or self.rekeying

    def send_payload(self, payload: bytes) -> None:
        self.sent.append(payload)

    def read_on(self, reading: bool) -> None:
        self.reading = reading

    def end(self, code: int, reason: str) -> None:
        self.ended = (code, reason)

    def prove_host_keys(self, asked: bytes) -> bytes | None:
        return None


class Wire:
    """A relay between two fake legs, its uses, and how often it has asked if the job is stopped."""

    def __init__(self, lines: Sequence[TerminalLine] = ()) -> None:
        self.client, self.pod, self.uses, self.asked, self.lines = FakeLeg(), FakeLeg(), 0, 0, list(lines)
        self.relay = Relay(
            cast("Any", self.client), cast("Any", self.pod), RelayPolicy(),
            used=self._used, killed=self._killed, lines=lambda: self.lines,
        )  # fmt: skip
        self.relay.start()

    def _used(self) -> None:
        self.uses += 1

    def _killed(self) -> None:
        self.asked += 1

    def from_client(self, payload: bytes) -> None:
        assert self.client.receive(payload[0], payload)

    def from_pod(self, payload: bytes) -> None:
        assert self.pod.receive(payload[0], payload)
