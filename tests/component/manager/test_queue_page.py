"""The page of a job that may start while the Hub is away: it stays, because nothing else would answer."""

from __future__ import annotations

import pytest

from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal


@pytest.mark.parametrize(
    ("servers", "pending", "status"),
    [({("alice", "")}, {("alice", "")}, 302), (None, set(), 200), ({("alice", "")}, set(), 200)],
    ids=["the Hub starts it", "away", "restarted"],
)
async def test_page_leads_to_the_hub_only_where_it_starts_the_job(
    portal: Portal, servers: set[tuple[str, str]] | None, pending: set[tuple[str, str]], status: int
) -> None:
    async def never(user: str, server: str) -> None:
        raise AssertionError

    portal.hub.starts = never
    await portal.served.acting.ask(wants())
    portal.hub.servers, portal.hub.pending = servers, pending
    page = await portal.read("alice", "wait/alice/")
    assert page.status == status
    if status == 200:
        assert "is being started" in page.text
        assert "The job continues by itself, or returns to its place in the queue." in page.text
        assert "Cancel the request" in page.text


async def test_others_cannot_tell_a_waiting_job_from_none(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8))
    await portal.waits(wants("alice", server="secret"))
    foreign, missing = [await portal.read("bob", f"wait/{path}") for path in ("alice/secret", "nobody/x")]
    assert (foreign.status, foreign.text) == (missing.status, missing.text)
    assert foreign.status == 404
    assert "This is a job of alice" in (await portal.read("root-admin", "wait/alice/secret")).text
