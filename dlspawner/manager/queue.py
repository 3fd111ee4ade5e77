"""The queue at work: whose turn it is, over and over. The order and the decision are the core's.

A *pass* is made after every change that may have freed something, before anybody new is let in, and every few seconds,
because time alone lets jobs start, too. What a turn gives is reserved in the same transaction: the job is *due*, and
``starts`` tells the Hub. At most ``at_once`` such starts are under way at one time, from the turn until the pods are
there, so that a Hub is not asked for more than it takes and no reservation ends before its start was asked for; what a
node does after that, such as pulling a large image, is in nobody's way. A pass ends early, too, when it has made enough
promises: everybody else in this process waits for it, and the next one follows at once.

A job that cannot be decided, by a fault of ours, holds up nobody: it is passed over, logged once, and decided again in
every pass. Its person is told for as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from dlspawner.core import quota
from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.jobs import Job
from dlspawner.core.world import lane
from dlspawner.manager import hopeless
from dlspawner.manager.approval import deciding
from dlspawner.manager.book import Book, Turn
from dlspawner.manager.notices import Kind, post
from dlspawner.manager.records import Record
from dlspawner.manager.store import StoreUnavailable

_EVERY_SECONDS = 3.0
_CUT_SECONDS = 1.0  # between passes that left turns to the next one, because enough starts were under way
_PROMISES = 20  # in one pass
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Queue:
    """Gives turns to the jobs of one book; ``preempt`` does what lets a turn come, nothing while it is ``None``."""

    book: Book
    at_once: int
    preempt: Callable[[Turn, Record, Preempt], None] | None = None
    given: asyncio.Event = field(default_factory=asyncio.Event)  # somebody is due
    cut: bool = False  # whether the last pass left turns for the next one, because enough jobs are due or promised
    # Servers that the Hub is being told to start just now, and for which job.
    telling: dict[tuple[str, str], str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)  # the how-manieth turn of this process each due job was given
    _turns: int = 0
    _not_before: dict[str, datetime] = field(default_factory=dict)
    _undecided: set[str] = field(default_factory=set)  # jobs that the last whole pass failed to decide

    async def run(self) -> None:
        """Make passes until it is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CUT_SECONDS if self.cut else _EVERY_SECONDS):
                    await self.book.stirred.wait()
            try:
                await self.book.turn(self.give_turns)
            except StoreUnavailable as problem:
                log.warning("the queue waits for the database: %s", problem.__cause__)
                await asyncio.sleep(1)

    def give_turns(self, turn: Turn) -> None:
        """One pass."""
        self.book.stirred.clear()
        self.cut = False
        deciding.sweep(turn)
        world, now = turn.world, turn.now
        if not world.queues:
            return
        world.tick(now)
        room, promises = self.at_once - sum(one.under_way for one in self.book.records.values()), _PROMISES
        undecided: set[str] = set()

        def failed(job: Job, error: Exception) -> None:
            undecided.add(job.id)
            self._fail(turn, job, error)

        for job, found in quota.turns(world, now, failed):
            record = turn.record(job.id)
            if record is None or now < self._not_before.get(job.id, now):
                continue
            if not isinstance(found, Preempt):
                room -= 1
                if room < 0:
                    self.cut = True
                    break
                self._start(turn, record, found)
            elif self.preempt is not None:
                promises -= 1
                if promises < 0:
                    self.cut = True
                    self.book.stirred.set()  # the next pass need not wait for anything
                    break
                self.preempt(turn, record, found)
        self._undecided |= undecided
        if not self.cut:
            self._recover(turn, self._undecided - undecided)

    def _fail(self, turn: Turn, job: Job, error: Exception) -> None:
        if job.id not in self._undecided:
            log.error("job=%s cannot be decided: it is passed over", job.id, exc_info=error)
        post(turn, job, Kind.CANNOT_START, hopeless.UNDECIDED, cause=hopeless.FAULT)

    def _recover(self, turn: Turn, jobs: set[str]) -> None:
        """These jobs can be decided again, or are no more."""
        self._undecided -= jobs
        for record in filter(None, map(turn.record, jobs)):
            hopeless.tell_one(turn, record.job)

    def _start(self, turn: Turn, record: Record, found: Admit) -> None:
        starting = quota.admitted(record.job, found.nodes, turn.world)
        deadline, turns = turn.now + self.book.reservation, record.turns + 1
        turn.write(replace(record, job=starting, deadline=deadline, due=True, turns=turns), "turn")
        self._turns += 1
        records = self.book.records
        self.order = {one: n for one, n in self.order.items() if one in records and records[one].due}
        self.order[record.job.id] = self._turns
        self.given.set()

    def is_behind(self, job: Job) -> bool:
        """Whether others that wait for the same have not got their turns yet, although there may be room."""
        return self.cut and lane(job) in self.book.world.queues

    def pause(self, job: str, until: datetime) -> None:
        """Give no turn to this job before then; forgotten when this process ends."""
        self._not_before = {one: then for one, then in self._not_before.items() if one in self.book.records}
        self._not_before[job] = until
