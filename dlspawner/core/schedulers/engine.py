"""What an engine is: from a job to the objects and the pods' keys that the engine reads, and back to a verdict.

Rules:

* The Manager makes an engine's objects when a job may wait for GPUs, and deletes them when the job has ended or may not
  wait any more. They are named after the job and have its label (`naming.JOB_LABEL`).
* *Additions* are parts of a pod's manifest, one for each pod, which the spawner merges into the pod after the
  admission: labels, annotations, node selector, tolerations, scheduler name, …. They come from here alone: users cannot
  set an engine's keys.
* An engine with ``admits_before_pods`` (`SchedulerConfig`) decides by its objects alone, and a job's pods are created
  after its verdict; otherwise the pods are created at once and wait in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dlspawner.core.config import ClusterConfig
from dlspawner.core.decisions import EngineVerdict
from dlspawner.core.job import Job
from dlspawner.core.units import Manifest


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of objects, as in the API's paths; those with a namespace are of one job each, the others of all."""

    group_version: str
    plural: str
    namespaced: bool = True


@dataclass(frozen=True, slots=True)
class EngineObject:
    """An object of a job that is to exist; its manifest has no namespace."""

    kind: ObjectKind
    manifest: Manifest

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Observed:
    """One job in the cluster, objects and pods, and the objects that all jobs share; objects by kind and name."""

    own: Mapping[tuple[ObjectKind, str], Manifest]
    shared: Mapping[tuple[ObjectKind, str], Manifest]
    pods: tuple[Manifest, ...] = ()


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of an object of the job; refused by the cluster if the object was changed meanwhile."""

    kind: ObjectKind
    name: str
    patch: Manifest
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class QueueView:
    """The subresource of the engine's queue with the order of waiting jobs."""

    kind: ObjectKind
    name: str
    subresource: str


class Engine(Protocol):
    """An engine's keys; every method is a pure function."""

    @property
    def kinds(self) -> tuple[ObjectKind, ...]:
        """The kinds of objects to watch."""

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains of labels and annotations that are the engine's: no template has any of them."""

    def objects(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[EngineObject, ...]:
        """Returns the objects that exist as long as the job may wait for GPUs or holds them."""

    def patches(self, job: Job, observed: Observed, now: datetime) -> tuple[Patch, ...]:
        """Returns the changes of the job's objects by which the engine learns the present state of the job."""

    def additions(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[Manifest, ...]:
        """Returns the addition to each pod of the job."""

    def verdict(self, job: Job, observed: Observed) -> EngineVerdict | None:
        """Returns the verdict without the position; ``None`` before there is one."""

    def queue_view(self, job: Job, cluster: ClusterConfig) -> QueueView | None:
        """Returns the view with the position of a waiting job; ``None`` if the engine has none."""

    def positions(self, view: Manifest) -> Mapping[str, int]:
        """Returns the positions in such a view, from 1, by the names of the jobs' objects."""
