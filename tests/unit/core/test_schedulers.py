"""Schedulers underneath: what is decided with one, and what each is told and tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.core.config import SchedulerConfig, SchedulerName
from dlspawner.core.decisions import Admit, EngineAdmits, EngineEvicts, EngineVerdict, EngineWaits, MustWait
from dlspawner.core.job import Job
from dlspawner.core.scheduling import queue
from dlspawner.core.scheduling.admission import admit
from tests.unit.core.factories import CLUSTER, NOW, node, queues, team, wants, world

KUEUE = replace(CLUSTER, scheduler=SchedulerConfig(SchedulerName.KUEUE, (("b", "bees"),), (("prod", "high"),)))


@pytest.mark.parametrize(
    ("verdict", "job", "expected"),
    [
        (None, wants("j", "a", 9), "wait engine 1: Kueue has not answered yet; the job keeps its place."),
        (EngineWaits("No quota.", 7), queues("j", "a", 9), "wait engine 7: No quota."),
        (EngineEvicts("Others need it."), queues("j", "a"), "wait engine 1: Others need it."),
        (EngineAdmits(), queues("j", "a", 9), "admit"),
        (EngineAdmits(), wants("j", "capped", 3), "refuse too-many: Team capped gives one person at most 2 GPUs; "),
        (None, wants("j", "nowhere"), "refuse unknown-team: There is no team"),
    ],
)
def test_quota_and_nodes_are_the_engines_and_limits_are_ours(
    verdict: EngineVerdict | None, job: Job, expected: str
) -> None:
    here = world(team("a", 1), team("capped", 9, hard=2), node("n", 1), cluster=KUEUE)
    here.verdicts |= {"j": verdict} if verdict else {}
    found = admit(job, here, NOW)
    match found:
        case Admit(nodes):
            said = "admit" if nodes == (None,) else str(nodes)
        case MustWait(reason, sentence, position):
            said = f"wait {reason.value} {position}: {sentence}"
        case _:
            said = f"refuse {found.reason.value}: {getattr(found, 'sentence', '')}"
    assert said.startswith(expected)


def test_queue_is_in_the_engines_order() -> None:
    here = world(*(queues(name, "a") for name in "xyz"), team("a", 1), cluster=KUEUE)
    here.verdicts = {"x": EngineWaits("", 3), "y": EngineWaits("", 1), "z": EngineWaits("", 2)}
    assert [job.id for job in queue.order(here, NOW)] == ["y", "z", "x"]
