"""The log of what people do: packets as a table, hostile texts, and OpenSSH's clients with every line they leave."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway import log as core_log
from ssh_gateway.core import packets
from ssh_gateway.core.packets import text
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.log import line
from ssh_gateway.session.audit import AuditEvent, read_audit_event
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.login import TOO_MANY
from ssh_gateway.session.shutdown import STOPPING
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, finish, gateway, until
from tests.component.gateway.test_gate import guesses
from tests.component.gateway.test_login import PASSWORD, with_token
from tests.component.gateway.test_notices import seen
from tests.component.gateway.test_proxy import number
from tests.harness.ports import free_port

LINE = re.compile(r'event=[a-z-]+( [a-z_]+=([A-Za-z0-9_.@+:/,\[\]-]+|"([^"\\\x00-\x1f\x7f-\U0010ffff]|\\.)*"))*')


def opening(kind: bytes, rest: bytes = b"") -> bytes:
    return bytes([packets.CHANNEL_OPEN]) + text(kind) + number(0) + number(2**20) + number(2**15) + rest


def request(kind: bytes, rest: bytes = b"") -> bytes:
    return bytes([packets.CHANNEL_REQUEST]) + number(0) + text(kind) + b"\1" + rest


def wish(kind: bytes, rest: bytes = b"") -> bytes:
    return bytes([packets.GLOBAL_REQUEST]) + text(kind) + b"\1" + rest


STREAM = text(b"db.example") + number(5432) + text(b"127.0.0.1") + number(40000)


@pytest.mark.parametrize(
    ("payload", "event"),
    [
        pytest.param(opening(b"session"), AuditEvent("channel", {"kind": "session"}), id="a session"),
        pytest.param(
            opening(b"direct-tcpip", STREAM),
            AuditEvent("forward", {"kind": "direct-tcpip", "to": "db.example:5432"}),
            id="-L",
        ),
        pytest.param(
            opening(b"direct-streamlocal@openssh.com", text(b"/run/x") + text(b"") + number(0)),
            AuditEvent("forward", {"kind": "direct-streamlocal@openssh.com", "to": "/run/x"}),
            id="-L to a socket",
        ),
        pytest.param(
            wish(b"tcpip-forward", text(b"localhost") + number(0)),
            AuditEvent("listen", {"kind": "tcpip-forward", "at": "localhost:0"}),
            id="-R",
        ),
        pytest.param(
            wish(b"streamlocal-forward@openssh.com", text(b"/run/y")),
            AuditEvent("listen", {"kind": "streamlocal-forward@openssh.com", "at": "/run/y"}),
            id="-R of a socket",
        ),
        pytest.param(request(b"shell"), AuditEvent("exec", {"kind": "shell"}), id="a shell"),
        pytest.param(
            request(b"subsystem", text(b"sftp")),
            AuditEvent("exec", {"kind": "subsystem", "program": "sftp"}),
            id="sftp",
        ),
        pytest.param(
            request(b"exec", text(b"mysql -psecret x")),
            AuditEvent("exec", {"kind": "exec", "program": "mysql"}),
            id="a command",
        ),
        pytest.param(
            request(b"exec", text(b"KEY=secret cmd")), AuditEvent("exec", {"kind": "exec"}), id="begins with a secret"
        ),
        pytest.param(request(b"exec", text(b"")), AuditEvent("exec", {"kind": "exec"}), id="an empty command"),
        pytest.param(
            request(b"auth-agent-req@openssh.com"),
            AuditEvent("request", {"kind": "auth-agent-req@openssh.com"}),
            id="-A",
        ),
        pytest.param(
            request(b"agent-req"), AuditEvent("request", {"kind": "agent-req"}), id="-A, as RFC 9987 calls it"
        ),
        pytest.param(request(b"env", text(b"TOKEN") + text(b"secret")), None, id="the environment"),
        pytest.param(request(b"signal", text(b"INT")), None, id="a signal"),
        pytest.param(wish(b"keepalive@openssh.com"), None, id="a keepalive"),
    ],
)
def test_what_a_client_asks_for(payload: bytes, event: AuditEvent | None) -> None:
    assert read_audit_event(payload, by_client=True) == event


@pytest.mark.parametrize(
    ("payload", "event"),
    [
        pytest.param(request(b"exit-status", number(3)), AuditEvent("exit", {"status": 3}), id="a status"),
        pytest.param(
            request(b"exit-signal", text(b"KILL") + b"\0" + text(b"") + text(b"")),
            AuditEvent("exit", {"signal": "KILL"}),
            id="killed",
        ),
        pytest.param(
            opening(b"forwarded-tcpip", STREAM),
            AuditEvent("forward", {"kind": "forwarded-tcpip", "to": "db.example:5432"}),
            id="somebody came in by -R",
        ),
        pytest.param(
            opening(b"x11", text(b"::1") + number(6010)), AuditEvent("channel", {"kind": "x11"}), id="a window"
        ),
        pytest.param(opening(b"agent-connect"), AuditEvent("channel", {"kind": "agent-connect"}), id="an agent's use"),
        pytest.param(request(b"shell"), None, id="what only clients ask for"),
        pytest.param(wish(b"hostkeys-00@openssh.com"), None, id="host keys"),
    ],
)
def test_what_a_job_says(payload: bytes, event: AuditEvent | None) -> None:
    assert read_audit_event(payload, by_client=False) == event


def test_commands_are_whole_where_they_are_wanted() -> None:
    found = read_audit_event(request(b"exec", text(b"mysql -psecret x")), by_client=True, commands=True)
    assert found == AuditEvent("exec", {"kind": "exec", "command": "mysql -psecret x"})


HOSTILE = [
    pytest.param(b"x\n2026-01-01T00:00:00.000Z INFO event=auth result=accepted user=root", id="a line of its own"),
    pytest.param(b"x\r\x1b[2K\x1b[31mred\x07\x9b0m", id="a terminal's commands"),
    pytest.param(b'x" result=accepted user="root', id="the end of a quotation"),
    pytest.param(b"x\\", id="a backslash at the end"),
    pytest.param("\u202egnp.exe \u2066 \u0430lice \U0001f4a3".encode(), id="look-alikes and right to left"),
    pytest.param(b"\xff\xfe\x00\x80", id="no UTF-8"),
    pytest.param(b"A" * 65536, id="64 KiB"),
    pytest.param(b"", id="nothing"),
]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("by_client", [True, False], ids=["from the client", "from the job"])
def test_a_hostile_text_is_one_short_line_of_ascii(hostile: bytes, by_client: bool) -> None:
    address = text(hostile) + number(1) + text(hostile) + number(2)
    for payload in (
        opening(hostile),
        opening(b"direct-tcpip", address),
        opening(b"forwarded-streamlocal@openssh.com", text(hostile)),
        request(b"exec", text(hostile)),
        request(b"subsystem", text(hostile)),
        request(b"exit-signal", text(hostile)),
        wish(b"tcpip-forward", text(hostile) + number(1)),
    ):
        event = read_audit_event(payload, by_client=by_client, commands=True)
        if event is not None:
            written = line(event.name, **event.fields)
            assert LINE.fullmatch(written), written
            assert len(written) < 1500


@given(st.sampled_from([80, 90, 98]), st.binary(max_size=60), st.booleans())
def test_nonsense_says_something_or_nothing(kind: int, rest: bytes, by_client: bool) -> None:
    event = read_audit_event(bytes([kind]) + rest, by_client=by_client, commands=True)
    assert event is None or LINE.fullmatch(line(event.name, **event.fields))


def test_nobody_fills_the_disk() -> None:
    budget = core_log.LogBudget(at=100.0)
    assert sum(budget.take(100.0) for _ in range(10_000)) == core_log.BURST
    assert budget.suppressed == 10_000 - core_log.BURST
    assert sum(budget.take(101.0) for _ in range(10_000)) == core_log.PER_SECOND
    assert sum(budget.take(1e9) for _ in range(10_000)) == core_log.BURST, "no more than that is saved up"


# With OpenSSH's clients


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, str]]]:
    """The lines as they come, each as its fields; every one has to be well-formed."""
    caplog.set_level(logging.INFO, "ssh_gateway")
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


async def test_one_connection_from_its_first_byte_to_its_last(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    done = await alice.ssh("alice+train@gateway", "cat; exit 3", feed=b"typed secret" * 100)
    assert done.status == 3
    await closed(logged)
    assert [one["event"] for one in logged] == ["connect", "auth", "open", "channel", "exec", "exit", "close"]
    assert {one["conn"] for one in logged} == {f"{running.server.name}-1"}
    (connect,), (auth,), (close,) = (of(logged, event) for event in ("connect", "auth", "close"))
    assert connect == {"source": "127.0.0.1"}
    key = running.people.keys["alice"][0].fingerprint
    assert auth == {"login": "alice+train", "result": "accepted", "user": "alice", "method": "publickey", "key": key}
    assert of(logged, "exec") == [{"channel": "0", "kind": "exec", "program": "cat"}]
    assert of(logged, "exit") == [{"channel": "0", "by": "job", "status": "3"}]
    assert int(close["up"]) >= 1200
    assert int(close["down"]) >= 1200
    assert (close["user"], close["server"]) == ("alice", "train")
    assert "disconnected by user" in close["why"]
    assert "typed secret" not in str(logged)


async def test_who_is_proven_and_cannot_have_what_they_want_has_not_failed(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    assert "no job trian; yours: train" in (await alice.ssh("alice+trian@gateway", "true")).err
    await closed(logged, 1)
    assert [one["result"] for one in of(logged, "auth")] == ["accepted"]
    assert [one["why"] for one in of(logged, "refused")] == ["no job trian; yours: train"]
    counted = running.server.counters.text().decode()
    assert 'authentications_total{method="publickey",result="failed"} 0.0' in counted


async def test_a_failed_key_and_a_token_that_is_no_line_of_the_log(
    running: Running, mallory: Client, alice: Client, logged: list[dict[str, str]]
) -> None:
    running.people.tokens["right-secret"] = TokenOwner("alice", every_server)
    await mallory.ssh("alice+train@gateway", "true")
    for token in ("wrong-secret", "right-secret"):
        await with_token(alice, token, "alice+train", *PASSWORD, "-o", "PubkeyAuthentication=no")
    await closed(logged, 3)
    key = running.people.keys["mallory"][0].fingerprint
    auth = of(logged, "auth")
    assert auth[0] == {"login": "alice+train", "result": "failed", "method": "publickey", "key": key, "attempt": "1"}
    assert auth[1] == {"login": "alice+train", "result": "failed", "method": "password", "attempt": "1"}
    assert auth[-1] == {
        "login": "alice+train", "result": "accepted", "user": "alice", "method": "password", "key": "token",
    }  # fmt: skip
    assert "-secret" not in str(logged)


async def test_who_is_too_late_leaves_the_sentence_that_the_client_reads(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, logged: list[dict[str, str]]
) -> None:
    async with gateway(keys, people, places, limits=GatewayLimits(login_seconds=0.3, drain_seconds=0.0)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await closed(logged)
    (close,) = of(logged, "close")
    assert close["why"] == "no login within 0.3 seconds"


async def test_who_guesses_too_often_leaves_the_sentence_that_the_client_reads(
    running: Running, logged: list[dict[str, str]]
) -> None:
    said = await guesses(running, "alice+train")
    await closed(logged)
    (close,) = of(logged, "close")
    assert close["why"] == TOO_MANY
    assert TOO_MANY in said


async def test_a_stop_and_the_end_of_access_are_reasons_at_the_close(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    stopped, barred = [await alice.start("ssh", "alice+train@gateway", "echo ready; sleep 60") for _ in range(2)]
    await asyncio.gather(seen(stopped, b"ready"), seen(barred, b"ready"))
    one, _ = running.server.connections
    assert one.session is not None
    one.session.end("your access has ended")
    await closed(logged)
    await running.server.stop()
    await closed(logged, 2)
    assert [one["why"] for one in of(logged, "close")] == ["your access has ended", STOPPING]
    await asyncio.gather(finish(stopped), finish(barred))


async def test_a_job_whose_connection_is_lost_is_a_reason_at_the_close(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    process = await alice.start("ssh", "alice+train@gateway", "echo ready; sleep 60")
    await seen(process, b"ready")
    (pod,) = running.server.upstreams
    pod.drop()
    await finish(process)
    await closed(logged)
    assert of(logged, "close")[0]["why"] == "the connection to your job was lost"


async def test_forwards_files_and_jumps(
    running: Running, alice: Client, logged: list[dict[str, str]], tmp_path: Path
) -> None:
    local, remote = free_port(), free_port()
    forwards = (
        "-L",
        f"{local}:localhost:{remote}",
        "-R",
        f"{remote}:localhost:1",
        "-R",
        f"{tmp_path}/there:localhost:1",
    )
    process = await alice.start("ssh", "-v", *forwards, "-tt", "alice+train@gateway", "echo ready; read x")
    await seen(process, b"ready")
    await until(lambda: len(of(logged, "listen")) == 2)
    assert {one["at"] for one in of(logged, "listen")} == {f"localhost:{remote}", f"{tmp_path}/there"}
    await finish(process, b"x\n")
    assert (await alice.run("sftp", "-b", "-", "alice+train@gateway", feed=b"pwd\n")).status == 0
    assert {"channel": "0", "kind": "subsystem", "program": "sftp"} in of(logged, "exec")
    done = await alice.ssh("-W", "127.0.0.1:1", "alice+train@gateway")
    assert done.status != 0
    assert of(logged, "forward")[-1] == {"channel": "0", "kind": "direct-tcpip", "to": "127.0.0.1:1"}
    await closed(logged, 3)
    before = len(logged)
    assert (await alice.ssh("-J", "alice@gateway", "alice@train", "true")).status == 0
    await until(lambda: sum(one["event"] == "close" for one in logged[before:]) == 2)
    outer, inner = (one for one in logged[before:] if one["event"] == "connect")
    assert inner["through"] == outer["conn"]
    assert [one["server"] for one in logged[before:] if one["event"] == "stream"] == ["train"]


async def test_a_hostile_command_and_a_hostile_login_leave_lines_that_are_whole(
    running: Running, alice: Client, logged: list[dict[str, str]]
) -> None:
    running.server.log_commands = True
    command = "echo \x1b[31m '\n' event=auth result=accepted \u202e"
    await alice.ssh("alice+train@gateway", command)
    await guesses(running, 'eve" event=x')
    await closed(logged, 2)
    assert [one["command"] for one in of(logged, "exec")] == [command]
    assert {one["login"] for one in of(logged, "auth")} == {"alice+train", 'eve" event=x'}


async def test_a_client_that_asks_without_end_is_cut_short_in_the_log_only(
    running: Running, alice: Client, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_log.LogBudget, "take", _only(2))
    done = await alice.ssh("alice+train@gateway", "echo in; exit 4")
    assert (done.text, done.status) == ("in\n", 4)
    await closed(logged)
    assert [one["event"] for one in logged] == ["connect", "auth", "open", "channel", "exec", "close"]
    assert of(logged, "close")[0]["unlogged"] == "1"


def _only(lines: int) -> object:
    def take(budget: core_log.LogBudget, _now: float) -> bool:
        budget.left = min(budget.left, lines) - 1
        budget.suppressed += budget.left < 0
        return budget.left >= 0

    return take


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


def test_every_event_is_in_the_readme_with_its_fields() -> None:
    told = in_tables((GATEWAY / "README.md").read_text(encoding="utf-8"))
    said: dict[str, set[str]] = {}
    for module in GATEWAY.rglob("*.py"):
        for event, fields in said_by(module.read_text(encoding="utf-8")):
            said.setdefault(event, set()).update(fields)
    assert told.keys() == said.keys()
    missing = {f"{event} {one}" for event, fields in said.items() for one in fields if f"`{one}`" not in told[event]}
    assert missing == set()
