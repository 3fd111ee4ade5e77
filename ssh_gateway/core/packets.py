"""Decisions about relayed packets, and the gateway's own packets: bytes in, a verdict out. Pure.

All packets of type 80 and above (RFC 4254 and later ones) belong to the two ends. The gateway reads three types:
GLOBAL_REQUEST, CHANNEL_OPEN and CHANNEL_REQUEST. Rules:

* Everything that is not forbidden here is relayed verbatim, including types and names unknown to the gateway.
* A forbidden request is relayed *under a name that no server implements*: the far end gives the refusal itself, at its
  place in the order of replies (RFC 4254 §4 requires that order), so the gateway owns no reply and counts none.
* The job's sshd must not teach clients its own host key: ``hostkeys-*`` is not relayed. When a client asks for a proof
  of the gateway's host key, the job's refusal is replaced by the proof (`Proofs`).
* A packet too short for its own type is relayed as well; the far end judges its protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DISCONNECT = 1
GLOBAL_REQUEST = 80
REQUEST_SUCCESS = 81
REQUEST_FAILURE = 82
CHANNEL_OPEN = 90
CHANNEL_OPEN_CONFIRMATION = 91
CHANNEL_OPEN_FAILURE = 92
CHANNEL_WINDOW_ADJUST = 93
CHANNEL_DATA = 94
CHANNEL_EXTENDED_DATA = 95
CHANNEL_EOF = 96
CHANNEL_CLOSE = 97
CHANNEL_REQUEST = 98
CHANNEL_SUCCESS = 99
CHANNEL_FAILURE = 100

FIRST_RELAYED = 80

Payload = bytes | memoryview

ADMINISTRATIVELY_PROHIBITED = 1

REFUSED_REQUEST = b"refused@dlspawner.dev"
PROVE_HOST_KEYS = b"hostkeys-prove-00@openssh.com"
KEEPALIVE = b"keepalive@openssh.com"

# Names with which a user's agent is forwarded to a job, and reached from there: OpenSSH's, and RFC 9987's.
AGENT_REQUESTS = frozenset({b"auth-agent-req@openssh.com", b"agent-req"})
AGENT_CHANNELS = frozenset({b"auth-agent@openssh.com", b"agent-connect"})


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """Requests permitted beyond the ordinary; both let the job act on the user's own computer."""

    agent_forwarding: bool = False
    x11_forwarding: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """``forward`` goes to the other end, ``answer`` back to the sender; with neither the packet is dropped.

    ``refused`` names what the policy removed, for the log.
    """

    forward: bytes | None = None
    answer: bytes | None = None
    refused: str = ""


@dataclass(slots=True)
class Proofs:
    """Replaces the job's refusals of one kind of request by the gateway's own answers, one request at a time."""

    _asked: int = 0
    _answered: int = 0
    _place: int = 0
    _answer: bytes = b""

    def asked(self, payload: bytes, prove: Callable[[bytes], bytes | None]) -> None:
        """Notes a relayed GLOBAL_REQUEST of the client; ``prove`` answers a request for the gateway's proof."""
        if not wants_reply(payload):
            return
        self._asked += 1
        if not self._answer and request_name(payload) == PROVE_HOST_KEYS:
            self._place, self._answer = self._asked, prove(payload) or b""

    def answered(self, payload: bytes) -> bytes:
        """Returns the packet to relay in place of the job's next reply."""
        self._answered += 1
        if self._answered == self._place and self._answer:
            payload, self._answer = self._answer, b""
        return payload


def judge(payload: bytes, policy: RelayPolicy) -> Verdict:
    """Decides about one packet of type GLOBAL_REQUEST, CHANNEL_OPEN or CHANNEL_REQUEST, from either end."""
    kind = payload[0]
    if kind == GLOBAL_REQUEST:
        return _global_request(payload)
    if kind == CHANNEL_OPEN:
        return _channel_open(payload, policy)
    return _channel_request(payload, policy)


def _global_request(payload: bytes) -> Verdict:
    name, rest = text_at(payload, 1)
    if name is None or not name.startswith(b"hostkeys-"):
        return Verdict(forward=payload)
    if payload[rest : rest + 1] == b"\0":  # no reply is expected
        return Verdict()
    return Verdict(forward=bytes([GLOBAL_REQUEST]) + text(REFUSED_REQUEST) + payload[rest:])


