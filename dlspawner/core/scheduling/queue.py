"""The queue: its order, and which jobs may pass others.

Guaranteed jobs come before those that run on idle GPUs, which would only be stopped for them. Then: the higher
priority, the team with the smaller decayed usage in relation to its quota, the earlier submit time. Within a team usage
is the same for all, so a team's queue never changes its order by itself. Usage is that of GPUs: it says nothing about
jobs without, so for those, which come last, it is the priority and the submit time.

There is no head of line that blocks: what can not start now is passed. So that a big job is not passed for ever, no job
passes one that has waited for longer than the cluster's ``max_backfill_wait`` in the same lane (its team's quota of one
type; the idle GPUs of one type; CPU and memory) at its expense: they leave it the node that comes closest to holding
it, and their team's quota that it needs. That holds on idle GPUs independently of its team's usage: a job that came
once it was not to be passed any more, and wants less, leaves it the node although its team has used less
(``max_backfill_wait``). A lower priority waits, if need be for ever, for higher ones of its lane. A job that waits for
something else (an approval, a login, an own cap, a node that is closed) blocks no other job.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from math import inf

from dlspawner.core.decisions import EngineWaits, Reason
from dlspawner.core.job import Job
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling import limits
from dlspawner.core.scheduling.cluster_state import ClusterState, JobOrderKey, QueueKey, job_order_key, queue_key
from dlspawner.core.scheduling.limits import Blocked
from dlspawner.core.scheduling.node_info import NodeInfo, Nodes, Resources, place_best, place_first
from dlspawner.core.units import counted

OrderKey = tuple[bool, int, float, datetime, str]


def order_key(job: Job, state: ClusterState, now: datetime) -> OrderKey:
    """The smaller one comes first."""
    later = job.preemptible or job.request.gpu_type is None
    used = inf if job.request.gpu_type is None else state.usage_of(job.team, now)
    return (later, -job.priority, used, job.submitted, job.id)


def order(state: ClusterState, now: datetime) -> list[Job]:
    """All queued jobs, the first one first."""
    jobs = list(in_order(state, now))
    return sorted(jobs, key=lambda job: position(job, state, now)) if state.verdicts else jobs


def in_order(
    state: ClusterState,
    now: datetime,
    skip: Callable[[Job], bool] = lambda _: False,
    full: Collection[tuple[QueueKey, str]] = (),
) -> Iterator[Job]:
    """The jobs that are queued now, the first one first, each as it is at its turn; those that are gone are left out.

    A job that is to be skipped once is skipped for ever, and with it all later ones of its team, lane and priority with
    the same request. Of a ``full`` team in a lane only promised jobs come, and no promised job is skipped.
    """
    promised = {name: state.jobs[name] for name in state.reserved_jobs}

    def line(lane: QueueKey, team: str, keys: list[JobOrderKey]) -> Iterator[OrderKey]:
        index = 0
        while index < len(keys) and (lane, team) not in full:
            one = level, _, job_id = keys[index]
            if job_id not in promised:
                if skip(state.jobs[job_id]):
                    index = _after_level(keys, index, level)
                    continue
                yield order_key(state.jobs[job_id], state, now)
            index = bisect_right(keys, one)  # the job may be gone

    heads_of_promised = [iter((order_key(job, state, now),)) for job in promised.values()]
    lines = heads_of_promised + [
        line(lane, team, keys)
        for lane, teams in state.queues.items()
        for team, queued in teams.items()
        if (lane, team) not in full
        for keys in queued.alike.values()
    ]
    heads = [(rank, index) for index, one in enumerate(lines) if (rank := next(one, None)) is not None]
    heapify(heads)
    while heads:
        rank, index = heads[0]
        job = state.jobs.get(rank[-1])
        if job is not None and not skip(job):
            yield job
        following = next(lines[index], None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (following, index))


def position(request: Job, state: ClusterState, now: datetime) -> int:
    """The place, from 1, among those that wait for the same; of a job that is not queued (yet), where it would be.

    An engine that queues jobs has the first word.
    """
    verdict = state.verdicts.get(request.id)
    if isinstance(verdict, EngineWaits) and verdict.position is not None:
        return verdict.position
    own, before = job_order_key(request), 0
    used = state.usage_of(request.team, now)
    for team, queued in state.queues.get(queue_key(request), {}).items():
        keys = queued.keys
        if team == request.team or request.request.gpu_type is None:
            before += bisect_left(keys, own)
            continue
        other = state.usage_of(team, now)
        if other == used:
            before += bisect_left(keys, own)
        else:
            # Of the same priority, all come before or all after.
            level = own[0] if other > used else own[0] + 1
            before += bisect_left(keys, level, key=lambda one: one[0])
    return before + 1


def waiting_since(keys: Sequence[JobOrderKey], limit: datetime) -> Iterator[JobOrderKey]:
    """Returns the jobs of a team that came until then, in the team's order."""
    index = 0
    while index < len(keys):
        if keys[index][1] <= limit:
            yield keys[index]
            index += 1
        else:  # other jobs of this priority came later
            index = _after_level(keys, index, keys[index][0])


