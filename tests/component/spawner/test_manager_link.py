"""How the Hub asks the Manager when there are several behind one address, or one that cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from dlspawner.clients import manager as client
from dlspawner.core.config import TeamQuota, TeamsConfig
from dlspawner.core.unix_account import UidRange, UnixIds
from dlspawner.spawner import manager_link as manager
from dlspawner.spawner.kube import errors
from dlspawner.spawner.manager_link import ManagerLink
from tests.harness.http_servers import answering
from tests.harness.spawner_builders import SETTINGS, VISION, make_spawner

UIDS = UidRange(20_000, 29_999)
SHARED = replace(SETTINGS, teams=TeamsConfig((replace(VISION, quota=(TeamQuota("a100", 4),)),)))
log = logging.getLogger("test")


def given(request: web.Request, used: list[asyncio.Transport]) -> web.Response:
    """A uid, and the connection is noted."""
    if request.transport is not None and request.transport not in used:
        used.append(request.transport)
    return web.json_response({"account": "alice", "uid": 20_000, "gid": 20_000})


async def test_requests_one_after_the_other_share_a_connection() -> None:
    used: list[asyncio.Transport] = []

    async def answer(request: web.Request) -> web.Response:
        found = given(request, used)
        return web.json_response({"detail": "no" * 10_000}, status=404) if "ending" in request.path else found

    async with answering(answer) as url:
        for _ in range(2):
            await ManagerLink(url, "token", log).unix_account("alice", UIDS)
            assert await ManagerLink(url, "token", log).stop_reason("j-1") is None
    assert len(used) == 1


async def test_kept_connections_to_a_standby_manager_are_not_tried_one_by_one() -> None:
    used: list[asyncio.Transport] = []
    crowd, acts = asyncio.Barrier(10), True

    async def answer(request: web.Request) -> web.Response:
        old = request.transport in used
        found = given(request, used)
        if acts:
            await crowd.wait()
        return found if acts or not old else web.json_response({}, status=503)

    async with answering(answer) as url:
        manager = ManagerLink(url, "token", log, seconds=30)
        await asyncio.gather(*(manager.unix_account("alice", UIDS) for _ in range(10)))
        acts = False
        await manager.unix_account("alice", UIDS)
    assert len(used) == 11


async def test_a_silent_kept_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for POST, which HTTP clients do not repeat."""
    monkeypatch.setattr("dlspawner.clients.manager.SILENT_SECONDS", 0.2)
    used: list[asyncio.Transport] = []

    async def answer(request: web.Request) -> web.Response:
        old = request.transport in used
        found = given(request, used)
        if old:
            await asyncio.Event().wait()
        return found

    async with answering(answer) as url:
        manager = ManagerLink(url, "token", log, seconds=30)
        await manager.unix_account("alice", UIDS)
        assert await manager.unix_account("alice", UIDS) == ("alice", UnixIds(20_000, 20_000))
        await manager.start_interrupted("alice", "", None)
    assert len(used) > 2


async def test_a_connection_that_is_not_accepted_leaves_time_for_other_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, contextlib.ExitStack() as stack:
        address = deaf.getsockname()
        with contextlib.suppress(TimeoutError):
            while True:  # until the system takes no more
                stack.enter_context(socket.create_connection(address, timeout=0.2))
        found = ManagerLink(f"http://127.0.0.1:{address[1]}", "token", log, seconds=3)
        with pytest.raises(errors.StartRefused):
            await found.unix_account("alice", UIDS)
    assert "asking again" in caplog.text


