"""The Hub's client against a real Hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.clients.hub import HubClient, HubRejected, HubUser, IdentityKind, may_access_server, own_server
from tests.component.manager.real_hub import RealHub


@pytest.fixture
async def gateway(real_hub: RealHub) -> AsyncIterator[HubClient]:
    async with HubClient(real_hub.hub_api, real_hub.tokens["gateway"]) as api:
        yield api


@pytest.fixture
async def manager(real_hub: RealHub) -> AsyncIterator[HubClient]:
    async with HubClient(real_hub.hub_api, real_hub.tokens["manager"]) as api:
        yield api


async def test_identity_of_a_users_token(real_hub: RealHub, gateway: HubClient) -> None:
    identity = await gateway.whoami(real_hub.token("alice"))
    assert identity is not None
    assert (identity.name, identity.kind, own_server(identity)) == ("alice", IdentityKind.USER, None)
    assert may_access_server(identity, "alice", "train")
    assert not may_access_server(identity, "bob", "train")


async def test_identity_of_other_tokens(real_hub: RealHub, gateway: HubClient) -> None:
    tokens = (real_hub.server_token("alice", "train"), real_hub.tokens["gateway"], real_hub.token("root-admin"))
    server, service, admin = [one for one in [await gateway.whoami(token) for token in tokens] if one is not None]
    assert (server.name, own_server(server), may_access_server(server, "alice", "other")) == ("alice", "train", False)
    assert (service.name, service.kind) == ("ssh-gateway", IdentityKind.SERVICE)
    assert (admin.name, admin.admin) == ("root-admin", True)
    assert await gateway.whoami("0123456789abcdef") is None
    with pytest.raises(HubRejected) as refused:
        await gateway.start_server("alice", "train")
    assert refused.value.status in {403, 404}, "it lacks the scope"


async def test_server_starts_is_used_and_stops(
    real_hub: RealHub, manager: HubClient, gateway: HubClient, person: str
) -> None:
    real_hub.token(person)
    await manager.start_server(person, "train", {"template": "ssh", "gpus": 2})
    user = await _until(manager, person, "train", ready=True)
    server = user.servers["train"]
    assert (server.stopped, server.url) == (False, f"/user/{person}/train/")
    assert server.user_options == {"template": "ssh", "gpus": 2}
    assert await gateway.user("nobody-at-all") is None
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)
    await gateway.post_activity(person, {"train": later})
    await gateway.post_activity(person, {"train": later - timedelta(hours=1)})  # told late: the Hub keeps the latest
    seen = await gateway.user(person)
    assert seen is not None
    assert seen.servers["train"].last_activity == later
    with pytest.raises(HubRejected, match="No such server"):
        await gateway.post_activity(person, {"gone": later})
    await manager.stop_server(person, "train")
    stopped = await _until(manager, person, "train", ready=False)
    assert stopped.servers["train"].stopped
    await manager.start_server(person, "train")
    again = await _until(manager, person, "train", ready=True)
    assert again.servers["train"].user_options == {"template": "ssh", "gpus": 2}


async def _until(api: HubClient, name: str, server: str, *, ready: bool) -> HubUser:
    async with asyncio.timeout(30):
        while True:
            user = await api.user(name)
            if user is not None and user.servers[server].ready is ready and not user.servers[server].pending:
                return user
            await asyncio.sleep(0.05)
