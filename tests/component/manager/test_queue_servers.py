"""At most one job is pending or running on a server; teams that change while a job waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.core.job import JobState
from dlspawner.manager.model.event_reason import EventReason
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import (
    AFTER_RESERVATION,
    hold_all_gpus,
    notices,
    queue_and_release,
    reasons,
    record,
    run_job,
    service,
    started,
    state,
    stop,
    until_state,
)

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}}
  other: {title: Others, quota: {gpu: 0}}
"""


async def test_queued_job_is_replaced_by_a_new_job_of_its_server(office: Office) -> None:
    old, new = wants(), wants()
    async with office.manager() as leader:
        await hold_all_gpus(leader)
        await ask(leader, old)
        await ask(leader, new)
        assert state(leader, old) is JobState.ENDED
        assert [place.job.id for place in service(leader).pending("alice")] == [new.job]


@pytest.mark.parametrize("end", ["expires", "pod was not created"])
async def test_admitted_job_without_a_pod_is_not_queued_again_beside_a_new_job_of_its_server(
    office: Office, end: str
) -> None:
    first, second = wants(gpus=8), wants(gpus=8)
    async with office.manager() as leader:
        await queue_and_release(office, leader, first)
        await until(lambda: started(leader, first), "the Hub may make its pod")
        office.hub.servers = None
        assert (await ask(leader, second)).decision == "wait"
        if end == "expires":
            office.clock.moved += AFTER_RESERVATION
        else:
            await service(leader).release_reservation(first.job, "alice", passes=True)
        await until_state(leader, first, JobState.ENDED)
        assert (await reasons(leader, first))[-1] == "replaced"
        assert state(leader, second) is not JobState.ENDED


async def test_preempted_job_is_not_queued_again_beside_a_new_job_of_its_server(office: Office) -> None:
    old, new = wants(gpus=4, preemptible=True, requeue=True), wants(gpus=4)
    async with office.manager() as leader:
        await run_job(office, leader, old)
        await stop(leader, old.job, EventReason.PREEMPTED)
        assert (await ask(leader, new)).decision == "admit"
        (pod,) = (await office.pods()).values()
        await office.delete(pod, grace=0)
        await until_state(leader, old, JobState.ENDED)
        assert (await reasons(leader, old))[-1] == "replaced"
        assert started(leader, new)


async def test_user_whose_team_has_changed_while_the_job_waits_reads_both_teams(office: Office) -> None:
    (office.folder / "teams.yaml").write_text(TEAMS)
    waits = wants()
    moved = replace(waits, team="other", preemptible=True)
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers = {("alice", "")}

        async def starts(_user: str, _server: str) -> None:
            await ask(leader, moved)

        office.hub.starts = starts
        await release()
        await until(lambda: record(leader, waits).job.team == "other", "it is a job of the other team")
        await until(lambda: notices(leader), "the change is committed")
        assert [one.text for one in notices(leader)] == [
            "Your job does not count for team “Everybody” any more: it is now one of team “Others”, at the place it "
            "gets there."
        ]
