"""kube-batch (archived in 2021): a queue per team, and gangs by its old PodGroup.

Its CustomResourceDefinitions are of Kubernetes before 1.22. https://github.com/kubernetes-retired/kube-batch
"""

from __future__ import annotations

from dlspawner.core.config import ClusterConfig, SchedulerName
from dlspawner.core.job import Job
from dlspawner.core.schedulers.engine import ObjectKind
from dlspawner.core.schedulers.pod_groups import PodGroups, in_queue
from dlspawner.core.schedulers.volcano import GROUP
from dlspawner.core.units import Manifest


def _group(job: Job, cluster: ClusterConfig) -> Manifest:
    return {"spec": in_queue(job, cluster)}


def _member(job: Job, _: ClusterConfig, __: int) -> Manifest:
    return {"metadata": {"annotations": {GROUP: job.id}}}


KUBE_BATCH = PodGroups(
    SchedulerName.KUBE_BATCH,
    ("scheduling.k8s.io",),
    ObjectKind("scheduling.incubator.k8s.io/v1alpha1", "podgroups"),
    lambda *_: "kube-batch",
    _group,
    _member,
    ("Unschedulable", "True"),
)
