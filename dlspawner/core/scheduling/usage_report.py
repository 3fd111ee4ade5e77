"""Reports on the cluster, in milli-GPUs: `node_statuses`, `type_statuses` and `quota_statuses` for pages and REST;
`usage_by_team` and `capacity_by_type` for metrics and history.

In the statuses *free* is what a job could take now: neither held, nor reserved, nor on a closed node. In a
`TypeCapacity` it is all that no job holds, with the unusable parts of it: ``unschedulable``, on closed nodes (cordoned
or silent), and ``fragmented``, on nodes where no pod of the jobs that wait for the type fits. Without pending jobs
nothing is fragmented; GPUs that fit a job that waits for its quota only are usable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from dlspawner.core.config import GpuType, Team
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import has_type
from dlspawner.core.resources import PodRequest
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.node_info import NodeInfo
from dlspawner.core.units import GPU


@dataclass(frozen=True, slots=True)
class NodeGpus:
    gpu_type: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeExtended:
    """An extended resource of a node, in thousandths as GPUs."""

    resource: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node: ``state`` is ``ready``, ``cordoned`` or ``unhealthy``; CPU and memory are the free amounts.

    ``reason`` and ``drain_at``: of the cordon. ``jobs``: how many hold something there.
    """

    name: str
    state: str
    gpus: tuple[NodeGpus, ...]
    cpu_milli: int
    cpu_free: int
    memory_bytes: int
    memory_free: int
    extended: tuple[NodeExtended, ...] = ()  # those that the cluster file names
    reason: str = ""
    drain_at: datetime | None = None
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """A GPU type: ``unschedulable`` are all on closed nodes, ``most`` the free ones on the node with the most."""

    gpu_type: GpuType
    total: int
    free: int
    most: int
    unschedulable: int
    waiting_jobs: int
    waiting_gpus: int


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """A team's use of one type: ``used`` is charged to its quota, ``borrowed`` is not; ``free``: left of the quota.

    ``resource``: of an extended resource, which has no GPU type.
    """

    team: Team
    gpu_type: str | None
    quota: int
    used: int
    borrowed: int
    resource: str | None = None

    @property
    def free(self) -> int:
        return max(0, self.quota - self.used)


def node_statuses(state: ClusterState) -> list[NodeStatus]:
    jobs = Counter(node for job in state.jobs.values() if job.holds for node in {*job.nodes})
    return [replace(_node(state.node_infos[name], state), jobs=jobs[name]) for name in sorted(state.node_infos)]


def type_statuses(state: ClusterState, found: Iterable[NodeStatus]) -> list[TypeStatus]:
    listed = list(found)
    waiting = _waiting(state)
    return [_type(kind, listed, waiting.get(kind.name, (0, 0))) for kind in state.cluster.gpu_types]


def quota_statuses(state: ClusterState, teams: Iterable[Team]) -> list[QuotaStatus]:
    """Returns each of these teams with each type, and with the extended resources that it has a quota of.

    Without any quota all GPUs are for all teams.
    """
    found = []
    for team in teams:
        for kind in (kind.name for kind in state.cluster.gpu_types):
            used, borrowed = state.guaranteed(team.name, kind), state.borrowed(team.name, kind)
            found.append(QuotaStatus(team, kind, state.quota(team.name, kind), used, borrowed))
        for name, quota in team.extended_quota:
            found.append(QuotaStatus(team, None, quota * GPU, state.extended(team.name, name), 0, name))
    return found


def _node(info: NodeInfo, state: ClusterState) -> NodeStatus:
    node, here = info.node, []
    for kind in state.cluster.gpu_types:
        if has_type(node, kind):
            free = max(0, info.available(kind.resource).gpus) if node.open else 0
            here.append(NodeGpus(kind.name, node.gpus_of(kind.resource), free))
    condition = "ready" if node.open else "cordoned" if node.ready else "unhealthy"
    cpu, memory = max(0, info.cpu_milli), max(0, info.memory_bytes)
    free_here = dict(info.available("").extended) if node.open else {}
    named = [one.name for one in state.cluster.extended_resources]
    extended = tuple(
        NodeExtended(name, total, max(0, free_here.get(name, 0))) for name, total in node.gpus if name in named
    )
    amounts = (node.cpu_milli, cpu, node.memory_bytes, memory)
    cordon = (node.reason, node.drain_at) if node.cordoned else ("", None)
    return NodeStatus(node.name, condition, tuple(here), *amounts, extended, *cordon)


