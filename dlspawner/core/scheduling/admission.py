"""Quota: may this job start now, and if not, why not and what then?

* *Guaranteed* jobs are charged to their team's quota of a GPU type, and start on the team's share of the nodes
  (``quota_layout``): there are no guaranteed jobs of other teams, and preemptible ones leave for them. They start
  elsewhere too where no share suffers: on GPUs that belong to no share; anywhere when their own share is not what it
  should be (a node is closed, another job is misplaced, no node of it suits the job), or when quotas can not be laid
  out. There they leave to other teams what these wait for (``guaranteed``).
* *Preemptible* jobs start wherever GPUs are idle. They are charged to no quota, and no job is stopped for them.
* Jobs without GPUs start wherever there is CPU and memory, on nodes without GPUs first.

Where victims leave at once, a team inside its quota, if the quota is laid out without splitting a part that fits on one
node, therefore waits no longer than on a cluster of its own. With notice and minimum run time a promised place is free
after both, and the jobs behind one that waits wait with it. Splitting: three quotas of 5 on two nodes of 8 leave
the third one 3 and 2. Where quotas can not be laid out, or the team's nodes are away, no
later job takes the nodes from a job that has waited for ``max_backfill_wait``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any

from dlspawner.core.config import ClusterConfig, GpuType
from dlspawner.core.decisions import (
    Admit,
    Alternative,
    Decision,
    EngineAdmits,
    EngineEvicts,
    EngineSays,
    EngineWaits,
    MustWait,
    Preempt,
    Reason,
    Refuse,
)
from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling import limits, queue
from dlspawner.core.scheduling.cluster_state import ClusterState, QueueKey, job_order_key, queue_key
from dlspawner.core.scheduling.guaranteed import NodeSearch, full_share_requests
from dlspawner.core.scheduling.limits import Blocked
from dlspawner.core.scheduling.placement import find_free_nodes, no_fit_message
from dlspawner.core.scheduling.queue import blocked_by, nodes_kept_for_blocking_job, takes_quota_of
from dlspawner.core.units import GPU, counted, shown

# Reasons that hold for every later job of the same lane with the same request.
_FOR_ALL = frozenset({Reason.TEAM_QUOTA, Reason.NO_FIT, Reason.BLOCKED_BY_EARLIER, Reason.VICTIMS_TERMINATING})


def admit(request: Job, state: ClusterState, now: datetime) -> Decision:
    """Decides if a job that holds nothing yet may start now.

    A job that is in the queue already is not refused: what can not be today (a node is away, a quota was lowered) may
    be tomorrow, so it waits for the same reason.
    """
    found = evaluate(request, state, now)
    if isinstance(found, Refuse) and request.state is not JobState.SUBMITTED:
        found = Blocked(found.reason, found.sentence)
    if isinstance(found, Blocked):
        return MustWait(found.reason, found.sentence, queue.position(request, state, now), found.until)
    return found


def schedule(
    state: ClusterState, now: datetime, failed: Callable[[Job, Exception], None] | None = None
) -> Iterator[tuple[Job, Admit | Preempt]]:
    """One pass over the queue: every job that may start or have others stopped for it, in the order of the queue.

    Each answer must have been put into the state (the job as ``starting`` on ``Admit.nodes``; the victims with their
    notice and the job with the promised ``Preempt.nodes``) before the next one is asked for. A job that cannot be
    decided, by a fault of ours, is passed to ``failed`` and left out; without that the exception is raised.
    """
    vain = _SkipCache(state, now)
    for job in queue.in_order(state, now, vain.for_all_like, vain.full):
        try:
            found = evaluate(job, state, now)
        except Exception as error:
            if failed is None:
                raise
            failed(job, error)
            continue
        if isinstance(found, Blocked) and found.reserve:
            found = Preempt((), found.reserve)
        if isinstance(found, Admit | Preempt):
            yield job, found
            vain.started(job)
        elif isinstance(found, Blocked) and found.reason in _FOR_ALL and not job.reserved:
            vain.note(job, found)


class _SkipCache:
    """The results of a pass on jobs that cannot start, for the jobs behind them in their lanes."""

    def __init__(self, state: ClusterState, now: datetime) -> None:
        self._state, self._now = state, now
        self._most = {(lane, team): self._left(lane, team) for lane, teams in state.queues.items() for team in teams}
        self.full = {where for where, left in self._most.items() if left <= 0}
        self._charges: set[tuple[str, ResourceRequest]] = set()
        self._turns: dict[
            tuple[str, ResourceRequest], tuple[datetime, str]
        ] = {}  # and when the one that is held up came
        self._too_large: dict[object, list[tuple[int, int]]] = {}  # CPU and memory, by everything else

    def _left(self, lane: QueueKey, team: str) -> float:
        """Returns the rest of a team's quota, or of what it may borrow; infinite where jobs may stop others for it."""
        kind, state = lane[1], self._state
        if not state.cluster.scheduler.is_native or kind is None:
            return inf  # an engine counts, or nothing is counted
        if lane[0]:
            return inf if self._stops_own(team) else state.available_quota(team, kind)
        known = state.team(team)
        return inf if known is None or known.borrow_limit is None else known.borrow_limit - state.borrowed(team)

    def _stops_own(self, name: str) -> bool:
        team = self._state.team(name)
        return team is not None and team.preempt_within_team

    def for_all_like(self, job: Job) -> bool:
        """True if a search for this job cannot succeed.

        A reservation is of its own: what holds for others of the lane may hold because of it.
        """
        if job.nodes:
            return False
        if self._charges or self._turns:
            alike = (self._payer(job), job.request)
            if alike in self._charges:
                return True
            before = self._turns.get(alike)
            if before is not None and before < (job.submitted, job.id):
                return True  # an earlier job may start first
        lane = queue_key(job)
        left = self._most.get((lane, job.team), inf)
        if left < job.request.gpus or (lane[0] and self._own_come_first(job, lane, left)):
            return True
        if not self._too_large:
            return False
        pod = job.request.pods[0]
        known = self._too_large.get(self._size(job), ())
        return any(cpu <= pod.cpu_milli and memory <= pod.memory_bytes for cpu, memory in known)

    def _own_come_first(self, job: Job, lane: QueueKey, left: float) -> bool:
        """True if a guaranteed job waits for its own team: behind a job that it may not pass, or for its share."""
        if left == inf:
            return False
        ahead = queue.first_past_max_wait(lane, job.team, self._state, self._now)
        if ahead is not None and job_order_key(ahead) < job_order_key(job) and takes_quota_of(ahead, job, int(left)):
            return True
        return job.request in full_share_requests(job.team, self._state)

    def started(self, job: Job) -> None:
        where = queue_key(job), job.team
        self._most[where] = left = self._left(*where)
        if left <= 0:
            self.full.add(where)

    def note(self, job: Job, found: Blocked) -> None:
        reason = found.reason
        alike, kind, pod = (self._payer(job), job.request), job.request.gpu_type, job.request.pods[0]
        if reason is Reason.BLOCKED_BY_EARLIER and kind is not None:
            self._turns[alike] = (job.submitted, job.id)
            return
        self._charges.add(alike)
        if reason is Reason.NO_FIT and len(job.request.pods) == 1:
            self._too_large.setdefault(self._size(job), []).append((pod.cpu_milli, pod.memory_bytes))

    @staticmethod
    def _payer(job: Job) -> str:
        return "" if job.preemptible else job.team

    def _size(self, job: Job) -> object:
        pod = job.request.pods[0]
        pods = len(job.request.pods)
        return (self._payer(job), job.request.gpu_type, pod.gpus, pod.resource, pod.placement, pod.extended, pods)


