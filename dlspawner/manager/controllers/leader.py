"""Leader election: of several Managers on one database the one that holds the lease decides.

The leader renews the lease three times while it lasts, and steps down when it cannot; the database refuses the writes
of a former leader (`db.repository`). The others request the lease once a second, so that one of them leads soon after
it expired. A Manager that stops in order releases the lease. A term begins by reloading the administrators' files and
rebuilding the job store, from the database and then from complete lists of nodes and pods; nothing is decided before.

The health of the Hub is observed from the Manager's own requests: each failed one says that the Hub is unavailable.
Only then the Hub is probed every few seconds, until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from dlspawner.clients.hub import HubClient, HubError
from dlspawner.clients.kubernetes import EVENTS, KubernetesClient, KubernetesError
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.core.config import SchedulerName
from dlspawner.core.schedulers import find_engine
from dlspawner.errors import Problem
from dlspawner.manager.admission.dispatcher import Dispatcher
from dlspawner.manager.admission.engine import POSITION_SECONDS, EngineController, LeftObjects
from dlspawner.manager.admission.estimator import ESTIMATE_SECONDS, StartTimeEstimator
from dlspawner.manager.admission.explain import Explainer
from dlspawner.manager.admission.preemption import Preemptor, issue_preemption
from dlspawner.manager.admission.scheduler import Scheduler
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.cluster.maintenance import NodeMaintenance
from dlspawner.manager.cluster.orphans import UnmanagedPods, check_scopes
from dlspawner.manager.cluster.reconciler import DEBOUNCE_SECONDS, Reconciler
from dlspawner.manager.cluster.termination import Terminator
from dlspawner.manager.controllers.outbox import OutboxSender
from dlspawner.manager.controllers.workqueue import WorkQueue, periodic
from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.culling.evidence import ActivityCollector
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.history.advice import Advisor
from dlspawner.manager.history.gpu_hours import EVERY, HistoryKeeper, HistoryRetention
from dlspawner.manager.history.profile import EVERY_SECONDS as PROFILE_SECONDS
from dlspawner.manager.history.profile import ProfileWriter
from dlspawner.manager.logs.collector import FOLLOWERS, READERS, SWEEP_SECONDS, LogCollector, LogRetention
from dlspawner.manager.logs.pod_events import WRITE_SECONDS, PodEventCollector
from dlspawner.manager.logs.reader import LogReader
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import LONGEST_TEXT, NoticeKind, clean
from dlspawner.manager.model.records import JobEvent
from dlspawner.manager.state import config_reload, lifecycle
from dlspawner.manager.state.config_reload import ConfigReloader
from dlspawner.manager.state.event_bus import EventBus
from dlspawner.manager.state.job_store import JobStore, Transaction, withdraw
from dlspawner.manager.state.metrics import ManagerMetrics
from dlspawner.manager.state.notify import post_to_admins
from dlspawner.settings import Settings

_POLL_SECONDS = 1.0
_FILES_SECONDS = 0.5
_SCOPES_SECONDS = 60.0
_PODS_AT_ONCE = 100  # as many as are written in one transaction
_STOPS_AT_ONCE = 10
_ASKED_AT_ONCE = 10  # jobs whose objects an engine gets
_PROBE_SECONDS, _ANSWER_SECONDS = 60.0, 5.0  # of the NetworkPolicies
_USAGE_SECONDS = 60.0  # usage of that time is lost if every process is killed
log = logging.getLogger("dlspawner.manager")


class _SchedulerChanged(NotLeader):
    """The files name another scheduler: this term ends, and the next one begins with it."""


class _LeaseLost(Exception):
    """Another Manager has the lease, or the database does not answer."""


@dataclass(slots=True)
class LeaderElector:
    """Leads while it has the lease; ``admission`` is set while this process is the leader."""

    repository: JobRepository
    files: ConfigReloader
    settings: Settings
    hub: HubClient
    namespace: str
    lease_seconds: float
    reservation_seconds: float
    watch_all_namespaces: bool
    now: Callable[[], datetime]
    max_concurrent_starts: int = 20
    prometheus: PrometheusClient | None = None
    cull_every: float = 30.0
    special_namespace: str = ""
    mail_password: str = field(default="", repr=False)
    public_url: str = ""  # of this service, for messages; empty: not known
    forbidden_address: str = ""  # that NetworkPolicies keep this process from
    debounce_seconds: float = DEBOUNCE_SECONDS
    retention: HistoryRetention = field(default_factory=HistoryRetention)
    metrics: ManagerMetrics = field(default_factory=ManagerMetrics)
    log_retention: LogRetention = field(default_factory=LogRetention)
    event_bus: EventBus = field(default_factory=EventBus)
    hub_health: HubHealth = field(init=False)
    admission: AdmissionService | None = None
    culler: Culler | None = None
    estimator: StartTimeEstimator | None = None
    maintenance: NodeMaintenance | None = None
    advisor: Advisor | None = None
    log_reader: LogReader | None = None
    is_leader: bool = False  # as far as is known; otherwise another Manager leads
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    _scheduler: SchedulerName = SchedulerName.NATIVE  # of this term
    _outdated: bool = False  # the job store uses older settings
    _unprotected: bool = False  # nothing enforces the NetworkPolicies
    _told: tuple[Problem, ...] | None = ()  # the problems of the files that administrators were told

    def __post_init__(self) -> None:
        self.hub_health = HubHealth(self.event_bus.on_hub_health)
        self.hub.on_answer = self.hub_health.on_answer
        self.metrics.cluster_state = lambda: self.admission.store.cluster_state if self.admission is not None else None
        self.metrics.evidence = lambda: self.culler.evidence.collected if self.culler is not None else {}

    async def run(self) -> None:
        """Leads whenever this Manager has the lease; ends when it is cancelled."""
        try:
            while True:
                term = await self._acquire()
                self.is_leader = term is not None
                if term is None:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                log.info("lease term=%d holder=%s taken", term, self.identity)
                await self._lead_until_lost(term)
        finally:
            with contextlib.suppress(DatabaseUnavailable):
                await self.repository.release(self.identity)

    async def _lead_until_lost(self, term: int) -> None:
        # In a task of its own: in ours, Python 3.11 could not tell a TaskGroup that failed from our being cancelled.
        acting = asyncio.create_task(self._lead(term), name=f"term {term}")
        try:
            await asyncio.wait({acting})
        finally:
            acting.cancel()
            await asyncio.wait({acting})
            if not acting.cancelled():
                acting.exception()  # if this task is cancelled, asyncio would report it as never retrieved
        try:
            acting.result()
        except* _SchedulerChanged as ends:
            log.warning("term=%d ends: %s", term, _first(ends))
        except* (_LeaseLost, NotLeader) as ends:
            log.warning("lease term=%d holder=%s lost: %s", term, self.identity, _first(ends))
        except* (DatabaseUnavailable, KubernetesError) as ends:
            log.warning("term=%d cannot lead: %s", term, _first(ends))
            await asyncio.sleep(_POLL_SECONDS)
        except* Exception:
            log.exception("term=%d ended by a fault; a new one begins", term)
            await asyncio.sleep(_POLL_SECONDS)

    async def _acquire(self) -> int | None:
        try:
            return await self.repository.acquire(self.identity, self.lease_seconds)
        except DatabaseUnavailable as problem:
            log.warning("lease: %s", problem.__cause__)
            return None

    async def _lead(self, term: int) -> None:
        store = JobStore(self.repository, term, self.settings, self.now, timedelta(seconds=self.reservation_seconds))
        store.subscribers += [self.metrics.record, self.event_bus.on_events]
        store.notices.subscribers.append(self.event_bus.on_notices)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew(term), name="renew the lease")
                await self._read_files(store)
                await store.load()
                group.create_task(store.run(), name="job store")
                group.create_task(self.event_bus.run(), name="event bus")
                group.create_task(self._run_controllers(store), name="controllers")
        finally:
            self.admission = self.culler = self.estimator = self.log_reader = self.maintenance = self.advisor = None
            store.notices.close()
            self.event_bus.end()

    async def _read_files(self, store: JobStore) -> None:
        """Reloads the files: another Manager may have used a later version meanwhile."""
        found = await config_reload.newer(self.files, self.repository)
        if found is not None:
            self.settings = found
            store.configure(found.cluster, found.teams)
        self._outdated = False
        await config_reload.persist(self.files, self.repository, store.term)

    async def _renew(self, term: int) -> None:
        clock, third = asyncio.get_running_loop().time, self.lease_seconds / 3
        until = clock() + self.lease_seconds
        while True:
            await asyncio.sleep(third)
            asked = clock()
            try:
                async with asyncio.timeout_at(max(until, asked + third)):
                    kept = await self.repository.renew(term, self.lease_seconds)
            except (DatabaseUnavailable, TimeoutError) as problem:
                if clock() >= until:
                    raise _LeaseLost("the database does not answer") from problem
                continue
            if not kept:
                raise _LeaseLost("another Manager acts")
            until = asked + self.lease_seconds

    async def _run_controllers(self, store: JobStore) -> None:
        """Builds the controllers of this term, and runs them; nothing is decided before the pods are known."""
        # A notice of an earlier term may be outdated.
        self._told = None if store.notices.pending(("", NoticeKind.CONFIG_INVALID)) else ()
        async with await KubernetesClient.connect() as cluster, await KubernetesClient.connect() as for_logs:
            namespaces = JobNamespaces(self.namespace or cluster.namespace, self.special_namespace)
            reconciler = Reconciler(
                store,
                self.repository,
                cluster,
                namespaces,
                self.now,
                self.watch_all_namespaces,
                debounce_seconds=self.debounce_seconds,
            )
            logs = LogCollector(for_logs, self.repository, store.term, reconciler.job_of, self.now, self.log_retention)
            pod_events = PodEventCollector(
                *(for_logs, self.repository, store.term, namespaces.all, reconciler.owner_of),
                *(lambda: store.cluster_state.cluster.gpu_resources, self.now),
            )
            engine = self._make_engine(store, cluster, namespaces)
            reconciler.observers = (logs.observe, pod_events.observe, *([engine.observe_pod] if engine else []))
            await logs.load()
            await store.transact(lifecycle.notify_all_inadmissible)
            async with asyncio.TaskGroup() as group:
                group.create_task(reconciler.watch(), name="watch the cluster")
                _run(group, self._observing(store, reconciler))
                await reconciler.ready.wait()
                await store.transact(partial(lifecycle.take_back_from_engine, engine_of=reconciler.engine_of))
                group.create_task(pod_events.watch(), name="watch events of pods")
                _run(group, self._keeping(store, cluster, namespaces, logs, pod_events))
                unmanaged = UnmanagedPods(store, cluster, namespaces, reconciler.remove)
                _run(
                    group, self._ending(store, reconciler, Terminator(store, self.hub, cluster, namespaces), unmanaged)
                )
                scheduler = Scheduler(store, self.max_concurrent_starts, issue_preemption)
                explainer = Explainer(store, self._offers_preemptible)
                if engine is not None:
                    group.create_task(engine.watch(), name="watch the engine's objects")
                    _run(group, self._asking(engine))
                left = LeftObjects.of(cluster, namespaces, store.cluster_state.cluster.scheduler)
                _run(group, [WorkQueue("objects of an unused scheduler", left.due, left.reconcile)])
                _run(group, self._starting(store, scheduler, explainer))
                self.culler = await self._make_culler(store, reconciler)
                sender = OutboxSender(
                    *(self.repository, store.term, lambda: self.settings.cluster.notifications, self.now),
                    *(self.mail_password, self.public_url),
                )
                _run(group, sender.queues())
                if self.forbidden_address:
                    probe = partial(self._probe_policies, cluster)
                    _run(group, [periodic("probe of the network policies", probe, _PROBE_SECONDS)])
                _run(group, [periodic("culling of idle jobs", self.culler.evaluate_all, self.cull_every)])
                self.log_reader = LogReader(logs)
                self.advisor = Advisor(store, self.repository, group)
                admission = AdmissionService(store, scheduler, explainer, namespaces)
                if engine is not None:
                    admission.additions, admission.make_objects = engine.additions, engine.make_objects
                self.admission = admission
                log.info("leading: jobs=%d nodes=%d", len(store.records), len(store.nodes))

    def _observing(self, store: JobStore, reconciler: Reconciler) -> Iterator[WorkQueue[Any]]:
        """Returns the queues that observe pods, files and the Hub."""
        yield WorkQueue(
            "events of pod",
            reconciler.due_pods,
            reconciler.reconcile_pod,
            workers=_PODS_AT_ONCE,
            wake=reconciler.pods_changed,
        )
        yield periodic("reload of the configuration", partial(self._reload, store, reconciler.cluster), _FILES_SECONDS)
        health = self.hub_health
        yield WorkQueue("probe of the Hub", health.due, partial(health.probe, self.hub.check_reachable))
        yield periodic("check of the Manager's scopes", partial(check_scopes, store, self.hub), _SCOPES_SECONDS)

    def _keeping(
        self,
        store: JobStore,
        cluster: KubernetesClient,
        namespaces: JobNamespaces,
        logs: LogCollector,
        pod_events: PodEventCollector,
    ) -> Iterator[WorkQueue[Any]]:
        """Returns the queues that keep usage, history, events and logs."""
        yield periodic("usage of the teams", lambda: store.transact(Transaction.persist_usage), _USAGE_SECONDS)
        history = HistoryKeeper(store, self.repository, self.prometheus, namespaces, self.retention)
        yield periodic("history", history.run_once, EVERY.total_seconds())
        profile = ProfileWriter(store, cluster, self.prometheus, namespaces)
        yield periodic("annotations with the use of pods", profile.run_once, PROFILE_SECONDS)
        yield periodic("events of pods", pod_events.write, WRITE_SECONDS)
        yield WorkQueue("log of", logs.due_reads, logs.read, workers=READERS, wake=logs.read_wake)
        yield WorkQueue("log of ending", logs.due_follows, logs.follow, workers=FOLLOWERS, wake=logs.follow_wake)
        yield periodic("deletion of old logs", logs.sweep, SWEEP_SECONDS)

    def _ending(
        self, store: JobStore, reconciler: Reconciler, terminator: Terminator, unmanaged: UnmanagedPods
    ) -> Iterator[WorkQueue[Any]]:
        """Returns the queues that stop jobs, delete pods and end reservations."""
        stops = WorkQueue("stop of job", terminator.due, terminator.reconcile, workers=_STOPS_AT_ONCE)
        store.subscribers.append(partial(_wake_for_stops, stops.wake))
        yield stops
        yield WorkQueue("expiry of job", reconciler.due_expiries, reconciler.expire)
        yield WorkQueue("gate of pod", reconciler.due_gates, reconciler.open_gate, workers=_STOPS_AT_ONCE)
        yield WorkQueue("deletion of pod", unmanaged.due, unmanaged.reconcile)
        self.maintenance = NodeMaintenance(store, reconciler.cluster)
        yield WorkQueue("maintenance of node", self.maintenance.due, self.maintenance.reconcile)
        preemptor = Preemptor(store)
        yield WorkQueue("reconciliation of", preemptor.due, preemptor.reconcile)

    def _starting(self, store: JobStore, scheduler: Scheduler, explainer: Explainer) -> Iterator[WorkQueue[Any]]:
        """Returns the queues that schedule and start jobs."""
        yield WorkQueue("scheduling", scheduler.due, scheduler.reconcile, wake=store.capacity_changed.wake)
        starts = Dispatcher(store, scheduler, self.hub)
        yield WorkQueue(
            "start of job",
            starts.due,
            starts.reconcile,
            workers=self.max_concurrent_starts,
            wake=scheduler.work_available,
            longest_pause=5.0,
        )
        yield WorkQueue("new try of job", starts.due_refused, starts.retry)
        yield WorkQueue("check of the owner of job", starts.due_owners, starts.check_owner)
        self.estimator = StartTimeEstimator(store, self.repository, explainer, lambda: self.settings)
        yield periodic("estimates of starts", self.estimator.refresh, ESTIMATE_SECONDS)

    def _make_engine(
        self, store: JobStore, cluster: KubernetesClient, namespaces: JobNamespaces
    ) -> EngineController | None:
        self._scheduler = store.cluster_state.cluster.scheduler.name
        engine = find_engine(store.cluster_state.cluster.scheduler)
        return EngineController(store, cluster, namespaces, engine) if engine is not None else None

    def _asking(self, engine: EngineController) -> Iterator[WorkQueue[Any]]:
        """Returns the queues that keep the engine's objects and verdicts."""
        name = "engine's objects of job"
        yield WorkQueue(name, engine.due, engine.reconcile, workers=_ASKED_AT_ONCE, wake=engine.wake)
        yield periodic("positions in the engine", engine.read_positions, POSITION_SECONDS)

    def _offers_preemptible(self, template: str) -> bool:
        found = self.settings.template(template)
        return found is not None and found.option("preemptible") is not None

    async def _make_culler(self, store: JobStore, reconciler: Reconciler) -> Culler:
        evidence = ActivityCollector(
            store=store,
            hub=self.hub,
            prometheus=self.prometheus,
            namespaces=reconciler.namespaces,
            settings=lambda: self.settings,
            pods=reconciler.pod_identities,
            now=self.now,
        )
        culler = Culler(evidence, self.repository)
        await culler.load()
        return culler

    async def _probe_policies(self, cluster: KubernetesClient) -> None:
        """Warns once when the forbidden address answers; no answer proves nothing: its process may be away."""
        host, _, port = self.forbidden_address.rpartition(":")
        if self._unprotected or not await _answers(host, int(port)):
            return
        self._unprotected = True
        text = (
            f"No network plug-in enforces the NetworkPolicies: {self.forbidden_address} answers, which they forbid. "
            "Jobs reach each other, the product's processes and the cloud's metadata. Install one that does, such as "
            "Calico or Cilium."
        )
        log.warning("%s", text)
        await _warn(cluster, "PoliciesNotEnforced", text, self.now())

    async def _reload(self, store: JobStore, cluster: KubernetesClient) -> None:
        found = await asyncio.to_thread(self.files.changed)
        if found is not None:
            self.settings, self._outdated = found, True
        if self._outdated:
            await config_reload.persist(self.files, self.repository, store.term)
            if self.settings.cluster.scheduler.name is not self._scheduler:
                raise _SchedulerChanged(f"the scheduler is {self.settings.cluster.scheduler.name.value} from now on")
            await store.transact(
                lambda transaction: transaction.store.configure(self.settings.cluster, self.settings.teams)
            )
            await store.transact(lifecycle.notify_all_inadmissible)
            self._outdated = False
        if self.files.problems != self._told:
            problems = self.files.problems
            await store.transact(partial(_notify_config_problems, problems=problems))
            self._told = problems
            if problems:
                await _warn(cluster, "InvalidConfiguration", _config_problems(problems), self.now())


