"""KAI: a queue per team with its quota, and gangs by PodGroups of the group ``scheduling.run.ai``.

Its podgrouper makes a group for each pod that has no owner; it leaves our pods alone, which name our own group. A
guaranteed job is non-preemptible, and so within its queue's quota; a preemptible one may be over it.
https://github.com/kai-scheduler/KAI-Scheduler/tree/main/docs/developer/designs/external-podgroups
"""

from __future__ import annotations

from dlspawner.core.config import ClusterConfig, SchedulerName
from dlspawner.core.job import Job
from dlspawner.core.schedulers.engine import ObjectKind
from dlspawner.core.schedulers.pod_groups import PodGroups, in_queue
from dlspawner.core.units import Manifest


def _group(job: Job, cluster: ClusterConfig) -> Manifest:
    preemptibility = "preemptible" if job.preemptible else "non-preemptible"
    return {"spec": {**in_queue(job, cluster), "preemptibility": preemptibility}}


def _member(job: Job, cluster: ClusterConfig, _: int) -> Manifest:
    queue = cluster.scheduler.queue(job.team)
    return {
        "metadata": {
            "labels": {"kai.scheduler/queue": queue},
            "annotations": {"pod-group-name": job.id, "kai.scheduler/skip-podgrouper": "true"},
        }
    }


KAI = PodGroups(
    SchedulerName.KAI,
    ("kai.scheduler", "pod-group-name"),
    ObjectKind("scheduling.run.ai/v2alpha2", "podgroups"),
    lambda *_: "kai-scheduler",
    _group,
    _member,
)
