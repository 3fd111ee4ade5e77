"""Where messages outside the pages may go: the section ``notifications`` of ``cluster.yaml``. PURE.

The Manager sends to addresses that people type, so it sends nowhere that an administrator has not named.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,188}[A-Za-z0-9])?")
_PORTS = {"https": 443, "http": 80}


class MailSecurity(Enum):
    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MailServer:
    """``user``: whose password the Manager has in its environment; empty: no login."""

    host: str
    sender: str
    port: int = 587
    security: MailSecurity = MailSecurity.STARTTLS
    user: str = ""


@dataclass(frozen=True, slots=True)
class Notifications:
    """``hosts``: reached by https, at addresses of the internet; ``private_hosts``: anywhere, also by http.

    A pattern is a host, ``*.`` and a domain, or ``*``, with a port where it is not the scheme's. ``mail_domains``: of
    addresses that people may type; the address from the authenticator needs none.
    """

    mail: MailServer | None = None
    mail_domains: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()

    @property
    def takes_urls(self) -> bool:
        return bool(self.hosts or self.private_hosts)

    def may_be_private(self, url: str) -> bool:
        """True if this address may be inside the organisation's network."""
        return _matches(url, self.private_hosts)

    def url_problem(self, url: str) -> str | None:
        """Returns why nothing is sent to this address; ``None`` if it is allowed."""
        try:
            parts, port = urlsplit(url), urlsplit(url).port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in _PORTS or not parts.hostname or not url.isprintable() or " " in url or port == 0:
            return "An address begins with https://, followed by a host."
        if parts.username is not None or parts.password is not None:
            return "An address has no user name and password in it."
        if self.may_be_private(url):
            return None
        if not _matches(url, self.hosts):
            allowed = ", ".join((*self.hosts, *self.private_hosts))
            return f"{parts.netloc} is not among the hosts that the administrators allow: {allowed or 'none'}."
        if parts.scheme != "https":
            return f"{parts.netloc} needs https."
        return None if is_public(parts.hostname) else f"{parts.hostname} is an address of a private network."

    def mail_problem(self, address: str, told: str) -> str | None:
        """Returns why this address gets no mail; ``told``: the one that the authenticator knows."""
        if _MAIL.fullmatch(address) is None:
            return "This is no e-mail address."
        if address == told or address.rpartition("@")[2].lower() in self.mail_domains:
            return None
        domains = ", ".join(f"@{one}" for one in self.mail_domains)
        mine = (
            f"the address of your login, {told}" if told else "the address of your login, known after your next start"
        )
        return f"Mail goes to {' or '.join(filter(None, (mine, domains)))}."


def is_public(host: str) -> bool:
    """False for an address of a private network; names are for the resolver to judge."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_global and not address.is_multicast


def _matches(url: str, patterns: Iterable[str]) -> bool:
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    for pattern in patterns:
        name, _, wanted = pattern.partition(":")
        fits = name in {"*", host} or (name.startswith("*.") and host.endswith(name[1:]))
        if fits and port == (int(wanted) if wanted else _PORTS.get(parts.scheme)):
            return True
    return False
