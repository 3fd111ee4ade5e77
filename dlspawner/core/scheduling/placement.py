"""Placement on nodes that are free now, without victims, and its texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dlspawner.core import units
from dlspawner.core.job import Job
from dlspawner.core.resources import PodRequest
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.node_info import NodeInfo, Nodes, place_first
from dlspawner.core.units import counted, shown


def find_free_nodes(request: Job, state: ClusterState, kept: frozenset[str]) -> Nodes | None:
    """Returns the fullest nodes that can hold a job now, without those in ``kept``, which are for another job.

    Preemptible jobs prefer nodes without guaranteed ones: those fill up nodes where their team's jobs are already, and
    would then find a borrower there, to be stopped while other nodes are empty.
    """

    def infos(pod: PodRequest) -> Iterable[NodeInfo]:
        found = (
            info for info in state.pool(pod.resource, pod.placement).fitting(pod.gpus) if info.node.name not in kept
        )
        return _lenders_last(found, pod.resource) if request.preemptible and pod.gpus else found

    return place_first(request.request.pods, infos, lambda info, pod: info.available(pod.resource, request.id))


def _lenders_last(infos: Iterable[NodeInfo], resource: str) -> Iterator[NodeInfo]:
    later = []
    for info in infos:
        if info.guaranteed(resource) > 0:
            later.append(info)
        else:
            yield info
    yield from later


def no_fit_message(request: Job, state: ClusterState) -> str:
    """Returns the sentence for a job that cannot start: the free amounts, and further nodes it could use."""
    pod, kind = max(request.request.pods, key=lambda pod: pod.gpus), request.request.gpu_type
    closed = _closed_sentence(pod, kind, state)
    pool = state.pool(pod.resource, pod.placement)
    missing = _missing_extended(request, state)
    if kind is None:
        return f"{missing or _free_sentence(pod, pool.node_infos.values(), request)}{closed}"
    idle, most, wanted = pool.total_free, max(0, pool.most_free), sum(one.gpus for one in request.request.pods)
    said = f"Idle GPUs of type {kind}: {shown(idle)}, at most {shown(most)} on one node"
    if most >= pod.gpus and idle >= wanted:
        others = "".join(f" and {state.cluster.resource_title(name)}" for name, _ in request.request.extended)
        together = f"not together with the CPU and memory{others} that this job wants, or they are promised to others"
        return f"{missing or f'{said}, but {together}.'}{closed}"
    needs = f"this job needs {f'{shown(pod.gpus)} on one node' if idle >= wanted else shown(wanted)}."
    return f"{said}; {needs}{missing and f' {missing}'}{closed}"


def _missing_extended(request: Job, state: ClusterState) -> str:
    """Returns the sentence on an extended resource of which no node has enough for a pod; empty if there is none."""
    for pod in request.request.pods:
        infos = state.pool(pod.resource, pod.placement).node_infos.values() if pod.extended else ()
        spaces = [dict(info.available(pod.resource, request.id).extended) for info in infos]
        for name, amount in pod.extended:
            most = max((space.get(name, 0) for space in spaces), default=0)
            if most < amount:
                title = state.cluster.resource_title(name)
                return f"Free {title}: at most {shown(max(0, most))} on one node; this job needs {shown(amount)}."
    return ""


def _free_sentence(pod: PodRequest, infos: Iterable[NodeInfo], request: Job) -> str:
    """Returns the free CPU and memory of the node with the largest part of what a pod without GPUs requests."""
    spaces = [info.available(pod.resource, request.id) for info in infos]
    spaces = [space for space in spaces if space.has(pod.extended)] or spaces
    count = len(request.request.pods)
    each = f" for one of its {count} pods" if count > 1 else ""
    asked = f"this job needs {_amounts(pod.cpu_milli, pod.memory_bytes)}{each}"
    if not spaces:
        return f"No node that this job could use takes jobs now; {asked}."
    best = max(spaces, key=lambda one: min(_part(one[1], pod.cpu_milli), _part(one[2], pod.memory_bytes)))
    most = _amounts(max(0, best.cpu_milli), units.at_most(best.memory_bytes))
    nodes = "the one node" if len(spaces) == 1 else f"the best of {len(spaces)} nodes"
    return f"Free on {nodes} that this job could use, beside what comes with GPUs: {most}; {asked}."


def _part(free: int, asked: int) -> float:
    """Returns the free part of a request; 1 for an empty request."""
    return free / asked if asked else 1.0


def _amounts(cpu_milli: int, memory_bytes: int) -> str:
    return f"{counted(cpu_milli, 'CPU')} and {units.size(memory_bytes)} of memory"


def _closed_sentence(pod: PodRequest, kind: str | None, state: ClusterState) -> str:
    """Which nodes that could hold the pod take no jobs now, with a space before it; empty where there are none."""
    infos = [state.node_infos[name] for name in state.closed]
    nodes = [one.node for one in infos if pod.placement.matches(one.node) and one.allocatable(pod.resource).holds(pod)]
    of_type = f" with GPUs of type {kind}" if kind else ""
    silent = sum(not node.ready for node in nodes)
    said = ""
    for count, one, several in (
        (len(nodes) - silent, "is closed for maintenance", "are closed for maintenance"),
        (silent, "does not answer", "do not answer"),
    ):
        if count:
            said += f" A node{of_type} {one}." if count == 1 else f" {count} nodes{of_type} {several}."
    return said
