"""Volcano: a queue per team, and gangs by PodGroups.

The scheduler reads the group's name in the pod's annotation only; queue and minimum are the group's. A pod without
``volcano.sh/preemptable`` may be preempted, so a guaranteed one says ``"false"``. An evicted pod is deleted.

Refused: ``minResources``. A group that has it is not looked at before its queue has as much free, so that a guaranteed
job would never take its place back from a preemptible one of its own queue (measured with 1.10).
https://volcano.sh/en/docs/podgroup/
"""

from __future__ import annotations

from dlspawner.core.config import ClusterConfig, SchedulerName
from dlspawner.core.job import Job
from dlspawner.core.schedulers.engine import ObjectKind
from dlspawner.core.schedulers.pod_groups import PodGroups, in_queue
from dlspawner.core.units import Manifest

GROUP = "scheduling.k8s.io/group-name"
_PREEMPTABLE = "volcano.sh/preemptable"


def _group(job: Job, cluster: ClusterConfig) -> Manifest:
    return {"metadata": {"annotations": _preemptable(job)}, "spec": in_queue(job, cluster)}


def _member(job: Job, _: ClusterConfig, __: int) -> Manifest:
    return {"metadata": {"annotations": {GROUP: job.id, **_preemptable(job)}}}


def _preemptable(job: Job) -> dict[str, str]:
    return {_PREEMPTABLE: "true" if job.preemptible else "false"}


VOLCANO = PodGroups(
    SchedulerName.VOLCANO,
    ("volcano.sh", "scheduling.k8s.io"),
    ObjectKind("scheduling.volcano.sh/v1beta1", "podgroups"),
    lambda *_: "volcano",
    _group,
    _member,
    ("Unschedulable", "True"),
)
