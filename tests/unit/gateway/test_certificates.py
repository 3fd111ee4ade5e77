"""Decisions about certificates of a site: rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.certificates import UserCertificate, certificate_refusal

GOOD = UserCertificate("alice@office", 7, True, ("alice",), 100.0, 200.0)


THIS = "this certificate"
ROWS: dict[str, tuple[UserCertificate, str, str | None]] = {
    "in its time, for its principal": (GOOD, "alice", None),
    "a principal as people write it": (replace(GOOD, principals=("bob", "Alice")), "alice", None),
    "a principal that is another user": (
        replace(GOOD, principals=("Al",)),
        "al",
        "this certificate is for another login name",
    ),
    "of another user": (GOOD, "bob", "this certificate is for another login name"),
    "of a host": (replace(GOOD, for_users=False), "alice", "this certificate is for a host, not for a person"),
    "too early": (replace(GOOD, valid_after=151.0), "alice", f"{THIS} is not valid before 1970-01-01 00:02 UTC"),
    "in its last moment": (replace(GOOD, valid_before=150.1), "alice", None),
    "too late": (replace(GOOD, valid_before=150.0), "alice", f"{THIS} expired at 1970-01-01 00:02 UTC: get a new one"),
    "for ever": (replace(GOOD, valid_before=2.0**64 - 1), "alice", None),
    "from here": (replace(GOOD, addresses=read_networks(["192.0.2.0/24"])), "alice", None),
    "from elsewhere": (
        replace(GOOD, addresses=read_networks(["198.51.100.0/24", "2001:db8::/32"])),
        "alice",
        "this certificate may not be used from your address",
    ),
}


@pytest.mark.parametrize(("certificate", "user", "said"), ROWS.values(), ids=ROWS)
def test_certificate_is_accepted_or_refused_with_a_sentence(
    certificate: UserCertificate, user: str, said: str | None
) -> None:
    assert certificate_refusal(certificate, user, "192.0.2.1", 150.0, {"Alice"}) == said
    assert certificate_refusal(certificate, user, "::ffff:192.0.2.1", 150.0, {"Alice"}) == said
