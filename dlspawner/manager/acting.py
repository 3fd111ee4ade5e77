"""Who acts: of several Managers on one database the one that holds the lease.

It renews the lease three times while it lasts, and stops acting when it cannot; the database refuses whatever it still
tries to write (`ledger`). The others ask for the lease once a second, so that one of them acts soon after it expired.
One that stops in order gives the lease up. Acting begins with reading the administrators' files anew (`files`) and
rebuilding the book, from the database and then from complete lists of nodes and pods; nothing is decided before.

Within an epoch time is steady, and taken from the machine's clock at its start only. When that clock has been set, the
epoch ends and another one begins (`clock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from dlspawner.cluster import Cluster, ClusterError
from dlspawner.errors import Problem
from dlspawner.hubapi import HubApi
from dlspawner.manager import files, hopeless
from dlspawner.manager.book import Book, Turn
from dlspawner.manager.changes import Changes
from dlspawner.manager.clock import JUMP, put_right
from dlspawner.manager.culling import Culler
from dlspawner.manager.desk import Desk
from dlspawner.manager.estimating import Estimating
from dlspawner.manager.files import Files
from dlspawner.manager.gathering import Gathering
from dlspawner.manager.history.keeping import Keeper, Retention
from dlspawner.manager.ledger import Fenced, Ledger
from dlspawner.manager.logs.hearing import Hearing
from dlspawner.manager.logs.keeper import Keeping, LogKeeper
from dlspawner.manager.logs.shelf import Shelf
from dlspawner.manager.looks import Looks
from dlspawner.manager.metrics.meters import Meters
from dlspawner.manager.namespaces import Namespaces
from dlspawner.manager.news import TOGETHER_SECONDS
from dlspawner.manager.notices import Kind, post_to_admins, withdraw
from dlspawner.manager.owners import Owners
from dlspawner.manager.preempting import Preempting, begin
from dlspawner.manager.presence import Presence
from dlspawner.manager.prometheus import Prometheus
from dlspawner.manager.queue import Queue
from dlspawner.manager.reconcile import Reconciler
from dlspawner.manager.sizes import Sizes
from dlspawner.manager.starts import Starts
from dlspawner.manager.stopping import Stopper
from dlspawner.manager.store import StoreUnavailable
from dlspawner.settings import Settings

_POLL_SECONDS = 1.0
_FILES_SECONDS = 0.5
_USAGE_SECONDS = 60.0  # what is forgotten of a team's usage when everything is killed
log = logging.getLogger("dlspawner.manager")


class _Lost(Exception):
    """The lease is another one's, or nobody can tell."""


class _Jumped(Exception):
    """The machine's clock was set."""