def _wake_for_stops(wake: asyncio.Event, entries: Sequence[JobEvent]) -> None:
    if any(entry.record.stop is not None for entry in entries):
        wake.set()


def _run(group: asyncio.TaskGroup, queues: Iterable[WorkQueue[Any]]) -> None:
    for queue in queues:
        group.create_task(queue.run(), name=queue.name)


def _notify_config_problems(transaction: Transaction, *, problems: tuple[Problem, ...]) -> None:
    if not problems:
        withdraw(transaction, "", NoticeKind.CONFIG_INVALID)
        return
    text = _config_problems(problems)
    post_to_admins(transaction, NoticeKind.CONFIG_INVALID, text, cause=text)


def _config_problems(problems: tuple[Problem, ...]) -> str:
    first, count = problems[0], len(problems)
    names = sorted({Path(problem.file).name for problem in problems})
    have, mistakes = "has" if len(names) == 1 else "have", "a mistake" if count == 1 else f"{count} mistakes"
    where = f"{f'line {first.line} of ' if first.line else ''}{Path(first.file).name}"
    said = f"{first.path}: {first.sentence}" if first.path.strip(".") else first.sentence
    which, rest = ("It", "") if count == 1 else ("The first one", " All are in the Manager's log.")
    return (
        f"{', '.join(names)} {have} {mistakes}: the last good version of all files stays in use. "
        f"{which} is in {where}: {said}{rest}"
    )


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # a TimeoutError is one
        return False
    writer.close()
    return True


