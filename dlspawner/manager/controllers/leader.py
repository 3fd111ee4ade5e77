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
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from dlspawner.clients.hub import HubClient, HubError
from dlspawner.clients.kubernetes import KubernetesClient, KubernetesError
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.errors import Problem
from dlspawner.manager.admission.dispatcher import Dispatcher
from dlspawner.manager.admission.explain import Explainer, StartTimeEstimator
from dlspawner.manager.admission.preemption import Preemptor, issue_preemption
from dlspawner.manager.admission.scheduler import Scheduler
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.cluster.orphans import watch_scopes
from dlspawner.manager.cluster.reconciler import TOGETHER_SECONDS, Reconciler
from dlspawner.manager.cluster.termination import Terminator
from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.culling.evidence import ActivityCollector
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.history.gpu_hours import HistoryKeeper, HistoryRetention
from dlspawner.manager.logs.collector import LogCollector, LogRetention
from dlspawner.manager.logs.pod_events import PodEventCollector
from dlspawner.manager.logs.reader import LogReader
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state import config_reload, lifecycle
from dlspawner.manager.state.config_reload import ConfigReloader
from dlspawner.manager.state.event_bus import EventBus
from dlspawner.manager.state.job_store import JobStore, Transaction, withdraw
from dlspawner.manager.state.metrics import ManagerMetrics
from dlspawner.manager.state.notify import post_to_admins
from dlspawner.settings import Settings

_POLL_SECONDS = 1.0
_FILES_SECONDS = 0.5
_USAGE_SECONDS = 60.0  # usage of that time is lost if every process is killed
log = logging.getLogger("dlspawner.manager")


class _LeaseLost(Exception):
    """Another Manager has the lease, or the database does not answer."""


@dataclass(slots=True)
class LeaderElector:
    """Leads while it has the lease; ``admission`` is set while this process is the leader."""

    ledger: JobRepository
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
    news_seconds: float = TOGETHER_SECONDS
    retention: HistoryRetention = field(default_factory=HistoryRetention)
    metrics: ManagerMetrics = field(default_factory=ManagerMetrics)
    log_retention: LogRetention = field(default_factory=LogRetention)
    event_bus: EventBus = field(default_factory=EventBus)
    hub_health: HubHealth = field(init=False)
    admission: AdmissionService | None = None
    culler: Culler | None = None
    log_reader: LogReader | None = None
    is_leader: bool = False  # as far as is known; otherwise another Manager leads
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    _term: int = 0

    def __post_init__(self) -> None:
        self.hub_health = HubHealth(self.event_bus.on_hub_health)
        self.hub.on_answer = self.hub_health.on_answer
        self.metrics.world = lambda: self.admission.store.cluster_state if self.admission is not None else None

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
                self._term = term
                await self._lead_until_lost(term)
        finally:
            with contextlib.suppress(DatabaseUnavailable):
                await self.ledger.release(self.identity)

    async def flush_observed(self) -> None:
        """Waits until the pod events so far are written, before a reader or a decision uses them."""
        if self.admission is not None:
            await asyncio.gather(*(catch_up() for catch_up in self.admission.store.pending_observers))

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
            return await self.ledger.acquire(self.identity, self.lease_seconds)
        except DatabaseUnavailable as problem:
            log.warning("lease: %s", problem.__cause__)
            return None

    async def _lead(self, term: int) -> None:
        clock = self.now
        reservation = timedelta(seconds=self.reservation_seconds)
        book = JobStore(self.ledger, term, self.settings, clock, reservation)
        book.subscribers += [self.metrics.record, self.event_bus.on_events]
        book.notices.hears.append(self.event_bus.on_notices)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew(term), name="renew the lease")
                await self._read_files(book)
                await book.load()
                group.create_task(book.run(), name="job store")
                group.create_task(self._reconcile(book, clock), name="reconcile")
                group.create_task(self._reload(book), name="reload the configuration")
                group.create_task(self.event_bus.run(), name="event bus")
                group.create_task(_persist_usage(book), name="persist usage")
        finally:
            self.admission = self.culler = self.log_reader = None
            book.notices.close()
            self.event_bus.end()

    async def _read_files(self, book: JobStore) -> None:
        """Reloads the files: another Manager may have used a later version meanwhile."""
        found = await config_reload.newer(self.files, self.ledger)
        if found is not None:
            self.settings = found
            book.configure(found.cluster, found.teams)
        await config_reload.persist(self.files, self.ledger, book.term)

    async def _renew(self, term: int) -> None:
        clock, third = asyncio.get_running_loop().time, self.lease_seconds / 3
        until = clock() + self.lease_seconds
        while True:
            await asyncio.sleep(third)
            asked = clock()
            try:
                async with asyncio.timeout_at(max(until, asked + third)):
                    kept = await self.ledger.renew(term, self.lease_seconds)
            except (DatabaseUnavailable, TimeoutError) as problem:
                if clock() >= until:
                    raise _LeaseLost("the database does not answer") from problem
                continue
            if not kept:
                raise _LeaseLost("another Manager acts")
            until = asked + self.lease_seconds

    async def _reconcile(self, book: JobStore, clock: Callable[[], datetime]) -> None:
        async with await KubernetesClient.connect() as cluster, await KubernetesClient.connect() as for_logs:
            reconciler = Reconciler(
                book,
                self.ledger,
                cluster,
                JobNamespaces(self.namespace or cluster.namespace, self.special_namespace),
                clock,
                self.watch_all_namespaces,
                news_seconds=self.news_seconds,
            )
            stopper = Terminator(book, self.hub, cluster, reconciler.namespaces)
            logs = LogCollector(
                for_logs, self.ledger, book.term, reconciler.job_of, self.flush_observed, clock, self.log_retention
            )
            await logs.load()
            hearing = PodEventCollector(
                *(for_logs, self.ledger, book.term, reconciler.namespaces.all, reconciler.job_of),
                *(lambda: book.cluster_state.cluster.gpu_resources, clock),
            )
            reconciler.observers = (logs.observe, hearing.observe)
            async with asyncio.TaskGroup() as group:
                group.create_task(reconciler.run(), name="reconciler")
                await reconciler.ready.wait()
                group.create_task(stopper.run(), name="stop jobs")
                queue = Scheduler(book, self.max_concurrent_starts, issue_preemption)
                starts = Dispatcher(book, queue, self.hub)
                group.create_task(Preemptor(book, clock, starts.probe).run(), name="preemption")
                group.create_task(queue.run(), name="queue")
                group.create_task(starts.run(), name="starts")
                self.culler = await self._cull(book, reconciler, clock)
                group.create_task(self.culler.run(), name="cull idle jobs")
                keeper = HistoryKeeper(book, self.ledger, self.prometheus, reconciler.namespaces, self.retention)
                group.create_task(keeper.run(), name="keep history")
                group.create_task(logs.run(), name="keep logs")
                group.create_task(self.hub_health.run(self.hub.check_reachable), name="probe the Hub")
                group.create_task(hearing.run(), name="collect pod events")
                self.log_reader = LogReader(logs)
                group.create_task(watch_scopes(book, self.hub), name="check the Manager's scopes")
                looks = Explainer(book, self._offers_preemptible)
                estimating = StartTimeEstimator(book, self.ledger, looks, lambda: self.settings)
                group.create_task(estimating.run(), name="estimate starts")
                self.admission = AdmissionService(book, self.ledger, queue, looks, reconciler.namespaces)
                log.info("leading: jobs=%d nodes=%d", len(book.records), len(book.nodes))

    def _offers_preemptible(self, template: str) -> bool:
        found = self.settings.template(template)
        return found is not None and found.option("preemptible") is not None

    async def _cull(self, book: JobStore, reconciler: Reconciler, clock: Callable[[], datetime]) -> Culler:
        evidence = ActivityCollector(
            book=book,
            hub=self.hub,
            prometheus=self.prometheus,
            namespaces=reconciler.namespaces,
            settings=lambda: self.settings,
            pods=reconciler.pod_identities,
            now=clock,
        )
        culler = Culler(evidence, self.ledger, self.cull_every)
        await culler.load()
        book.keep_alive = culler.keep_alive
        return culler

    async def _reload(self, book: JobStore) -> None:
        # A notice of an earlier term may be outdated.
        told: tuple[Problem, ...] | None = None if book.notices.pending(("", NoticeKind.CONFIG_INVALID)) else ()
        await book.transact(lifecycle.notify_all_inadmissible)
        while True:
            found = await asyncio.to_thread(self.files.changed)
            if found is not None:
                self.settings = found
                await config_reload.persist(self.files, self.ledger, book.term)
                await book.transact(lambda turn: turn.store.configure(self.settings.cluster, self.settings.teams))
                await book.transact(lifecycle.notify_all_inadmissible)
            if self.files.problems != told:
                problems = told = self.files.problems
                await book.transact(partial(_notify_config_problems, problems=problems))
            await asyncio.sleep(_FILES_SECONDS)


