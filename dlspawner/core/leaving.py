"""Leaving: who makes room for a job that waits, as its person reads it.

Said is who leaves and not whose GPUs they are: borrowers may be on nodes of others, and where a team stops jobs of its
own (``preempts_own``) it is a colleague's job that leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlspawner.core.jobs import Job
from dlspawner.core.world import ClusterState


def victims_of(request: Job, world: ClusterState) -> tuple[Job, ...]:
    """Those who leave already and hold what a job was promised: its nodes, or a part of its team's quota."""
    kind, nodes = request.request.gpu_type, set(request.nodes)
    short = (
        kind is not None
        and not request.preemptible
        and world.available_quota(request.team, kind, request) < (request.request.gpus)
    )

    def in_the_way(job: Job) -> bool:
        own = job.team == request.team and not job.preemptible and job.request.gpu_type == kind
        return not nodes.isdisjoint(job.nodes) or (short and own)

    return tuple(job for job in world.jobs.values() if job.terminating and in_the_way(job))


def victims_will_stop_sentence(request: Job, victims: Sequence[Job]) -> str:
    """What is told of a job for which others can be asked to leave."""
    have = "has" if len(victims) == 1 else "have"
    return f"What it needs is held by {_named(request, victims)}, which {have} to leave for it after notice."


def victims_stopping_sentence(request: Job, leavers: Sequence[Job]) -> str:
    """What is told of a job that was promised a place, without the full stop: the time may follow."""
    have = "has" if len(leavers) == 1 else "have"
    return f"What it waits for is held by {_named(request, leavers)}, which {have} been told to leave"


def _named(request: Job, jobs: Iterable[Job]) -> str:
    """``2 preemptible jobs and a job of your team with a lower priority``."""
    counts: dict[tuple[str, str], int] = {}
    for job in jobs:
        kind = _kind(request, job)
        counts[kind] = counts.get(kind, 0) + 1
    return " and ".join(
        f"a {one}{more}" if count == 1 else f"{count} {one}s{more}" for (one, more), count in sorted(counts.items())
    )


def _kind(request: Job, job: Job) -> tuple[str, str]:
    """The noun for a job, and what follows it."""
    if job.preemptible:
        return "preemptible job", ""
    if job.team == request.team and job.priority < request.priority:
        return "job", " of your team with a lower priority"
    return "job", " that is being stopped"
