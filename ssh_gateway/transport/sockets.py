"""Listening sockets, and the options of connected ones."""

from __future__ import annotations

import socket

BACKLOG = 256
TCP_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 6))


def listen(ip: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a listening socket; ``::`` is all of this machine's addresses, of IPv4 as well. OSError if it cannot
    listen.

    Sockets that are ``shared`` may have the same port: the kernel distributes new connections among them.
    """
    family, address = _read(ip, port)
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared, dualstack_ipv6=both)


def written(listening: socket.socket) -> tuple[str, int]:
    """Returns address and port; an IPv6 address in brackets."""
    host, port, *_ = listening.getsockname()
    return f"[{host}]" if ":" in host else host, int(port)


def keep_alive(sock: socket.socket | None) -> None:
    """Makes the kernel notice a vanished peer in three minutes instead of two hours."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, value in TCP_KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read(ip: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    family, _, _, _, address = socket.getaddrinfo(ip or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, (str(address[0]), int(address[1]))
