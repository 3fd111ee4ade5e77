"""The end of a job that a person asks for: from a page or by REST, by its owner or by whoever may act on it."""

from __future__ import annotations

from dataclasses import dataclass

from dlspawner.core.jobs import State
from dlspawner.hubapi import HubApi
from dlspawner.manager.book import Book
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
        """End a job, wherever it stands; False when it ends already."""
        job = record.job
        if record.job.state is State.STOPPING and not job.requeue:
            return False
        if job.state is not State.RUNNING:
            return await self.book.turn(lambda turn: cancel(turn, job.user, job.server, who))
        if who != job.user:
            sentence = f"{who} has stopped this job. Your files are kept."
            return await self.book.turn(lambda turn: stop(turn, job.id, BY_ANOTHER, sentence))
        await self.hub.stop_server(job.user, job.server)
        return True