def _channel_open(payload: bytes, policy: RelayPolicy) -> Verdict:
    """Judges channels by which a job would reach the user's computer; those that a request allowed are permitted."""
    name, rest = text_at(payload, 1)
    forbidden = (name in AGENT_CHANNELS and not policy.agent_forwarding) or (
        name == b"x11" and not policy.x11_forwarding
    )
    if name is None or not forbidden or len(payload) < rest + 4:
        return Verdict(forward=payload)
    refused = name.decode("ascii")
    return Verdict(answer=open_failure(payload[rest : rest + 4], f"{refused} is not allowed here"), refused=refused)


def _channel_request(payload: bytes, policy: RelayPolicy) -> Verdict:
    name, _ = text_at(payload, 5)
    forbidden = (name in AGENT_REQUESTS and not policy.agent_forwarding) or (
        name == b"x11-req" and not policy.x11_forwarding
    )
    if name is None or not forbidden:
        return Verdict(forward=payload)
    return Verdict(forward=refused(payload), refused=name.decode("ascii"))


@dataclass(frozen=True, slots=True)
class DirectTcpip:
    """A client's request for a stream to ``host``:``port``."""

    host: str
    port: int


def read_direct_tcpip(payload: bytes) -> DirectTcpip | None:
    """Returns the request in a CHANNEL_OPEN packet; ``None`` for every other packet."""
    name, rest = text_at(payload, 1)
    if payload[0] != CHANNEL_OPEN or name != b"direct-tcpip":
        return None
    host, rest = text_at(payload, rest + 12)
    if host is None or len(payload) < rest + 4:
        return None
    return DirectTcpip(host.decode("utf-8", "replace"), number_at(payload, rest))


def opener(payload: bytes) -> bytes:
    """Returns the four bytes with which the sender of a CHANNEL_OPEN numbers its end."""
    _, rest = text_at(payload, 1)
    return payload[rest : rest + 4]


def wants_reply(payload: bytes) -> bool:
    """True if a GLOBAL_REQUEST or CHANNEL_REQUEST wants a reply."""
    name, rest = text_at(payload, 1 if payload[0] == GLOBAL_REQUEST else 5)
    return name is not None and payload[rest : rest + 1] != b"\0"


def request_name(payload: bytes) -> bytes | None:
    return text_at(payload, 1 if payload[0] == GLOBAL_REQUEST else 5)[0]


def asked(kind: int, payload: bytes) -> bytes | None:
    """Returns the name of a GLOBAL_REQUEST; None for any other packet."""
    return request_name(payload) if kind == GLOBAL_REQUEST else None


def ended_by_signal(payload: bytes) -> bool:
    """True if a CHANNEL_REQUEST tells that a program was ended by a signal, which shells tell by a status above 128."""
    name, rest = text_at(payload, 5)
    return name == b"exit-signal" or (name == b"exit-status" and number_at(payload, rest + 1) > 128)


def refused(payload: bytes) -> bytes:
    """Renames a CHANNEL_REQUEST to one that no server implements, so that the far end refuses it in its turn."""
    _, rest = text_at(payload, 5)
    return payload[:5] + text(REFUSED_REQUEST) + payload[rest:]


def open_failure(recipient: bytes, reason: str) -> bytes:
    """Returns a CHANNEL_OPEN_FAILURE; ``recipient`` is the other end's channel number, four bytes."""
    code = ADMINISTRATIVELY_PROHIBITED.to_bytes(4, "big")
    return bytes([CHANNEL_OPEN_FAILURE]) + recipient + code + text(reason.encode()) + text(b"en")


def data(channel: int, content: bytes) -> bytes:
    return bytes([CHANNEL_DATA]) + channel.to_bytes(4, "big") + text(content)


def disconnect(code: int, reason: str) -> bytes:
    return bytes([DISCONNECT]) + code.to_bytes(4, "big") + text(reason.encode()) + text(b"")


def in_clear(payload: bytes) -> bytes:
    """Returns a packet as sent before any key is agreed on (RFC 4253 §6)."""
    padding = 8 - (len(payload) + 5) % 8
    padding += 8 if padding < 4 else 0
    return (len(payload) + padding + 1).to_bytes(4, "big") + bytes([padding]) + payload + bytes(padding)


def number_at(payload: Payload, offset: int) -> int:
    """Returns the uint32 at ``offset``; missing bytes are ignored, so the caller checks the length where it matters."""
    return int.from_bytes(payload[offset : offset + 4], "big")


def text_at(payload: bytes, offset: int) -> tuple[bytes | None, int]:
    """Returns the string at ``offset`` and its end; ``None`` for the string if the packet is too short."""
    end = offset + 4 + number_at(payload, offset)
    if len(payload) < offset + 4 or len(payload) < end:
        return None, offset
    return payload[offset + 4 : end], end


def text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
