"""Victims: which jobs are stopped so that another one can start.

In this order: borrowed before guaranteed (which only its own team can ask to stop, where it opted in), confirmed idle
first, the lowest priority, the team that is most over its share, the youngest. A victim that turns out not to be needed
is spared, the best protected first.

No job has to leave before the minimum run time and the notice after it are over. A job below that time is a victim only
where the others are not enough, and is told at once: the waiting job has its place promised from then on, so that
resources of jobs that end early are not lent again. Never victims are jobs that are leaving already, and every
guaranteed job of another team. No job is stopped unless that lets the waiting job start.

Sentences about victims name the jobs that leave and not the owners of the GPUs: borrowers may be on nodes of others,
and with ``preempt_within_team`` the victim is a colleague's job.

A lowered quota stops no job: the newest jobs beyond it become preemptible, after notice. When the quota is sufficient
again they become guaranteed, the oldest first, without resources that another guaranteed job holds or has reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from math import inf

from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import limits
from dlspawner.core.scheduling.cluster_state import ClusterState, job_order_key
from dlspawner.core.scheduling.node_info import NO_RESOURCES, NodeInfo, Resources, resources_needed

_BEFORE_STOP = frozenset({JobState.STARTING, JobState.RUNNING})


def may_be_stopped(job: Job, request: Job, state: ClusterState) -> bool:
    """True if a job may ever be a victim of the request; its run time is not considered."""
    if not job.holds or job.terminating or request.preemptible:
        return False
    if job.preemptible:
        return True
    team = state.team(request.team)
    return (
        job.team == request.team and team is not None and team.preempt_within_team and job.priority < request.priority
    )


def protected_until(job: Job, state: ClusterState, now: datetime) -> datetime:
    """Until when the minimum run time protects a job; one that has not begun to run begins now at the earliest."""
    return min(job.started or now, now) + state.cluster.scheduling.min_run


def is_protected(job: Job, state: ClusterState, now: datetime) -> bool:
    return job.started is None or now < protected_until(job, state, now)


def stop_time(job: Job, state: ClusterState, now: datetime) -> datetime:
    """When a victim that is told now is stopped: the notice begins when it has run for the minimum time."""
    return max(now, protected_until(job, state, now)) + state.cluster.scheduling.notice


def deferred_stop_time(job: Job, state: ClusterState, now: datetime) -> datetime | None:
    """Returns the time until which a victim runs on after its notice, because it took long to start."""
    if job.started is None or job.started > now:
        return None
    until = protected_until(job, state, now)
    return until if now < until else None


def order_candidates(candidates: Iterable[Job], state: ClusterState, now: datetime) -> list[Job]:
    """Orders possible victims, the first one first: borrowers, then the team's own jobs, by the time of their earliest
    stop.

    All jobs beyond the minimum run time may leave equally soon, so that the rest of the order decides.
    """
    return sorted(candidates, key=lambda job: (not job.preemptible, stop_time(job, state, now), *_order(job, state)))


def choose_victims(
    missing: Mapping[str, Resources],
    resource: str,
    candidates: Iterable[Job],
    quota_missing: int = 0,
) -> tuple[Job, ...] | None:
    """Returns the jobs that free the missing resources, by node; ``None`` when all candidates are not enough.

    ``candidates`` may all be stopped, and are tried in their order (`order_candidates`). ``quota_missing``: milli-GPUs
    that guaranteed jobs among them have to give back.
    """
    missing = _rest(missing, {})
    taken: list[tuple[Job, dict[str, Resources], int]] = []
    left, quota_left = dict(missing), quota_missing
    for job in candidates:
        if not left and quota_left <= 0:
            break
        gives, quota = _gives(job, left, resource), 0 if job.preemptible else job.request.gpus
        helps = any(gives[node].meets(left[node]) for node in gives)
        if helps or (quota and quota_left > 0):
            taken.append((job, _gives(job, missing, resource), quota))
            left = _rest(left, gives)
            quota_left -= quota
    if left or quota_left > 0:
        return None
    return tuple(job for job, _, _ in _needed(taken, missing, quota_missing))


def unneeded_victims(state: ClusterState) -> tuple[Job, ...]:
    """Returns the victims that no job waits for any more: the job with the reservation is gone, or has another place.

    Jobs that are stopping already can not be spared. Nor does a job that leaves later make up for one that leaves
    earlier: each reservation on a node would make the earlier ones there wait longer.
    """
    found: list[Job] = []
    wanting = {(job.team, job.request.gpu_type) for job in _reserved(state)}
    kept: dict[str, Resources] = {}  # the resources that spared jobs keep, by node
    quota: dict[tuple[str, str], int] = {}  # the freed quota beyond the needs of the team's pending jobs
    noticed = [job for job in (state.jobs[name] for name in state.noticed) if job.state in _BEFORE_STOP]
    for job in sorted(noticed, key=lambda job: _order(job, state), reverse=True):
        kind = job.request.gpu_type
        whose = (job.team, kind) if kind and not job.preemptible and (job.team, kind) in wanting else None
        if whose is not None and whose not in quota:
            quota[whose] = state.available_quota(*whose) + state.releasing(*whose)
        if whose is not None and quota[whose] < job.request.gpus:
            continue  # a job of the team waits for that quota
        resource = next((pod.resource for pod in job.request.pods if pod.resource), "")
        wanted = {name for name in job.nodes if name in state.node_infos and state.node_infos[name].reservations}
        holds = _gives(job, dict.fromkeys(wanted, NO_RESOURCES), resource)
        keeps = {name: kept.get(name, NO_RESOURCES) + space for name, space in holds.items()}
        infos = [state.node_infos[name] for name in keeps]
        if whose and any(_leaves_share(job, info, resource, state) < keeps[info.node.name].gpus for info in infos):
            continue  # and here its part of a node
        spared = {one.id for one in found}
        if all(
            info.available_after_termination(resource).covers(
                keeps[info.node.name] + info.releasing_after(job.notice, resource, spared)
            )
            for info in infos
        ):
            found.append(job)
            kept.update(keeps)
            if whose is not None:
                quota[whose] -= job.request.gpus
    return tuple(found)


class Step(Enum):
    """A step that is due on a reservation or a notice."""

    RELEASE = "release the nodes that were reserved"
    SPARE = "cancel the notice"
    DEFER = "move the notice"
    STOP = "stop the victim"


def due_steps(state: ClusterState, now: datetime) -> Iterator[tuple[Step, Job, datetime | None]]:
    """Returns the steps that are due after a pass over the queue, with the time of the notice from then on.

    Each step must have been put into the state before the next one is asked for.
    """
    if not state.reserved_jobs and not state.noticed:
        return
    native = state.cluster.scheduler.is_native  # an engine names its own victims
    for job in stale_reservations(state):
        yield Step.RELEASE, job, None
    for job in unneeded_victims(state) if native else ():
        yield Step.SPARE, job, None
    noticed = sorted(state.noticed)
    for job in [job for job in (state.jobs[name] for name in noticed) if job.notice is not None and job.notice <= now]:
        later = deferred_stop_time(job, state, now) if native else None
        yield (Step.STOP if later is None else Step.DEFER), job, later


def _leaves_share(job: Job, info: NodeInfo, resource: str, state: ClusterState) -> float:
    """Milli-GPUs that the job's team may keep on a node, if its share is too small beside what was promised there."""
    beyond = share_overrun(job.team, job.request.gpu_type or "", info, state)
    return releasing_of(job.team, info, resource, state) - beyond if beyond else inf