def _after_level(keys: Sequence[JobOrderKey], index: int, level: int) -> int:
    """Returns where the jobs of the next lower priority begin."""
    return bisect_right(keys, level, lo=index, key=lambda one: one[0])


_BESIDE_GPUS = frozenset({Reason.HOST_PORTS, Reason.TEAM_QUOTA})  # caps of other things: ports, extended resources
_Size = tuple[int, datetime, str]  # the smaller one wants more, or came first


@dataclass(frozen=True, slots=True)
class _PastMaxWait:
    """The jobs of a lane shared by teams that may not be passed any more.

    ``starved``: of each priority, the one that wants the most GPUs; late jobs that want less yield to it,
    even if their team has used little. ``first``: of those that need not yield themselves, the first of the queue.
    So there is always one that yields to none, and not all wait for each other.
    """

    first: Job | None
    starved: dict[int, Job]


@dataclass(frozen=True, slots=True)
class _OfTeam:
    """The jobs of a team there: the first with its rank, and of each priority the first that wants the most GPUs."""

    first: Job
    rank: OrderKey
    largest: tuple[tuple[_Size, Job], ...]


def blocking_job(request: Job, state: ClusterState, now: datetime) -> Job | None:
    """The first job that the request may not pass, if it waits for what others hold and for nothing of its own."""
    where = queue_key(request)
    if where[0]:
        own = first_past_max_wait(where, request.team, state, now)
        return own if own is not None and job_order_key(own) < job_order_key(request) else None
    overdue = _past_max_wait(where, state, now)
    if _must_yield(request, overdue.starved, state):
        return overdue.starved[request.priority]
    one = overdue.first
    return one if one is not None and order_key(one, state, now) < order_key(request, state, now) else None


def takes_quota_of(ahead: Job, request: Job, left: int) -> bool:
    """True if a job would leave less of its team's quota than one needs that it may not pass."""
    return left - request.request.gpus < ahead.request.gpus


def _past_max_wait(where: QueueKey, state: ClusterState, now: datetime) -> _PastMaxWait:
    known: tuple[datetime, _PastMaxWait] | None = state.memo.get(("overdue", where))
    if known is None or known[0] != now:
        found = [_of_team(where, team, state, now) for team in state.queues.get(where, {})]
        teams = [one for one in found if one is not None]
        starved = _starving(teams)
        ahead: _OfTeam | None = None
        for one in teams:
            if (ahead is None or one.rank < ahead.rank) and not _must_yield(one.first, starved, state):
                ahead = one
        known = state.memo["overdue", where] = (now, _PastMaxWait(ahead.first if ahead else None, starved))
    return known[1]


def _starving(teams: Iterable[_OfTeam]) -> dict[int, Job]:
    """Returns by priority the job that wants the most GPUs; of several the first one."""
    sizes: dict[int, tuple[_Size, Job]] = {}
    for team in teams:
        for one in team.largest:
            other = sizes.get(one[1].priority)
            if other is None or one[0] < other[0]:
                sizes[one[1].priority] = one
    return {priority: job for priority, (_, job) in sizes.items()}


def _must_yield(job: Job, starved: dict[int, Job], state: ClusterState) -> bool:
    """True if a job came when one of its priority was not to be passed any more, and could pass it as it wants less."""
    one = starved.get(job.priority)
    if one is None or job.request.gpus >= one.request.gpus:
        return False
    return job.submitted >= one.submitted + state.cluster.scheduling.max_backfill_wait


def _of_team(where: QueueKey, team: str, state: ClusterState, now: datetime) -> _OfTeam | None:
    memo = state.team_cache(team)
    known: tuple[datetime, _OfTeam | None] | None = memo.get(("overdue of team", where))
    if known is None or known[0] != now:
        one = first_past_max_wait(where, team, state, now)
        rank = None if one is None else order_key(one, state, now)
        found = _OfTeam(one, rank, _largest_past_max_wait(where, team, state, now)) if one and rank else None
        known = memo["overdue of team", where] = (now, found)
    return known[1]


def _largest_past_max_wait(
    where: QueueKey, team: str, state: ClusterState, now: datetime
) -> tuple[tuple[_Size, Job], ...]:
    most: dict[int, tuple[_Size, Job]] = {}
    limit = now - state.cluster.scheduling.max_backfill_wait
    queued = state.queues.get(where, {}).get(team)
    for request, keys in sorted(queued.alike.items(), key=lambda one: -one[0].gpus) if queued else ():
        index = 0
        while index < len(keys):
            end = _after_level(keys, index, keys[index][0])
            known = most.get(-keys[index][0])
            if known is None or (-request.gpus, *keys[index][1:]) < known[0]:
                late = (state.jobs[one[-1]] for one in waiting_since(keys[index:end], limit))
                job = next(jobs_blocked_by_others(late, state), None)
                size = None if job is None else (-request.gpus, job.submitted, job.id)
                if job is not None and size is not None and (known is None or size < known[0]):
                    most[job.priority] = (size, job)
            index = end
    return tuple(most.values())


