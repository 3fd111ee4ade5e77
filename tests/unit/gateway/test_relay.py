"""The rules of the relay, with fake legs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ssh_gateway.core import packets
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.session import relay as session_relay
from ssh_gateway.session.relay import Relay


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
    task: asyncio.Task[None] | None = None

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

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.task = asyncio.create_task(work)
        return self.task


@dataclass
class Wire:
    client: FakeLeg
    pod: FakeLeg
    relay: Relay
    uses: list[None]
    asked: list[None] = field(default_factory=list)

    def from_client(self, payload: bytes) -> None:
        assert self.client.receive(payload[0], payload)

    def from_pod(self, payload: bytes) -> None:
        assert self.pod.receive(payload[0], payload)


@pytest.fixture
def both() -> Wire:
    client, pod, uses, asked = FakeLeg(), FakeLeg(), list[None](), list[None]()
    relay = Relay(
        cast("Any", client), cast("Any", pod), RelayPolicy(),
        used=lambda: uses.append(None), killed=lambda: asked.append(None),
    )  # fmt: skip
    relay.start()
    return Wire(client, pod, relay, uses, asked)


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def data(channel: int, content: bytes = b"x") -> bytes:
    return bytes([94]) + number(channel) + packets.text(content)


def confirmation(client: int, pod: int) -> bytes:
    return bytes([91]) + number(client) + number(pod) + bytes(8)


def pty_request(channel: int) -> bytes:
    return bytes([98]) + number(channel) + packets.text(b"pty-req") + b"\1"


def session(channel: int) -> bytes:
    return bytes([90]) + packets.text(b"session") + number(channel) + number(2**20) + number(2**15)


def exit_by(channel: int, how: bytes, what: bytes) -> bytes:
    return bytes([98]) + number(channel) + packets.text(how) + b"\0" + what


def close(channel: int) -> bytes:
    return bytes([97]) + number(channel)


def test_unknown_packets_are_relayed_in_both_directions(both: Wire) -> None:
    both.from_client(b"\xc0what")
    both.from_pod(b"\xc1ever")
    assert (both.pod.sent, both.client.sent) == ([b"\xc0what"], [b"\xc1ever"])
    assert both.uses == []


HUP = exit_by(7, b"exit-signal", packets.text(b"HUP") + b"\0" + packets.text(b"") + packets.text(b""))
EXITS = {
    "by a signal": (HUP, True),
    "as shells say it": (exit_by(7, b"exit-status", number(143)), True),
    "by itself": (exit_by(7, b"exit-status", number(1)), False),
}


@pytest.mark.parametrize(("ends", "waits"), EXITS.values(), ids=EXITS)
@pytest.mark.parametrize("why", [None, "train was stopped"], ids=["goes on", "stopped"])
def test_end_of_a_program_by_a_signal_waits_until_it_is_known_if_the_job_is_stopped(
    both: Wire, ends: bytes, why: str | None, *, waits: bool
) -> None:
    both.from_client(session(7))
    both.from_pod(confirmation(7, 0))
    before = len(both.client.sent)
    for payload in (ends, data(7), close(7)):
        both.from_pod(payload)
    assert both.client.sent[before:] == ([data(7)] if waits else [ends, data(7), close(7)])
    assert len(both.asked) == waits
    if waits:
        both.relay.release(why)
        assert both.client.ended == ((11, why) if why else None)
        assert both.client.sent[before + 1 :] == ([] if why else [ends, close(7)])


def test_refused_channel_is_answered_to_the_pod(both: Wire) -> None:
    both.from_pod(bytes([90]) + packets.text(b"x11") + number(3) + bytes(8))
    assert both.client.sent == []
    assert both.pod.sent[0][:5] == bytes([92]) + number(3)


def test_leg_is_not_read_while_the_other_is_full(both: Wire) -> None:
    both.client.full = True
    both.client.flow_changed()
    assert (both.pod.reading, both.client.reading) == (False, True)
    both.client.full = False
    both.client.flow_changed()
    assert both.pod.reading


def test_leg_in_a_key_exchange_is_read(both: Wire) -> None:
    both.client.rekeying = both.pod.rekeying = True
    both.pod.flow_changed()
    assert both.client.reading
    assert both.pod.reading


def test_too_much_pending_data_ends_the_connection(both: Wire) -> None:
    both.pod.rekeying = both.client.rekeying = True
    for _ in range(session_relay.MOST_PENDING // 2**20):
        both.from_client(data(0, bytes(2**20)))
    assert both.client.ended == (2, "too much data during a key exchange")


def test_pending_count_is_reset_when_data_is_sent(both: Wire) -> None:
    for _ in range(3 * session_relay.MOST_PENDING // 2**20):
        both.pod.full = True
        both.from_client(data(0, bytes(2**20)))
        both.pod.full = False
        both.pod.flow_changed()
    assert both.client.ended is None


def test_disconnect_reasons_are_passed_on(both: Wire) -> None:
    both.pod.disconnect_reason = (2, "Too many sessions")
    both.relay.upstream_gone()
    assert both.client.ended == (2, "Too many sessions")
    both.relay.client_gone("the client is gone")
    assert both.pod.ended == (11, "the client is gone")


def test_data_without_a_terminal_is_activity_in_both_directions(both: Wire) -> None:
    both.from_pod(confirmation(client=5, pod=9))
    both.from_client(data(9))
    both.from_pod(data(5))
    assert len(both.uses) == 2


def test_terminal_input_is_activity_and_output_is_not(both: Wire) -> None:
    both.from_pod(confirmation(client=5, pod=9))
    both.from_client(pty_request(9))
    both.from_pod(data(5))
    assert len(both.uses) == 0
    both.from_client(data(9))
    assert len(both.uses) == 1


def test_reused_channel_number_is_another_channel(both: Wire) -> None:
    both.from_pod(confirmation(client=5, pod=9))
    both.from_client(pty_request(9))
    both.from_client(close(9))
    both.from_pod(close(5))
    both.from_pod(confirmation(client=5, pod=9))
    both.from_pod(data(5))
    assert len(both.uses) == 1


def test_requests_and_windows_are_no_activity(both: Wire) -> None:
    both.from_client(bytes([80]) + packets.text(b"keepalive@openssh.com") + b"\1")
    both.from_pod(bytes([82]))
    both.from_client(bytes([93]) + number(9) + number(100))
    assert both.uses == []
