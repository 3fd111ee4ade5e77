"""The queue: who comes first, who may pass whom.

Guaranteed jobs come before those that run on idle GPUs, which would only be stopped for them. Then: the higher
priority, the team with the smaller decayed usage in relation to its quota, the earlier submit time. Within a team usage
is the same for all, so a team's queue never changes its order by itself. Usage is that of GPUs: it says nothing about
jobs without, so for those, which come last, it is the priority and the submit time.

There is no head of line that blocks: what can not start now is passed. So that a big job is not passed for ever, nobody
passes one that has waited for longer than the cluster's ``patience`` in the same lane (its team's quota of one type;
the idle GPUs of one type; CPU and memory) at its expense: they leave it the node that comes closest to holding it, and
their team's quota that it needs. That holds on idle GPUs whatever its team has used: whoever came once it was not to
be passed any more, and wants less, leaves it the node although their team has used less (``backfill``). A lower
priority waits, if need be for ever, for higher ones of its lane. Who waits for something else (an approval, a login, an
own cap, a node that is closed) holds up nobody.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import inf

from dlspawner.core.jobs import Job
from dlspawner.core.world import ClusterState, JobOrderKey, job_order_key, queue_key

OrderKey = tuple[bool, int, float, datetime, str]


def order_key(job: Job, world: ClusterState, now: datetime) -> OrderKey:
    """The smaller one comes first."""
    later = job.preemptible or job.request.gpu_type is None
    used = inf if job.request.gpu_type is None else world.usage_of(job.team, now)
    return (later, -job.priority, used, job.submitted, job.id)


def order(world: ClusterState, now: datetime) -> list[Job]:
    """All queued jobs, the first one first."""
    usage: dict[str, float] = {}
    ranks: list[OrderKey] = []
    for (team, kind), teams in world.queues.items():
        later = not team or kind is None
        for name, keys in teams.items():
            if name not in usage:
                usage[name] = world.usage_of(name, now)
            used = inf if kind is None else usage[name]
            ranks += [(later, level, used, submitted, job_id) for level, submitted, job_id in keys]
    ranks.sort()
    return [world.jobs[one[-1]] for one in ranks]


def position(request: Job, world: ClusterState, now: datetime) -> int:
    """The place, from 1, among those that wait for the same; of a job that is not queued (yet), where it would be."""
    own, before = job_order_key(request), 0
    used = world.usage_of(request.team, now)
    for team, keys in world.queues.get(queue_key(request), {}).items():
        if team == request.team or request.request.gpu_type is None:
            before += bisect_left(keys, own)
            continue
        other = world.usage_of(team, now)
        if other == used:
            before += bisect_left(keys, own)
        else:
            # Of the same priority, all come before or all after.
            level = own[0] if other > used else own[0] + 1
            before += bisect_left(keys, level, key=lambda one: one[0])
    return before + 1


def waiting_since(keys: Sequence[JobOrderKey], limit: datetime) -> Iterator[JobOrderKey]:
    """Those of a team who came until then, in the team's order."""
    index = 0
    while index < len(keys):
        if keys[index][1] <= limit:
            yield keys[index]
            index += 1
        else:  # whoever else is of this priority came later
            index = bisect_right(keys, keys[index][0], lo=index, key=lambda one: one[0])
