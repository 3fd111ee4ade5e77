"""Engines that place all pods of a job together or none: their pods are created at once and wait in the cluster.

Each has an object for the job, mostly a PodGroup, and keys by which the pods belong to it. One job's pods have one
priority class, which coscheduling asks for. A job waits until every pod has a node; why is the engine's own sentence,
of the object, else of a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dlspawner.core import naming
from dlspawner.core.config import ClusterConfig, SchedulerConfig, SchedulerName
from dlspawner.core.decisions import EngineAdmits, EngineEvicts, EngineSays, EngineVerdict, EngineWaits
from dlspawner.core.job import Job
from dlspawner.core.pod_events import preempted
from dlspawner.core.schedulers.engine import EngineObject, ObjectKind, Observed, Patch, QueueView
from dlspawner.core.units import Manifest


@dataclass(frozen=True, slots=True)
class PodGroups:
    """An engine with one object per job; see `Engine`.

    ``scheduler``: the name in the pods where cluster.yaml gives none; ``group``: the object without kind and name;
    ``member``: the keys of pod number n; ``waits``: the type and status of the object's condition that says why.
    """

    name: SchedulerName
    domains: tuple[str, ...]
    kind: ObjectKind | None
    scheduler: Callable[[Job, ClusterConfig], str]
    group: Callable[[Job, ClusterConfig], Manifest]
    member: Callable[[Job, ClusterConfig, int], Manifest]
    waits: tuple[str, str] = ("", "")

    @property
    def title(self) -> str:
        return SchedulerConfig(self.name).title

    @property
    def kinds(self) -> tuple[ObjectKind, ...]:
        return () if self.kind is None else (self.kind,)

    def objects(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[EngineObject, ...]:
        if self.kind is None:
            return ()
        made = self.group(job, cluster)
        metadata = {**made.get("metadata", {}), "name": job.id, "labels": {naming.JOB_LABEL: job.id}}
        head = {"apiVersion": self.kind.group_version, "kind": "PodGroup", "metadata": metadata}
        return (EngineObject(self.kind, {**made, **head}),)

    def patches(self, job: Job, observed: Observed, now: datetime) -> tuple[Patch, ...]:
        return ()

    def additions(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[Manifest, ...]:
        return tuple(self._addition(job, cluster, number) for number in range(len(job.request.pods)))

    def _addition(self, job: Job, cluster: ClusterConfig, number: int) -> Manifest:
        own = self.member(job, cluster, number)
        priority = priority_class(job, cluster)
        metadata, spec = dict(own.get("metadata", {})), dict(own.get("spec", {}))
        metadata["annotations"] = {**metadata.get("annotations", {}), naming.ENGINE_ANNOTATION: self.title}
        spec |= {"priorityClassName": priority} if priority else {}
        spec |= {"schedulerName": cluster.scheduler.scheduler_name or self.scheduler(job, cluster)}
        return {**own, "metadata": metadata, "spec": spec}

    def verdict(self, job: Job, observed: Observed) -> EngineVerdict | None:
        for pod in observed.pods:
            why = preempted(pod)
            if why:
                return EngineEvicts(EngineSays.STOPPED.sentence(self.title, why))
        waiting = [pod for pod in observed.pods if not pod["spec"].get("nodeName")]
        if len(observed.pods) < len(job.request.pods):
            return None
        if not waiting:
            return EngineAdmits()
        kind, status = self.waits
        own = (one for found in observed.own.values() for one in _conditions(found, kind, status))
        pods = (one for pod in waiting for one in _conditions(pod, "PodScheduled", "False"))
        message = next(_messages(own), "") or next(_messages(pods), "")
        if not message:
            return EngineWaits(EngineSays.NOT_PLACED.sentence(self.title))
        return EngineWaits(EngineSays.NO_PLACE.sentence(self.title, message))

    def queue_view(self, job: Job, cluster: ClusterConfig) -> QueueView | None:
        return None

    def positions(self, view: Manifest) -> Mapping[str, int]:
        return {}


def priority_class(job: Job, cluster: ClusterConfig) -> str | None:
    """The PriorityClass of a job's pods: its level's, else the cluster's for guaranteed or preemptible jobs."""
    levels = {} if job.preemptible else dict(cluster.scheduler.priority_classes)
    return levels.get(cluster.priority_name(job.priority)) or cluster.scheduling.classes.of(preemptible=job.preemptible)


def in_queue(job: Job, cluster: ClusterConfig) -> Manifest:
    """The spec of a PodGroup in its team's queue, for engines whose groups name one."""
    priority = priority_class(job, cluster)
    spec = {"minMember": len(job.request.pods), "queue": cluster.scheduler.queue(job.team)}
    return spec | ({"priorityClassName": priority} if priority else {})


def _conditions(found: Manifest, kind: str, status: str) -> Iterator[Mapping[str, Any]]:
    for one in (found.get("status") or {}).get("conditions") or ():
        if (one.get("type"), one.get("status")) == (kind, status):
            yield one


def _messages(conditions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in conditions:
        message = str(one.get("message") or "").strip()
        if message:
            yield message
