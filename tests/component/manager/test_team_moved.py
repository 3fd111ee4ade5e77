"""Somebody's team changes while their job waits."""

from __future__ import annotations

from dataclasses import replace

from dlspawner.core.job import JobState
from dlspawner.manager.model.notice import Recipient
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import desk, full, record, state

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}}
  other: {title: Others, quota: {gpu: 0}}
"""


async def test_who_waits_in_another_team_than_before_reads_which_ones(office: Office) -> None:
    (office.folder / "teams.yaml").write_text(TEAMS)
    waits = wants()
    moved = replace(waits, team="other", preemptible=True)
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = {("alice", "")}

        async def starts(_user: str, _server: str) -> None:
            """The Hub finds her in another team by now."""
            await ask(acting, moved)

        office.hub.starts = starts
        await give_back()

        def team() -> str:
            found = record(acting, waits)
            return found.job.team if found is not None else ""

        await until(lambda: team() == "other", "her job is one of the other team")
        assert state(acting, waits) is not JobState.ENDED

        def told() -> list[str]:
            return [one.text for one in desk(acting).store.notices.read(Recipient("alice"), office.clock())]

        await until(told, "the move is committed")
        assert told() == [
            "Your job does not count for team “Everybody” any more: it is now one of team “Others”, at the place it "
            "gets there."
        ]
