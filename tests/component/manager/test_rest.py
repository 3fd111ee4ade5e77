"""The REST resources of SSH keys, through a real Hub's proxy with its real tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.component.manager import described
from tests.component.manager.test_page import make_key
from tests.component.manager.world import World


def ask(world: World, token: str | None, method: str, path: str, **arguments: Any) -> requests.Response:
    headers = {"Authorization": f"token {token}"} if token else {}
    headers.update(arguments.pop("headers", {}))
    answer = requests.request(
        method, world.jobs + path, headers=headers, timeout=30, allow_redirects=False, **arguments
    )
    kind = answer.headers.get("Content-Type", "")
    described.check(method, path[1:], answer.status_code, kind, answer.text)
    return answer


def test_key_is_added_listed_and_removed(world: World, person: str) -> None:
    token, key = world.token(person), make_key("comment")
    added = ask(world, token, "POST", "/api/keys", json={"key": key, "name": "laptop"})
    assert added.status_code == 201
    again = ask(world, token, "POST", "/api/keys", json={"key": key})
    assert (again.status_code, len(again.json()["keys"]), len(again.json()["known"])) == (200, 0, 1)
    assert ask(world, world.token("bob"), "GET", "/api/keys").json() == {"keys": []}
    (listed,) = ask(world, token, "GET", "/api/keys").json()["keys"]
    assert listed == added.json()["keys"][0]
    assert (listed["key"], listed["name"], listed["last_used"]) == (key.rsplit(" ", 1)[0], "laptop", None)
    assert ask(world, token, "DELETE", f"/api/keys/{listed['id']}").status_code == 204
    assert ask(world, token, "GET", "/api/keys").json() == {"keys": []}
    assert ask(world, token, "DELETE", f"/api/keys/{listed['id']}").status_code == 404


def test_gateway_reads_keys_and_reports_their_use(world: World, person: str) -> None:
    token, gateway = world.token(person), world.tokens["gateway"]
    ask(world, token, "POST", "/api/keys", json={"key": make_key()})
    (key,) = ask(world, gateway, "GET", f"/api/users/{person}/keys").json()["keys"]
    assert set(key) == {"id", "key", "fingerprint", "name"}
    assert ask(world, gateway, "POST", f"/api/users/{person}/keys/{key['id']}/used").status_code == 204
    assert ask(world, token, "GET", "/api/keys").json()["keys"][0]["last_used"]
    assert ask(world, gateway, "POST", f"/api/users/somebody-else/keys/{key['id']}/used").status_code == 404
    world.token(f"{person}-2")
    for unknown in (f"{person}-2", "nobody"):
        assert ask(world, gateway, "GET", f"/api/users/{unknown}/keys").json() == {"keys": []}


def test_suggested_keys_are_no_keys_yet(world: World, person: str) -> None:
    body = {
        "keys": [
            {"key": make_key("found"), "source": "~/.ssh/id_ed25519.pub"},
            {"key": "not a key at all", "source": "~/.ssh/notes.pub"},
            {"key": "-----BEGIN OPENSSH PRIVATE KEY-----", "source": "~/.ssh/wrong.pub"},
        ]
    }
    token = world.server_token(person, "train")
    assert ask(world, token, "PUT", "/api/key-suggestions", json=body).status_code == 204
    assert ask(world, world.tokens["gateway"], "GET", f"/api/users/{person}/keys").json() == {"keys": []}


# Other tokens are in test_rest_access.
TOKENS: dict[str, tuple[Callable[[World], str], int]] = {
    "an unknown token": (lambda world: "0123456789abcdef", 401),
    "not even a token": (lambda world: "\xff\xfe", 401),
    "a user's token without access to the service": (lambda world: world.token("alice", ("self",)), 403),
    "another service": (lambda world: world.tokens["other"], 403),
    "a service without access": (lambda world: world.tokens["setup"], 403),
}


@pytest.mark.parametrize(("token", "status"), TOKENS.values(), ids=TOKENS)
def test_token_that_may_do_nothing(world: World, token: Callable[[World], str], status: int) -> None:
    for path in ("/api/keys", "/api/users/alice/keys"):
        assert ask(world, token(world), "GET", path).status_code == status


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "no body": ({"data": b"", "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
    "a form": ({"data": {"key": "x"}}, 415, "application/json"),
    "a list": ({"json": []}, 400, "JSON object"),
    "deep nesting": ({"data": b"[" * 60000, "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
    "not a key": ({"json": {"key": "hello"}}, 422, "not a public key"),
    "a private key": ({"json": {"key": "-----BEGIN OPENSSH PRIVATE KEY-----"}}, 422, "was not stored"),
    "one name for two keys": ({"json": {"key": f"{make_key()}\n{make_key()}", "name": "x"}}, 422, "fits one key"),
    "a body of 100 KiB": ({"json": {"key": "x" * 100_000}}, 413, "longer than 64 KiB"),
}


@pytest.mark.parametrize(("arguments", "status", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_invalid_body_has_a_sentence(world: World, arguments: dict[str, Any], status: int, sentence: str) -> None:
    answer = ask(world, world.token("bob"), "POST", "/api/keys", **arguments)
    assert answer.status_code == status
    if sentence:
        assert answer.headers["Content-Type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert sentence in problem["detail"]


def test_limit_of_keys_is_a_sentence(world: World, person: str) -> None:
    token = world.token(person)
    keys = "\n".join(make_key(f"k{number}") for number in range(51))
    answer = ask(world, token, "POST", "/api/keys", json={"key": keys})
    assert answer.status_code == 409
    assert "at most 50" in answer.json()["detail"]


def test_security_headers(world: World) -> None:
    headers = ask(world, None, "GET", "/api/keys").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
