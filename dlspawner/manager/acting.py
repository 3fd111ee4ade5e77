"""Who acts: of several Managers on one database the one that holds the lease.

It renews the lease three times while it lasts, and stops acting when it cannot; the database refuses whatever it still
tries to write (`ledger`). The others ask for the lease once a second, so that one of them acts soon after it expired.
One that stops in order gives the lease up. Acting begins with rebuilding the book, from the database and then
from complete lists of nodes and pods; nothing is decided before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from dlspawner.cluster import Cluster, ClusterError
from dlspawner.hubapi import HubApi
from dlspawner.manager.book import Book
from dlspawner.manager.desk import Desk
from dlspawner.manager.files import Files
from dlspawner.manager.ledger import Fenced, Ledger
from dlspawner.manager.reconcile import Reconciler
from dlspawner.manager.stopping import Stopper
from dlspawner.manager.store import StoreUnavailable
from dlspawner.settings import Settings

_POLL_SECONDS = 1.0
log = logging.getLogger("dlspawner.manager")


class _Lost(Exception):
    """The lease is another one's, or nobody can tell."""


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
    now: Callable[[], datetime]
    desk: Desk | None = None
    holder: str = field(default_factory=lambda: secrets.token_hex(8))

    async def run(self) -> None:
        """Act whenever the lease is ours; ends when it is cancelled."""
        task = asyncio.current_task()
        try:
            # A cancellation is lost in a TaskGroup of which a task fails at the same moment, as the book's askers do.
            while not (task and task.cancelling()):
                epoch = await self._take()
                if epoch is None:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                log.info("lease epoch=%d holder=%s taken", epoch, self.holder)
                try:
                    await self._act(epoch)
                except* (_Lost, Fenced) as ends:
                    log.warning("lease epoch=%d holder=%s lost: %s", epoch, self.holder, ends.exceptions[0])
                except* (StoreUnavailable, ClusterError) as ends:
                    log.warning("epoch=%d cannot act: %s", epoch, ends.exceptions[0])
                    await asyncio.sleep(_POLL_SECONDS)
                except* Exception:
                    log.exception("epoch=%d ended by a fault; it begins anew", epoch)
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            with contextlib.suppress(StoreUnavailable):
                await self.ledger.give_up(self.holder)

    async def _take(self) -> int | None:
        try:
            return await self.ledger.lease(self.holder, self.lease_seconds)
        except StoreUnavailable as problem:
            log.warning("lease: %s", problem.__cause__)
            return None

    async def _act(self, epoch: int) -> None:
        book = Book(self.ledger, epoch, self.settings.cluster, self.settings.teams, self.now)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew(epoch), name="renew the lease")
                await book.load()
                group.create_task(book.run(), name="the book's writer")
                group.create_task(self._reconcile(book), name="reconcile")
                group.create_task(self._reload(book), name="read the files anew")
        finally:
            self.desk = None
            book.board.close()

    async def _renew(self, epoch: int) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + self.lease_seconds
        while True:
            await asyncio.sleep(self.lease_seconds / 3)
            asked = clock()
            try:
                found = await self.ledger.lease(self.holder, self.lease_seconds)
            except StoreUnavailable as problem:
                if clock() > until:
                    raise _Lost("the database does not answer") from problem
                continue
            if found != epoch:
                raise _Lost("another Manager acts")
            until = asked + self.lease_seconds

    async def _reconcile(self, book: Book) -> None:
        async with await Cluster.connect() as cluster:
            reconciler = Reconciler(
                book, self.ledger, cluster, self.hub, self.namespace or cluster.namespace, self.now, self.look_seconds
            )
            stopper = Stopper(book, self.hub, cluster, reconciler.namespace)
            async with asyncio.TaskGroup() as group:
                group.create_task(reconciler.run(), name="reconciler")
                await reconciler.ready.wait()
                group.create_task(stopper.run(), name="stop jobs")
                self.desk = Desk(book, self.ledger, self.reservation_seconds)
                log.info("acting: jobs=%d nodes=%d", len(book.records), len(book.nodes))

    async def _reload(self, book: Book) -> None:
        while True:
            await asyncio.sleep(2)
            found = await asyncio.to_thread(self.files.changed)
            if found is not None:
                self.settings = found
                await book.turn(lambda turn: turn.book.configure(self.settings.cluster, self.settings.teams))