def share_overrun(team: str, kind: str, info: NodeInfo, state: ClusterState) -> int:
    """By how much what a team's guaranteed jobs hold and were promised on a node of its share is others' there."""
    found, shares = state.cluster.gpu_type(kind), state.quota_by_node(kind).get(info.node.name, {})
    if found is None or team not in shares:
        return 0  # out of its share
    held = info.guaranteed_by_team.get(found.resource, {})
    others = sum(max(held.get(one, 0), shares.get(one, 0)) for one in {*held, *shares} if one != team)
    own = max(shares[team], info.node.gpus_of(found.resource) - others)
    return max(0, held.get(team, 0) - own)


def releasing_of(team: str, info: NodeInfo, resource: str, state: ClusterState) -> int:
    """Milli-GPUs of a node that a team's own guaranteed jobs will give back."""
    jobs = (state.jobs[name] for name in info.terminating)
    own = (job.id for job in jobs if job.team == team and not job.preemptible)
    return sum(resources_needed(info.allocations[name], resource).gpus for name in own)


def stale_reservations(state: ClusterState) -> tuple[Job, ...]:
    """Returns the pending jobs with a void reservation; the last in the queue is the first to lose its own.

    A node is closed or gone, or others are there now; the quota was lowered; the job may not start for other reasons.
    """
    found: list[Job] = []
    back: dict[str, Resources] = {}  # what those give back, by node
    quota: dict[tuple[str, str | None], int] = {}  # and to their teams
    for job in sorted(_reserved(state), key=job_order_key, reverse=True):
        resource = next((pod.resource for pod in job.request.pods if pod.resource), "")
        wants = _gives(job, dict.fromkeys((name for name in job.nodes if name is not None), NO_RESOURCES), resource)
        may = limits.config_violation(job, state) is None and limits.caps(job, state) is None
        if may and _nodes_open(job, state) and _quota_comes(job, state, quota.get((job.team, job.request.gpu_type), 0)):
            comes = {name: state.node_infos[name].available_after_termination(resource, job.id) for name in wants}
            if all((space + back.get(name, NO_RESOURCES)).covers(wants[name]) for name, space in comes.items()):
                continue
        found.append(job)
        if not job.preemptible:
            whose = (job.team, job.request.gpu_type)
            quota[whose] = quota.get(whose, 0) + job.request.gpus
        for name, space in wants.items():
            back[name] = back.get(name, NO_RESOURCES) + space
    return tuple(found)


