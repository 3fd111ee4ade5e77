"""Keeps the job store and the cluster in agreement: pods that are observed are written, expired reservations end.

* A pod that a reservation covers is *observed*: from then on the job lives as long as the pod. Quota is free when the
  pod is gone, or has ended for good, not when its deletion was requested.
* A reservation that the Hub knows ends when its deadline has passed, every request that may have been sent before it
  has timed out, and a consistent list shows no pod with the job's id. A job that was queued before is then requeued.
* A pod is matched to a reservation only by the nonce of the admitted start, which is secret until the Hub's own pod
  exists, and by the name of that pod, which no other pod can have once that pod exists.
* A pod with a job's label that no reservation covers (it is late, a user made it, its labels are another job's) is
  charged before anything else is done with it, and then deleted (`orphans`). Pods without that label are charged to no
  quota and never deleted.
* A pod that was a job's once stays that job's, also if its labels change.
* Pods of jobs that the Hub has made without an admission request are adopted and continue. The Hub sends no request
  while it knows of no limits, so a pod without a request is not deleted before the Hub's first request in this term,
  and since there are limits: limits may come and go, and databases may be lost, or be older than a job's start.
* Lists may be wrong (another namespace by mistake, an API server with old data): a pod that was its job's when the job
  ended recovers the job.
* A pod behind its gate (``start: incremental``) is none of its job's pods yet: nothing is held for it until the
  scheduling cycle gives it to its job, which is written; then its gate is removed.
* Pods that are no jobs, of all namespaces that the Manager may watch, use capacity of their nodes (`ForeignPods`): a
  job that is sent to a node without room would hold its GPUs and not start.

A pod that starts has several events within a moment, while the Hub waits for its server on the same processors and
disk. What is held is the same before and after all of them, so the first one waits for a moment, and only the latest is
processed. Every other event (a pod that is gone, terminates or has ended, or is without a reservation) is processed at
once, after the earlier events of its pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dlspawner.clients.kubernetes import NODES, PODS, KubernetesClient, ObjectNotFound, WatchEvent
from dlspawner.core import naming
from dlspawner.core.config import Team
from dlspawner.core.job import Job, JobState
from dlspawner.core.launch import pod_set, pod_status
from dlspawner.core.nodes import ForeignUsage, Node, read_node
from dlspawner.core.resources import foreign_usage
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.units import Manifest
from dlspawner.manager.cluster import pod_view
from dlspawner.manager.cluster.pod_view import ObservedPod
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import DatabaseRejected
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, MAX_START_ATTEMPTS, GatedPod, JobRecord, PodRef
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction


class ForeignPods:
    """Resource usage of pods that are no jobs, by node; ``put`` and ``remove`` return the nodes that have changed."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}  # by uid of a pod
        self._held: dict[str, dict[str, ForeignUsage]] = {}  # by node and uid

    def put(self, uid: str, node: str | None, pod: Manifest) -> set[str]:
        held = foreign_usage([pod])
        if node is None or held == ForeignUsage():
            return self.remove(uid)
        old, here = self._nodes.get(uid), self._held.setdefault(node, {})
        if old == node and here.get(uid) == held:
            return set()
        if old is not None and old != node:
            self.remove(uid)
        here[uid], self._nodes[uid] = held, node
        return {node} | ({old} if old else set())

    def remove(self, uid: str) -> set[str]:
        """A pod is gone, or holds nothing any more."""
        node = self._nodes.pop(uid, None)
        if node is None:
            return set()
        del self._held[node][uid]
        return {node}

    def usage_on(self, node: str) -> ForeignUsage:
        gpus: dict[str, int] = {}
        cpu = memory = 0
        for one in self._held.get(node, {}).values():
            cpu, memory = cpu + one.cpu_milli, memory + one.memory_bytes
            for resource, milli in one.gpus:
                gpus[resource] = gpus.get(resource, 0) + milli
        return ForeignUsage(tuple(sorted(gpus.items())), cpu, memory)


DEBOUNCE_SECONDS = 0.15
_LATE_SECONDS = 2.0  # after a deadline, for clocks that differ
_DUE_SECONDS = (
    60.0  # after the deadline of a scheduled start, which the dispatcher ends itself unless something is wrong
)
_OTHERS_SECONDS = 2.0
_KNOWN_SECONDS = 60.0  # for which a gone pod's job is known: its log and its events may come later
_ALL_LISTED = ""  # the key of the complete first lists
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class _PodChanges:
    """Events of a pod that are not processed yet, and when they are due, in the loop's time."""

    events: list[WatchEvent]
    due: float


