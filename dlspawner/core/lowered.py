"""Lowered quotas: which guaranteed jobs are more than their team's quota then, and which may be guaranteed again.

A quota that is lowered stops nobody: the newest jobs beyond it turn preemptible, after notice. When it is enough again
they turn back, the oldest first, with nothing that another guaranteed job holds or was promised.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dlspawner.core.jobs import Job
from dlspawner.core.rooms import NodeInfo, resources_needed
from dlspawner.core.world import ClusterState


def over_quota_jobs(world: ClusterState) -> tuple[Job, ...]:
    """Guaranteed jobs that are more than their team's quota, the newest: a quota was lowered, or a team removed.

    They go on, and turn preemptible after notice. Jobs that are leaving do not count, nor do those that ran before
    there was any quota: these go on as they are, or switching quota on would stop them. As few as possible are named.
    """
    if not world.teams.has_quota:
        return ()
    found: list[Job] = []
    by_team: dict[tuple[str, str], list[Job]] = {}
    for job in world.jobs.values():
        kind = job.request.gpu_type
        if kind is not None and job.holds and not (job.preemptible or job.terminating or job.exempt_from_quota):
            by_team.setdefault((job.team, kind), []).append(job)
    for (team, kind), jobs in sorted(by_team.items()):
        over = sum(job.request.gpus for job in jobs) - world.quota(team, kind)
        if over <= 0:
            continue
        newest = sorted(jobs, key=_age, reverse=True)
        chosen: list[Job] = []
        for job in newest:
            if sum(one.request.gpus for one in chosen) < over:
                chosen.append(job)
        for job in reversed(tuple(chosen)):
            if sum(one.request.gpus for one in chosen) - job.request.gpus >= over:
                chosen.remove(job)
        found += chosen
    return tuple(found)


def restorable(turned: Iterable[Job], world: ClusterState) -> tuple[Job, ...]:
    """Of the jobs that turned preemptible for a lowered quota those that their team's quota has room for, oldest first.

    One that has notice is among them only where it is on its team's share: there the place that it should leave was
    promised to a guest, who has to look for another one. Elsewhere its place is promised to whom it belongs.
    """
    found: list[Job] = []
    left: dict[tuple[str, str], int] = {}
    for job in sorted(turned, key=_age):
        kind = job.request.gpu_type
        if kind is None or not (job.preemptible and job.holds) or world.team(job.team) is None:
            continue
        if job.terminating and (job.notice is None or not _on_its_share(job, kind, world)):
            continue
        whose = (job.team, kind)
        rest = left[whose] = left[whose] if whose in left else world.available_quota(*whose)
        if job.request.gpus <= rest:
            found.append(job)
            left[whose] = rest - job.request.gpus
    return tuple(found)


def _on_its_share(job: Job, kind: str, world: ClusterState) -> bool:
    """Whether the job, if it were guaranteed, would take no more than its team's share of each of its nodes."""
    share = world.quota_by_team(kind).get(job.team, {})
    for name in set(job.nodes):
        room = world.rooms.get(name) if name is not None else None
        if room is None or share.get(room.node.name, 0) < _guaranteed_with(job, room):
            return False
    return True


def _guaranteed_with(job: Job, room: NodeInfo) -> int:
    """Milli-GPUs that the team's guaranteed jobs hold there or were promised, and those of the job."""
    resource = next(pod.resource for pod in job.request.pods if pod.resource)
    own = resources_needed(room.allocations.get(job.id, ()), resource).gpus
    return room.guaranteed_by_team.get(resource, {}).get(job.team, 0) + own


def _age(job: Job) -> tuple[datetime, str]:
    return (job.started or job.submitted, job.id)
