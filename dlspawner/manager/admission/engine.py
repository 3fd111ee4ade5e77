"""The engine underneath: its objects follow the jobs, and its verdicts are in the cluster state.

* The objects of a job exist from the moment at which nothing but GPUs keeps the job from starting (policy comes first:
  limits, approvals, a login) until the job has ended; those of no job are deleted, also after a restart. So no dead job
  holds quota.
* Verdicts are kept in memory: after a restart they come from the watch. Until then jobs wait, and keep their places.
* A job that the engine evicts gets a notice, runs until its end (`preemption`), and is stopped like any other; a job
  without pods is requeued at once.
* An engine without verdicts before pods has its objects before the Hub hears that it may make the pods
  (`make_objects`); pods that it preempts end their job in `cluster.reconciler`.
* Requests to an engine that is away or uninstalled, or that refuses an object, are repeated, and the owners of its
  jobs read so. An object that is being deleted is no object any more.
* Objects of jobs in an unused engine are deleted at the beginning of each term (`LeftObjects`), so also when the files
  name another scheduler. No Workload is left there with a quota.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dlspawner.clients.kubernetes import (
    Conflict,
    KubernetesClient,
    KubernetesError,
    KubernetesRejected,
    ObjectNotFound,
    ResourceKind,
    WatchEvent,
)
from dlspawner.core import naming
from dlspawner.core.config import SchedulerConfig
from dlspawner.core.decisions import EngineEvicts, EngineSays, EngineWaits
from dlspawner.core.job import Job, JobState
from dlspawner.core.schedulers import unused_kinds
from dlspawner.core.schedulers.engine import Engine, EngineObject, ObjectKind, Observed, Patch, QueueView
from dlspawner.core.scheduling import limits
from dlspawner.core.text import WHEN
from dlspawner.core.units import Manifest
from dlspawner.manager.admission.preemption import engine_sentence
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobEvent, JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction
from dlspawner.manager.state.notify import post

POSITION_SECONDS = 5.0
_COMPARE_SECONDS = 1.0
SPEC_ANNOTATION = naming.PREFIX + "spec"  # the digest of what an object was made of
_Objects = dict[tuple[ObjectKind, str], Manifest]
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class EngineController:
    """Runs one engine for one store: `watch` never ends by itself; work queues run `due` with `reconcile`."""

    store: JobStore
    cluster: KubernetesClient
    namespaces: JobNamespaces
    engine: Engine
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _own: dict[str, _Objects] = field(default_factory=dict)  # by job
    _shared: _Objects = field(default_factory=dict)
    _pods: dict[str, dict[str, Manifest]] = field(default_factory=dict)  # by job and uid, what engines read of them
    _positions: dict[str, int] = field(default_factory=dict)  # by job
    _changed: dict[str, None] = field(default_factory=dict)  # jobs to reconcile
    _unlisted: set[tuple[ObjectKind, str | None]] = field(init=False)
    _compared_at: float = 0.0  # in the loop's time

    def __post_init__(self) -> None:
        kinds = self.engine.kinds
        self._unlisted = {
            (kind, where) for kind in kinds for where in (self.namespaces.all if kind.namespaced else (None,))
        }
        self.store.subscribers.append(self._on_events)

    # What is seen

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            for kind, namespace in tuple(self._unlisted):
                group.create_task(self._watch(kind, namespace), name=f"watch {kind.plural}")

    async def _watch(self, kind: ObjectKind, namespace: str | None) -> None:
        labels = naming.JOB_LABEL if kind.namespaced else ""
        async for change in self.cluster.watch(_resource(kind), namespace, labels=labels, optional=True):
            if change.type == "SYNCED":
                self._unlisted.discard((kind, namespace))
            elif change.type == "DELETED" or change.object["metadata"].get("deletionTimestamp"):
                # A finalizer of an engine that is gone may keep it for ever.
                self._forget(kind, str(change.object["metadata"]["name"]))
            else:
                self._see(kind, change.object)
            self.wake.set()

    def _see(self, kind: ObjectKind, found: Manifest) -> None:
        name = str(found["metadata"]["name"])
        job = (found["metadata"].get("labels") or {}).get(naming.JOB_LABEL) if kind.namespaced else None
        if job is None:
            self._shared[kind, name] = found
            self._changed |= dict.fromkeys(self._own)
        else:
            self._own.setdefault(job, {})[kind, name] = found
            self._changed[job] = None

    def _forget(self, kind: ObjectKind, name: str) -> None:
        self._shared.pop((kind, name), None)
        for job in [job for job, own in self._own.items() if (kind, name) in own]:
            self._drop(job, (kind, name))
            self._changed[job] = None

    def observe_pod(self, change: WatchEvent) -> None:
        """A pod of any job, or one that says so."""
        found = change.object
        job = (found["metadata"].get("labels") or {}).get(naming.JOB_LABEL)
        if job is None or self._config.admits_before_pods:
            return
        pods, uid = self._pods.setdefault(job, {}), str(found["metadata"]["uid"])
        if change.type == "DELETED":
            pods.pop(uid, None)
        else:
            spec, status = found.get("spec") or {}, found.get("status") or {}
            pods[uid] = {
                "spec": {"nodeName": spec.get("nodeName")},
                "status": {"conditions": status.get("conditions")},
            }
        if not pods:
            del self._pods[job]
        self._changed[job] = None
        self.wake.set()

    @property
    def _config(self) -> SchedulerConfig:
        return self.store.cluster_state.cluster.scheduler

    def _on_events(self, events: Sequence[JobEvent]) -> None:
        self._changed |= dict.fromkeys(event.record.job.id for event in events)
        self.wake.set()

    def observed(self, job: str) -> Observed:
        record, known = self.store.records.get(job), self._pods.get(job, {})
        pods = tuple(known[one.uid] for one in (record.seen if record else ()) if one.uid in known)
        return Observed(self._own.get(job, {}), self._shared, pods)

    def additions(self, job: Job) -> tuple[Manifest, ...]:
        return self.engine.additions(job, self.store.cluster_state.cluster, self.observed(job.id))

    # What is done

    async def make_objects(self, job: str) -> None:
        """Makes the objects of a job that was admitted just now, before its pods are made; KubernetesError: not all."""
        if not self._config.admits_before_pods:
            await self._carry_out(job)

    def due(self) -> list[str]:
        """Returns the jobs that changed, themselves or their objects; none before everything was listed."""
        if self._unlisted:
            return []
        now = asyncio.get_running_loop().time()
        # Caps of users and teams may hold a job back, or no more.
        if self.engine.kinds and now >= self._compared_at + _COMPARE_SECONDS:
            self._compared_at = now
            records = self.store.records.items()
            self._changed |= {job: None for job, record in records if self._wants(record) != bool(self._own.get(job))}
        return list(self._changed)

    async def reconcile(self, job: str) -> float:
        """Makes, changes or deletes the objects of one job, and reads the verdict."""
        self._changed.pop(job, None)
        try:
            await self._carry_out(job)
        except KubernetesError as problem:
            self._changed[job] = None
            if job in self.store.records and not self._own.get(job):
                title = self.store.cluster_state.cluster.scheduler.title
                self.store.put_verdict(job, EngineWaits(EngineSays.NOT_TAKEN.sentence(title)))
            raise problem from None
        await self._judge(job)
        return 0.0

    async def _carry_out(self, job: str) -> None:
        record = self.store.records.get(job)
        wanted: dict[tuple[ObjectKind, str], EngineObject] = {}
        if record is not None and self._wants(record):
            found = self.engine.objects(record.job, self.store.cluster_state.cluster, self.observed(job))
            wanted = {(one.kind, one.name): one for one in found}
        own = self._own.get(job, {})
        for key, there in list(own.items()):
            if key not in wanted or (record and not record.job.holds and _digest(wanted[key]) != _made_of(there)):
                await _delete(self.cluster, key[0], there)
                self._drop(job, key)
        if record is None:
            return
        namespace = self.namespaces.of(special=bool(record.job.special))
        for key, one in wanted.items():
            if key not in self._own.get(job, {}):
                await self._create(one, namespace)
        for patch in self.engine.patches(record.job, self.observed(job), self.store.now()):
            await self._patch(patch, self._own[job][patch.kind, patch.name], namespace)

    async def _create(self, wanted: EngineObject, namespace: str) -> None:
        manifest = wanted.manifest
        annotations = manifest["metadata"].get("annotations") or {}
        metadata = {**manifest["metadata"], "annotations": {**annotations, SPEC_ANNOTATION: _digest(wanted)}}
        try:
            made = await self.cluster.create(_resource(wanted.kind), {**manifest, "metadata": metadata}, namespace)
        except Conflict:
            return  # it exists: the watch has it, or the deletion of its predecessor
        self._see(wanted.kind, made)

    async def _patch(self, patch: Patch, there: Manifest, namespace: str) -> None:
        body = {**patch.patch, "metadata": {"resourceVersion": there["metadata"]["resourceVersion"]}}
        try:
            made = await self.cluster.patch(
                _resource(patch.kind), patch.name, body, namespace, subresource=patch.subresource
            )
        except (Conflict, ObjectNotFound):
            return  # the watch has the present one
        self._see(patch.kind, made)

    def _drop(self, job: str, key: tuple[ObjectKind, str]) -> None:
        own = self._own.get(job, {})
        own.pop(key, None)
        if not own:
            self._own.pop(job, None)

    def _wants(self, record: JobRecord) -> bool:
        """True if nothing but the engine keeps a job from starting, or if the job holds what the engine gave."""
        job, state = record.job, self.store.cluster_state
        if job.id.startswith(EXTERNAL_POD_PREFIX):
            return False
        waits = job.state is JobState.QUEUED
        return job.holds or (waits and limits.config_violation(job, state) is None and limits.caps(job, state) is None)

    async def _judge(self, job: str) -> None:
        record = self.store.records.get(job)
        verdict = self.engine.verdict(record.job, self.observed(job)) if record is not None else None
        if isinstance(verdict, EngineWaits):
            verdict = replace(verdict, position=self._positions.get(job))
        self.store.put_verdict(job, verdict)
        if isinstance(verdict, EngineEvicts) and self._config.admits_before_pods:
            await self.store.transact(partial(_evict, job=job, verdict=verdict))

    # Positions

    async def read_positions(self) -> None:
        """Reads the positions of waiting jobs, queue by queue; a queue without an answer has none."""
        cluster = self.store.cluster_state.cluster
        views: dict[tuple[str, QueueView], None] = {}
        waiting = [one.job for one in self.store.records.values() if one.job.state is JobState.QUEUED]
        for job in waiting:
            view = self.engine.queue_view(job, cluster) if job.id in self._own else None
            if view is not None:
                views[self.namespaces.of(special=bool(job.special)), view] = None
        found: dict[str, int] = {}
        for namespace, view in views:
            try:
                told = await self.cluster.get(_resource(view.kind), view.name, namespace, subresource=view.subresource)
            except KubernetesError as problem:
                log.debug("queue=%s no positions: %s", view.name, problem)
                continue
            found |= self.engine.positions(told)
        self._positions = found
        for job in waiting:
            verdict = self.store.cluster_state.verdicts.get(job.id)
            if isinstance(verdict, EngineWaits):
                self.store.put_verdict(job.id, replace(verdict, position=found.get(job.id)))


@dataclass(slots=True)
class LeftObjects:
    """The objects that jobs have in engines that are not used: each kind of them is looked for once."""

    cluster: KubernetesClient
    left: list[tuple[ObjectKind, str]]

    @classmethod
    def of(cls, cluster: KubernetesClient, namespaces: JobNamespaces, scheduler: SchedulerConfig) -> LeftObjects:
        return cls(cluster, [(kind, where) for kind in unused_kinds(scheduler) for where in namespaces.all])

    def due(self) -> list[tuple[ObjectKind, str]]:
        return self.left

    async def reconcile(self, key: tuple[ObjectKind, str]) -> float:
        """Deletes the objects that a Manager has made; there are none without the engine's API.

        Without the rights to them they stay.
        """
        kind, namespace = key
        try:
            for one in await self.cluster.list(_resource(kind), namespace, labels=naming.JOB_LABEL):
                if _made_of(one) is not None:
                    await _delete(self.cluster, kind, one)
        except ObjectNotFound:
            pass
        except KubernetesRejected as problem:
            log.debug("kind=%s of an unused scheduler is left alone: %s", kind.group_version, problem)
        self.left.remove(key)
        return 0.0


def _evict(transaction: Transaction, *, job: str, verdict: EngineEvicts) -> None:
    """The engine takes back what a job has: after notice if the job runs, at once if there is nothing to lose yet."""
    record = transaction.record(job)
    if record is None or record.job.notice is not None:
        return
    if record.awaiting_start:
        lifecycle.requeue(transaction, record, EventReason.ENGINE_EVICTED, verdict.sentence)
    elif record.job.state is JobState.STARTING:
        lifecycle.stop(transaction, job, EventReason.PREEMPTED, engine_sentence(record, verdict))
    elif record.job.state is JobState.RUNNING:
        until = transaction.now + transaction.cluster_state.cluster.scheduling.notice
        lifecycle.give_notice(transaction, record, until, transaction.cluster_state.cluster.scheduler.name.value)
        if record.job.user:
            text = f"{verdict.sentence} The job will be stopped {WHEN}."
            post(transaction, record.job, NoticeKind.PREEMPTED, text, cause=verdict.sentence, until=until)


async def _delete(cluster: KubernetesClient, kind: ObjectKind, there: Manifest) -> None:
    metadata = there["metadata"]
    try:
        await cluster.delete(_resource(kind), metadata["name"], metadata.get("namespace"), uid=metadata["uid"])
    except (ObjectNotFound, Conflict):
        return


def _resource(kind: ObjectKind) -> ResourceKind:
    return ResourceKind(kind.group_version, kind.plural, kind.namespaced)


def _digest(wanted: EngineObject) -> str:
    return hashlib.sha256(json.dumps(wanted.manifest, sort_keys=True).encode()).hexdigest()[:16]


def _made_of(there: Mapping[str, object]) -> object:
    metadata = there["metadata"]
    return (metadata.get("annotations") or {}).get(SPEC_ANNOTATION) if isinstance(metadata, dict) else None