@dataclass(slots=True)
class Reconciler:
    """The leader's view of the cluster; `watch` never ends by itself, `ready` is set after the first lists.

    Work queues run its two controllers: `due_pods` with `reconcile_pod`, and `due_expiries` with `expire`.
    ``debounce_seconds``: for which the events of a starting pod wait for later ones; 0: every event is processed.
    """

    store: JobStore
    repository: JobRepository
    cluster: KubernetesClient
    namespaces: JobNamespaces
    now: Callable[[], datetime]
    watch_all_namespaces: bool = True
    observers: Sequence[Callable[[WatchEvent], None]] = ()  # called with every event of a pod, before it is processed
    debounce_seconds: float = DEBOUNCE_SECONDS
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    pods_changed: asyncio.Event = field(default_factory=asyncio.Event)
    _pods: dict[str, ObservedPod] = field(default_factory=dict)
    _jobs: dict[str, str] = field(default_factory=dict)  # of the pods that records know, by uid
    _nodes: dict[str, Node] = field(default_factory=dict)
    _neighbours: ForeignPods = field(default_factory=ForeignPods)
    _unlisted: set[str] = field(init=False)  # namespaces without a complete list
    _changes: dict[str, _PodChanges] = field(default_factory=dict)  # by uid
    _processing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._unlisted = set(self.namespaces.all)

    def pod_identities(self) -> dict[str, naming.PodIdentity]:
        """Returns the identities that pods claim, by uid."""
        return {uid: pod.job for uid, pod in self._pods.items() if pod.job is not None}

    def job_of(self, uid: str) -> str | None:
        """Returns the job of a pod; None for pods without a reservation."""
        job = self._jobs.get(uid)
        return None if job is None or job.startswith(EXTERNAL_POD_PREFIX) else job

    def engine_of(self, uid: str) -> str:
        """Returns the title of the engine that a pod waits for; empty without one."""
        pod = self._pods.get(uid)
        return pod.engine if pod else ""

    def owner_of(self, uid: str) -> tuple[str, str] | None:
        """Returns the job of a pod, and the pod's name in a job of several."""
        job, pod = self.job_of(uid), self._pods.get(uid)
        return None if job is None else (job, pod.job.pod if pod and pod.job else "")

    async def watch(self) -> None:
        nodes_known = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_nodes(nodes_known), name="watch nodes")
            if self.watch_all_namespaces:
                others_known = asyncio.Event()
                group.create_task(self._watch_others(others_known), name="watch pods of other namespaces")
                with contextlib.suppress(TimeoutError):  # without them only the free capacity may be overestimated
                    await asyncio.wait_for(others_known.wait(), _OTHERS_SECONDS)
            await nodes_known.wait()
            self._jobs = {pod.uid: job for job, record in self.store.records.items() for pod in record.seen}
            for namespace in self.namespaces.all:
                group.create_task(self._watch_pods(namespace), name=f"watch pods in {namespace}")

    # Nodes

    async def _watch_nodes(self, known: asyncio.Event) -> None:
        async for change in self.cluster.watch(NODES):
            if change.type == "SYNCED":
                known.set()
            elif change.type == "DELETED":
                self._nodes.pop(change.object["metadata"]["name"], None)
                self.store.remove_node(change.object["metadata"]["name"])
            else:
                node = read_node(change.object)
                self._nodes[node.name] = node
                self._settle(node.name)

    def _settle(self, *names: str) -> None:
        """Puts nodes into the store, with what foreign pods hold there."""
        for name in names:
            node = self._nodes.get(name)
            if node is not None:
                self.store.put_node(replace(node, others=self._neighbours.usage_on(name)))

    async def _watch_others(self, known: asyncio.Event) -> None:
        async for change in self.cluster.watch(PODS, fields=self.namespaces.elsewhere):
            if change.type == "SYNCED":
                known.set()
            elif change.type == "DELETED":
                self._settle(*self._neighbours.remove(change.object["metadata"]["uid"]))
            else:
                self._settle(*self._meet(change.object))

    def _meet(self, pod: Manifest) -> set[str]:
        """Counts a foreign pod; returns the nodes on which that changes something."""
        node = (pod.get("spec") or {}).get("nodeName")
        return self._neighbours.put(str(pod["metadata"]["uid"]), node, pod)

    # Pods

    async def _watch_pods(self, namespace: str) -> None:
        async for change in self.cluster.watch(PODS, namespace):
            if change.type == "SYNCED":
                self._unlisted.discard(namespace)
                self.pods_changed.set()
                continue
            for tell in self.observers:
                tell(change)
            self._put(change)

    def _put(self, change: WatchEvent) -> None:
        """Adds an event: of a pod that is there only the latest is kept, its deletion comes after that."""
        loop, uid = asyncio.get_running_loop(), str(change.object["metadata"]["uid"])
        wait = self.debounce_seconds if self._may_wait(change) else 0.0
        changes = self._changes.setdefault(uid, _PodChanges([], loop.time() + wait))
        changes.due = min(changes.due, loop.time() + wait)
        if (
            self.debounce_seconds
            and changes.events
            and (changes.events[-1].type == "DELETED") is (change.type == "DELETED")
        ):
            changes.events.pop()
        changes.events.append(change)
        if wait:
            loop.call_later(wait, self.pods_changed.set)
        else:
            self.pods_changed.set()

    def _may_wait(self, change: WatchEvent) -> bool:
        """True if an event changes nothing that is held: the job is starting, the pod neither ended nor terminating."""
        if change.type == "DELETED":
            return False
        metadata, status = change.object["metadata"], change.object.get("status") or {}
        record = self.store.records.get((metadata.get("labels") or {}).get(naming.JOB_LABEL, ""))
        starts = record is not None and record.job.state is JobState.STARTING and not record.is_pending
        ended = metadata.get("deletionTimestamp") or pod_status.program_end(change.object)[1]
        return starts and not ended and status.get("phase") in {None, "Pending", "Running"}

    def due_pods(self) -> list[str]:
        """Returns the uids of pods with unprocessed events, and after the first complete lists the key for those."""
        if not (self._changes or self._processing or self._unlisted or self.ready.is_set()):
            return [_ALL_LISTED]
        now = asyncio.get_running_loop().time()
        return [uid for uid, changes in self._changes.items() if changes.due <= now]

    async def reconcile_pod(self, uid: str) -> float:
        """Processes the events of one pod; DatabaseUnavailable: they stay unprocessed."""
        if uid == _ALL_LISTED:
            await self.store.transact(self._forget_unlisted)
            self.ready.set()
            return 0.0
        taken = self._changes.pop(uid)
        self._processing.add(uid)
        try:
            for change in taken.events:
                await self._process(change)
        except BaseException:
            later = self._changes.get(uid)
            self._changes[uid] = _PodChanges([*taken.events, *(later.events if later else ())], 0.0)
            raise
        finally:
            self._processing.discard(uid)
        return 0.0

    async def _process(self, change: WatchEvent) -> None:
        metadata = change.object["metadata"]
        uid = str(metadata["uid"])
        try:
            if change.type == "DELETED":
                self._settle(*self._neighbours.remove(uid))
                await self.remove(uid, self._read(change.object))
            elif naming.JOB_LABEL in (metadata.get("labels") or {}) or uid in self._jobs:
                self._settle(*self._neighbours.remove(uid))  # it may have got its label only now
                await self._see(self._read(change.object))
            else:
                self._settle(*self._meet(change.object))
        except DatabaseRejected:
            log.error("the database rejects pod=%s; what it holds is counted on its node only", metadata["name"])  # noqa: TRY400
            self._settle(*self._meet(change.object))

    def _read(self, pod: Manifest) -> ObservedPod:
        return pod_view.read_pod(pod, self.namespaces, self._pods.get(str(pod["metadata"]["uid"])))

    async def _see(self, pod: ObservedPod) -> None:
        self._pods[pod.uid] = pod
        if not pod.gated:
            self.store.gated.pop(pod.uid, None)
        before = await self._before(pod)
        if await self._was_nobodys(pod):
            self._jobs[pod.uid] = f"{EXTERNAL_POD_PREFIX}{pod.uid}"
        await self.store.transact(lambda transaction: self._covered(transaction, pod, before))

    async def remove(self, uid: str, last: ObservedPod | None = None) -> None:
        """The pod is gone; ``last``: as it was then, where that is known."""
        self._pods.pop(uid, None)
        self.store.gated.pop(uid, None)
        await self.store.transact(lambda transaction: self._gone(transaction, uid, last))
        asyncio.get_running_loop().call_later(_KNOWN_SECONDS, self._forget, uid)

    def _forget(self, uid: str) -> None:
        """Forgets the job of a gone pod, unless the pod is there again: one list did not have it."""
        if uid not in self._pods:
            self._jobs.pop(uid, None)

    async def _before(self, pod: ObservedPod) -> JobRecord | None:
        """Returns the ended job that a pod claims; ``None`` if a record covers the pod."""
        claimed, records = pod.job, self.store.records
        if pod.over or claimed is None or claimed.id in records or f"{EXTERNAL_POD_PREFIX}{pod.uid}" in records:
            return None
        return await self.repository.find(claimed.id)

    async def _was_nobodys(self, pod: ObservedPod) -> bool:
        """True if this pod, which has ended and is new to this term, was an earlier leader's unadmitted pod."""
        claims = pod.over and pod.job is not None and pod.job.id in self.store.records and pod.uid not in self._jobs
        return claims and await self.repository.find(f"{EXTERNAL_POD_PREFIX}{pod.uid}") is not None

    def _covered(self, transaction: Transaction, pod: ObservedPod, before: JobRecord | None) -> None:
        """Processes a pod with a job's label: what it means for the record that covers it."""
        where = self.namespaces.from_key(pod.namespace)
        record = _of_pod(transaction, pod, self._jobs.get(pod.uid, ""), where)
        if (
            record is None
            and before is not None
            and _was_its(before, pod)
            and transaction.record(before.job.id) is None
        ):
            record = pod_view.restore(before)
            lifecycle.recover(transaction, record, pod.name)
        if record is None and not self.store.asked and (record := _started_since(transaction, pod, where)) is not None:
            lifecycle.adopt(transaction, record, pod.name)
        if record is None:
            if not (pod.over or pod.gated):  # behind its gate it holds nothing, and goes with the first pod
                self._charge(transaction, pod, asked_about=before is not None and before.admitted)
            return
        state = transaction.cluster_state
        self._jobs[pod.uid] = record.job.id
        if pod.gated:
            request = pod_view.pod_request(pod, state.cluster, None)
            self.store.gated[pod.uid] = GatedPod(record.job.id, pod_view.pod_ref(pod), request, pod.manifest)
            if pod.uid not in record.uids:
                self.store.capacity_changed.set()
                return
        record = (
            lifecycle.preempt_by_engine(transaction, record, pod.engine, pod.preempted) if pod.preempted else record
        )
        reason, seen = pod_view.observe(record, pod, state.cluster, self._nodes.get(pod.node or ""), transaction.now)
        # A stopped job is requeued only when its pod is gone.
        if pod.over and record.stop is None and self._was_last(seen, pod.uid):
            lifecycle.finish(transaction, seen, pod.how, pod.sentence)
        elif reason is not None:
            lifecycle.observe(transaction, seen, reason, pod.job.pod if pod.job else "")
        self._end_of_several(transaction, record.job.id)

    def _end_of_several(
        self, transaction: Transaction, job: str, last: ObservedPod | None = None, gone: Sequence[PodRef] = ()
    ) -> None:
        """Stops a job of several pods that has to end.

        ``last``: a pod that is gone, as it was then; ``gone``: those that went while no Manager watched.
        """
        record = transaction.record(job)
        if record is None or record.stop is not None or len(record.job.request.pods) == 1:
            return
        known = (self._pods.get(one.uid) or last for one in record.seen)
        ended = pod_view.end_of_several([pod for pod in known if pod is not None], gone)
        if ended is not None:
            lifecycle.stop(transaction, job, *ended)

    def _was_last(self, record: JobRecord, uid: str) -> bool:
        """True if a job has ended with this pod."""
        return not record.reserved and all(self._is_over(pod.uid) for pod in record.seen if pod.uid != uid)

    def _is_over(self, uid: str) -> bool:
        """True if a pod that was observed once is gone or has ended."""
        pod = self._pods.get(uid)
        return (pod is None and self.ready.is_set()) or (pod is not None and pod.over)

    def _charge(self, transaction: Transaction, pod: ObservedPod, *, asked_about: bool) -> None:
        """Charges a pod without a reservation: adopts its job, or keeps it until it is deleted."""
        claimed, state = pod.job, transaction.cluster_state
        adopting = claimed is not None and not (asked_about or self.store.asked)
        known = claimed is not None and transaction.record(claimed.id) is None
        job = Job(
            id=claimed.id if adopting and claimed and known else f"{EXTERNAL_POD_PREFIX}{pod.uid}",
            user=pod_view.claimed_name(claimed.user) if claimed else "",
            team=pod_view.claimed_name(claimed.team) if claimed else "",
            submitted=transaction.now,
            request=pod_view.pod_request(pod, state.cluster, self._nodes.get(pod.node or "")),
            server=pod_view.claimed_name(claimed.server) if claimed else "",
            template=pod_view.claimed_name(claimed.template) if claimed else "",
            priority=_level(state, claimed),
            preemptible=bool(claimed and claimed.preemptible),
            requeue=bool(claimed and claimed.requeue),
            state=JobState.RUNNING if pod.running else JobState.STARTING,
            started=transaction.now if pod.running else None,
            nodes=(pod.node,),
            exempt_from_quota=adopting,
        )
        if pod.terminating:
            job = replace(job, state=JobState.STOPPING)
        record = JobRecord(job, pods=(pod_view.pod_ref(pod),))
        self._jobs[pod.uid] = job.id
        if adopting and known:
            lifecycle.adopt(transaction, record, pod.name)
            return
        why = "its labels contradict each other" if claimed is None else f"nothing is reserved for job {claimed.id}"
        log.warning("pod=%s is charged and will be deleted: %s", pod.name, why)
        lifecycle.charge_unadmitted(transaction, record, f"pod={pod.name} {why}")

    def _gone(self, transaction: Transaction, uid: str, last: ObservedPod | None) -> None:
        for record in tuple(transaction.store.records.values()):
            if not any(pod.uid == uid for pod in record.seen):
                continue
            now = record
            if last is not None and last.preempted:
                now = lifecycle.preempt_by_engine(transaction, record, last.engine, last.preempted)
            if self._was_last(now, uid):
                lifecycle.on_pods_gone(transaction, now, (last.how, last.sentence) if last else None)
            else:
                self._end_of_several(transaction, record.job.id, last)

    def _forget_unlisted(self, transaction: Transaction) -> None:
        """After the first complete lists: pods that are not in them went while no Manager watched."""
        for record in tuple(transaction.store.records.values()):
            held = record.job.holds and not record.reserved
            gone = [pod for pod in record.seen if pod.uid not in self._pods]
            if held and len(gone) == len(record.seen):
                lifecycle.on_pods_gone(transaction, record, None)
            elif gone:
                self._end_of_several(transaction, record.job.id, gone=gone)

    # Gates

    def due_gates(self) -> list[str]:
        """Returns the uids of the pods that wait behind their gates although their jobs have got them."""
        records, gated = self.store.records, self.store.gated
        return [uid for uid, pod in gated.items() if pod.job in records and uid in records[pod.job].uids]

    async def open_gate(self, uid: str) -> None:
        """Removes the gate of a pod; it prefers the node that was found for it."""
        pod = self.store.gated.get(uid)
        record = self.store.records.get(pod.job) if pod is not None else None
        if pod is None or record is None or uid not in record.uids:
            return  # the pod or its job has gone meanwhile
        index = next(index for index, one in enumerate(record.pods) if one is not None and one.uid == uid)
        node = record.job.nodes[index] if record.job.request.gpu_type else None
        spec: Manifest = {"schedulingGates": None}
        if node is not None:
            preferring = pod_set.with_preferred_node({"spec": pod.manifest["spec"]}, node)
            spec["affinity"] = {"nodeAffinity": preferring["spec"]["affinity"]["nodeAffinity"]}
        namespace = self.namespaces.from_key(pod.ref.namespace)
        with contextlib.suppress(ObjectNotFound):
            await self.cluster.patch(PODS, pod.ref.name, {"metadata": {"uid": uid}, "spec": spec}, namespace)

    # Reservations

    def due_expiries(self) -> list[str]:
        """Returns the jobs with an expired reservation, late enough that no request on its way can use it."""
        now, found = self.now(), list[str]()
        for job, record in self.store.records.items():
            if record.reserved and record.deadline is not None:
                late = _DUE_SECONDS if record.awaiting_start else record.request_seconds + _LATE_SECONDS
                if now > record.deadline + timedelta(seconds=late):
                    found.append(job)
        return found

    async def expire(self, job: str) -> None:
        """Ends an expired reservation, if a consistent list shows no pod of the job."""
        record = self.store.records.get(job)
        if record is None:
            return
        selector, seen = naming.job_selector(record.job.id), list[ObservedPod]()
        for namespace in self.namespaces.all:
            listed = await self.cluster.list(PODS, namespace, labels=selector)
            seen += [pod_view.read_pod(one, self.namespaces) for one in listed]
        found = [pod for pod in seen if not pod.over]

        def expire(transaction: Transaction) -> None:
            now = transaction.record(record.job.id)
            if now is None or not now.reserved or now.deadline != record.deadline:
                return
            if now.awaiting_start:
                lifecycle.requeue(transaction, now, EventReason.START_TIMEOUT)
                return
            if any(
                pod.uid not in now.uids and transaction.record(f"{EXTERNAL_POD_PREFIX}{pod.uid}") is None
                for pod in found
            ):
                return  # its event is on the way, or was processed already: this list may be older
            left = pod_view.drop_missing_pods(now)
            if any(not self._is_over(pod.uid) for pod in left.seen):
                lifecycle.expire_reservation(transaction, left, ends=False)
                if len(left.seen) < len(now.job.request.pods):  # all of them or none
                    lifecycle.stop(
                        transaction, now.job.id, EventReason.POD_FAILED, "The Hub has not made all of its pods."
                    )
            elif not left.seen and 0 < now.start_attempts < MAX_START_ATTEMPTS and now.job.state is JobState.STARTING:
                lifecycle.requeue(transaction, now, EventReason.POD_NEVER_CREATED)
            else:
                lifecycle.expire_reservation(transaction, left, ends=True)

        await self.store.transact(expire)


