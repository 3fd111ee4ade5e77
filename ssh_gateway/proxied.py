"""PROXY protocol version 2: what a balancer writes before a client's first byte, to say who the client is. Pure.

Rules:

* Only TCP over IPv4 or IPv6 counts. A balancer that cannot tell who somebody is lets nobody in.
* LOCAL is the balancer's own connection, a health check: it is for nobody.
* Version 1 is refused: a line of text of unknown length, which nothing needs that speaks version 2.
* Fields beyond the addresses are skipped, their checksum too: TCP has one, and whoever may write a header is trusted.
* What is kept of a header is bounded by `LONGEST`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
VERSION_1 = b"PROXY "
LONGEST = 2048

_FIXED = 16
_LOCAL, _PROXY = 0, 1
_TCP4, _TCP6 = 0x11, 0x21
# How many bytes an address has, and how many the part with both addresses and ports.
_SIZES = {_TCP4: (4, 12), _TCP6: (16, 36)}


class BadHeader(ValueError):
    """There is no header, or one that does not count; the message says which."""


@dataclass(frozen=True, slots=True)
class Header:
    """A whole header of ``size`` bytes; ``source`` is the client's address, None for a connection of the balancer's."""

    size: int
    source: str | None


def read(received: bytes) -> Header | None:
    """The header at the start of what came in; None until all of it is there, BadHeader as soon as it cannot be one."""
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
    """Whether a client's first bytes are a header of either version, which no SSH client begins with."""
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