def first_past_max_wait(where: QueueKey, team: str, state: ClusterState, now: datetime) -> Job | None:
    """Returns the first job of a team in a lane that may not be passed any more."""
    memo = state.team_cache(team)
    known: tuple[datetime, Job | None] | None = memo.get(("overdue", where))
    if known is None or known[0] != now:
        waiting = jobs_blocked_by_others(_late(where, team, state, now), state)
        known = memo["overdue", where] = (now, next(waiting, None))
    return known[1]


def _late(where: QueueKey, team: str, state: ClusterState, now: datetime) -> Iterator[Job]:
    queued = state.queues.get(where, {}).get(team)
    late = waiting_since(queued.keys if queued else (), now - state.cluster.scheduling.max_backfill_wait)
    return (state.jobs[one[-1]] for one in late)


def jobs_blocked_by_others(jobs: Iterable[Job], state: ClusterState) -> Iterator[Job]:
    """A team's jobs, in its order, that wait for what others hold, for nothing of their own, and have no promise.

    Many jobs of a user at the cap are passed over at once.
    """
    capped: dict[str, int] = {}  # by user: a user at the cap for so many GPUs may have no more either
    borrows: float = inf  # nor may a team borrow more
    for job in jobs:
        gpus, most = job.request.gpus, capped.get(job.user)
        if job.reserved or gpus >= borrows or (most is not None and gpus >= most and not job.approved):
            continue
        if is_blocked_by_others(job, state):
            yield job
        elif (cap := limits.caps(job, state)) is not None and cap.reason is Reason.BORROW_LIMIT:
            borrows = gpus
        elif cap is not None and not job.approved and cap.reason not in _BESIDE_GPUS:
            capped[job.user] = min(gpus, gpus if most is None else most)


def is_blocked_by_others(job: Job, state: ClusterState) -> bool:
    """True if a job waits for allocations of other jobs, and not for a limit of its own or for closed nodes."""
    if limits.caps(job, state) is not None or limits.config_violation(job, state) is not None:
        return False
    return state.config_cache(("on open nodes", job.request), lambda: _could_be_on_open_nodes(job.request, state))


def _could_be_on_open_nodes(charge: ResourceRequest, state: ClusterState) -> bool:
    pods = charge.pods
    pools = [state.pool(pod.resource, pod.placement) for pod in pods]
    if len(pods) == 1:
        return any(info.allocatable(pods[0].resource).holds(pods[0]) for info in pools[0].node_infos.values())
    infos = {name: info for pool in pools for name, info in pool.node_infos.items()}
    return (
        place_best(pods, infos.values(), lambda info, pod: info.allocatable(pod.resource), lambda _, left: left)
        is not None
    )


def nodes_kept_for_blocking_job(request: Job, state: ClusterState, now: datetime) -> tuple[Job | None, frozenset[str]]:
    """Returns the job that may not be passed any more, and the nodes that come closest to holding it."""
    ahead = blocking_job(request, state, now)
    return (None, frozenset()) if ahead is None else (ahead, closest_nodes(ahead, state))


def closest_nodes(job: Job, state: ClusterState) -> frozenset[str]:
    """The nodes that come closest to holding a job."""
    known: frozenset[str] | None = state.memo.get(("kept", job.id))
    if known is None:
        kind = job.request.gpu_type
        if kind is None or job.preemptible:
            nodes = place_first(
                job.request.pods,
                lambda pod: state.pool(pod.resource, pod.placement).least_allocated(),
                lambda info, pod: info.allocatable(pod.resource),
            )
        else:
            nodes = _nearest_of_guaranteed(job, kind, state)
        known = state.memo["kept", job.id] = frozenset(nodes or ())
    return known


def _nearest_of_guaranteed(job: Job, kind: str, state: ClusterState) -> Nodes | None:
    """Returns the nearest nodes of a guaranteed job. Borrowers are not in its way; shares of others are avoided."""
    largest = max(job.request.pods, key=lambda pod: pod.gpus)
    pools = (state.pool(pod.resource, pod.placement) for pod in job.request.pods)
    infos = {name: info for pool in pools for name, info in pool.node_infos.items()}
    shares = state.quota_by_node(kind)

    def rank(info: NodeInfo, _: Resources) -> tuple[object, ...]:
        name, whole = info.node.name, info.allocatable(largest.resource)
        others = sum(milli for team, milli in shares.get(name, {}).items() if team != job.team)
        return (whole.gpus - others < largest.gpus, info.guaranteed_and_reserved(largest.resource), name)

    return place_best(job.request.pods, infos.values(), lambda info, _: info.allocatable(largest.resource), rank)


def blocked_by(ahead: Job | None) -> Blocked:
    """Returns the answer to a job that would pass one past its maximum wait."""

    def text() -> str:
        whose = f"{counted(ahead.request.gpus)}" if ahead and ahead.request.gpus else "CPU and memory"
        return f"A job that wants {whose} has waited for so long that no later job may pass it."

    return Blocked(Reason.BLOCKED_BY_EARLIER, text)
