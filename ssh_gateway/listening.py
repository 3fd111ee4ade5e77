"""The sockets to listen on."""

from __future__ import annotations

import socket

BACKLOG = 256


def listen(ip: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; ``::`` is all of this machine's addresses, of IPv4 as well. OSError when it cannot be had.

    Sockets that are ``shared`` may have the same port: the kernel deals new connections out among them.
    """
    found = socket.getaddrinfo(ip or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=BACKLOG, reuse_port=shared, dualstack_ipv6=both)


def written(listening: socket.socket) -> tuple[str, int]:
    """Address and port as they are written with a colon between them."""
    host, port, *_ = listening.getsockname()
    return f"[{host}]" if ":" in host else host, int(port)