@dataclass(slots=True)
class Acting:
    """The part of the Manager that decides; `desk` is there while this process is the one that acts."""

    ledger: Ledger
    files: Files
    settings: Settings
    hub: HubApi
    namespace: str
    lease_seconds: float
    reservation_seconds: float
    look_seconds: float
    other_namespaces: bool
    now: Callable[[], datetime]
    ticks: Callable[[], float] = time.monotonic
    starts_at_once: int = 20
    prometheus: Prometheus | None = None
    idle_look_seconds: float = 30.0
    special_namespace: str = ""
    orphan_seconds: float = 900.0
    news_seconds: float = TOGETHER_SECONDS
    retention: Retention = field(default_factory=Retention)
    meters: Meters = field(default_factory=Meters)
    keeping: Keeping = field(default_factory=Keeping)
    changes: Changes = field(default_factory=Changes)
    presence: Presence = field(init=False)
    desk: Desk | None = None
    culler: Culler | None = None
    logs: Shelf | None = None
    holds_lease: bool = False  # as far as is known; another Manager acts while it is not so
    holder: str = field(default_factory=lambda: secrets.token_hex(8))
    _epoch: int = 0
    _jump: timedelta = timedelta(0)  # by how much the clock was set since the last epoch

    def __post_init__(self) -> None:
        self.presence = Presence(self.changes.hub_moved)
        self.hub.heard = self.presence.heard
        self.meters.world = lambda: self.desk.book.world if self.desk is not None else None

    async def run(self) -> None:
        """Act whenever the lease is ours; ends when it is cancelled."""
        try:
            while True:
                epoch = await self._take()
                self.holds_lease = epoch is not None
                if epoch is None:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                log.info("lease epoch=%d holder=%s taken", epoch, self.holder)
                if epoch != self._epoch + 1:
                    self._jump = timedelta(0)  # another one has acted meanwhile, by its own clock
                self._epoch = epoch
                await self._act_until_it_ends(epoch)
        finally:
            with contextlib.suppress(StoreUnavailable):
                await self.ledger.give_up(self.holder)

    async def caught_up(self) -> None:
        """What was seen of pods by now is known, for somebody who looks at jobs, or decides about one."""
        if self.desk is not None:
            await asyncio.gather(*(catch_up() for catch_up in self.desk.book.behind))

    async def _act_until_it_ends(self, epoch: int) -> None:
        # In a task of its own: in ours, Python 3.11 could not tell a TaskGroup that failed from our being cancelled.
        acting = asyncio.create_task(self._act(epoch), name=f"epoch {epoch}")
        try:
            await asyncio.wait({acting})
        finally:
            acting.cancel()
            await asyncio.wait({acting})
            if not acting.cancelled():
                acting.exception()  # when we are cancelled ourselves nobody else looks at it, and asyncio complains
        try:
            acting.result()
        except* (_Lost, Fenced) as ends:
            log.warning("lease epoch=%d holder=%s lost: %s", epoch, self.holder, _first(ends))
        except* _Jumped as ends:
            log.warning("epoch=%d begins anew: %s", epoch, _first(ends))
        except* (StoreUnavailable, ClusterError) as ends:
            log.warning("epoch=%d cannot act: %s", epoch, _first(ends))
            await asyncio.sleep(_POLL_SECONDS)
        except* Exception:
            log.exception("epoch=%d ended by a fault; it begins anew", epoch)
            await asyncio.sleep(_POLL_SECONDS)

    async def _take(self) -> int | None:
        try:
            return await self.ledger.take(self.holder, self.lease_seconds)
        except StoreUnavailable as problem:
            log.warning("lease: %s", problem.__cause__)
            return None

    async def _act(self, epoch: int) -> None:
        clock = self._steady()
        reservation = timedelta(seconds=self.reservation_seconds)
        book = Book(self.ledger, epoch, self.settings, clock, reservation)
        book.hears += [self.meters.note, self.changes.heard]
        book.board.hears.append(self.changes.noticed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew(epoch), name="renew the lease")
                await self._read_files(book)
                await book.load()
                sizes = Sizes(book, self.ledger)
                await sizes.load()
                group.create_task(sizes.run(), name="write down what nodes have")
                group.create_task(book.run(), name="the book's writer")
                await put_right(book, self.ledger, self._jump)
                self._jump = timedelta(0)
                group.create_task(self._reconcile(book, clock), name="reconcile")
                group.create_task(self._reload(book), name="read the files anew")
                group.create_task(self.changes.run(), name="tell who listens")
                group.create_task(_keep_usage(book), name="write down what teams have used")
                group.create_task(self._look_at_the_clock(clock), name="look at the clock")
        finally:
            self.desk = self.culler = self.logs = None
            book.board.close()
            self.changes.end()

    async def _read_files(self, book: Book) -> None:
        """Since this Manager read them another one may have acted, by a later version."""
        found = await files.overtaken(self.files, self.ledger)
        if found is not None:
            self.settings = found
            book.configure(found.cluster, found.teams)
        await files.keep(self.files, self.ledger, book.epoch)

    def _steady(self) -> Callable[[], datetime]:
        begun, ticks = self.now(), self.ticks()
        return lambda: begun + timedelta(seconds=self.ticks() - ticks)

    async def _look_at_the_clock(self, clock: Callable[[], datetime]) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            jump = self.now() - clock()
            if abs(jump) > JUMP:
                self._jump += jump
                raise _Jumped(f"the machine's clock has jumped by {jump.total_seconds():.0f} seconds")

    async def _renew(self, epoch: int) -> None:
        clock, third = asyncio.get_running_loop().time, self.lease_seconds / 3
        until = clock() + self.lease_seconds
        while True:
            await asyncio.sleep(third)
            asked = clock()
            try:
                async with asyncio.timeout_at(max(until, asked + third)):
                    kept = await self.ledger.renew(epoch, self.lease_seconds)
            except (StoreUnavailable, TimeoutError) as problem:
                if clock() >= until:
                    raise _Lost("the database does not answer") from problem
                continue
            if not kept:
                raise _Lost("another Manager acts")
            until = asked + self.lease_seconds

    async def _reconcile(self, book: Book, clock: Callable[[], datetime]) -> None:
        async with await Cluster.connect() as cluster, await Cluster.connect() as for_logs:
            reconciler = Reconciler(
                book,
                self.ledger,
                cluster,
                self.hub,
                Namespaces(self.namespace or cluster.namespace, self.special_namespace),
                clock,
                self.other_namespaces,
                news_seconds=self.news_seconds,
            )
            stopper = Stopper(book, self.hub, cluster, reconciler.namespaces)
            logs = LogKeeper(for_logs, self.ledger, book.epoch, reconciler.job_of, self.caught_up, clock, self.keeping)
            await logs.load()
            hearing = Hearing(
                *(for_logs, self.ledger, book.epoch, reconciler.namespaces.all, reconciler.job_of),
                *(lambda: book.world.cluster.gpu_resources, clock),
            )
            reconciler.tell = (logs.see, hearing.see)
            async with asyncio.TaskGroup() as group:
                group.create_task(reconciler.run(), name="reconciler")
                await reconciler.ready.wait()
                group.create_task(stopper.run(), name="stop jobs")
                queue = Queue(book, self.starts_at_once, begin)
                starts = Starts(book, queue, self.hub)
                group.create_task(Preempting(book, clock, starts.probe).run(), name="who has to leave")
                group.create_task(queue.run(), name="queue")
                group.create_task(starts.run(), name="starts")
                self.culler = await self._cull(book, reconciler, clock)
                group.create_task(self.culler.run(), name="look for unused jobs")
                keeper = Keeper(book, self.ledger, self.prometheus, reconciler.namespaces, self.retention)
                group.create_task(keeper.run(), name="keep history")
                facts, strays = self.culler.evidence.activities.of, reconciler.strays
                group.create_task(logs.run(), name="keep logs")
                group.create_task(self.presence.run(self.hub.greet), name="look for the Hub")
                group.create_task(hearing.run(), name="hear what happens to pods")
                self.logs = Shelf(logs)
                owners = Owners(book, self.hub, strays, facts, clock, self.look_seconds, self.orphan_seconds)
                group.create_task(owners.run(), name="look for owners")
                looks = Looks(book, self._offers_preemptible)
                estimating = Estimating(book, self.ledger, looks, lambda: self.settings)
                group.create_task(estimating.run(), name="estimate starts")
                self.desk = Desk(book, self.ledger, queue, looks, reconciler.namespaces)
                log.info("acting: jobs=%d nodes=%d", len(book.records), len(book.nodes))

    def _offers_preemptible(self, template: str) -> bool:
        found = self.settings.template(template)
        return found is not None and found.option("preemptible") is not None

    async def _cull(self, book: Book, reconciler: Reconciler, clock: Callable[[], datetime]) -> Culler:
        evidence = Gathering(
            book=book,
            hub=self.hub,
            prometheus=self.prometheus,
            namespaces=reconciler.namespaces,
            settings=lambda: self.settings,
            pods=reconciler.named,
            now=clock,
        )
        culler = Culler(evidence, self.ledger, self.idle_look_seconds)
        await culler.load()
        book.keep_alive = culler.keep_alive
        return culler

    async def _reload(self, book: Book) -> None:
        # What an earlier epoch has said may be over.
        told: tuple[Problem, ...] | None = None if book.board.pending(("", Kind.FILE_BROKEN)) else ()
        await book.turn(hopeless.tell)
        while True:
            found = await asyncio.to_thread(self.files.changed)
            if found is not None:
                self.settings = found
                await files.keep(self.files, self.ledger, book.epoch)
                await book.turn(lambda turn: turn.book.configure(self.settings.cluster, self.settings.teams))
                await book.turn(hopeless.tell)
            if self.files.problems != told:
                problems = told = self.files.problems
                await book.turn(partial(_tell_of_files, problems=problems))
            await asyncio.sleep(_FILES_SECONDS)


def _tell_of_files(turn: Turn, *, problems: tuple[Problem, ...]) -> None:
    if not problems:
        withdraw(turn, "", Kind.FILE_BROKEN)
        return
    first, count = problems[0], len(problems)
    names = sorted({Path(problem.file).name for problem in problems})
    have, mistakes = "has" if len(names) == 1 else "have", "a mistake" if count == 1 else f"{count} mistakes"
    where = f"{f'line {first.line} of ' if first.line else ''}{Path(first.file).name}"
    text = (
        f"{', '.join(names)} {have} {mistakes}: the last good version of all files stays in use. The first one is in "
        f"{where}; dlspawner validate, and the Manager's log, say what is wrong."
    )
    post_to_admins(turn, Kind.FILE_BROKEN, text, cause=text)


async def _keep_usage(book: Book) -> None:
    while True:
        await asyncio.sleep(_USAGE_SECONDS)
        with contextlib.suppress(StoreUnavailable):
            await book.turn(Turn.keep_usage)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the problems themselves, however the tasks were grouped."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
