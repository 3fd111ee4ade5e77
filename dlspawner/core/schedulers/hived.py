"""HiveD: cells of a virtual cluster for each pod, by one annotation; no objects.

A team's virtual cluster is its queue. A preemptible job is opportunistic (-1); the level of a guaranteed one is its
priority in the virtual cluster (0 to 1000, as HiveD's). The pods with GPUs are one affinity group. A pod asks
for HiveD's token instead of GPUs, and sees the GPUs that HiveD writes into an annotation. A victim is found only if
CPU and memory go with the cells, so they are those of the GPU type; and if its PriorityClass is lower.
https://github.com/microsoft/hivedscheduler/blob/master/example/feature/README.md
"""

from __future__ import annotations

import json
from collections import Counter

from dlspawner.core import units
from dlspawner.core.config import ClusterConfig, SchedulerName
from dlspawner.core.job import Job
from dlspawner.core.schedulers.pod_groups import PodGroups
from dlspawner.core.units import GPU, Manifest

_PREFIX = "hivedscheduler.microsoft.com/"
_OPPORTUNISTIC = -1
_CELLS = f"metadata.annotations['{_PREFIX}pod-leaf-cell-isolation']"


def _member(job: Job, cluster: ClusterConfig, number: int) -> Manifest:
    pod, kind = job.request.pods[number], cluster.gpu_type(job.request.gpu_type or "")
    if not pod.gpus or kind is None:
        return {}
    cells = pod.gpus // GPU
    members = Counter(one.gpus // GPU for one in job.request.pods if one.gpus)
    scheduling = {
        "virtualCluster": cluster.scheduler.queue(job.team),
        "priority": _OPPORTUNISTIC if job.preemptible else job.priority,
        "leafCellType": dict(cluster.scheduler.cell_types).get(kind.name, kind.name),
        "leafCellNumber": cells,
        "gangReleaseEnable": False,
        "lazyPreemptionEnable": False,
        "ignoreK8sSuggestedNodes": True,
        "affinityGroup": {
            "name": job.id,
            "members": [{"podNumber": count, "leafCellNumber": each} for each, count in sorted(members.items())],
        },
    }
    share = kind.per_gpu.times(cells)
    amounts = {"cpu": units.cpu(share.cpu_milli), "memory": units.memory(share.memory_bytes)}
    token = {f"{_PREFIX}pod-scheduling-enable": "1", kind.resource: None}
    visible = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": _CELLS}}}
    return {
        "metadata": {"annotations": {f"{_PREFIX}pod-scheduling-spec": json.dumps(scheduling)}},
        "container": {"resources": {part: {**amounts, **token} for part in ("limits", "requests")}, "env": [visible]},
    }


def _scheduler(job: Job, cluster: ClusterConfig) -> str:
    """A scheduler for each virtual cluster, as in OpenPAI; pods without GPUs are the cluster's own scheduler's."""
    if not job.request.gpus:
        return "default-scheduler"
    return f"hivedscheduler-ds-{cluster.scheduler.queue(job.team)}"


HIVED = PodGroups(SchedulerName.HIVED, ("hivedscheduler.microsoft.com",), None, _scheduler, lambda *_: {}, _member)
