"""Admission of connections: an address is checked before any SSH state is made for its connection.

A listed balancer states the client's address first; no other peer may. Rules:

* From a listed balancer nothing counts before the PROXY header. A connection without
  a header is closed after a deadline.
* From any other peer a header ends the connection: an unlisted peer cannot choose the address that the log, the limits
  and the penalties see.
* A refused client reads the reason: SSH's greeting and one DISCONNECT in clear, which every client shows. That costs
  neither a key exchange nor an asyncssh object. Above a number of refusals at one time, connections are dropped without
  a reason.
* A balancer's own connection (LOCAL, a health check) reads the greeting, and is neither counted nor logged. Refused
  clients take none of the room for it, because only listed balancers can send LOCAL; above its own limit such
  connections are dropped.

PROXY protocol version 2: the header that a balancer writes before a client's first byte, to state the client's address.
Pure.

Rules:

* Only TCP over IPv4 or IPv6 counts. A client with an address unknown to the balancer is refused.
* LOCAL is the balancer's own connection, a health check: there is no client.
* Version 1 is refused: a line of text of unknown length, needed by no balancer that speaks version 2.
* Fields after the addresses are skipped, including their checksum: TCP has a checksum, and listed balancers are
  trusted.
* The bytes kept of a header are bounded by `LONGEST`.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncssh

from ssh_gateway.core import packets
from ssh_gateway.core.addresses import Network, read_address
from ssh_gateway.transport import server
from ssh_gateway.transport.keys import SERVER_VERSION

GREETING = f"SSH-2.0-{SERVER_VERSION}\r\n".encode()
TOO_MANY_CONNECTIONS = 12
FAREWELL_SECONDS = 1.0
MOST_FAREWELLS = 256
MOST_CHECKS = 64
HEADER_SECONDS = 5.0
MOST_ARRIVING = 1024
NOT_LISTED = "this gateway takes no PROXY protocol header from your address: its administrator can list the balancer"
UNKNOWN = "the balancer in front of this gateway did not say who you are: tell an administrator"


@dataclass(slots=True)
class Admission:
    """State shared by all `ConnectionGuard`s.

    ``admit`` counts an address, or returns the reason of a refusal; ``inside`` makes the SSH protocol for the address;
    ``refused`` receives each address that broke the rules of headers, with the problem. ``arriving`` are connections
    without their header so far, ``leaving`` refused connections that still read the reason, ``checking`` balancers that
    read the greeting.
    """

    admit: Callable[[str], str | None]
    inside: Callable[[str], server.Downstream]
    refused: Callable[[str, str], None]
    balancers: tuple[Network, ...] = ()
    leaving: set[ConnectionGuard] = field(default_factory=set)
    arriving: set[ConnectionGuard] = field(default_factory=set)
    checking: set[ConnectionGuard] = field(default_factory=set)

    def clear(self) -> None:
        """Drops the connections that are not admitted yet."""
        for gate in [*self.leaving, *self.arriving, *self.checking]:
            gate.drop()


class ConnectionGuard(asyncio.Protocol):
    """One new connection: handed over to SSH, or refused."""

    _transport: asyncio.Transport
    _deadline: asyncio.TimerHandle | None = None
    _inside: server.Downstream | None = None

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._header = b""
        self._source = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a stream expected")
        self._transport = transport
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        address = read_address(peer)
        self._source = str(address or peer)
        if address is not None and any(address in network for network in self._admission.balancers):
            self._await_header()
        elif self._may_in():
            # The greeting is not kept back until the client has spoken: that would cost every login a round trip.
            self._inside = self._admission.inside(self._source)
            self._inside.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self in self._admission.arriving:
            self._header += data
            self._read_header()
        elif (inside := self._inside) is not None:
            self._transport.set_protocol(inside)
            if is_one(data):
                self._admission.refused(self._source, NOT_LISTED)
                inside.end(asyncssh.DISC_PROTOCOL_ERROR, NOT_LISTED)
            else:
                inside.data_received(data)

    def eof_received(self) -> None:
        if self._inside is not None:
            self._inside.eof_received()

    def pause_writing(self) -> None:
        if self._inside is not None:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        if self._inside is not None:
            self._inside.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.leaving.discard(self)
        self._admission.checking.discard(self)
        self._arrived()
        if self._inside is not None:
            self._inside.connection_lost(exc)

    def drop(self) -> None:
        """Closes without waiting for the client to read."""
        self._transport.abort()

    def _may_in(self) -> bool:
        refusal = self._admission.admit(self._source)
        if refusal is not None:
            self._send_away(refusal)
        return refusal is None

    # Connections from balancers

    def _await_header(self) -> None:
        if len(self._admission.arriving) >= MOST_ARRIVING:
            self._transport.abort()
            return
        self._admission.arriving.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HEADER_SECONDS, self._no_header, "no PROXY protocol header in time")

    def _read_header(self) -> None:
        try:
            header = read(self._header)
        except BadHeader as problem:
            self._no_header(str(problem))
            return
        if header is None:
            return
        self._arrived()
        if header.source is None:
            self._say_last(b"", self._admission.checking, MOST_CHECKS)
            return
        self._source = str(read_address(header.source))
        if self._may_in():
            inside, rest = self._admission.inside(self._source), self._header[header.size :]
            self._transport.set_protocol(inside)
            inside.connection_made(self._transport)
            if rest:
                inside.data_received(rest)

    def _no_header(self, why: str) -> None:
        self._arrived()
        self._admission.refused(self._source, why)
        self._send_away(UNKNOWN)

    def _arrived(self) -> None:
        self._admission.arriving.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    # Refusals and health checks

    def _send_away(self, why: str) -> None:
        words = packets.in_clear(packets.disconnect(TOO_MANY_CONNECTIONS, why))
        self._say_last(words, self._admission.leaving, MOST_FAREWELLS)

    def _say_last(self, words: bytes, among: set[ConnectionGuard], most: int) -> None:
        """Writes the last bytes and closes one direction first: a reset would lose the reason."""
        if len(among) >= most:
            self._transport.abort()
            return
        among.add(self)
        self._transport.write(GREETING + words)
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._transport.abort)


SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
VERSION_1 = b"PROXY "
LONGEST = 2048

_FIXED = 16
_LOCAL, _PROXY = 0, 1
_TCP4, _TCP6 = 0x11, 0x21
# Bytes of one address, and bytes of the part with both addresses and ports.
_SIZES = {_TCP4: (4, 12), _TCP6: (16, 36)}


class BadHeader(ValueError):
    """The header is missing or invalid; the message names the problem."""


@dataclass(frozen=True, slots=True)
class Header:
    """A complete header of ``size`` bytes; ``source`` is the client's address, None for a balancer's own connection."""

    size: int
    source: str | None


def read(received: bytes) -> Header | None:
    """Returns the header at the start of the received bytes, or None until it is complete.

    Raises BadHeader as soon as the bytes cannot become a valid header.
    """
    start = received[: len(SIGNATURE)]
    if start and VERSION_1.startswith(start[: len(VERSION_1)]):
        raise BadHeader("a PROXY protocol header of version 1, not 2")
    if not SIGNATURE.startswith(start):
        raise BadHeader("no PROXY protocol header")
    if len(received) < _FIXED:
        return None
    command, size = _command(received[12]), _FIXED + int.from_bytes(received[14:16], "big")
    if size > LONGEST:
        raise BadHeader(f"a PROXY protocol header of {size} bytes, more than {LONGEST}")
    if len(received) < size:
        return None
    return Header(size, _source(received[13], received[_FIXED:size]) if command == _PROXY else None)


def is_one(first: bytes) -> bool:
    """True if a client's first bytes are a header of either version, which no SSH client begins with."""
    return first.startswith((SIGNATURE, VERSION_1))


def _command(byte: int) -> int:
    version, command = divmod(byte, 16)
    if version != 2 or command not in {_LOCAL, _PROXY}:
        raise BadHeader(f"a PROXY protocol header with version and command {byte:#04x}")
    return command


def _source(family: int, block: bytes) -> str:
    if family not in _SIZES:
        raise BadHeader(f"a PROXY protocol header of address family {family:#04x}, neither TCP over IPv4 nor over IPv6")
    address, whole = _SIZES[family]
    if len(block) < whole:
        raise BadHeader("a PROXY protocol header that is too short for its addresses")
    return str(ipaddress.ip_address(block[:address]))
