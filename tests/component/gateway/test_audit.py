"""The log of what people do: packets as a table, hostile texts, and OpenSSH's clients with every line they leave."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ssh_gateway.core.proof import TokenOwner, every_server
from tests.component.gateway.peers import PASSWORD, Client, Running, guesses, until, with_token
from tests.component.gateway.test_metrics import value
from tests.unit.gateway.test_audit import LINE

# With OpenSSH's clients


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, str]]]:
    """The lines as they come, each as its fields; every one has to be well-formed."""
    found: list[dict[str, str]] = []

    class Reading(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written = record.getMessage()
            assert LINE.fullmatch(written), written
            pairs = re.findall(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|\S+)', written)
            found.append({name: json.loads(value) if value[0] == '"' else value for name, value in pairs})

    handler = Reading()
    logging.getLogger("ssh_gateway").addHandler(handler)
    yield found
    logging.getLogger("ssh_gateway").removeHandler(handler)


async def closed(logged: list[dict[str, str]], count: int = 1) -> None:
    await until(lambda: sum(one["event"] == "close" for one in logged) == count)


def of(logged: list[dict[str, str]], event: str) -> list[dict[str, str]]:
    """The lines of one kind without what differs from run to run."""
    return [
        {key: value for key, value in one.items() if key not in {"event", "conn"}}
        for one in logged
        if one["event"] == event
    ]


async def test_connection_is_logged_from_its_first_byte_to_its_last(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    done = await alice.ssh("alice+train@gateway", "cat; exit 3", feed=b"typed secret" * 100)
    assert done.status == 3
    await closed(logged)
    assert [one["event"] for one in logged] == ["connect", "auth", "open", "channel", "exec", "exit", "close"]
    assert {one["conn"] for one in logged} == {f"{running.server.name}-1"}
    (connect,), (auth,), (close,) = (of(logged, event) for event in ("connect", "auth", "close"))
    assert connect == {"source": "127.0.0.1"}
    key = running.auth_backend.keys["alice"][0].fingerprint
    assert auth == {"login": "alice+train", "result": "accepted", "user": "alice", "method": "publickey", "key": key}
    assert of(logged, "exec") == [{"channel": "0", "kind": "exec", "program": "cat"}]
    assert of(logged, "exit") == [{"channel": "0", "by": "job", "status": "3"}]
    assert int(close["up"]) >= 1200
    assert int(close["down"]) >= 1200
    assert (close["user"], close["server"]) == ("alice", "train")
    assert "disconnected by user" in close["why"]
    assert "typed secret" not in str(logged)


async def test_refused_job_after_a_successful_login_is_no_failed_login(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    assert "no job trian; yours: train" in (await alice.ssh("alice+trian@gateway", "true")).err
    await closed(logged, 1)
    assert [one["result"] for one in of(logged, "auth")] == ["accepted"]
    assert [one["why"] for one in of(logged, "refused")] == ["no job trian; yours: train"]
    counted = running.server.counters.text().decode()
    assert 'refusals_total{what="session"} 1.0' in counted
    assert 'authentications_total{method="publickey",result="failed"} 0.0' in counted


async def test_credentials_are_logged_without_secrets_and_counted(
    running: Running, mallory: Client, alice: Client, logged: list[dict[str, str]]
) -> None:
    running.auth_backend.tokens["right-secret"] = TokenOwner("alice", every_server)
    await mallory.ssh("alice+train@gateway", "true")
    await guesses(running, 'eve" event=x', most=1)
    for token in ("wrong-secret", "right-secret"):
        await with_token(alice, token, "alice+train", *PASSWORD, "-o", "PubkeyAuthentication=no")
    await closed(logged, 4)
    key = running.auth_backend.keys["mallory"][0].fingerprint
    auth = of(logged, "auth")
    assert auth.pop(1)["login"] == 'eve" event=x'
    assert auth[0] == {"login": "alice+train", "result": "failed", "method": "publickey", "key": key, "attempt": "1"}
    assert auth[1] == {"login": "alice+train", "result": "failed", "method": "password", "attempt": "1"}
    assert auth[-1] == {
        "login": "alice+train", "result": "accepted", "user": "alice", "method": "password", "key": "token",
    }  # fmt: skip
    assert "-secret" not in str(logged)
    judged = [
        value(running, "authentications_total", method=method, result=result)
        for method in ("publickey", "password", "keyboard-interactive")
        for result in ("accepted", "failed")
    ]
    assert judged == [0, 1, 1, 2, 0, 0], "what may come one day is 0 until then"


async def test_connection_on_a_stream_is_logged_with_the_one_it_is_in(
    alice: Client, logged: list[dict[str, str]]
) -> None:
    assert (await alice.ssh("-J", "alice@gateway", "alice@train", "true")).status == 0
    await closed(logged, 2)
    outer, inner = (one for one in logged if one["event"] == "connect")
    assert inner["through"] == outer["conn"]
    assert [one["server"] for one in of(logged, "stream")] == ["train"]


GATEWAY = Path(__file__).parents[3] / "ssh_gateway"


def said_by(source: str) -> Iterator[tuple[str, set[str]]]:
    """The events that a module names, each time with the fields that are written out there."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="say" | "line") | ast.Attribute(attr="note"),
                args=[ast.Constant(value=str(event)), *_],
                keywords=keywords,
            ):
                yield event, {keyword.arg for keyword in keywords if keyword.arg} - {"level", "conn"}
            case ast.Call(func=ast.Name(id="AuditEvent"), args=[ast.Constant(value=str(event)), ast.Dict(keys=keys)]):
                yield event, {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def in_tables(readme: str) -> Mapping[str, str]:
    """What the README's tables of events say of each."""
    log = readme[readme.index("## The log, for audits") :].split("\n## ", maxsplit=1)[0]
    rows = [row.strip("|").split(" | ") for row in log.splitlines() if row.startswith("| `")]
    return {event: " ".join(row[1:]) for row in rows for event in re.findall(r"`([a-z]+)`", row[0])}


def test_readme_has_every_event_with_its_fields() -> None:
    told = in_tables((GATEWAY / "README.md").read_text(encoding="utf-8"))
    said: dict[str, set[str]] = {}
    for module in GATEWAY.rglob("*.py"):
        for event, fields in said_by(module.read_text(encoding="utf-8")):
            said.setdefault(event, set()).update(fields)
    assert told.keys() == said.keys()
    missing = {f"{event} {one}" for event, fields in said.items() for one in fields if f"`{one}`" not in told[event]}
    assert missing == set()
