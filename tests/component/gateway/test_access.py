"""Credentials and counts: no I/O."""

from __future__ import annotations

from ssh_gateway.auth.rate_limit import AuthAttempts, UnauthenticatedLimit
from ssh_gateway.core.proof import RegisteredKey, TokenOwner, every_server, verify_key, verify_token

KEYS = (RegisteredKey(1, b"one", "SHA256:1"), RegisteredKey(2, b"two", "SHA256:2"))


def test_a_registered_key_proves_its_person_and_opens_everything_of_theirs() -> None:
    found = verify_key("alice", b"two", KEYS)
    assert found is not None
    proof, key = found
    assert (proof.user, proof.credential, key.id, proof.opens("anything")) == ("alice", "SHA256:2", 2, True)


def test_a_key_that_is_not_registered_proves_nothing() -> None:
    assert verify_key("alice", b"three", KEYS) is None
    assert verify_key("alice", b"one", ()) is None


def test_a_token_proves_its_owner_and_opens_what_it_may() -> None:
    proof = verify_token("alice", "password", TokenOwner("alice", lambda server: server == "train"))
    assert proof is not None
    assert (proof.opens("train"), proof.opens("eval"), proof.starts("train")) == (True, False, False)
    proof = verify_token(
        "alice", "password", TokenOwner("alice", every_server, starts=lambda server: server == "train")
    )
    assert proof is not None
    assert (proof.starts("train"), proof.starts("eval")) == (True, False)


def test_somebody_elses_token_a_services_token_and_no_token_prove_nothing() -> None:
    assert verify_token("alice", "password", TokenOwner("mallory", lambda _: True)) is None
    assert verify_token("alice", "password", TokenOwner("alice", lambda _: True, person=False)) is None
    assert verify_token("alice", "password", None) is None


def test_the_sixth_failure_is_the_last() -> None:
    attempts = AuthAttempts(6)
    assert [attempts.exhausted() for _ in range(6)] == [False] * 5 + [True]


def test_a_guess_counts_when_it_begins() -> None:
    attempts = AuthAttempts(6)
    assert [attempts.may_guess() for _ in range(7)] == [True] * 6 + [False]


def test_questions_that_would_do_are_not_failures_but_have_an_end() -> None:
    attempts = AuthAttempts(6)
    assert [attempts.may_ask() for _ in range(25)] == [True] * 24 + [False]
    assert attempts.failed == 0


def test_the_door_is_narrow_for_one_address_and_for_all() -> None:
    door = UnauthenticatedLimit(limit=3, limit_per_source=2)
    assert door.enter("a") is None
    assert door.enter("a") is None
    assert "from your address" in str(door.enter("a"))
    assert door.enter("b") is None
    assert "too many logins are going on:" in str(door.enter("c"))
    door.leave("a")
    assert door.enter("c") is None