async def _warn(cluster: KubernetesClient, reason: str, text: str, now: datetime) -> None:
    """Posts a Kubernetes event about this Manager's own pod, for `kubectl describe`; outside of a cluster none."""
    pod, uid, moment = os.environ.get("POD_NAME"), os.environ.get("POD_UID"), f"{now:%Y-%m-%dT%H:%M:%SZ}"
    if not pod or not uid:
        return
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod}.", "namespace": cluster.namespace},
        "involvedObject": {"kind": "Pod", "namespace": cluster.namespace, "name": pod, "uid": uid},
        **{"type": "Warning", "reason": reason, "message": clean(text, LONGEST_TEXT)},
        **{"source": {"component": "dlspawner-manager"}, "firstTimestamp": moment, "lastTimestamp": moment, "count": 1},
    }
    try:
        await cluster.create(EVENTS, event)
    except KubernetesError as problem:
        log.warning("%s cannot be told as an event: %s", reason, problem)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first problem, however the tasks were grouped."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


PROBE_SECONDS = 3.0


@dataclass(slots=True)
class HubHealth:
    """The Hub's availability, and a controller that probes an unavailable Hub; ``told`` is called when it changes."""

    told: Callable[[], None]
    unreachable: bool = False

    def on_answer(self, answers: bool) -> None:
        """A request to the Hub was answered or not."""
        if answers is not self.unreachable:
            return
        self.unreachable = not answers
        log.warning("the Hub %s", "does not answer" if self.unreachable else "answers again")
        self.told()

    def due(self) -> list[str]:
        return ["Hub"] if self.unreachable else []

    async def probe(self, ask: Callable[[], Awaitable[object]], _: str) -> float:
        with contextlib.suppress(HubError):
            await ask()
        return PROBE_SECONDS
