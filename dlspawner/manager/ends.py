"""The end of a job that a person asks for: from a page or by REST, by its owner or by whoever may act on it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from dlspawner.core.jobs import Job, JobState
from dlspawner.hubapi import HubClient, HubError
from dlspawner.manager.book import JobStore, Transaction
from dlspawner.manager.cancelling import cancel_request
from dlspawner.manager.ledger import NotLeader
from dlspawner.manager.records import JobRecord
from dlspawner.manager.stopping import BY_OWNER, stop
from dlspawner.manager.store import DatabaseUnavailable

STOPPED_BY_OTHER_USER = "stopped-by-another"  # who may act on the job, and is not its owner
STOPPED_BY_OWNER_SENTENCE = "Its owner has stopped this job. The files are kept."
_LOOKS, _ENDS_LOOK_SECONDS = 40, 0.05
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class JobEnder:
    """Ends jobs of one book. Fenced and StoreUnavailable come through: nothing was done then."""

    book: JobStore
    hub: HubClient

    async def end(self, record: JobRecord, who: str) -> bool:
        """End a job, wherever it stands by the time that is decided; False when it has ended, or ends already."""
        now: JobRecord | None = record
        while now is not None:
            if await self._end(now, who):
                return True
            before, now = now, self.book.records.get(record.job.id)
            if now is not None and now.job.state is before.job.state:
                return False
        return False

    async def _end(self, record: JobRecord, who: str) -> bool:
        job = record.job
        if job.state is JobState.STOPPING and not job.requeue:
            return False
        if job.state is not JobState.RUNNING:
            return await self.book.transact(lambda turn: _cancel(turn, job, who))
        if who != job.user:
            sentence = f"{who} has stopped this job. Your files are kept."
            return await self.book.transact(lambda turn: stop(turn, job.id, STOPPED_BY_OTHER_USER, sentence))
        if not await self.book.transact(lambda turn: stop(turn, job.id, BY_OWNER, STOPPED_BY_OWNER_SENTENCE)):
            return False
        try:
            await self.book.ensure_leader()
            if await self.hub.stop_server(job.user, job.server):
                await self._is_seen(job)
        except (HubError, DatabaseUnavailable, NotLeader) as problem:  # it is decided: `stopping` asks until it is done
            log.warning("job=%s user=%s server=%s its stop has to wait: %s", job.id, job.user, job.server, problem)
        return True

    async def _is_seen(self, job: Job) -> None:
        """Until the end of a job that the Hub has told of is written down, or for two seconds."""
        for _ in range(_LOOKS):
            if job.id not in self.book.records:
                return
            await asyncio.sleep(_ENDS_LOOK_SECONDS)


def _cancel(turn: Transaction, job: Job, who: str) -> bool:
    """Cancel what is on its way to the job's server, if that is this job: who may end this one may not any other."""
    waits = turn.store.pending_job(job.user, job.server)
    if turn.record(job.id) is None or (waits is not None and waits.job.id != job.id):
        return False
    return cancel_request(turn, job.user, job.server, who)
