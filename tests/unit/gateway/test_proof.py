"""Credentials and their proofs."""

from __future__ import annotations

from ssh_gateway.core.proof import RegisteredKey, TokenOwner, every_server, verify_key, verify_token

KEYS = (RegisteredKey(1, b"one", "SHA256:1"), RegisteredKey(2, b"two", "SHA256:2"))


def test_registered_key_proves_its_user_and_opens_every_server() -> None:
    found = verify_key("alice", b"two", KEYS)
    proof, key = found
    assert (proof.user, proof.credential, key.id, proof.opens("anything")) == ("alice", "SHA256:2", 2, True)


def test_unregistered_key_proves_nothing() -> None:
    assert verify_key("alice", b"three", KEYS) is None
    assert verify_key("alice", b"one", ()) is None


def test_token_proves_its_owner_and_opens_its_servers() -> None:
    proof = verify_token("alice", "password", TokenOwner("alice", lambda server: server == "train"))
    assert (proof.opens("train"), proof.opens("eval"), proof.starts("train")) == (True, False, False)
    proof = verify_token(
        "alice", "password", TokenOwner("alice", every_server, starts=lambda server: server == "train")
    )
    assert (proof.starts("train"), proof.starts("eval")) == (True, False)


def test_token_of_another_user_or_a_service_proves_nothing() -> None:
    assert verify_token("alice", "password", TokenOwner("mallory", lambda _: True)) is None
    assert verify_token("alice", "password", TokenOwner("alice", lambda _: True, person=False)) is None
    assert verify_token("alice", "password", None) is None
