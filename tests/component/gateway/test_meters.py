"""The gateway's metrics: what they count, and that a real Prometheus reads them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from pathlib import Path

import asyncssh
import pytest
import requests

from dlspawner.looplag import watch_loop
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.metrics import GatewayMetrics, GatewayState, HealthServer
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, finish, gateway, until
from tests.component.gateway.test_gate import guesses, knock
from tests.component.gateway.test_login import PASSWORD, with_token
from tests.component.manager.metrics import program, prometheus

MIB = 2**20


def value(running: Running, name: str, **labels: str) -> float | None:
    found: float | None = running.server.counters.registry.get_sample_value(f"dlspawner_gateway_{name}", labels)
    return found


async def test_connections_sessions_and_bytes_both_ways(running: Running, alice: Client) -> None:
    process = await alice.start("ssh", "alice+train@gateway", "head -c 1048576 /dev/zero; read x; echo $x")
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readexactly(MIB), 30)
    assert value(running, "sessions") == 1
    assert value(running, "open_connections", state="authenticated") == 1
    assert value(running, "open_connections", state="unauthenticated") == 0
    open_down = value(running, "bytes_total", direction="down")
    assert open_down is not None
    assert open_down >= MIB
    await finish(process, b"x" * 1000 + b"\n")
    await until(lambda: value(running, "sessions") == 0)
    assert value(running, "open_connections", state="authenticated") == 0
    down, up = (value(running, "bytes_total", direction=direction) for direction in ("down", "up"))
    assert down is not None
    assert up is not None
    assert down >= open_down + 1001, "what is over stays counted"
    assert 1001 <= up < 10_000
    assert value(running, "connections_total") == 1


async def test_credentials_by_method_and_result(
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


async def test_what_is_refused_and_who_owes(keys: GatewayKeys, people: FakePeople, places: FakePlaces) -> None:
    # Time pays nothing meanwhile, however slow this machine is.
    limits = GatewayLimits(failure_seconds=0.0, drain_seconds=0.0, rules=PenaltyRules(penalty_seconds=600.0))
    async with gateway(keys, people, places, limits=limits) as running:
        for name in ("alice+train", "bob+train"):
            await guesses(running, name)
        assert value(running, "penalised", kind="address") == 1
        assert value(running, "penalised", kind="name") == 2
        await guesses(running, "carol+train")
        before = value(running, "refusals_total", what="connection") or 0
        for _ in range(3):
            assert b"too many failed or unfinished logins" in await knock(running.port)
        assert value(running, "refusals_total", what="connection") == before + 3


async def test_a_job_that_is_not_there_and_a_forbidden_request_are_refusals(running: Running, alice: Client) -> None:
    await alice.ssh("alice+trian@gateway", "true")
    assert value(running, "refusals_total", what="session") == 1
    await alice.ssh("-J", "alice@gateway", "alice@trian", "true")
    assert value(running, "refusals_total", what="stream") == 1


@pytest.mark.parametrize("method", ["publickey", "none", "../../etc", "gssapi-with-mic" * 1000])
def test_the_labels_are_few_whatever_clients_say(method: str) -> None:
    meters = GatewayMetrics()
    before = meters.text().count(b"\n")
    meters.judged(method, proven=False)
    assert meters.text().count(b"\n") - before <= 0


def test_promtool_finds_nothing_to_say() -> None:
    text = GatewayMetrics(
        lambda: GatewayState(unauthenticated=1, authenticated=2, sessions=1, up=3, down=4, stopping=True)
    ).text()
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_metric_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[3] / "ssh_gateway" / "README.md").read_text(encoding="utf-8")
    text = GatewayMetrics().text().decode()
    names = set(re.findall(r"^# TYPE (dlspawner_\w+) ", text, re.M))
    names -= {name for name in names if name.endswith("_created")}
    assert names
    assert {name for name in names if f"`{name}`" not in readme} == set()


async def test_a_real_prometheus_scrapes_it_while_somebody_works(
    running: Running, alices_key: asyncssh.SSHKey, alice: Client, tmp_path: Path
) -> None:
    meters = running.server.counters
    watching = asyncio.create_task(watch_loop(meters.loop_lag.observe))
    answering = await HealthServer(metrics=running.server.metrics).serve("127.0.0.1", 0)
    port = answering.sockets[0].getsockname()[1]
    process = await alice.start("ssh", "alice+train@gateway", "read x")
    async with answering, contextlib.AsyncExitStack() as stack:
        scraping = prometheus(tmp_path, {"gateway": f"127.0.0.1:{port}"})
        url = await asyncio.to_thread(scraping.__enter__)
        stack.push_async_callback(asyncio.to_thread, scraping.__exit__, None, None, None)
        for query in ("dlspawner_gateway_sessions == 1", "dlspawner_gateway_loop_lag_seconds_count > 0"):
            await until_found(url, query)
        assert (await alice.ssh("alice+train@gateway", "head -c 200000000 /dev/zero")).status == 0
        relayed = "dlspawner_gateway_relay_seconds"
        await until_found(url, f"{relayed}_count > 2 and 0 < {relayed}_sum < {relayed}_count")
    await finish(process, b"\n")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def until_found(url: str, query: str) -> None:
    """Wait until a Prometheus answers a question with something."""
    async with asyncio.timeout(60):
        while True:
            answer = await asyncio.to_thread(requests.get, f"{url}/api/v1/query", params={"query": query}, timeout=10)
            if answer.json()["data"]["result"]:
                return
            await asyncio.sleep(0.2)