@pytest.mark.parametrize("asks", ["starting", "waiting"])
async def test_a_stop_that_the_manager_missed_is_reported_before_the_next_start(
    asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the Manager would cancel the new start."""
    monkeypatch.setattr(manager, "STOP_SECONDS", 0.05)
    heard: list[str] = []
    away = True

    async def answer(request: web.Request) -> web.Response:
        if away:
            return web.json_response({}, status=503)
        heard.append(request.path.rpartition("/")[2])
        return web.json_response({"waiting": [], "job": None, "account": "alice", "uid": 20_000, "gid": 20_000})

    async with answering(answer) as url:
        found = ManagerLink(url, "token", log)
        for _ in range(3):
            await found.start_interrupted("alice", "", None)
        start = found.prepare_start("alice", "", UIDS) if asks == "starting" else found.pending_job("alice", "")
        starting = asyncio.ensure_future(start)
        await asyncio.sleep(0)  # it has begun to ask
        away = False
        await starting
    assert heard == ["interrupted", asks]


async def test_another_server_does_not_wait_until_a_stop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "STOP_SECONDS", 0.05)

    async def answer(request: web.Request) -> web.Response:
        if "interrupted" in request.path:
            return web.json_response({}, status=503)
        return web.json_response({"job": None, "account": "alice", "uid": 20_000, "gid": 20_000})

    async with answering(answer) as url:
        found = ManagerLink(url, "token", log)
        await found.start_interrupted("alice", "one", None)
        assert await found.prepare_start("alice", "two", UIDS) == (None, "alice", UnixIds(20_000, 20_000))
        with pytest.raises(errors.StartRefused):
            await replace(found, until=asyncio.get_running_loop().time() + 0.1).prepare_start("alice", "one", UIDS)


@pytest.mark.parametrize(
    ("told", "nodes"),
    [
        ({"nodes": ["gpu-1", "gpu-2"]}, ("gpu-1", "gpu-2")),
        ({"nodes": [None]}, (None,)),
        ({"nodes": []}, ()),
    ],
    ids=["its node", "not known", "empty"],
)
async def test_an_admission_names_the_node_and_its_deadline(
    told: dict[str, Any], nodes: tuple[str | None, ...]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        admitted = {"decision": "admit", "reason": "admitted", "sentences": [], "seconds": 60}
        return web.json_response({**admitted, **told})

    now = asyncio.get_running_loop().time()
    async with answering(answer) as url:
        found = await ManagerLink(url, "token", log).admission(
            "j-1", {}, lambda said, reason: errors.StartRefused(*said, reason=reason)
        )
    assert found.nodes == nodes
    assert now + 60 <= found.until <= now + 90


async def test_a_manager_without_settings_is_asked_once_and_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.json_response({}, status=501)

    async with answering(answer) as url:
        with pytest.raises(errors.StartRefused, match="was not told how"):
            await ManagerLink(url, "token", log).pending_job("alice", "")
        with pytest.raises(errors.StartRefused, match="was not told how"):
            await ManagerLink(url, "token", log).admission(
                "j-1", {}, lambda said, reason: errors.StartRefused(*said, reason=reason)
            )
    assert asked == ["GET", "PUT"]
    assert "it has no cluster_file, teams_file and templates_dir" in caplog.text


async def test_a_refusal_of_the_manager_says_why() -> None:
    """Only a Manager that is away is said to be."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"detail": "A job has at most 64 pods."}, status=422)

    async with answering(answer) as url:
        link = ManagerLink(url, "token", log)
        with pytest.raises(errors.StartRefused, match="refused this start: A job has at most 64 pods\\. Ask"):
            await link.admission("j-1", {}, lambda said, reason: errors.StartRefused(*said, reason=reason))


@pytest.mark.parametrize("unsure", [False, True], ids=["no pod comes of it", "its pod may still come"])
async def test_a_refused_start_gives_its_gpus_back_unless_its_pod_may_still_come(
    unsure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path.rpartition("/")[2])
        account = {"job": None, "account": "alice", "uid": 20_001, "gid": 20_001}
        admitted = {"decision": "admit", "sentences": [], "reason": "", "seconds": 60, "nodes": []}
        return web.json_response({**account, **admitted})

    async def create(*_: object) -> None:
        refused = errors.StartRefused("The namespace's quota has no room.", reason="quota")
        refused.outcome_unknown = unsure
        raise refused

    async with answering(answer) as url:
        spawner = make_spawner(monkeypatch, settings=SHARED, config={"manager_url": url, "manager_token": "token"})
        monkeypatch.setattr(spawner, "_create_with_claim", create)
        spawner.user_options = {"template": "tensorboard"}
        await spawner.load_user_options()
        pod = spawner.api.api_client.sanitize_for_serialization(await spawner.get_pod_manifest())
        with pytest.raises(errors.StartRefused, match="no room"):
            await spawner._create(spawner._final(pod))
    assert asked == ["starting", "admission", *([] if unsure else ["released"])]
