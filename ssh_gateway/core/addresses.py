from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_address(text: str) -> Address | None:
    """Returns an address as a socket reports it, without its zone; an IPv4 address that came over IPv6 becomes IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Returns the networks in the settings; ValueError names the first invalid one."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
