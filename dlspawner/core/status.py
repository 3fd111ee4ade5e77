"""How a cluster stands: what there is of each GPU type and what of it is free, the nodes, the teams' quotas.

Amounts are milli-GPUs. *Free* is what a job could take now: not what is held, promised, or on a node that is closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlspawner.core.model import GpuType, Team
from dlspawner.core.nodes import has_type
from dlspawner.core.rooms import NodeInfo
from dlspawner.core.world import ClusterState


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What a node has of one GPU type."""

    gpu_type: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node: ``state`` is ``ready``, ``cordoned`` or ``unhealthy``; CPU and memory are what nobody holds."""

    name: str
    state: str
    gpus: tuple[NodeGpus, ...]
    cpu_milli: int
    cpu_free: int
    memory_bytes: int
    memory_free: int


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """A GPU type: ``closed`` is on nodes that take nothing new, ``most`` what is free on the one node that has most."""

    gpu_type: GpuType
    total: int
    free: int
    most: int
    unschedulable: int
    waiting_jobs: int
    waiting_gpus: int


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """A team's use of one type: ``used`` is charged to its quota, ``borrowed`` is not; ``free``: left of the quota."""

    team: Team
    gpu_type: str
    quota: int
    used: int
    borrowed: int

    @property
    def free(self) -> int:
        return max(0, self.quota - self.used)


def node_statuses(world: ClusterState) -> list[NodeStatus]:
    """Every node, by name."""
    return [_node(world.rooms[name], world) for name in sorted(world.rooms)]


def type_statuses(world: ClusterState, found: Iterable[NodeStatus]) -> list[TypeStatus]:
    """Every type of the cluster, from what ``nodes`` found."""
    listed = list(found)
    waiting = _waiting(world)
    return [_type(kind, listed, waiting.get(kind.name, (0, 0))) for kind in world.cluster.gpu_types]


def quota_statuses(world: ClusterState, teams: Iterable[Team]) -> list[QuotaStatus]:
    """Each of these teams with each type; all there is of it is everybody's while nobody has a quota."""
    kinds = [kind.name for kind in world.cluster.gpu_types]
    return [
        QuotaStatus(
            team, kind, world.quota(team.name, kind), world.guaranteed(team.name, kind), world.borrowed(team.name, kind)
        )
        for team in teams
        for kind in kinds
    ]


def _node(room: NodeInfo, world: ClusterState) -> NodeStatus:
    node, here = room.node, []
    for kind in world.cluster.gpu_types:
        if has_type(node, kind):
            free = max(0, room.available(kind.resource).gpus) if node.open else 0
            here.append(NodeGpus(kind.name, node.gpus_of(kind.resource), free))
    state = "ready" if node.open else "cordoned" if node.ready else "unhealthy"
    cpu, memory = max(0, room.cpu_milli), max(0, room.memory_bytes)
    return NodeStatus(node.name, state, tuple(here), node.cpu_milli, cpu, node.memory_bytes, memory)


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


def _waiting(world: ClusterState) -> dict[str | None, tuple[int, int]]:
    """Jobs in the queue and the GPUs that they want, by type."""
    found: dict[str | None, tuple[int, int]] = {}
    for (_, kind), teams in world.queues.items():
        for keys in teams.values():
            jobs, gpus = found.get(kind, (0, 0))
            wanted = sum(world.jobs[job].request.gpus for _, _, job in keys)
            found[kind] = (jobs + len(keys), gpus + wanted)
    return found
