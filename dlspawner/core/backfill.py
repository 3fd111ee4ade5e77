"""Backfill: who may not be passed any more, and what has to be left for them. The rule is in ``queueing``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core import limits, queueing
from dlspawner.core.amounts import counted
from dlspawner.core.charge import Charge
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job
from dlspawner.core.limits import Blocked
from dlspawner.core.placing import Nodes, first, ranked
from dlspawner.core.rooms import Room, Space
from dlspawner.core.world import Lane, World, lane


@dataclass(frozen=True, slots=True)
class _Overdue:
    """Those of a lane that nobody may pass any more.

    ``starved``: of each priority, the one that wants the most GPUs; where teams share a lane it is heeded by whoever
    came late and wants less, however little their team has used. ``first``: of those that need not heed one
    themselves, the first of the queue. So there is always one that heeds nobody, and not all wait for each other.
    """

    first: Job | None
    starved: dict[int, Job]


def head(request: Job, world: World, now: datetime) -> Job | None:
    """The first job that the request may not pass, if it waits for what others hold and for nothing of its own."""
    overdue = _overdue(lane(request), world, now)
    if _heeds(request, overdue.starved, world):
        return overdue.starved[request.priority]
    first_one = overdue.first
    if first_one is None or queueing.rank(request, world, now) <= queueing.rank(first_one, world, now):
        return None
    return first_one


def _overdue(where: Lane, world: World, now: datetime) -> _Overdue:
    known: tuple[datetime, _Overdue] | None = world.memo.get(("overdue", where))
    if known is None or known[0] != now:
        teams = world.queues.get(where, {})
        starved = _starved(where, world, now) if len(teams) > 1 and where[1] is not None else {}
        found = (first_overdue(where, team, world, now) for team in teams)
        heedless = [job for job in found if job is not None and not _heeds(job, starved, world)]
        first_one = min(heedless, key=lambda job: queueing.rank(job, world, now), default=None)
        known = world.memo["overdue", where] = (now, _Overdue(first_one, starved))
    return known[1]


def _heeds(job: Job, starved: dict[int, Job], world: World) -> bool:
    """Whether a job came when one of its priority was not to be passed any more, and could pass it as it wants less."""
    one = starved.get(job.priority)
    if one is None or job.charge.gpus >= one.charge.gpus:
        return False
    return job.submitted >= one.submitted + world.cluster.scheduling.patience


def _starved(where: Lane, world: World, now: datetime) -> dict[int, Job]:
    """By priority, the job that wants the most GPUs of those that nobody may pass any more; of several the first."""
    starved: dict[int, Job] = {}
    for team in world.queues[where]:
        for job in _largest_overdue(where, team, world, now):
            other = starved.get(job.priority)
            if other is None or _before(job) < _before(other):
                starved[job.priority] = job
    return starved


def _before(job: Job) -> tuple[int, datetime, str]:
    return (-job.charge.gpus, job.submitted, job.id)


def _largest_overdue(where: Lane, team: str, world: World, now: datetime) -> list[Job]:
    """Of each priority, the first of a team's jobs in a lane that want the most GPUs and may not be passed any more."""
    memo = world.memo_of(team)
    known: tuple[datetime, list[Job]] | None = memo.get(("largest overdue", where))
    if known is None or known[0] != now:
        most: dict[int, Job] = {}

        def larger() -> Iterator[Job]:
            for job in _late(where, team, world, now):
                other = most.get(job.priority)
                if other is None or other.charge.gpus < job.charge.gpus:
                    yield job

        for job in waiting_for_others(larger(), world):
            most[job.priority] = job
        known = memo["largest overdue", where] = (now, list(most.values()))
    return known[1]


def first_overdue(where: Lane, team: str, world: World, now: datetime) -> Job | None:
    """The first of a team in a lane that nobody may pass any more."""
    memo = world.memo_of(team)
    known: tuple[datetime, Job | None] | None = memo.get(("overdue", where))
    if known is None or known[0] != now:
        waiting = waiting_for_others(_late(where, team, world, now), world)
        known = memo["overdue", where] = (now, next(waiting, None))
    return known[1]


def _late(where: Lane, team: str, world: World, now: datetime) -> Iterator[Job]:
    keys = world.queues.get(where, {}).get(team, [])
    late = queueing.waiting_since(keys, now - world.cluster.scheduling.patience)
    return (world.jobs[one[-1]] for one in late)


def waiting_for_others(jobs: Iterable[Job], world: World) -> Iterator[Job]:
    """A team's jobs, in its order, that wait for what others hold, for nothing of their own, and have no promise.

    Many jobs of somebody who holds as much as one may are passed over at once.
    """
    capped: dict[str, int] = {}  # by user: who may not have so many GPUs may have no more either
    for job in jobs:
        gpus, most = job.charge.gpus, capped.get(job.user)
        if job.promised or (most is not None and gpus >= most and not job.approved):
            continue
        if waits_for_others(job, world):
            yield job
        elif limits.caps(job, world) is not None and not job.approved:
            capped[job.user] = min(gpus, gpus if most is None else most)


def waits_for_others(job: Job, world: World) -> bool:
    """Whether a job waits for what others hold, and not for something of its own or for nodes that are closed."""
    if limits.caps(job, world) is not None or limits.never(job, world) is not None:
        return False
    return world.lasting(("on open nodes", job.charge), lambda: _could_be_on_open_nodes(job.charge, world))


def _could_be_on_open_nodes(charge: Charge, world: World) -> bool:
    pods = charge.pods
    pools = [world.pool(pod.resource, pod.placement) for pod in pods]
    if len(pods) == 1:
        return any(room.whole(pods[0].resource).holds(pods[0]) for room in pools[0].rooms.values())
    rooms = {name: room for pool in pools for name, room in pool.rooms.items()}
    return ranked(pods, rooms.values(), lambda room, pod: room.whole(pod.resource), lambda _, left: left) is not None


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
