from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_address(text: str) -> Address | None:
    """An address as a socket tells it, without a zone; one of IPv4 that came over IPv6 is one of IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks as people write them; ValueError names the one that is none."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
