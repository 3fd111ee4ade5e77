"""The page of a job that may start while the Hub is away: it stays, because nothing else would answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component.manager.manager_harness import FakeHub, Office, ask, wants
from tests.component.manager.noticing import Served, offices, serving
from tests.component.manager.test_notices_rest import read
from tests.component.manager.world import World


@pytest.fixture
async def there(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Office, Served]]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with offices(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as office:
        await office.make_node()
        async with serving(office, world) as served:
            yield office, served


def going(hub: FakeHub) -> None:
    """It starts alice's server."""

    async def never(user: str, server: str) -> None:
        raise AssertionError

    hub.servers = hub.pending = {("alice", "")}
    hub.starts = never


async def test_it_leads_to_the_hub_when_the_hub_starts_the_job(world: World, there: tuple[Office, Served]) -> None:
    office, served = there
    await ask(served.acting, wants())
    going(office.hub)
    assert (await read(served, world.token("alice"), "wait/alice/"))[0] == 302


@pytest.mark.parametrize("hub", ["away", "restarted"])
async def test_it_stays_while_the_hub_does_not(hub: str, world: World, there: tuple[Office, Served]) -> None:
    office, served = there
    await ask(served.acting, wants())
    if hub == "restarted":
        going(office.hub)
        office.hub.pending = set()
    status, text = await read(served, world.token("alice"), "wait/alice/")
    assert (status, "is being started" in text) == (200, True)
    assert "It goes on, or waits at its old place again, by itself" in text
    assert "Cancel the request" in text
