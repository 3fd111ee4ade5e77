"""The REST resources of SSH keys, through a real Hub's proxy with its real tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.component.manager import described
from tests.component.manager.real_hub import RealHub
from tests.component.manager.test_ssh_keys_page import make_key


def ask(real_hub: RealHub, token: str | None, method: str, path: str, **arguments: Any) -> requests.Response:
    headers = {"Authorization": f"token {token}"} if token else {}
    headers.update(arguments.pop("headers", {}))
    answer = requests.request(
        method, real_hub.jobs + path, headers=headers, timeout=30, allow_redirects=False, **arguments
    )
    kind = answer.headers.get("Content-Type", "")
    described.check(method, path[1:], answer.status_code, kind, answer.text)
    return answer


def test_key_is_added_listed_and_removed(real_hub: RealHub, person: str) -> None:
    token, key = real_hub.token(person), make_key("comment")
    added = ask(real_hub, token, "POST", "/api/keys", json={"key": key, "name": "laptop"})
    assert added.status_code == 201
    again = ask(real_hub, token, "POST", "/api/keys", json={"key": key})
    assert (again.status_code, len(again.json()["keys"]), len(again.json()["known"])) == (200, 0, 1)
    assert ask(real_hub, real_hub.token("bob"), "GET", "/api/keys").json() == {"keys": []}
    (listed,) = ask(real_hub, token, "GET", "/api/keys").json()["keys"]
    assert listed == added.json()["keys"][0]
    assert (listed["key"], listed["name"], listed["last_used"]) == (key.rsplit(" ", 1)[0], "laptop", None)
    assert ask(real_hub, token, "DELETE", f"/api/keys/{listed['id']}").status_code == 204
    assert ask(real_hub, token, "GET", "/api/keys").json() == {"keys": []}
    assert ask(real_hub, token, "DELETE", f"/api/keys/{listed['id']}").status_code == 404


def test_gateway_reads_keys_and_reports_their_use(real_hub: RealHub, person: str) -> None:
    token, gateway = real_hub.token(person), real_hub.tokens["gateway"]
    ask(real_hub, token, "POST", "/api/keys", json={"key": make_key()})
    (key,) = ask(real_hub, gateway, "GET", f"/api/users/{person}/keys").json()["keys"]
    assert set(key) == {"id", "key", "fingerprint", "name"}
    assert ask(real_hub, gateway, "POST", f"/api/users/{person}/keys/{key['id']}/used").status_code == 204
    assert ask(real_hub, token, "GET", "/api/keys").json()["keys"][0]["last_used"]
    assert ask(real_hub, gateway, "POST", f"/api/users/somebody-else/keys/{key['id']}/used").status_code == 404
    real_hub.token(f"{person}-2")
    for unknown in (f"{person}-2", "nobody"):
        assert ask(real_hub, gateway, "GET", f"/api/users/{unknown}/keys").json() == {"keys": []}


def test_suggested_keys_are_no_keys_yet(real_hub: RealHub, person: str) -> None:
    body = {
        "keys": [
            {"key": make_key("found"), "source": "~/.ssh/id_ed25519.pub"},
            {"key": "not a key at all", "source": "~/.ssh/notes.pub"},
            {"key": "-----BEGIN OPENSSH PRIVATE KEY-----", "source": "~/.ssh/wrong.pub"},
        ]
    }
    token = real_hub.server_token(person, "train")
    assert ask(real_hub, token, "PUT", "/api/key-suggestions", json=body).status_code == 204
    assert ask(real_hub, real_hub.tokens["gateway"], "GET", f"/api/users/{person}/keys").json() == {"keys": []}


# Other tokens are in test_rest_access.
TOKENS: dict[str, tuple[Callable[[RealHub], str], int]] = {
    "an unknown token": (lambda real_hub: "0123456789abcdef", 401),
    "not even a token": (lambda real_hub: "\xff\xfe", 401),
    "a user's token without access to the service": (lambda real_hub: real_hub.token("alice", ("self",)), 403),
    "another service": (lambda real_hub: real_hub.tokens["other"], 403),
    "a service without access": (lambda real_hub: real_hub.tokens["setup"], 403),
}


@pytest.mark.parametrize(("token", "status"), TOKENS.values(), ids=TOKENS)
def test_token_that_may_do_nothing(real_hub: RealHub, token: Callable[[RealHub], str], status: int) -> None:
    for path in ("/api/keys", "/api/users/alice/keys"):
        assert ask(real_hub, token(real_hub), "GET", path).status_code == status


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
def test_invalid_body_has_a_sentence(real_hub: RealHub, arguments: dict[str, Any], status: int, sentence: str) -> None:
    answer = ask(real_hub, real_hub.token("bob"), "POST", "/api/keys", **arguments)
    assert answer.status_code == status
    if sentence:
        assert answer.headers["Content-Type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert sentence in problem["detail"]


def test_limit_of_keys_is_a_sentence(real_hub: RealHub, person: str) -> None:
    token = real_hub.token(person)
    keys = "\n".join(make_key(f"k{number}") for number in range(51))
    answer = ask(real_hub, token, "POST", "/api/keys", json={"key": keys})
    assert answer.status_code == 409
    assert "at most 50" in answer.json()["detail"]


def test_security_headers(real_hub: RealHub) -> None:
    headers = ask(real_hub, None, "GET", "/api/keys").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
