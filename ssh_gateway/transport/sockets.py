"""Listening sockets, and the options of connected ones."""

from __future__ import annotations

import socket
import struct

BACKLOG = 256
TCP_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
# TCP doubles its time-out (RTO) with each retransmission: this one means that nothing was heard for one minute or two.
LOST_SECONDS = 60.0
# Linux' struct tcp_info: time-out in microseconds, packets without an acknowledgement, milliseconds since the last one.
_TCP_INFO = struct.Struct("=8xI12xI28xI")


def listen(ip: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a listening socket; ``::`` is all of this machine's addresses, of IPv4 as well, or of IPv4 alone where
    its kernel has no IPv6. OSError if it cannot listen.

    Sockets that are ``shared`` may have the same port: the kernel distributes new connections among them.
    """
    family, address = _read(ip, port)
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    if address[0] == "::" and not both:
        family, address = _read("0.0.0.0", port)  # noqa: S104  all that there is
    return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared, dualstack_ipv6=both)


def written(listening: socket.socket) -> tuple[str, int]:
    """Returns address and port; an IPv6 address in brackets."""
    host, port, *_ = listening.getsockname()
    return f"[{host}]" if ":" in host else host, int(port)


def keep_alive(sock: socket.socket | None) -> None:
    """Makes the kernel notice a vanished peer in two minutes instead of two hours, unless it is sent something."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, value in TCP_KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_lost(sock: socket.socket) -> bool:
    """True if the peer has not acknowledged anything for `LOST_SECONDS` although it was sent data.

    TCP_USER_TIMEOUT would also end a peer that answers but does not read, such as a suspended client.
    """
    timeout, unacknowledged, silence = _info(sock)
    return unacknowledged > 0 and min(timeout / 1e6, silence / 1e3) >= LOST_SECONDS


def silence(sock: socket.socket) -> float:
    """Returns the seconds since the peer acknowledged anything."""
    return _info(sock)[2] / 1e3


def _info(sock: socket.socket) -> tuple[int, int, int]:
    found = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return found[0], found[1], found[2]


def _read(ip: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    family, _, _, _, address = socket.getaddrinfo(ip or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, (str(address[0]), int(address[1]))
