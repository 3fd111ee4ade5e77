"""The gateway's metrics: what they count, and that a real Prometheus reads them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from pathlib import Path

import aiohttp
import pytest

from ssh_gateway import metrics
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.metrics import GatewayMetrics, GatewayState, serve_health
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import PASSWORD, Client, Lab, Running, finish, guesses, knock, until, with_token
from tests.component.manager.metrics import program
from tests.harness.ports import free_port

MIB = 2**20


def value(running: Running, name: str, **labels: str) -> float | None:
    found: float | None = running.server.counters.registry.get_sample_value(f"dlspawner_gateway_{name}", labels)
    return found


async def test_connections_sessions_and_bytes_are_counted(running: Running, alice: Client) -> None:
    process = await alice.start("ssh", "alice+train@gateway", "head -c 1048576 /dev/zero; read x; echo $x")
    await asyncio.wait_for(process.stdout.readexactly(MIB), 30)
    assert value(running, "sessions") == 1
    assert value(running, "open_connections", state="authenticated") == 1
    assert value(running, "open_connections", state="unauthenticated") == 0
    open_down = value(running, "bytes_total", direction="down")
    assert open_down >= MIB
    await finish(process, b"x" * 1000 + b"\n")
    await until(lambda: value(running, "sessions") == 0)
    assert value(running, "open_connections", state="authenticated") == 0
    down, up = (value(running, "bytes_total", direction=direction) for direction in ("down", "up"))
    assert down >= open_down + 1001, "what is over stays counted"
    assert 1001 <= up < 10_000
    assert value(running, "connections_total") == 1


async def test_authentications_are_counted_by_method_and_result(
    running: Running, alice: Client, mallory: Client, keys: GatewayKeys, tmp_path: Path
) -> None:
    running.people.tokens["right"] = TokenOwner("alice", every_server)
    assert (await alice.ssh("alice+train@gateway", "true")).status == 0
    assert (await mallory.ssh("alice+train@gateway", "true")).status == 255
    await guesses(running, "alice+train")
    by_token = Client(tmp_path / "token", running.port, None, keys.host)
    status, _, err = await with_token(by_token, "right", "alice+train", *PASSWORD)
    assert status == 0, err

    def judged(method: str, result: str) -> float | None:
        return value(running, "authentications_total", method=method, result=result)

    assert judged("publickey", "accepted") == 1
    assert judged("publickey", "failed") == 1
    assert judged("password", "accepted") == 1
    assert judged("password", "failed") == 6
    assert judged("keyboard-interactive", "failed") == 0, "what may come one day is 0 until then"


async def test_refusals_and_penalties_are_counted(lab: Lab) -> None:
    # Time pays nothing meanwhile, however slow this machine is.
    limits = GatewayLimits(failure_seconds=0.0, drain_seconds=0.0, rules=PenaltyRules(penalty_seconds=600.0))
    async with lab.gateway(limits=limits) as running:
        for name in ("alice+train", "bob+train"):
            await guesses(running, name)
        assert value(running, "penalised", kind="address") == 1
        assert value(running, "penalised", kind="name") == 2
        await guesses(running, "carol+train")
        before = value(running, "refusals_total", what="connection") or 0
        for _ in range(3):
            assert b"too many failed logins" in await knock(running.port)
        assert value(running, "refusals_total", what="connection") == before + 3


def test_promtool_accepts_the_metrics() -> None:
    text = GatewayMetrics(
        lambda: GatewayState(unauthenticated=1, authenticated=2, sessions=1, up=3, down=4, stopping=True)
    ).text()
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_readme_has_every_metric() -> None:
    readme = (Path(__file__).parents[3] / "ssh_gateway" / "README.md").read_text(encoding="utf-8")
    text = GatewayMetrics().text().decode()
    names = set(re.findall(r"^# TYPE (dlspawner_\w+) ", text, re.M))
    names -= {name for name in names if name.endswith("_created")}
    assert names
    assert {name for name in names if f"`{name}`" not in readme} == set()


async def test_health_port_serves_health_readiness_and_metrics(running: Running) -> None:
    ready, port = [True], free_port()
    server = serve_health("127.0.0.1", port, lambda: ready[0], running.server.counters.text)

    async def get(path: str, method: str = "GET") -> tuple[int, str]:
        async with session.request(method, f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async with aiohttp.ClientSession() as session:
        assert await get("/healthz") == (200, "ok\n")
        assert "dlspawner_gateway_sessions 0.0\n" in (await get("/metrics"))[1]
        assert (await get("/ready"))[0] == 200
        ready[0] = False
        paths = ("/ready", "/ready?x=1", "/readyness", "/")
        assert [(await get(path))[0] for path in paths] == [503, 503, 200, 200]
        assert [(await get("/", method))[0] for method in ("HEAD", "POST")] == [200, 200]
    server.stop()


@pytest.mark.parametrize("method", ["none", "gssapi-with-mic" * 1000])
def test_labels_do_not_grow_with_the_input_of_clients(method: str) -> None:
    meters = GatewayMetrics()
    before = meters.text().count(b"\n")
    meters.judged(method, proven=False)
    assert meters.text().count(b"\n") <= before


@pytest.mark.parametrize("sent", [b"", b"x" * 100_000], ids=["silent", "noisy"])
async def test_silent_or_noisy_client_is_disconnected(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SECONDS", 600.0 if sent else 0.05)
    port = free_port()
    server = metrics.serve_health("127.0.0.1", port, lambda: True, bytes)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    with contextlib.suppress(ConnectionResetError):  # what was sent is not read
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    server.stop()