def as_admitted(
    job: Job, nodes: Sequence[str | None], cluster_state: ClusterState, state: JobState = JobState.STARTING, **more: Any
) -> Job:
    """The job from its admission on, with its ports of the host: those that it has, or free ones."""
    ports = job.ports
    if not ports and cluster_state.cluster.host_ports and limits.ports_of(job.request):
        free = iter(cluster_state.free_ports())
        ports = tuple(tuple(islice(free, pod.ports)) for pod in job.request.pods)
    quota = cluster_state.teams.has_quota and cluster_state.cluster.scheduler.is_native
    return replace(job, state=state, nodes=tuple(nodes), exempt_from_quota=not quota, ports=ports, **more)


def grow(job: Job, pod: ResourceRequest, state: ClusterState, now: datetime) -> Job | str:
    """Returns a running job with one more pod, if a job of that pod that comes now may start; else why it may not.

    No other job is stopped for it, and what was approved was the job without it.
    """
    kind = state.cluster.gpu_type(job.request.gpu_type or "")
    request = replace(job.request, pods=(*job.request.pods, *pod.pods))
    if job.state is not JobState.RUNNING or job.notice is not None or pod.gpu_type not in {None, job.request.gpu_type}:
        return ""
    if kind is not None and request.gpus > kind.max_per_job * kind.milli:
        return f"A job may have {counted(kind.max_per_job * kind.milli)} of type {kind.name}."
    never = limits.config_violation(replace(job, request=request), state)
    if never is not None:
        return never.sentence
    alone = replace(
        job, id=f"{job.id}+", submitted=now, request=pod, state=JobState.SUBMITTED, nodes=(), approved=False
    )
    # The caps of jobs without GPUs are numbers of jobs.
    found = evaluate(alone, state, now) if pod.gpu_type else _idle(alone, state, now)
    if not isinstance(found, Admit):
        return "" if isinstance(found, Preempt) else found.sentence
    known = (*job.nodes, *[None] * (len(job.request.pods) - len(job.nodes)))
    return replace(job, request=request, nodes=(*known, *found.nodes))


