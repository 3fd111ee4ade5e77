"""What is done to one job by those who may act on it.

DELETE  jobs/{id}            KillJob: 202 while it stops, 204 when it has ended, or had before
POST    jobs/{id}/cancel     only what waits or is being started; 409 for what runs
POST    jobs/{id}/requeue    a job that has ended starts again with the same options: a new job
"""

from __future__ import annotations

from dlspawner.core.jobs import JobState
from dlspawner.manager import restarts
from dlspawner.manager.access import actor_name
from dlspawner.manager.cancelling import BEFORE, unready_job
from dlspawner.manager.ends import JobEnder
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.kept import JobHistory
from dlspawner.manager.ledger import NotLeader
from dlspawner.manager.records import CANCELLED
from dlspawner.manager.resource import JobApiHandler
from dlspawner.manager.rest.once import Answer
from dlspawner.manager.rest.submit import StartJobHandler
from dlspawner.manager.starting import StartRequest, check_may_start
from dlspawner.manager.stopping import stop
from dlspawner.manager.web import HttpProblem

RUNS = "It runs: to stop it, delete it."
_BEFORE_IT_RUNS = frozenset(JobState) - {JobState.RUNNING, JobState.STOPPING, JobState.ENDED}


class EndJobHandler(JobApiHandler):
    """What ends jobs."""

    async def end(self, kept: JobHistory) -> None:
        """End a job wherever it stands, and say whether it has ended."""
        record = self.admission.store.records.get(kept.id)
        if record is None:
            self.set_status(204)
            return
        name = actor_name(self.check_parameters())
        try:
            await JobEnder(self.admission.store, self.leader.hub).end(record, name)
        except NotLeader:
            raise HttpProblem(503, NOT_YET) from None
        self.set_status(202 if kept.id in self.admission.store.records else 204)


class CancelHandler(EndJobHandler):
    """For those who would not stop what runs. A pod may run before the server is ready, which the Hub knows."""

    async def post(self, job: str) -> None:
        kept = await self.acted(job)
        if kept.state is JobState.RUNNING:
            await self._cancel_unready(kept)
            return
        if kept.state not in _BEFORE_IT_RUNS and kept.state is not JobState.ENDED:
            raise HttpProblem(409, RUNS)
        await self.end(kept)

    async def _cancel_unready(self, kept: JobHistory) -> None:
        book = self.admission.store
        coming = await unready_job(book, self.leader.hub, kept.user, kept.server)
        if coming is None or coming.job.id != kept.id:
            raise HttpProblem(409, RUNS)
        try:
            await book.transact(lambda turn: stop(turn, kept.id, CANCELLED, BEFORE))
        except NotLeader:
            raise HttpProblem(503, NOT_YET) from None
        self.set_status(202)


class RequeueHandler(StartJobHandler):
    """A restart is a new job, of the same server and its options."""

    async def post(self, job: str) -> None:
        kept = await self.acted(job)
        check_may_start(self.leader, self.acts(), kept.user)
        wanted = StartRequest(kept.user, kept.server, None)

        async def work() -> Answer:
            await restarts.check_restart(self.leader, kept)
            return await self.start(wanted)

        await self.carry_out(wanted, ["requeue", kept.id], work)