def _reserved(state: ClusterState) -> list[Job]:
    return sorted((state.jobs[name] for name in state.reserved_jobs), key=job_order_key)


def _nodes_open(job: Job, state: ClusterState) -> bool:
    return all(name in state.node_infos and state.node_infos[name].node.open for name in job.nodes if name is not None)


def _quota_comes(job: Job, state: ClusterState, back: int) -> bool:
    """True if the team's quota is enough, with what is given back and without its own jobs that have notice."""
    kind = job.request.gpu_type
    if kind is None or job.preemptible:
        return True
    return job.request.gpus <= state.available_quota(job.team, kind, job) + state.releasing(job.team, kind) + back


def _order(job: Job, state: ClusterState) -> tuple[object, ...]:
    kind = job.request.gpu_type
    over = state.over_quota(job.team, kind) if kind else 0
    age = job.started.timestamp() if job.started else 0.0
    return (not job.preemptible, not job.idle, job.priority, -over, -age, job.id)


def _gives(job: Job, missing: Mapping[str, Resources], resource: str) -> dict[str, Resources]:
    gives: dict[str, Resources] = {}
    for pod, node in zip(job.request.pods, job.nodes, strict=False):
        if node is not None and node in missing:
            gives[node] = gives.get(node, NO_RESOURCES) + resources_needed([pod], resource)
    return gives


def _rest(missing: Mapping[str, Resources], gives: Mapping[str, Resources]) -> dict[str, Resources]:
    rest = {node: space - gives.get(node, NO_RESOURCES) for node, space in missing.items()}
    return {node: space for node, space in rest.items() if space.meets(space)}


def _needed(
    taken: list[tuple[Job, dict[str, Resources], int]], missing: Mapping[str, Resources], quota_missing: int
) -> list[tuple[Job, dict[str, Resources], int]]:
    """Returns the victims that are needed; the one that was chosen last is examined first."""
    needed = list(taken)
    for one in reversed(taken):
        others = [other for other in needed if other is not one]
        left: Mapping[str, Resources] = missing
        for _, gives, _ in others:
            left = _rest(left, gives)
        if not left and sum(quota for _, _, quota in others) >= quota_missing:
            needed = others
    return needed


