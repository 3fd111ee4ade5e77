"""Kubernetes' own gangs (1.37): the default scheduler places the pods of a PodGroup together.

Alpha in another form before; the feature gate ``GenericWorkload`` is off by default, and the API group
``scheduling.k8s.io/v1beta1`` has to be enabled. A victim goes whole (``disruptionMode: all``).
https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/
"""

from __future__ import annotations

from dlspawner.core.config import ClusterConfig, SchedulerName
from dlspawner.core.job import Job
from dlspawner.core.schedulers.engine import ObjectKind
from dlspawner.core.schedulers.pod_groups import PodGroups, priority_class
from dlspawner.core.units import Manifest


def _group(job: Job, cluster: ClusterConfig) -> Manifest:
    priority = priority_class(job, cluster)
    spec = {"schedulingPolicy": {"gang": {"minCount": len(job.request.pods)}}, "disruptionMode": {"all": {}}}
    return {"spec": spec | ({"priorityClassName": priority} if priority else {})}


def _member(job: Job, _: ClusterConfig, __: int) -> Manifest:
    return {"spec": {"schedulingGroup": {"podGroupName": job.id}}}


GANG = PodGroups(
    SchedulerName.GANG,
    ("scheduling.k8s.io",),
    ObjectKind("scheduling.k8s.io/v1beta1", "podgroups"),
    lambda *_: "default-scheduler",
    _group,
    _member,
    ("PodGroupInitiallyScheduled", "False"),
)
