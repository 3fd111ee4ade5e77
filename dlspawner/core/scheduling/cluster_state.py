"""The cluster at one moment, as the Manager knows it: nodes, running jobs and pending jobs.

``Snapshot`` holds the immutable facts, from the database and a list of the cluster. ``ClusterState`` has in addition
all counts, so that a decision needs few look-ups; it follows every change of a job or a node, and always equals a
rebuilt one (``tests/unit/core/test_cluster_state.py``).

* A job holds its request from admission until its pods are gone: in the states ``starting``, ``running`` and
  ``stopping``.
* ``Job.nodes`` has its nodes: those of ``Admit`` until the pods are bound, then the actual ones. A pod without a known
  node (``None``) counts for quotas only.
* A queued job with ``nodes`` has a *reservation*: victims have notice for it. It counts for its team and its user as if
  the job held it. Other jobs may use reserved resources only as far as the victims will replace them.
* `DecayedUsage`: half of a team's past usage is forgotten after every half-life. While a team holds ``rate`` milli-GPUs
  its usage *u* obeys *du/dt = rate − λu*, which has a closed solution, so that no background work is needed.

Refused: a state that is copied for every change, which costs more than the decision.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from dlspawner.core.config import ClusterConfig, Team, TeamsConfig
from dlspawner.core.decisions import EngineVerdict
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node, NodePlacement, has_type, in_gpus
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling.node_info import NO_RESOURCES, NodeInfo, NodePool, Resources
from dlspawner.core.scheduling.quota_layout import QuotaLayout, TeamNodes

_MOST_POOLS, _MOST_FACTS = 200, 20_000
_QUEUED, _ENDED = JobState.QUEUED, JobState.ENDED  # looking them up in the class would be seen

# A lane of jobs that wait for the same: guaranteed jobs for their team's quota, preemptible ones for idle GPUs of the
# type, all teams together; jobs without GPUs for CPU and memory. The team is "" where it does not matter.
QueueKey = tuple[str, str | None]
JobOrderKey = tuple[int, datetime, str]  # the order within a team
Found = TypeVar("Found")


@dataclass(slots=True)
class TeamQueue:
    """The jobs of a team in a lane, in its order: all, and those with the same request, of which one answer often
    holds for the others.
    """

    keys: list[JobOrderKey] = field(default_factory=list)
    alike: dict[ResourceRequest, list[JobOrderKey]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, job: Job, sort: bool) -> None:
        key = job_order_key(job)
        for keys in (self.keys, self.alike.setdefault(job.request, [])):
            if sort:
                insort(keys, key)
            else:
                keys.append(key)

    def remove(self, job: Job) -> None:
        key, alike = job_order_key(job), self.alike[job.request]
        for keys in (self.keys, alike):
            del keys[bisect_left(keys, key)]
        if not alike:
            del self.alike[job.request]

    def sort(self) -> None:
        for keys in (self.keys, *self.alike.values()):
            keys.sort()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision may depend on, apart from the time."""

    cluster: ClusterConfig
    teams: TeamsConfig = field(default_factory=TeamsConfig)
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()  # that hold or want something; ended ones are left out
    usage: tuple[tuple[str, DecayedUsage], ...] = ()  # by team


def queue_key(job: Job) -> QueueKey:
    """Returns the queue of a job; its team's part of the queue is ordered by `job_order_key`."""
    kind = job.request.gpu_type
    return ("" if job.preemptible or kind is None else job.team, kind)


def job_order_key(job: Job) -> JobOrderKey:
    return (-job.priority, job.submitted, job.id)


