"""JupyterHub's check of running servers after a restart: they go on, whatever their sidecars, token and node do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from jupyterhub import orm
from jupyterhub.user import User
from kubespawner import reflector

from dlspawner.spawner import reach
from tests.harness.ports import free_port
from tests.harness.scripted_api import ScriptedApi, listed, pod
from tests.harness.spawner_builders import make_spawner

PATIENCE = 60.0
FINE = {"name": "notebook", "ready": True, "image": "example.org/jobs:1", "state": {"running": {}}}
NOT_READY: dict[str, Any] = {"ready": False, "state": {"running": {}}}
CRASHES = {
    **NOT_READY,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1}},
}
SILENT_NODE = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
STARTING = {"dlspawner_starting": True}


class Check:
    """JupyterHub's check of one server after a restart."""

    def __init__(self, spawner: Any) -> None:
        self.spawner, self.stopped = spawner, list[str]()
        spawner.user._wait_up = lambda made: User._wait_up(spawner.user, made)
        spawner.user.settings, spawner.user.stop, spawner.user.log = {}, self._stop, spawner.log

    async def _stop(self, name: str) -> None:
        self.stopped.append(name)

    async def run(self, state: Mapping[str, Any] | None = None) -> str:
        """The server's URL, once everything that the check began is over."""
        self.spawner.load_state({"pod_name": "jupyter-alice", **(state or {})})
        self.spawner._check_pending = True
        assert await self.spawner.poll() is None
        url: str = await self.spawner.get_url()
        if url != self.spawner.server.url:
            self.spawner.server.ip, self.spawner.server.port = "127.0.0.1", reach.port_of(url)
        await self.spawner.user._wait_up(self.spawner)
        self.spawner._check_pending = False
        if self.spawner._spawn_future is not None:
            await asyncio.wait({self.spawner._spawn_future}, timeout=PATIENCE)
        return url


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a server that answers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def show(api: ScriptedApi, at: int, *sidecars: Mapping[str, Any], secret: str = "", **status: Any) -> None:
    """Lists a pod whose server listens at the port."""
    ports = [{"name": "notebook-port", "containerPort": at}]
    environment = [{"name": "JUPYTERHUB_API_TOKEN", "value": secret}] if secret else []
    containers = [{"name": "notebook", "ports": ports, "env": environment}, *({"name": "side"} for _ in sidecars)]
    statuses = [FINE, *({"name": "side", "image": "example.org/side:1", **given} for given in sidecars)]
    shown = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": statuses, **status}
    spec = {"nodeName": "node-1", "containers": containers}
    api.lists = deque([listed(10, pod("jupyter-alice", 1, metadata={"annotations": {}}, spec=spec, status=shown))])


@pytest.fixture
async def check(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Check]:
    session = orm.new_session_factory("sqlite:///:memory:")()
    spawner = make_spawner(monkeypatch, settings=None, config={"start_timeout": 1, "http_timeout": 1})
    spawner.api = reflector.shared_client("CoreV1Api")
    server = orm.Server(proto="http", ip="127.0.0.1", port=free_port(), base_url="/user/alice/")
    saved = orm.Spawner(name="", user=orm.User(name="alice"), server=server)
    session.add(saved)
    session.commit()
    spawner.orm_spawner, spawner._deprecated_db_session = saved, session
    yield Check(spawner)
    for watch in spawner.reflectors.values():
        await watch.stop()
    session.close()


@pytest.mark.parametrize(
    ("sidecars", "secret"),
    [
        pytest.param([NOT_READY], "", id="a sidecar that is not ready"),
        pytest.param([CRASHES], "", id="a sidecar that crashes"),
        pytest.param([], "0" * 32, id="a revoked token"),
    ],
)
async def test_a_server_that_answers_goes_on_with(
    sidecars: list[Mapping[str, Any]], secret: str, check: Check, api: ScriptedApi, port: int
) -> None:
    show(api, port, *sidecars, secret=secret)

    assert await check.run() == f"http://127.0.0.1:{port}/user/alice/"
    assert not check.spawner._spawn_pending
    assert check.stopped == []


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="busy"),
        pytest.param({"conditions": SILENT_NODE}, id="silent node"),
        pytest.param({"phase": "Pending", "podIP": None}, id="restarted by its node"),
    ],
)
async def test_a_server_without_an_answer_goes_on_with_a_warning(
    status: Mapping[str, Any], check: Check, api: ScriptedApi, caplog: pytest.LogCaptureFixture
) -> None:
    show(api, free_port(), **status)
    await check.run()

    assert not check.spawner._spawn_pending
    assert check.stopped == []
    assert caplog.text.count("does not answer after a restart") == 1


async def test_a_start_that_was_pending_may_fail(check: Check, api: ScriptedApi, port: int) -> None:
    show(api, port, NOT_READY)
    await check.run(STARTING)

    assert "do not become ready" in str(check.spawner._spawn_future.exception())
    assert check.stopped == [""]


async def test_a_resumed_start_that_succeeds_is_over_at_the_next_restart(
    check: Check, api: ScriptedApi, port: int
) -> None:
    show(api, port)
    check.spawner.start_timeout = check.spawner.http_timeout = 60
    await check.run({**STARTING, "dlspawner_begun": True})

    assert not {"dlspawner_starting", "dlspawner_begun"} & set(check.spawner.orm_spawner.state)


async def test_an_observed_pod_is_saved_for_the_next_restart(check: Check, api: ScriptedApi) -> None:
    show(api, free_port(), phase="Pending")
    check.spawner.load_state({**STARTING, "dlspawner_begun": True})
    await check.spawner.poll()

    assert check.spawner.orm_spawner.state["dlspawner_starting"]
    assert "dlspawner_begun" not in check.spawner.orm_spawner.state
