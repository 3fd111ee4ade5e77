"""What the user of a pending job reads: alternatives, and that the job cannot start any more."""

from __future__ import annotations

import re

import pytest

from dlspawner.core.decisions import Alternative
from dlspawner.core.job import JobState
from dlspawner.core.units import GPU
from dlspawner.manager.admission.explain import QueueStatus
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants
from tests.unit.core.factories import queues

LESS, LENT = Alternative("a100", 2 * GPU, False), Alternative("a100", 4 * GPU, True)
OTHER = Alternative("v100", 4 * GPU, False)


@pytest.mark.parametrize(
    ("alternatives", "keeps", "loses"),
    [
        ((), False, False),
        ((LESS,), True, False),
        ((LENT,), False, True),
        ((OTHER,), False, True),
        ((LESS, OTHER), True, True),
    ],
)
def test_fewer_gpus_of_the_same_type_keep_the_place(
    alternatives: tuple[Alternative, ...], keeps: bool, loses: bool
) -> None:
    status = QueueStatus(queues("j", "a", 4), "queued", 1, 1, "", alternatives)
    assert (status.keeps_place, status.loses_place) == (keeps, loses)


async def test_user_who_was_blocked_meanwhile_reads_it(harness: ManagerHarness, leader: Leader) -> None:
    teams, waits = harness.folder / "teams.yaml", wants(gpus=8)
    await leader.ask(wants("holder", gpus=1))
    assert (await leader.ask(waits)).decision == "wait"
    teams.write_text(f"{teams.read_text()}\nblocked: [alice]\n")
    await until(leader.notices, "the notice is posted")
    [notice] = leader.notices()
    assert notice.kind is NoticeKind.CANNOT_START
    assert "You can not start jobs here; ask an administrator why. It keeps its place; cancel it if" in notice.text
    status = leader.service.explainer.explain(leader.record(waits))
    assert status.sentence == "You can not start jobs here; ask an administrator why."


async def test_job_that_has_ended_since_it_was_read_has_no_reason_to_wait(
    harness: ManagerHarness, leader: Leader
) -> None:
    request = wants()
    pod = await leader.run_job(request)
    running = leader.record(request).job
    await harness.delete(pod, grace=0)
    await leader.until_state(request, JobState.ENDED)
    assert leader.service.explainer.why(running, harness.clock()) == ""


@pytest.mark.parametrize("asks_for_less", [False, True])
async def test_user_reads_that_the_quota_is_too_low_until_it_is_enough(
    harness: ManagerHarness, asks_for_less: bool
) -> None:
    waits = wants(gpus=8)
    async with harness.manager() as leader:
        await leader.ask(wants("holder", gpus=4))
        assert (await leader.ask(waits)).decision == "wait"
        assert leader.notices() == []
        harness.set_quota(4)
        await until(leader.notices, "the notice is posted")
        [notice] = leader.notices()
        assert notice.kind is NoticeKind.CANNOT_START
        assert re.search("has a quota of 4 GPUs of type gpu; you asked for 8.* It keeps its place", notice.text)
        if asks_for_less:
            assert (await leader.ask(wants(gpus=2, job=waits.job))).decision == "wait"
            assert leader.notices() == []
    if not asks_for_less:
        harness.set_quota(8)
        async with harness.manager() as leader:
            await until(lambda: not leader.notices(), "it is withdrawn")