class ClusterState:
    """A snapshot with everything counted. ``put`` and ``put_node``, ``remove`` and ``remove_node`` change it."""

    def __init__(self, cluster: ClusterConfig, teams: TeamsConfig) -> None:
        self.cluster, self.teams = cluster, teams
        self._teams: dict[str, Team | None] = {}  # those that were asked for, by name
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}  # as in the snapshot; those of `node_infos` are in milli-GPUs of their types
        self.node_infos: dict[str, NodeInfo] = {}
        self.closed: set[str] = set()  # of them those that take no new jobs
        self.usage: dict[str, DecayedUsage] = {}
        self.verdicts: dict[str, EngineVerdict] = {}  # of the engine that queues jobs, by job
        self.queues: dict[QueueKey, dict[str, TeamQueue]] = {}  # by lane and team
        self.reserved_jobs: set[str] = set()  # the queued jobs with a reservation
        self.noticed: set[str] = set()  # the jobs with a notice
        self._held: dict[str, TeamUsage] = {}  # by team
        self._changed: set[str] = set()  # the teams that hold something else than at the last tick
        self._homeless: dict[str, set[str]] = {}  # jobs on unknown nodes, by node
        self._pools: dict[tuple[str, NodePlacement], NodePool] = {}
        self._shares: QuotaLayout | None = None  # as far as requested
        # What was found out since the last change: of anything, of a team's jobs, nodes or files, of nodes or files.
        self.memo: dict[object, Any] = {}
        self._team_memos: dict[str, dict[object, Any]] = {}
        self._lasting: dict[object, Any] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> ClusterState:
        state = cls(snapshot.cluster, snapshot.teams)
        state.usage = dict(snapshot.usage)
        state._changed = set(state.usage)
        state.nodes = {node.name: node for node in snapshot.nodes}
        state.node_infos = {node.name: state._node_info(node) for node in snapshot.nodes}
        state.closed = {node.name for node in snapshot.nodes if not node.open}
        state.jobs = {job.id: job for job in snapshot.jobs if job.state is not _ENDED}
        for job in state.jobs.values():
            state._count(job, 1, sort=False)
        for teams in state.queues.values():
            for queued in teams.values():
                queued.sort()
        return state

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.cluster,
            self.teams,
            tuple(self.nodes.values()),
            tuple(self.jobs.values()),
            tuple(self.usage.items()),
        )

    # changes

    def put(self, job: Job) -> None:
        """The job as it is now; one that has ended is forgotten."""
        self.remove(job.id)
        if job.state is not _ENDED:
            self._team_memos.pop(job.team, None)
            self.jobs[job.id] = job
            self._count(job, 1)

    def remove(self, job_id: str) -> None:
        """Forget a job; one that is not known is forgotten already."""
        job = self.jobs.get(job_id)
        self.memo.clear()
        if job is not None:
            self._team_memos.pop(job.team, None)
            self._count(job, -1)
            del self.jobs[job_id]

    def put_node(self, node: Node) -> None:
        self._forget()
        self.nodes[node.name] = node
        old = self.node_infos.get(node.name)
        info = self._node_info(node)
        self._settle(info)
        (self.closed.discard if node.open else self.closed.add)(node.name)
        if old is None or _lies(old.node) != _lies(info.node):
            self._shares = None
        for pool in self._pools.values():
            pool.put(info)

    def remove_node(self, name: str) -> None:
        """The node is gone; what its jobs hold counts for quotas until they are gone, too."""
        self.nodes.pop(name, None)
        info = self.node_infos.pop(name, None)
        self.closed.discard(name)
        if info is None:
            return
        jobs = {*info.allocations, *info.reservations}
        if jobs:
            self._homeless[name] = jobs
        for pool in self._pools.values():
            pool.remove(name)
        self._forget()
        self._shares = None

    def configure(self, cluster: ClusterConfig, teams: TeamsConfig) -> None:
        self.cluster, self.teams = cluster, teams
        self._teams.clear()
        self._pools.clear()
        self._shares = None
        self._forget()
        for node in tuple(self.nodes.values()):
            self.put_node(node)

    def _forget(self) -> None:
        """Nodes or files have changed, on which everything depends that was found out."""
        for memo in (self.memo, self._team_memos, self._lasting):
            memo.clear()

    def tick(self, now: datetime, *, steady: bool = False) -> None:
        """Brings the usage of all teams to ``now``, before every pass; from then on it grows by what they hold.

        ``steady``: the clock never goes back, so that teams which hold what they held are counted already.
        """
        half_life = self.cluster.scheduling.half_life
        for team in self._changed if steady else {*self._held, *self.usage}:
            held = self._held_by(team)
            milli = sum(held.guaranteed.values()) + sum(held.borrowed.values())
            if milli or team in self.usage:
                old = self.usage.get(team) or DecayedUsage(0.0, now)
                if not steady or milli != old.rate:
                    self.usage[team] = old.advanced_to(now, half_life, milli)
        self._changed.clear()

    # questions

    def free_ports(self) -> list[int]:
        """The host's ports that no job holds, the lowest first."""
        found: list[int] | None = self.memo.get("ports")
        if found is None:
            ports = self.cluster.host_ports
            held = {
                number for job in self.jobs.values() if job.ports and job.holds for own in job.ports for number in own
            }
            found = self.memo["ports"] = [number for number in ports.numbers if number not in held] if ports else []
        return found

    def team_cache(self, team: str) -> dict[object, Any]:
        """The cached results on a team that depend on its own jobs, nodes and files, and on no other team's jobs."""
        found = self._team_memos.get(team)
        if found is None:
            found = self._team_memos[team] = {}
        return found

    def config_cache(self, name: object, find: Callable[[], Found]) -> Found:
        """Returns a result that depends on nodes and files alone, computed once until one of them changes."""
        known: Found | ClusterState = self._lasting.get(name, self)
        if known is self:
            if len(self._lasting) >= _MOST_FACTS:
                self._lasting.clear()
            known = self._lasting[name] = find()
        return cast(Found, known)

    def team(self, name: str) -> Team | None:
        if name not in self._teams:
            self._teams[name] = self.teams.paying_team(name)
        return self._teams[name]

    def quota(self, team: str, gpu_type: str) -> int:
        """Returns the team's quota in milli-GPUs; all there are without any quota, none for an unknown team."""
        return self.config_cache(("quota", team, gpu_type), lambda: self._quota(team, gpu_type))

    def _quota(self, team: str, gpu_type: str) -> int:
        if not self.teams.has_quota:
            return self.capacity(gpu_type)
        known = self.team(team)
        return known.entitled(gpu_type) if known else 0

    def available_quota(self, team: str, gpu_type: str, request: Job | None = None) -> int:
        """Returns the rest of a team's quota, negative after it was lowered; the request's own reservation is free."""
        own = request.reserved_gpus if request else 0
        return self.quota(team, gpu_type) - self.guaranteed(team, gpu_type) + own

    def guaranteed(self, team: str, gpu_type: str) -> int:
        """Milli-GPUs that are charged to a team's quota, promises included."""
        return self._held_by(team).guaranteed.get(gpu_type, 0)

    def reserved(self, team: str, gpu_type: str) -> int:
        """Milli-GPUs of them that no job of the team holds yet."""
        return self._held_by(team).reserved.get(gpu_type, 0)

    def reserved_by_user(self, team: str, user: str) -> int:
        """Milli-GPUs of all types that were promised to a user on a team's account."""
        return self._held_by(team).reserved_by_user.get(user, 0)

    def releasing(self, team: str, gpu_type: str) -> int:
        """Milli-GPUs of a team's quota that become free without further action."""
        return self._held_by(team).releasing.get(gpu_type, 0)

    def reclaimable_below(self, team: str, gpu_type: str, priority: int) -> int:
        """Milli-GPUs of a team's quota that jobs of a lower priority hold and do not leave already."""
        levels = self._held_by(team).levels.get(gpu_type)
        return sum(milli for level, milli in levels.items() if level < priority) if levels else 0

    def borrowed(self, team: str, gpu_type: str | None = None) -> int:
        """Milli-GPUs that a team's preemptible jobs hold, of one type or of all."""
        borrowed = self._held_by(team).borrowed
        return sum(borrowed.values()) if gpu_type is None else borrowed.get(gpu_type, 0)

    def over_quota(self, team: str, gpu_type: str) -> int:
        """By how much what a team holds is more than its quota; negative within it."""
        return self.guaranteed(team, gpu_type) + self.borrowed(team, gpu_type) - self.quota(team, gpu_type)

    def held_by(self, team: str, user: str) -> int:
        """Milli-GPUs of all types that a user holds on a team's account, promises included."""
        return self._held_by(team).by_user.get(user, 0)

    def cpu_jobs(self, team: str, user: str | None = None) -> int:
        """Counts the jobs without GPUs of a user of a team, or of the whole team."""
        jobs = self._held_by(team).cpu_jobs
        return sum(jobs.values()) if user is None else jobs.get(user, 0)

    def extended(self, team: str, resource: str) -> int:
        """The amount that is charged to a team's quota of an extended resource, promises included."""
        return self._held_by(team).extended.get(resource, 0)

    def usage_of(self, team: str, now: datetime) -> float:
        """Decayed usage in relation to the team's quota, so that larger teams may use more."""
        usage = self.usage.get(team)
        if usage is None:
            return 0.0
        weight = self.config_cache(("weight", team), lambda: self._weight(team))
        return usage.at(now, self.cluster.scheduling.half_life) / weight

    def _weight(self, team: str) -> float:
        known = self.team(team)
        return float(max(1, sum(quota.gpus for quota in known.quota))) if known else 1.0

    def capacity(self, gpu_type: str) -> int:
        """Milli-GPUs of a type on all nodes, open or not."""
        return self._quota_layout().of(gpu_type).capacity

    def quota_by_team(self, gpu_type: str) -> TeamNodes:
        """The teams' shares of a type; empty while no team is configured, or quotas are more than there is."""
        return self._quota_layout().of(gpu_type).by_team

    def quota_by_node(self, gpu_type: str) -> dict[str, dict[str, int]]:
        """The same layout by node: which team has how much of it; nodes without GPUs of the type are left out."""
        return self._quota_layout().of(gpu_type).by_node

    def unassigned(self, gpu_type: str) -> dict[str, int]:
        """Returns the GPUs in no team's share, by node; nothing without a layout."""
        return self._quota_layout().of(gpu_type).unassigned

    def _quota_layout(self) -> QuotaLayout:
        if self._shares is None:
            self._shares = QuotaLayout(self.cluster, self.teams, [info.node for info in self.node_infos.values()])
        return self._shares

    def pool(self, resource: str, placement: NodePlacement) -> NodePool:
        """The nodes where a pod with this placement may be, by what is free of a resource."""
        name = (resource, placement)
        pool = self._pools.get(name)
        if pool is None:
            if len(self._pools) >= _MOST_POOLS:
                self._pools.clear()
            pool = self._pools[name] = NodePool(resource, placement, self.node_infos.values())
        return pool

    def _node_info(self, node: Node) -> NodeInfo:
        info = NodeInfo.empty(in_gpus(node, self.cluster.gpu_types))
        info.gpu_share = self._kept(info.node)
        return info

    def _kept(self, node: Node) -> Resources:
        """CPU and memory that jobs without GPUs leave to the GPUs of a node, as far as jobs may have those."""
        if self.cluster.cpu_jobs.allow_on_gpu_nodes:
            return NO_RESOURCES
        if not node.gpus:
            return NO_RESOURCES
        cpu = memory = 0
        others = dict(node.others.gpus)
        for kind in self.cluster.gpu_types:
            if has_type(node, kind):
                units = max(0, node.gpus_of(kind.resource) - others.get(kind.resource, 0)) // kind.milli
                cpu += units * kind.per_gpu.cpu_milli
                memory += units * kind.per_gpu.memory_bytes
        return Resources(0, cpu, memory)

    # counting

    def _settle(self, info: NodeInfo) -> None:
        """Replaces the info of a node by a fresh one, with the jobs on that node."""
        name = info.node.name
        old = self.node_infos.get(name)
        here = {*old.allocations, *old.reservations} if old else self._homeless.pop(name, set())
        self.node_infos[name] = info
        for job_id in here:
            job = self.jobs[job_id]
            for pod, node in zip(job.request.pods, job.nodes, strict=False):
                if node == name:
                    if job.holds:
                        info.allocate(job, pod, job.terminating)
                    else:
                        info.reserve(job, pod)

    def _held_by(self, team: str) -> TeamUsage:
        return self._held.get(team, NO_USAGE)

    def _count(self, job: Job, sign: int, sort: bool = True) -> None:
        holds = job.holds
        if not holds:
            if job.state is not _QUEUED:
                return
            self._queue(job, sign, sort)
            if not job.nodes:  # it was promised nothing
                return
        held = self._held.get(job.team)
        if held is None:
            held = self._held[job.team] = TeamUsage()
        leaving = job.terminating
        self._changed.add(job.team)
        (self.noticed.add if sign > 0 and holds and job.notice is not None else self.noticed.discard)(job.id)
        held.count(job, sign, holds, leaving)
        infos, pools = self.node_infos, self._pools
        for pod, node in zip(job.request.pods, job.nodes):  # noqa: B905 - strict= costs more than the rest of the loop
            info = infos.get(node) if node is not None else None
            if info is None:
                self._without_node(job, node, sign)
            elif not holds:
                (info.reserve if sign > 0 else info.release_reservation)(job, pod)
            else:
                if sign > 0:
                    info.allocate(job, pod, leaving)
                else:
                    info.release(job, pod)
                if pools and pod.resource:
                    for pool in pools.values():
                        pool.update(info)

    def _without_node(self, job: Job, node: str | None, sign: int) -> None:
        """A job on an unknown node, or without a known node."""
        if node is None:
            return
        here = self._homeless.setdefault(node, set())
        (here.add if sign > 0 else here.discard)(job.id)
        if not here:
            del self._homeless[node]

    def _queue(self, job: Job, sign: int, sort: bool) -> None:
        if job.nodes:
            (self.reserved_jobs.add if sign > 0 else self.reserved_jobs.discard)(job.id)
        where = queue_key(job)
        teams = self.queues.get(where)
        if teams is None:
            teams = self.queues[where] = {}
        queued = teams.get(job.team)
        if queued is None:
            queued = teams[job.team] = TeamQueue()
        if sign > 0:
            queued.add(job, sort)
            return
        queued.remove(job)
        if not queued.keys:
            del teams[job.team]
        if not teams:
            del self.queues[where]


