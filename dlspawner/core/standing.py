"""Where everybody stands at one moment: GPUs held, borrowed, asked for and free, and what of the free nobody can use.

All amounts are milli-GPUs. A free GPU is of no use while its node takes nothing new (``closed``: cordoned, or nobody
hears of it), or while jobs wait for the type and not a pod of theirs fits into what is free on that node
(``fragmented``). Where nobody waits nothing is fragmented. What waits for a quota only, and would fit, finds the GPUs
usable: that nobody may use them is the quota's doing, not the node's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlspawner.core.charge import PodRequest
from dlspawner.core.jobs import Job, JobState
from dlspawner.core.model import GpuType
from dlspawner.core.nodes import has_type
from dlspawner.core.rooms import NodeInfo
from dlspawner.core.world import ClusterState

WAITING = frozenset({JobState.QUEUED, JobState.LOGIN_REQUIRED})  # for GPUs; who waits for an approval waits for people
PendingGpus = tuple[str, str]  # a team and a GPU type


@dataclass(slots=True)
class TeamTypeUsage:
    """Of one team and GPU type; ``held`` is charged to the quota, ``borrowed`` is not."""

    quota: int = 0
    guaranteed: int = 0
    borrowed: int = 0
    queued: int = 0
    unapproved: int = 0


@dataclass(frozen=True, slots=True)
class TypeCapacity:
    """Of one GPU type: all there are, what nobody holds, and what of that is of no use now."""

    total: int = 0
    free: int = 0
    unschedulable: int = 0
    fragmented: int = 0


def usage_by_team(world: ClusterState) -> dict[PendingGpus, TeamTypeUsage]:
    """By team and GPU type: what has a quota, and whatever jobs hold or wait for; ``quota`` 0 for who has none."""
    found: dict[PendingGpus, TeamTypeUsage] = {}
    for team in world.teams.teams:
        for quota in team.quota:
            found[team.name, quota.gpu_type] = TeamTypeUsage(quota=world.quota(team.name, quota.gpu_type))
    for job in world.jobs.values():
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


def capacity_by_type(world: ClusterState) -> dict[str, TypeCapacity]:
    """By GPU type, those without a node too."""
    waiting: dict[str, set[PodRequest]] = {}
    for job in world.jobs.values():
        if job.request.gpu_type is not None and job.state is JobState.QUEUED:
            waiting.setdefault(job.request.gpu_type, set()).update(pod for pod in job.request.pods if pod.gpus)
    rooms = tuple(world.rooms.values())
    return {kind.name: _capacity(kind, rooms, waiting.get(kind.name, ())) for kind in world.cluster.gpu_types}


def _capacity(kind: GpuType, rooms: Iterable[NodeInfo], waiting: Iterable[PodRequest]) -> TypeCapacity:
    total = free = closed = fragmented = 0
    pods = tuple(waiting)
    for room in rooms:
        if not has_type(room.node, kind):
            continue
        total += room.node.gpus_of(kind.resource)
        idle = max(0, room.free(kind.resource).gpus)
        free += idle
        if not room.node.open:
            closed += idle
        elif pods and not any(_fits(pod, room) for pod in pods):
            fragmented += idle
    return TypeCapacity(total, free, closed, fragmented)


def _fits(pod: PodRequest, room: NodeInfo) -> bool:
    return room.free(pod.resource).holds(pod) and pod.placement.matches(room.node)
