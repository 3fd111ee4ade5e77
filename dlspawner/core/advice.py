"""Advice: what would start at once instead of what has to wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from dlspawner.core.amounts import GPU
from dlspawner.core.charge import PodRequest, ResourceRequest
from dlspawner.core.decisions import Admit, Alternative
from dlspawner.core.jobs import Job, JobState
from dlspawner.core.model import ClusterConfig, GpuType
from dlspawner.core.quota import evaluate
from dlspawner.core.world import ClusterState


def find_alternatives(request: Job, world: ClusterState, now: datetime) -> tuple[Alternative, ...]:
    """What would start at once instead: fewer GPUs, another type, preemptible; nothing for jobs of several pods."""
    kind = request.request.gpu_type
    if kind is None or len(request.request.pods) != 1 or request.request.gpus % GPU:
        return ()
    asked = request.request.gpus
    kinds = {one.name: one for one in world.cluster.gpu_types}
    if kind not in kinds:
        return ()
    tries = [(kind, asked, True)]
    tries += [(kind, fewer, False) for fewer in range(asked - GPU, 0, -GPU)]
    tries += [(name, asked, False) for name in kinds if name != kind]
    tries += [(name, asked, True) for name in kinds if name != kind]
    found: dict[tuple[str, bool], Alternative] = {}
    for name, gpus, preemptible in tries:
        if (
            (name, False) in found
            or (name, preemptible) in found
            or (preemptible and request.preemptible and name == kind)
        ):
            continue
        other = replace(
            request,
            request=_resized(request.request, kinds[name], gpus, world.cluster),
            preemptible=preemptible or request.preemptible,
            state=JobState.SUBMITTED,
            nodes=(),
        )
        if isinstance(evaluate(other, world, now), Admit):
            found[name, preemptible] = Alternative(name, gpus, other.preemptible)
    return tuple(found.values())


def _resized(charge: ResourceRequest, kind: GpuType, gpus: int, cluster: ClusterConfig) -> ResourceRequest:
    """The same job with so many GPUs of that type, and the CPU and memory that belong to them."""
    share, pod = kind.per_gpu.times(gpus // GPU), charge.pods[0]
    old = cluster.gpu_type(charge.gpu_type or "")
    kept = tuple(pair for pair in pod.placement.selector if old is None or pair not in old.node_selector)
    tolerations = pod.placement.tolerations + kind.tolerations
    selector = tuple(sorted(dict((*kept, *kind.node_selector)).items()))
    placement = replace(pod.placement, selector=selector, tolerations=tolerations)
    resized = PodRequest(kind.resource, gpus, share.cpu_milli, share.memory_bytes, placement)
    return ResourceRequest(kind.name, (resized,))