def evaluate(request: Job, state: ClusterState, now: datetime) -> Admit | Preempt | Refuse | Blocked:
    """``admit`` without the words for a page."""
    stopped = limits.config_violation(request, state) or limits.caps(request, state)
    if stopped is not None or not state.cluster.scheduler.is_native:
        return stopped or _by_engine(request, state)
    kind = request.request.gpu_type
    if kind is not None and not state.capacity(kind):
        return Blocked(Reason.NO_FIT, f"No node has GPUs of type {kind} now; this job waits until one has.")
    too_large = limits.larger_than_nodes(request.request, state)
    if too_large is not None:
        return too_large
    if kind is None or request.preemptible:
        return _idle(request, state, now)
    short = request.request.gpus - state.available_quota(request.team, kind, request)
    over = Blocked(Reason.TEAM_QUOTA, lambda: _quota_sentence(request, kind, state)) if short > 0 else None
    if over is not None and not (request.reserved or _own_may_leave(request, kind, short, state)):
        return over
    found = NodeSearch(request, kind, max(0, short), state, now).decide()
    # No job of the own team can leave: more room would not help.
    return over if over is not None and isinstance(found, Blocked) and found.reason is Reason.NO_FIT else found


def _by_engine(request: Job, state: ClusterState) -> Admit | Blocked:
    """Quota, order and nodes are the engine's: one that queues jobs has admitted this one, others look at its pods."""
    scheduler, anywhere = state.cluster.scheduler, Admit((None,) * len(request.request.pods))
    if not scheduler.admits_before_pods:
        return anywhere
    match state.verdicts.get(request.id):
        case EngineAdmits():
            return anywhere
        case EngineWaits(sentence) | EngineEvicts(sentence):
            return Blocked(Reason.ENGINE, sentence)
        case None:
            return Blocked(Reason.ENGINE, EngineSays.NO_ANSWER.sentence(scheduler.title))


