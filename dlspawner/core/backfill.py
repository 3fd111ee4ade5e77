"""Backfill: who may not be passed any more, and what has to be left for them. The rule is in ``queueing``."""

from __future__ import annotations

from datetime import datetime

from dlspawner.core import limits, queueing
from dlspawner.core.amounts import counted
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job
from dlspawner.core.limits import Blocked
from dlspawner.core.placing import Nodes, first, ranked
from dlspawner.core.rooms import Room, Space
from dlspawner.core.world import World


def head(request: Job, world: World, now: datetime) -> Job | None:
    """The first job that the request may not pass, if it waits for what others hold and for nothing of its own."""
    return next((job for job in queueing.overdue(request, world, now) if waits_for_others(job, world)), None)


def waits_for_others(job: Job, world: World) -> bool:
    """Whether a job waits for what others hold, and for nothing of its own."""
    known: bool | None = world.memo.get(("head", job.id))
    if known is None:
        known = world.memo["head", job.id] = limits.caps(job, world) is None and limits.never(job, world) is None
    return known


def kept_for_head(request: Job, world: World, now: datetime) -> tuple[Job | None, frozenset[str]]:
    """Who may not be passed any more, and the nodes that come closest to holding it."""
    ahead = head(request, world, now)
    return (None, frozenset()) if ahead is None else (ahead, nearest(ahead, world))


def nearest(job: Job, world: World) -> frozenset[str]:
    """The nodes that come closest to holding a job."""
    known: frozenset[str] | None = world.memo.get(("kept", job.id))
    if known is None:
        kind = job.charge.gpu_type
        if kind is None or job.preemptible:
            nodes = first(
                job.charge.pods,
                lambda pod: world.pool(pod.resource, pod.placement).emptiest(),
                lambda room, pod: room.whole(pod.resource),
            )
        else:
            nodes = _nearest_of_guaranteed(job, kind, world)
        known = world.memo["kept", job.id] = frozenset(nodes or ())
    return known


def _nearest_of_guaranteed(job: Job, kind: str, world: World) -> Nodes | None:
    """Borrowers are in nobody's way, for they leave; where there is a choice it is not from the shares of others."""
    largest = max(job.charge.pods, key=lambda pod: pod.gpus)
    pools = (world.pool(pod.resource, pod.placement) for pod in job.charge.pods)
    rooms = {name: room for pool in pools for name, room in pool.rooms.items()}
    shares = world.shares(kind)

    def rank(room: Room, _: Space) -> tuple[object, ...]:
        name, whole = room.node.name, room.whole(largest.resource)
        others = sum(milli for team, milli in shares.get(name, {}).items() if team != job.team)
        return (whole.gpus - others < largest.gpus, room.staying(largest.resource), name)

    return ranked(job.charge.pods, rooms.values(), lambda room, _: room.whole(largest.resource), rank)


def behind(ahead: Job | None) -> Blocked:
    """The answer to somebody who would pass a job that may not be passed."""
    whose = f"{counted(ahead.charge.gpus)}" if ahead and ahead.charge.gpus else "CPU and memory"
    return Blocked(Reason.TURN, f"A job that wants {whose} has waited for so long that nobody passes it any more.")