def _lies(node: Node) -> tuple[object, ...]:
    """Returns the values that a layout depends on; a node that is closed for a while moves no share."""
    return node.gpus, node.labels, node.taints


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Milli-GPU-seconds that were left at the time ``since``, and what the team has held since then."""

    amount: float
    since: datetime
    rate: int = 0

    def at(self, now: datetime, half_life: timedelta) -> float:
        """The usage at ``now``; a clock that went back counts as one that stood still."""
        seconds = max(0.0, (now - self.since).total_seconds())
        decay = math.log(2) / half_life.total_seconds()
        left = math.exp(-decay * seconds)
        return self.amount * left + self.rate / decay * (1 - left)

    def advanced_to(self, now: datetime, half_life: timedelta, rate: int) -> DecayedUsage:
        """The same usage from ``now`` on, with another rate."""
        return DecayedUsage(self.at(now, half_life), now, rate)


def _counts() -> defaultdict[str, int]:
    return defaultdict(int)


def _levels() -> defaultdict[str, defaultdict[int, int]]:
    return defaultdict(lambda: defaultdict(int))


@dataclass(slots=True)
class TeamUsage:
    """The amounts that the jobs of one team hold or have reserved; only ``ClusterState`` changes them.

    All but ``cpu_jobs`` are milli-GPUs, or thousandths of extended resources. Read them by ``get``, which adds no key.
    """

    guaranteed: defaultdict[str, int] = field(default_factory=_counts)  # by type, promises included
    reserved: defaultdict[str, int] = field(default_factory=_counts)  # the part that no job holds yet
    releasing: defaultdict[str, int] = field(default_factory=_counts)  # of them the part of terminating jobs
    # Jobs that stay, by type and priority.
    levels: defaultdict[str, defaultdict[int, int]] = field(default_factory=_levels)
    borrowed: defaultdict[str, int] = field(default_factory=_counts)  # by type
    by_user: defaultdict[str, int] = field(default_factory=_counts)  # promises included
    reserved_by_user: defaultdict[str, int] = field(default_factory=_counts)  # by user
    cpu_jobs: defaultdict[str, int] = field(default_factory=_counts)  # jobs without GPUs, by user
    extended: defaultdict[str, int] = field(default_factory=_counts)  # charged, by resource; promises included

    def count(self, job: Job, sign: int, holds: bool, leaving: bool) -> None:
        """A job that ``holds`` its charge, or was promised it, comes (1) or goes (-1)."""
        charge = job.request
        kind, gpus = charge.gpu_type, sign * charge.gpus
        for name, amount in job.quota_extended:
            self.extended[name] += sign * amount
        if kind is None:
            self.cpu_jobs[job.user] += sign
            return
        self.by_user[job.user] += gpus
        if not holds:
            self.reserved_by_user[job.user] += gpus
        if job.preemptible:
            self.borrowed[kind] += gpus
            return
        self.guaranteed[kind] += gpus
        if not holds:
            self.reserved[kind] += gpus
        elif leaving:
            self.releasing[kind] += gpus
        else:
            self.levels[kind][job.priority] += gpus


NO_USAGE = TeamUsage()  # of a team without jobs; not counted there
