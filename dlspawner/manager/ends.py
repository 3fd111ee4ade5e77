"""The end of a job that a person asks for: from a page or by REST, by its owner or by whoever may act on it."""

from __future__ import annotations

from dataclasses import dataclass

from dlspawner.core.jobs import Job, State
from dlspawner.hubapi import HubApi
from dlspawner.manager.book import Book, Turn
from dlspawner.manager.cancelling import cancel
from dlspawner.manager.records import Record
from dlspawner.manager.stopping import stop

BY_ANOTHER = "stopped-by-another"  # who may act on the job, and is not its owner


@dataclass(frozen=True, slots=True)
class Ender:
    """Ends jobs of one book. Fenced, StoreUnavailable and HubError come through: nothing was done then."""

    book: Book
    hub: HubApi

    async def end(self, record: Record, who: str) -> bool:
        """End a job, wherever it stands by the time that is decided; False when it has ended, or ends already."""
        now: Record | None = record
        while now is not None:
            if await self._end(now, who):
                return True
            before, now = now, self.book.records.get(record.job.id)
            if now is not None and now.job.state is before.job.state:
                return False
        return False

    async def _end(self, record: Record, who: str) -> bool:
        job = record.job
        if job.state is State.STOPPING and not job.requeue:
            return False
        if job.state is not State.RUNNING:
            return await self.book.turn(lambda turn: _cancel(turn, job, who))
        if who != job.user:
            sentence = f"{who} has stopped this job. Your files are kept."
            return await self.book.turn(lambda turn: stop(turn, job.id, BY_ANOTHER, sentence))
        await self.hub.stop_server(job.user, job.server)
        return True


def _cancel(turn: Turn, job: Job, who: str) -> bool:
    """Cancel what is on its way to the job's server, if that is this job: who may end this one may not any other."""
    waits = turn.book.waiter(job.user, job.server)
    if turn.record(job.id) is None or (waits is not None and waits.job.id != job.id):
        return False
    return cancel(turn, job.user, job.server, who)
