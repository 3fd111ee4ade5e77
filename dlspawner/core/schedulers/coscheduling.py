"""Coscheduling of scheduler-plugins: gangs by PodGroups, without queues. Which job is first is its priority's to say.

The chart's scheduler is named ``scheduler-plugins-scheduler``; a plugin in the cluster's only scheduler is
``scheduler_name: default-scheduler``. https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
"""

from __future__ import annotations

from dlspawner.core.config import ClusterConfig, SchedulerName
from dlspawner.core.job import Job
from dlspawner.core.schedulers.engine import ObjectKind
from dlspawner.core.schedulers.pod_groups import PodGroups
from dlspawner.core.units import Manifest


def _group(job: Job, _: ClusterConfig) -> Manifest:
    return {"spec": {"minMember": len(job.request.pods)}}


def _member(job: Job, _: ClusterConfig, __: int) -> Manifest:
    return {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": job.id}}}


COSCHEDULING = PodGroups(
    SchedulerName.COSCHEDULING,
    ("scheduling.x-k8s.io",),
    ObjectKind("scheduling.x-k8s.io/v1alpha1", "podgroups"),
    lambda *_: "scheduler-plugins-scheduler",
    _group,
    _member,
)