def _type(kind: GpuType, found: list[NodeStatus], waiting: tuple[int, int]) -> TypeStatus:
    here = [(node.state, one) for node in found for one in node.gpus if one.gpu_type == kind.name]
    return TypeStatus(
        kind,
        total=sum(one.total for _, one in here),
        free=sum(one.free for _, one in here),
        most=max((one.free for _, one in here), default=0),
        unschedulable=sum(one.total for state, one in here if state != "ready"),
        waiting_jobs=waiting[0],
        waiting_gpus=waiting[1],
    )


def _waiting(state: ClusterState) -> dict[str | None, tuple[int, int]]:
    """Jobs in the queue and the GPUs that they want, by type."""
    found: dict[str | None, tuple[int, int]] = {}
    for (_, kind), teams in state.queues.items():
        for queued in teams.values():
            jobs, gpus = found.get(kind, (0, 0))
            wanted = sum(request.gpus * len(keys) for request, keys in queued.alike.items())
            found[kind] = (jobs + len(queued), gpus + wanted)
    return found


# For GPUs; a job that waits for an approval waits for an approver.
WAITING = frozenset({JobState.QUEUED, JobState.LOGIN_REQUIRED})
PendingGpus = tuple[str, str]  # a team and a GPU type


@dataclass(slots=True)
class TeamTypeUsage:
    """The usage of one team and GPU type; ``guaranteed`` is charged to the quota, ``borrowed`` is not."""

    quota: int = 0
    guaranteed: int = 0
    borrowed: int = 0
    queued: int = 0
    unapproved: int = 0


@dataclass(frozen=True, slots=True)
class TypeCapacity:
    """The capacity of one GPU type: all GPUs, the free ones, and the unusable ones among these."""

    total: int = 0
    free: int = 0
    unschedulable: int = 0
    fragmented: int = 0


def usage_by_team(state: ClusterState) -> dict[PendingGpus, TeamTypeUsage]:
    """Returns the usage of each team and GPU type that has a quota, or jobs; ``quota`` is 0 without one."""
    found: dict[PendingGpus, TeamTypeUsage] = {}
    for team in state.teams.teams:
        for quota in team.quota:
            found[team.name, quota.gpu_type] = TeamTypeUsage(quota=state.quota(team.name, quota.gpu_type))
    for job in state.jobs.values():
        kind = job.request.gpu_type
        if kind is not None:
            _add(found.setdefault((job.team, kind), TeamTypeUsage()), job)
    return found


def _add(standing: TeamTypeUsage, job: Job) -> None:
    if job.holds and job.preemptible:
        standing.borrowed += job.request.gpus
    elif job.holds:
        standing.guaranteed += job.request.gpus
    elif job.state in WAITING:
        standing.queued += job.request.gpus
    elif job.state is JobState.PENDING_APPROVAL:
        standing.unapproved += job.request.gpus


def capacity_by_type(state: ClusterState) -> dict[str, TypeCapacity]:
    """By GPU type, those without a node too."""
    waiting: dict[str, set[PodRequest]] = {}
    for job in state.jobs.values():
        if job.request.gpu_type is not None and job.state is JobState.QUEUED:
            waiting.setdefault(job.request.gpu_type, set()).update(pod for pod in job.request.pods if pod.gpus)
    infos = tuple(state.node_infos.values())
    return {kind.name: _capacity(kind, infos, waiting.get(kind.name, ())) for kind in state.cluster.gpu_types}


def _capacity(kind: GpuType, infos: Iterable[NodeInfo], waiting: Iterable[PodRequest]) -> TypeCapacity:
    total = free = closed = fragmented = 0
    pods = tuple(waiting)
    for info in infos:
        if not has_type(info.node, kind):
            continue
        total += info.node.gpus_of(kind.resource)
        idle = max(0, info.free(kind.resource).gpus)
        free += idle
        if not info.node.open:
            closed += idle
        elif pods and not any(info.free(pod.resource).holds(pod) and pod.placement.matches(info.node) for pod in pods):
            fragmented += idle
    return TypeCapacity(total, free, closed, fragmented)
