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
from ssh_gateway.metrics import GatewayMetrics, GatewayState, serve_health
from tests.component.gateway.peers import Client, Running, finish, until
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


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [(b"", 0.05), (b"POST / HTTP/1.1\r\nHost: gateway\r\nContent-Length: 9\r\n\r\n", 0.5), (b"x" * 100_000, 600.0)],
    ids=["silent", "body does not come", "noisy"],
)
async def test_silent_or_noisy_client_is_disconnected(
    sent: bytes, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SECONDS", seconds)
    port = free_port()
    server = metrics.serve_health("127.0.0.1", port, lambda: True, bytes)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    with contextlib.suppress(ConnectionResetError):  # what was sent is not read
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    server.stop()
