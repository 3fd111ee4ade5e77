"""At most one job is pending or running on a server; teams that change while a job waits."""

from __future__ import annotations

from dataclasses import replace

from dlspawner.core.job import JobState
from dlspawner.manager.model.event_reason import EventReason
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}}
  other: {title: Others, quota: {gpu: 0}}
"""


async def test_preempted_job_is_not_queued_again_beside_a_new_job_of_its_server(
    harness: ManagerHarness, leader: Leader
) -> None:
    old, new = wants(gpus=4, preemptible=True, requeue=True), wants(gpus=4)
    await leader.run_job(old)
    await leader.stop(old.job, EventReason.PREEMPTED)
    assert (await leader.ask(new)).decision == "admit"
    (pod,) = (await harness.pods()).values()
    await harness.delete(pod, grace=0)
    await leader.until_state(old, JobState.ENDED)
    assert (await leader.reasons(old))[-1] == "replaced"
    assert leader.started(new)


async def test_user_whose_team_has_changed_while_the_job_waits_reads_both_teams(harness: ManagerHarness) -> None:
    (harness.folder / "teams.yaml").write_text(TEAMS)
    waits = wants()
    moved = replace(waits, team="other", preemptible=True)
    async with harness.manager() as leader:

        async def starts(_user: str, _server: str) -> None:
            await leader.ask(moved)

        await leader.queue_and_release(waits, starts=starts)
        await until(lambda: leader.record(waits).job.team == "other", "it is a job of the other team")
        await until(leader.notices, "the change is committed")
        assert [one.text for one in leader.notices()] == [
            "Your job does not count for team “Everybody” any more: it is now one of team “Others”, at the place it "
            "gets there."
        ]
