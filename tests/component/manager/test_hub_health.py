"""A Hub that goes and comes back, told to whoever has a page open or waits at a command, before they look again."""

from __future__ import annotations

import asyncio

import pytest

from dlspawner.client.service import Service
from dlspawner.clients.hub import HubClient, HubUnavailable
from dlspawner.manager.controllers import leader
from tests.component.manager.manager_harness import until
from tests.component.manager.portals import Portal
from tests.component.manager.real_hub import RealHub, free_port
from tests.component.manager.tcp_proxy import wired
from tests.component.manager.test_portal_events import first, streaming

NO_HUB = "The Hub does not answer at the moment"


@pytest.fixture(autouse=True)
def probes_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "PROBE_SECONDS", 0.2)


async def fails(portal: Portal) -> None:
    """Something that the Manager asks the Hub is not answered."""
    portal.hub.servers = None
    with pytest.raises(HubUnavailable):
        await portal.hub.user("somebody")


async def test_whoever_listens_is_told_when_a_request_fails_and_when_the_hub_is_back(portal: Portal) -> None:
    async with streaming(portal, "alice") as alice:
        known = portal.hub.servers
        await fails(portal)
        assert await first(alice, "hub") is True
        assert NO_HUB in (await portal.read("alice")).text
        for path in ("api/jobs", "api/history/gpu-hours"):
            assert (await portal.read("alice", path)).headers["Dlspawner-Hub"] == "away", path
        portal.hub.servers = known
        assert await first(alice, "hub") is True
        assert NO_HUB not in (await portal.read("alice")).text
        assert "Dlspawner-Hub" not in (await portal.read("alice", "api/jobs")).headers


async def test_unrecognised_user_is_told_that_it_is_the_hub(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await asyncio.to_thread(portal.real_hub.token, "alice")
    auth = portal.served.manager.auth
    auth.cache.clear()
    monkeypatch.setattr(auth, "api_url", f"http://127.0.0.1:{free_port()}/hub/api")
    for path in ("", "api/jobs"):
        answer = await portal.read("", path, token=token)
        assert (answer.status, answer.headers["Dlspawner-Hub"]) == (503, "away")


async def test_a_command_says_it_once_and_goes_on(portal: Portal, capsys: pytest.CaptureFixture[str]) -> None:
    token = await asyncio.to_thread(portal.real_hub.token, "alice")
    service = Service(portal.served.url.removesuffix("/services/jobs"), token)
    known = portal.hub.servers
    await fails(portal)
    for _ in range(2):
        assert (await asyncio.to_thread(service.get, "jobs"))["items"] == []
    assert capsys.readouterr().err.count(NO_HUB) == 1
    portal.hub.servers = known
    await until(lambda: not portal.served.leader.hub_health.unreachable, "it is back")
    await asyncio.to_thread(service.get, "jobs")
    await fails(portal)
    await asyncio.to_thread(service.get, "jobs")
    assert capsys.readouterr().err.count(NO_HUB) == 1


async def test_the_hubs_client_says_whether_it_answers(real_hub: RealHub) -> None:
    heard: list[bool] = []
    async with wired(real_hub.hub_port) as wire, HubClient(f"{wire.url}/hub/api", "none", deadline_seconds=5) as hub:
        hub.on_answer = heard.append
        await hub.check_reachable()
        assert heard == [True]
        await wire.cut()
        asking = asyncio.create_task(hub.check_reachable())
        await until(lambda: heard[-1] is False, "it is told before all tries are over")
        await wire.mend()
        await asking
        assert heard[-1] is True