def _own_may_leave(request: Job, kind: str, short: int, state: ClusterState) -> bool:
    """True if jobs of the own team have to be stopped for the missing quota, and are enough for it."""
    team = state.team(request.team)
    missing = short - state.releasing(request.team, kind)
    enough = missing <= state.reclaimable_below(request.team, kind, request.priority)
    return team is not None and team.preempt_within_team and missing > 0 and enough


def _quota_sentence(request: Job, kind: str, state: ClusterState) -> str:
    team = state.team(request.team)
    title = (team.title or team.name) if team else request.team
    quota, promised = state.quota(request.team, kind), state.reserved(request.team, kind)
    held = state.guaranteed(request.team, kind) - promised
    promised -= request.reserved_gpus
    are = "is" if promised == GPU else "are"
    others = f", and {shown(promised)} {are} promised to others of the team" if promised else ""
    asked = shown(request.request.gpus)
    return f"Team {title} uses {shown(held)} of its {counted(quota)} of type {kind}{others}; this job needs {asked}."


def _idle(request: Job, state: ClusterState, now: datetime) -> Admit | Blocked:
    """Admits a job to free room, without victims."""
    ahead, kept = nodes_kept_for_blocking_job(request, state, now)
    nodes = find_free_nodes(request, state, kept)
    if nodes is not None:
        return Admit(nodes)
    if kept and find_free_nodes(request, state, frozenset()) is not None:
        return blocked_by(ahead)
    return Blocked(Reason.NO_FIT, lambda: no_fit_message(request, state))


def find_alternatives(request: Job, state: ClusterState, now: datetime) -> tuple[Alternative, ...]:
    """Returns jobs that would start at once: fewer GPUs, another type, preemptible; none for several pods."""
    kind = request.request.gpu_type
    kinds = {one.name: one for one in state.cluster.gpu_types}
    if kind is None or kind not in kinds or len(request.request.pods) != 1:
        return ()
    asked = kinds[kind].units(request.request.gpus)
    tries = [(kind, asked, True)]
    tries += [(kind, fewer, False) for fewer in range(asked - 1, 0, -1)]
    tries += [(name, asked, False) for name in kinds if name != kind]
    tries += [(name, asked, True) for name in kinds if name != kind]
    found: dict[tuple[str, bool], Alternative] = {}
    for name, number, preemptible in tries:
        if (
            (name, False) in found
            or (name, preemptible) in found
            or (preemptible and request.preemptible and name == kind)
        ):
            continue
        other = replace(
            request,
            request=_resized(request.request, kinds[name], number, state.cluster),
            preemptible=preemptible or request.preemptible,
            state=JobState.SUBMITTED,
            nodes=(),
        )
        if isinstance(evaluate(other, state, now), Admit):
            found[name, preemptible] = Alternative(name, other.request.gpus, other.preemptible)
    return tuple(found.values())


def _resized(charge: ResourceRequest, kind: GpuType, number: int, cluster: ClusterConfig) -> ResourceRequest:
    """The same job with so many units of that type, and the CPU and memory that belong to them."""
    share, pod = kind.per_gpu.times(number), charge.pods[0]
    old = cluster.gpu_type(charge.gpu_type or "")
    kept = tuple(pair for pair in pod.placement.selector if old is None or pair not in old.node_selector)
    tolerations = pod.placement.tolerations + kind.tolerations
    selector = tuple(sorted(dict((*kept, *kind.node_selector)).items()))
    placement = replace(pod.placement, selector=selector, tolerations=tolerations)
    resized = replace(
        pod,
        resource=kind.resource,
        gpus=number * kind.milli,
        cpu_milli=share.cpu_milli,
        memory_bytes=share.memory_bytes,
        placement=placement,
    )
    return ResourceRequest(kind.name, (resized,))
