"""The sockets to listen on."""

from __future__ import annotations

import socket

BACKLOG = 256


def listen(ip: str, port: int) -> socket.socket:
    """A listening socket; ``::`` is all of this machine's addresses, of IPv4 as well. OSError when it cannot be had."""
    found = socket.getaddrinfo(ip or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=both)


def written(listening: socket.socket) -> tuple[str, int]:
    """Address and port as they are written with a colon between them."""
    host, port, *_ = listening.getsockname()
    return f"[{host}]" if ":" in host else host, int(port)