def _level(state: ClusterState, claimed: naming.PodIdentity | None) -> int:
    """Returns the priority that a pod claims, if its team may use it; else the team's default."""
    if claimed is None:
        return 0
    team = state.team(claimed.team) or Team(claimed.team)
    return (state.cluster.priority(team, claimed.priority) or state.cluster.default_priority(team)).level


def _was_its(record: JobRecord, pod: ObservedPod) -> bool:
    """True if this pod was the job's while the job lasted."""
    claimed = pod.job
    same = claimed is not None and (record.job.user, record.job.server) == (claimed.user, claimed.server)
    return same and any(one.uid == pod.uid for one in record.seen)


def _started_since(transaction: Transaction, pod: ObservedPod, namespace: str) -> JobRecord | None:
    """Returns the pod's job as starting, if it waits in a database that is older than the start that made this pod."""
    claimed = pod.job
    record = None if claimed is None or pod.over or pod.terminating or pod.gated else transaction.record(claimed.id)
    if claimed is None or record is None or not record.is_pending:
        return None
    if (record.job.user, record.job.server) != (claimed.user, claimed.server):
        return None
    start = f"{namespace}/{naming.start_pod(pod.name, claimed)}"
    if record.nonce and naming.verify(record.nonce, claimed.nonce, start):
        return None  # that start is known, and has failed
    starting = replace(record.job, state=JobState.STARTING)
    return replace(record, job=starting, deadline=transaction.now, nonce=naming.sign(claimed.nonce, start))


def _of_pod(transaction: Transaction, pod: ObservedPod, known: str, namespace: str) -> JobRecord | None:
    """Returns the record that covers a pod: the job it is ``known`` as, its own, or the one that it claims."""
    for job in (known, f"{EXTERNAL_POD_PREFIX}{pod.uid}"):
        own = transaction.record(job)
        if own is not None and any(one.uid == pod.uid for one in own.seen):
            return own
    record = None if pod.job is None or known.startswith(EXTERNAL_POD_PREFIX) else transaction.record(pod.job.id)
    if pod.job is None or record is None or record.is_pending:
        return None  # a pending job has no pod
    if record.seen and not record.reserved and not pod.gated:
        return None  # an unadmitted pod never becomes a job's
    if record.nonce and not naming.verify(
        record.nonce, pod.job.nonce, f"{namespace}/{naming.start_pod(pod.name, pod.job)}"
    ):
        return None  # made by a user, or by an earlier start
    return record if (record.job.user, record.job.server) == (pod.job.user, pod.job.server) else None
