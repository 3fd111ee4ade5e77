"""A start that takes too long is refused with a reason before JupyterHub's own deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from dlspawner.spawner import manager_link as manager
from tests.component.spawner.test_given_up import refusal
from tests.component.spawner.test_manager_link import SHARED
from tests.harness.http_servers import answering, never
from tests.harness.scripted_api import ScriptedApi
from tests.harness.spawner_builders import make_spawner


async def test_a_slow_manager_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "ADMISSION_SECONDS", 3600.0)

    async with answering(never) as url:
        to_manager = {"manager_url": url, "manager_token": "token", "start_timeout": 2}
        spawner = make_spawner(monkeypatch, settings=SHARED, config=to_manager)
        spawner.user_options = {"template": "tensorboard"}
        refused = await refusal(spawner)

    assert refused.message == manager.UNDECIDED


async def test_a_start_makes_one_request_to_the_manager_before_its_pod_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.path, await request.json()))
        return web.json_response({"job": "j-aaaaaaaaaaaa", "account": "alice", "uid": 20_001, "gid": 20_001})

    async with answering(answer) as url:
        to_manager = {"manager_url": url, "manager_token": "token"}
        spawner = make_spawner(monkeypatch, server="train", settings=SHARED, config=to_manager)
        spawner.user_options = {"template": "tensorboard"}
        await spawner.load_user_options()

    uids = SHARED.cluster.accounts
    body = {"server": "train", "first_uid": uids.first, "last_uid": uids.last}
    assert asked == [("PUT", "/api/internal/users/alice/starting", body)]
    assert (spawner._launch.job.id, spawner._launch.numbers.uid) == ("j-aaaaaaaaaaaa", 20_001)


async def test_a_slow_hook_is_given_up_in_time(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hook(*_: Any) -> None:
        await asyncio.Event().wait()

    spawner = make_spawner(monkeypatch, settings=None, config={"start_timeout": 2, "modify_pod_hook": hook})
    refused = await refusal(spawner)
    await spawner.pod_reflector.stop()

    assert refused.reason == "start-timeout"
    assert refused.message.startswith("The start takes too long, and the job was given up after 2 seconds")
    assert spawner._ended == refused.message
