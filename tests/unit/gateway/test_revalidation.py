"""Access of open sessions: rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssh_gateway.auth.revalidation import BLOCKED, Checks, evaluate_access
from ssh_gateway.core.proof import CertificateId, Identity, OpenSession, TokenOwner, every_server

KEY = OpenSession(Identity("alice", "publickey", "SHA256:1", every_server, registered=True), "train", "j-1")
TOKEN = OpenSession(Identity("alice", "password", "token", every_server, token="t"), "train", "j-1")
CERTIFICATE_ID = CertificateId(7, "alice@office", "SHA256:k", "SHA256:c", until=200.0)
CERTIFICATE = OpenSession(
    Identity("alice", "publickey", "certificate 7", every_server, certificate=CERTIFICATE_ID), "train", "j-1"
)
OUTER = OpenSession(KEY.proof)
FINE = Checks(jobs=frozenset({"j-1"}), bearers={"t": TokenOwner("alice", every_server)})

BOB = frozenset({("bob", "SHA256:1")})
TOKEN_GONE = "the token that you came in with was revoked, or has expired"
OF_CERTIFICATE = "the certificate that you came in with"


def bearing(owner: TokenOwner | None) -> Checks:
    return replace(FINE, bearers={"t": owner})


ROWS: dict[str, tuple[OpenSession, Checks, str | None]] = {
    "a key of a job that runs": (KEY, FINE, None),
    "a token of a job that runs": (TOKEN, FINE, None),
    "nothing could be checked": (KEY, Checks(), None),
    "blocked": (KEY, replace(FINE, blocked=frozenset({"alice"})), BLOCKED),
    "removed from the Hub": (TOKEN, replace(FINE, gone_users=frozenset({"alice"})), "your account was removed"),
    "the key was removed": (
        KEY,
        replace(FINE, gone_keys=frozenset({("alice", "SHA256:1")})),
        "the key that you came in with was removed from your keys",
    ),
    "the same key of another user was removed": (KEY, replace(FINE, gone_keys=BOB), None),
    "the token was revoked": (TOKEN, bearing(None), TOKEN_GONE),
    "the token belongs to another user now": (TOKEN, bearing(TokenOwner("bob", every_server)), TOKEN_GONE),
    "the token opens less than it did": (
        TOKEN,
        bearing(TokenOwner("alice", lambda server: server == "eval")),
        "the token that you came in with may not open train any more",
    ),
    "a certificate in its last moment": (CERTIFICATE, replace(FINE, now=199.9), None),
    "a certificate after its time": (
        CERTIFICATE,
        replace(FINE, now=200.0),
        f"{OF_CERTIFICATE} has expired: get a new one",
    ),
    "the certificate was revoked": (
        CERTIFICATE,
        replace(FINE, revoked=frozenset({CERTIFICATE_ID})),
        f"{OF_CERTIFICATE} was revoked",
    ),
    "a key while a certificate is revoked": (KEY, replace(FINE, revoked=frozenset({CERTIFICATE_ID}), now=300.0), None),
    "the job was stopped": (KEY, replace(FINE, jobs=frozenset({"j-2"})), "train was stopped"),
    "the Manager says why it was stopped": (
        KEY,
        Checks(jobs=frozenset(), reasons={"j-1": "It was idle."}),
        "train: It was idle.",
    ),
    "the default server was stopped": (
        replace(KEY, server=""),
        replace(FINE, jobs=frozenset()),
        "your default server was stopped",
    ),
    "no job was entered yet": (OUTER, Checks(jobs=frozenset()), None),
}


@pytest.mark.parametrize(("held", "facts", "said"), ROWS.values(), ids=ROWS)
def test_access_continues_or_ends_with_a_sentence(held: OpenSession, facts: Checks, said: str | None) -> None:
    assert evaluate_access(held, facts) == said


def test_repr_of_an_identity_hides_the_token() -> None:
    assert "secret" not in repr(replace(TOKEN.proof, token="secret"))