def victims_of(request: Job, state: ClusterState) -> tuple[Job, ...]:
    """Returns the leaving jobs that hold a job's reservation: its nodes, or a part of its team's quota."""
    kind, nodes = request.request.gpu_type, set(request.nodes)
    short = (
        kind is not None
        and not request.preemptible
        and state.available_quota(request.team, kind, request) < (request.request.gpus)
    )

    def in_the_way(job: Job) -> bool:
        own = job.team == request.team and not job.preemptible and job.request.gpu_type == kind
        return not nodes.isdisjoint(job.nodes) or (short and own)

    return tuple(job for job in state.jobs.values() if job.terminating and in_the_way(job))


def victims_will_stop_sentence(request: Job, victims: Sequence[Job]) -> str:
    """Returns the sentence for a job that has possible victims."""
    have = "has" if len(victims) == 1 else "have"
    return f"What it needs is held by {_named(request, victims)}, which {have} to leave for it after notice."


def victims_stopping_sentence(request: Job, victims: Sequence[Job]) -> str:
    """Returns the sentence for a job with a reservation, without the full stop: the time may follow."""
    have = "has" if len(victims) == 1 else "have"
    return f"What it waits for is held by {_named(request, victims)}, which {have} been told to leave"


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


def over_quota_jobs(state: ClusterState) -> tuple[Job, ...]:
    """Guaranteed jobs that are more than their team's quota, the newest: a quota was lowered, or a team removed.

    They go on, and turn preemptible after notice. Jobs that are leaving do not count, nor do those that ran before
    there was any quota: these go on as they are, or switching quota on would stop them. As few as possible are named.
    """
    if not state.teams.has_quota:
        return ()
    found: list[Job] = []
    by_team: dict[tuple[str, str], list[Job]] = {}
    for job in state.jobs.values():
        kind = job.request.gpu_type
        if kind is not None and job.holds and not (job.preemptible or job.terminating or job.exempt_from_quota):
            by_team.setdefault((job.team, kind), []).append(job)
    for (team, kind), jobs in sorted(by_team.items()):
        over = sum(job.request.gpus for job in jobs) - state.quota(team, kind)
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


def restorable(turned: Iterable[Job], state: ClusterState) -> tuple[Job, ...]:
    """Of the jobs that turned preemptible for a lowered quota those that fit into their team's quota, oldest first.

    One that has notice is among them only where it is on its team's share: there the place that it should leave was
    promised to an out-of-share job, which has to look for another one. Elsewhere its place is reserved for its owner.
    """
    found: list[Job] = []
    left: dict[tuple[str, str], int] = {}
    for job in sorted(turned, key=_age):
        kind = job.request.gpu_type
        if kind is None or not (job.preemptible and job.holds) or state.team(job.team) is None:
            continue
        if job.terminating and (job.notice is None or not _on_its_share(job, kind, state)):
            continue
        whose = (job.team, kind)
        rest = left[whose] = left[whose] if whose in left else state.available_quota(*whose)
        if job.request.gpus <= rest:
            found.append(job)
            left[whose] = rest - job.request.gpus
    return tuple(found)


def _on_its_share(job: Job, kind: str, state: ClusterState) -> bool:
    """True if the job, if guaranteed, would take no more than its team's share of each of its nodes."""
    share = state.quota_by_team(kind).get(job.team, {})
    for name in set(job.nodes):
        info = state.node_infos.get(name) if name is not None else None
        if info is None or share.get(info.node.name, 0) < _guaranteed_with(job, info):
            return False
    return True


def _guaranteed_with(job: Job, info: NodeInfo) -> int:
    """Milli-GPUs that the team's guaranteed jobs hold there or were promised, and those of the job."""
    resource = next(pod.resource for pod in job.request.pods if pod.resource)
    own = resources_needed(info.allocations.get(job.id, ()), resource).gpus
    return info.guaranteed_by_team.get(resource, {}).get(job.team, 0) + own


def _age(job: Job) -> tuple[datetime, str]:
    return (job.started or job.submitted, job.id)
