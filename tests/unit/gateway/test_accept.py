"""The PROXY protocol header of a balancer: rows and random input."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ssh_gateway import accept
from ssh_gateway.accept import BadHeader, Header, read

SSH = b"SSH-2.0-OpenSSH_9.9\r\n"


def header(source: str, *, more: bytes = b"", command: int = 0x21, family: int | None = None) -> bytes:
    """A header as a balancer writes it, for a client at `source` and fields `more`."""
    address = ipaddress.ip_address(source)
    target = ipaddress.ip_address("192.0.2.1" if address.version == 4 else "2001:db8::1")
    block = address.packed + target.packed + struct.pack("!HH", 40000, 22) + more
    kind = (0x11 if address.version == 4 else 0x21) if family is None else family
    return accept.SIGNATURE + bytes([command, kind]) + struct.pack("!H", len(block)) + block


LOCAL = accept.SIGNATURE + b"\x20\x00\x00\x00"


@pytest.mark.parametrize(
    ("received", "found"),
    [
        pytest.param(LOCAL, Header(16, None), id="a health check"),
        pytest.param(header("203.0.113.7", command=0x20), Header(28, None), id="a health check with addresses"),
        pytest.param(b"", None, id="nothing yet"),
        pytest.param(LOCAL[:15], None, id="the size is not there yet"),
    ],
)
def test_proxy_header_is_read(received: bytes, found: Header | None) -> None:
    assert read(received) == found


@pytest.mark.parametrize(
    ("received", "words"),
    [
        pytest.param(SSH, "no PROXY protocol header", id="an SSH client"),
        pytest.param(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 22\r\n", "of version 1, not 2", id="version 1"),
        pytest.param(header("1.2.3.4", command=0x11), "version and command 0x11", id="version 1 in version 2's form"),
        pytest.param(header("1.2.3.4", family=0x31), "family 0x31", id="a unix socket"),
        pytest.param(header("1.2.3.4", family=0x00), "family 0x00", id="the balancer does not know"),
        pytest.param(header("1.2.3.4", family=0x21), "too short for its addresses", id="IPv6 in the room of IPv4"),
        pytest.param(accept.SIGNATURE + b"\x21\x11\xff\xff", "65551 bytes, more than 2048", id="longer than any"),
    ],
)
def test_invalid_proxy_header_is_named(received: bytes, words: str) -> None:
    with pytest.raises(BadHeader, match=words):
        read(received)


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda more: accept.SIGNATURE + more))
@example(header("203.0.113.7"))
@example(LOCAL)
def test_random_header_is_refused_or_bounded(received: bytes) -> None:
    try:
        found = read(received)
    except BadHeader:
        return
    if found is None:
        assert len(received) < accept.LONGEST
        assert accept.SIGNATURE.startswith(received[:12])
    else:
        assert 16 <= found.size <= min(len(received), accept.LONGEST)
        assert found.source is None or ipaddress.ip_address(found.source)


@given(st.ip_addresses(), st.binary(max_size=300), st.integers(min_value=0, max_value=400))
def test_header_is_the_same_however_it_is_cut(
    source: ipaddress.IPv4Address | ipaddress.IPv6Address, more: bytes, cut: int
) -> None:
    whole = header(str(source), more=more)
    assert read(whole) == read(whole + SSH) == Header(len(whole), str(source))
    assert read(whole[: min(cut, len(whole) - 1)]) is None


@pytest.mark.parametrize(
    ("first", "one"),
    [(header("1.2.3.4"), True), (b"PROXY UNKNOWN\r\n", True), (SSH, False), (b"", False), (b"\r\n", False)],
    ids=["version 2", "version 1", "an SSH client", "nothing", "an empty line"],
)
def test_header_is_distinguished_from_an_ssh_client(first: bytes, one: bool) -> None:
    assert accept.is_one(first) is one
