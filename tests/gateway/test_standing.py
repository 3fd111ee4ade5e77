"""Who may stay: no I/O."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssh_gateway.access import Badge, Bearer, Proof, everything
from ssh_gateway.standing import BLOCKED, Facts, Held, verdict

KEY = Held(Proof("alice", "publickey", "SHA256:1", everything, registered=True), "train", "j-1")
TOKEN = Held(Proof("alice", "password", "token", everything, token="t"), "train", "j-1")
BADGE = Badge(7, "alice@office", "SHA256:k", "SHA256:c", until=200.0)
CERTIFICATE = Held(Proof("alice", "publickey", "certificate 7", everything, badge=BADGE), "train", "j-1")
OUTER = Held(KEY.proof)
FINE = Facts(jobs=frozenset({"j-1"}), bearers={"t": Bearer("alice", everything)})

ROWS: dict[str, tuple[Held, Facts, str | None]] = {
    "a key of a job that runs": (KEY, FINE, None),
    "a token of a job that runs": (TOKEN, FINE, None),
    "nobody could tell anything": (KEY, Facts(), None),
    "nobody could tell anything of a token": (TOKEN, Facts(), None),
    "somebody else is blocked": (KEY, replace(FINE, blocked=frozenset({"bob"})), None),
    "blocked": (KEY, replace(FINE, blocked=frozenset({"alice"})), BLOCKED),
    "removed from the Hub": (TOKEN, replace(FINE, gone_users=frozenset({"alice"})), "your account was removed"),
    "the key was removed": (
        KEY,
        replace(FINE, gone_keys=frozenset({("alice", "SHA256:1")})),
        "the key that you came in with was removed from your keys",
    ),
    "another key was removed": (KEY, replace(FINE, gone_keys=frozenset({("alice", "SHA256:2")})), None),
    "the same key of somebody else was removed": (KEY, replace(FINE, gone_keys=frozenset({("bob", "SHA256:1")})), None),
    "the token was revoked": (
        TOKEN,
        replace(FINE, bearers={"t": None}),
        "the token that you came in with was revoked, or has expired",
    ),
    "the token is somebody else's now": (
        TOKEN,
        replace(FINE, bearers={"t": Bearer("bob", everything)}),
        "the token that you came in with was revoked, or has expired",
    ),
    "the token opens less than it did": (
        TOKEN,
        replace(FINE, bearers={"t": Bearer("alice", lambda server: server == "eval")}),
        "the token that you came in with may not open train any more",
    ),
    "a certificate in its last moment": (CERTIFICATE, replace(FINE, now=199.9), None),
    "a certificate after its time": (
        CERTIFICATE,
        replace(FINE, now=200.0),
        "the certificate that you came in with has expired: get a new one",
    ),
    "the certificate was revoked": (
        CERTIFICATE,
        replace(FINE, revoked=frozenset({BADGE})),
        "the certificate that you came in with was revoked",
    ),
    "another certificate was revoked": (
        CERTIFICATE,
        replace(FINE, revoked=frozenset({replace(BADGE, serial=8)})),
        None,
    ),
    "a key while a certificate is revoked": (KEY, replace(FINE, revoked=frozenset({BADGE}), now=300.0), None),
    "the job was stopped": (KEY, replace(FINE, jobs=frozenset({"j-2"})), "train was stopped"),
    "the default server was stopped": (
        replace(KEY, server=""),
        replace(FINE, jobs=frozenset()),
        "your default server was stopped",
    ),
    "no job was entered yet": (OUTER, Facts(jobs=frozenset()), None),
}


@pytest.mark.parametrize(("held", "facts", "said"), ROWS.values(), ids=ROWS)
def test_a_connection_goes_on_or_ends_with_a_sentence(held: Held, facts: Facts, said: str | None) -> None:
    assert verdict(held, facts) == said


def test_a_token_is_in_no_text_of_its_proof() -> None:
    assert "secret" not in repr(replace(TOKEN.proof, token="secret"))