def _notify_config_problems(turn: Transaction, *, problems: tuple[Problem, ...]) -> None:
    if not problems:
        withdraw(turn, "", NoticeKind.CONFIG_INVALID)
        return
    first, count = problems[0], len(problems)
    names = sorted({Path(problem.file).name for problem in problems})
    have, mistakes = "has" if len(names) == 1 else "have", "a mistake" if count == 1 else f"{count} mistakes"
    where = f"{f'line {first.line} of ' if first.line else ''}{Path(first.file).name}"
    text = (
        f"{', '.join(names)} {have} {mistakes}: the last good version of all files stays in use. The first one is in "
        f"{where}; dlspawner validate, and the Manager's log, say what is wrong."
    )
    post_to_admins(turn, NoticeKind.CONFIG_INVALID, text, cause=text)


async def _persist_usage(book: JobStore) -> None:
    while True:
        await asyncio.sleep(_USAGE_SECONDS)
        with contextlib.suppress(DatabaseUnavailable):
            await book.transact(Transaction.persist_usage)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first problem, however the tasks were grouped."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


PROBE_SECONDS = 3.0


@dataclass(slots=True)
class HubHealth:
    """The Hub's availability; ``told`` is called when it changes."""

    told: Callable[[], None]
    unreachable: bool = False
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def on_answer(self, answers: bool) -> None:
        """A request to the Hub was answered or not."""
        if answers is not self.unreachable:
            return
        self.unreachable = not answers
        log.warning("the Hub %s", "does not answer" if self.unreachable else "answers again")
        self._gone.set() if self.unreachable else self._gone.clear()
        self.told()

    async def run(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Probes an unavailable Hub; never ends by itself."""
        while True:
            await self._gone.wait()
            await asyncio.sleep(PROBE_SECONDS)
            with contextlib.suppress(HubError):
                await ask()
