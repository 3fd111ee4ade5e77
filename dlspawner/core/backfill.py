"""Backfill: who may not be passed any more, and what has to be left for them. The rule is in ``queueing``."""

from __future__ import annotations

from datetime import datetime

from dlspawner.core import limits, queueing
from dlspawner.core.amounts import counted
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job
from dlspawner.core.limits import Blocked
from dlspawner.core.placing import first
from dlspawner.core.world import World


def head(request: Job, world: World, now: datetime) -> Job | None:
    """The first job that the request may not pass, if it waits for what others hold and for nothing of its own."""
    for job in queueing.overdue(request, world, now):
        blocks = world.memo.get(("head", job.id))
        if blocks is None:
            blocks = limits.caps(job, world) is None and limits.never(job, world) is None
            world.memo["head", job.id] = blocks
        if blocks:
            return job
    return None


def kept_for_head(request: Job, world: World, now: datetime) -> tuple[Job | None, frozenset[str]]:
    """Who may not be passed any more, and the nodes that come closest to holding it."""
    ahead = head(request, world, now)
    if ahead is None:
        return None, frozenset()
    nodes_of = world.memo.get(("kept", ahead.id))
    if nodes_of is None:
        nodes = first(
            ahead.charge.pods,
            lambda pod: world.pool(pod.resource, pod.placement).emptiest(),
            lambda room, pod: room.whole(pod.resource),
        )
        nodes_of = world.memo["kept", ahead.id] = frozenset(nodes or ())
    return ahead, nodes_of


def behind(ahead: Job | None) -> Blocked:
    """The answer to somebody who would pass a job that may not be passed."""
    whose = f"{counted(ahead.charge.gpus)}" if ahead and ahead.charge.gpus else "CPU and memory"
    return Blocked(Reason.TURN, f"A job that wants {whose} has waited for so long that nobody passes it any more.")
