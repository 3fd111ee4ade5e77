"""The book: the world as the acting Manager knows it, and the only way to change it.

Every change is a *turn*: a plain function that looks at the world and writes records, which runs alone. Turns that wait
together are written in one transaction, and nobody hears of a result before it is on the disk. Whatever goes wrong with
that write, the world is read anew from the database before the next turn: what was not written has not happened.

Refused: a transaction per decision that reads all it needs with locks. It would be right without the fencing, too, and
cost a scan of everything that is held for every job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from dlspawner.core.jobs import State
from dlspawner.core.model import Cluster, Teams
from dlspawner.core.nodes import Node
from dlspawner.core.world import Snapshot, World
from dlspawner.manager.ledger import Fenced, Ledger
from dlspawner.manager.notices import Board, Change, withdraw
from dlspawner.manager.records import Entry, Record
from dlspawner.manager.store import StoreUnavailable

T = TypeVar("T")
Work = Callable[["Turn"], Any]

_TOGETHER = 100  # turns in one transaction
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Turn:
    """The world during one turn, and what the turn has written so far."""

    book: Book
    now: datetime
    entries: list[Entry] = field(default_factory=list)
    told: list[Change] = field(default_factory=list)

    @property
    def world(self) -> World:
        return self.book.world

    def record(self, job: str) -> Record | None:
        return self.book.records.get(job)

    def write(self, record: Record, reason: str, detail: str = "") -> None:
        """The job is like this from now on, because of that."""
        job = record.job
        new = job.id not in self.book.records
        self.entries.append(Entry(record, self.now, reason, detail, new))
        self.world.put(job)
        if job.state is State.ENDED:
            self.book.records.pop(job.id, None)
            withdraw(self, job.id)
        else:
            self.book.records[job.id] = record
        log.info(
            "job=%s user=%s server=%s team=%s gpus=%g state=%s reason=%s%s",
            job.id,
            job.user,
            job.server,
            job.team,
            job.charge.gpus / 1000,
            job.state.value,
            reason,
            f" {detail}" if detail else "",
        )

    def tell(self, change: Change) -> None:
        """Change what people are told; for `notices` alone."""
        self.told.append(change)
        self.book.board.apply(change)


class Book:
    """The world of one epoch; `run` is its writer, everybody else asks for turns."""

    def __init__(self, ledger: Ledger, epoch: int, cluster: Cluster, teams: Teams, now: Callable[[], datetime]) -> None:
        self._ledger, self._epoch, self._now = ledger, epoch, now
        self._waiting: asyncio.Queue[tuple[Work, asyncio.Future[Any]]] = asyncio.Queue()
        self._stale = False
        self.asked = False  # whether the Hub asks before it makes a pod, as far as this epoch knows
        self.nodes: dict[str, Node] = {}
        self.records: dict[str, Record] = {}
        self.world = World(cluster, teams)
        self.board = Board()
        # What *keep alive* does with a job's id, and the sentence that says so; set by whoever warns with ``keep``.
        self.keep_alive: Callable[[str], Awaitable[str]] | None = None

    async def load(self) -> None:
        """Read everything from the database."""
        found, notices = await self._ledger.load(), await self._ledger.notices()
        old = self.world
        self.records = {record.job.id: record for record in found}
        jobs = tuple(record.job for record in found)
        usage = tuple(old.usage.items())
        self.world = World.of(Snapshot(old.cluster, old.teams, tuple(self.nodes.values()), jobs, usage))
        self.board.load(notices)
        self._stale = False

    async def turn(self, work: Callable[[Turn], T]) -> T:
        """The result of `work`, once what it wrote is on the disk. StoreUnavailable or Fenced: it has no effect."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((work, future))
        return await future

    def put_node(self, node: Node) -> None:
        """A node as it is now; what is said of nodes is never written down."""
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self.world.put_node(node)

    def remove_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.world.remove_node(name)

    def configure(self, cluster: Cluster, teams: Teams) -> None:
        """The files were read anew."""
        self.world.configure(cluster, teams)

    async def run(self) -> None:
        """Take turns until the epoch is over, which ends in Fenced."""
        taken: list[tuple[Work, asyncio.Future[Any]]] = []
        try:
            while True:
                taken = [await self._waiting.get()]
                while len(taken) < _TOGETHER and not self._waiting.empty():
                    taken.append(self._waiting.get_nowait())
                await self._take(taken)
        finally:
            while not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            for _, future in taken:
                if not future.done():
                    future.set_exception(Fenced("this Manager has stopped acting"))
                    future.exception()  # whoever asked may be gone

    async def _take(self, taken: list[tuple[Work, asyncio.Future[Any]]]) -> None:
        try:
            if self._stale:
                await self.load()
            results = self._decide(taken)
        except StoreUnavailable as problem:
            _fail(taken, problem)
            return
        entries, told, answers = results
        try:
            if entries or told:
                await self._ledger.write(self._epoch, entries, told)
        except StoreUnavailable as problem:
            self._stale = True
            _fail(taken, problem)
            return
        self.board.publish(told)
        for future, answer in answers:
            if not future.done():
                if isinstance(answer, _Broken):
                    future.set_exception(answer.error)
                else:
                    future.set_result(answer)

    def _decide(
        self, taken: list[tuple[Work, asyncio.Future[Any]]]
    ) -> tuple[list[Entry], list[Change], list[tuple[asyncio.Future[Any], Any]]]:
        now = self._now()
        entries: list[Entry] = []
        told: list[Change] = []
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        for work, future in taken:
            if future.done():
                continue  # nobody waits for it any more
            turn = Turn(self, now)
            try:
                answer = work(turn)
            except Exception as error:  # noqa: BLE001 - a turn's own fault is told to whoever asked for it
                if turn.entries or turn.told:
                    self._stale = True  # half a turn: what it wrote is in the world, and is not written down
                answers.append((future, _Broken(error)))
                continue
            entries += turn.entries
            told += turn.told
            answers.append((future, answer))
        return entries, told, answers


@dataclass(frozen=True, slots=True)
class _Broken:
    error: Exception


def _fail(taken: list[tuple[Work, asyncio.Future[Any]]], problem: Exception) -> None:
    for _, future in taken:
        if not future.done():
            future.set_exception(problem)
            future.exception()
