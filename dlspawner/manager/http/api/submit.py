"""SubmitJob, the list of jobs, and the actions on one job: kill, cancel, requeue.

User and server are the natural key of a start: the same submit again is answered with the job that is there, so a
request without an answer may be repeated. Refused: idempotency keys, which need a table, an owner and an expiry.

"""

from __future__ import annotations

from dlspawner.core.job import JobState
from dlspawner.manager.cluster.termination import JobEnder, unready_job
from dlspawner.manager.http.api import jobs, start_jobs
from dlspawner.manager.http.api.base import JobApiHandler
from dlspawner.manager.http.api.jobs import JobResource
from dlspawner.manager.http.api.models.requests import JobsQuery, SubmissionBody, write_cursor
from dlspawner.manager.http.api.models.responses import JobModel, ListModel, PreparingModel
from dlspawner.manager.http.api.start_jobs import BLOCKED, NOT_FOR_OTHERS, JobStarter, StartRequest, check_may_start
from dlspawner.manager.http.handlers import HttpProblem
from dlspawner.manager.model.access import actor_name
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import NO_NAME, JobCursor, JobFilter, JobHistory, is_server_name
from dlspawner.manager.state.lifecycle import CANCELLED_BEFORE_START, stop

FOR_WHOM = "A service says for whom: the field user is missing."
_PREPARED = "The Hub prepares it."


class StartJobHandler(JobResource):
    def starter(self) -> JobStarter:
        return JobStarter(self.admission, self.leader.repository, self.leader.hub, self.manager.service.prefix)

    async def start(self, wanted: StartRequest) -> None:
        """Starts the server and answers; simultaneous requests for one server run one after the other."""
        async with self.manager.locks.of("start", wanted.user, wanted.server):
            status, kept = await self.starter().start(wanted)
        jobs, user, server = f"{self.manager.service.prefix}api/jobs", wanted.user, wanted.server
        self.set_header("Location", f"{jobs}/{kept.id}" if kept is not None else jobs)
        if kept is None:
            self.reply(PreparingModel(id=None, user=user, server=server, state="submitted", why=_PREPARED), status)
        else:
            self.reply(await self.detail(kept), status)


class SubmitHandler(StartJobHandler):
    async def post(self) -> None:
        wanted = self._wanted()
        await self._check_name(wanted)
        await self.start(wanted)

    async def _check_name(self, wanted: StartRequest) -> None:
        """422 for a name that no new server gets; one that there was already is the Hub's to judge."""
        if not is_server_name(wanted.server):
            named = JobFilter(user=wanted.user, server=wanted.server)
            if not await self.leader.repository.page(self.acts(), named, None, 1):
                raise HttpProblem(422, NO_NAME)

    def _wanted(self) -> StartRequest:
        viewer = self.acts()
        body = self.read_body(SubmissionBody)
        user = body.user or viewer.name
        if not user:
            raise HttpProblem(422, FOR_WHOM)
        if user != viewer.name and not viewer.all:
            raise HttpProblem(403, NOT_FOR_OTHERS)
        check_blocked(self, user)
        return StartRequest(user, body.server, body.options)


def check_blocked(handler: JobApiHandler, user: str) -> None:
    if user in handler.leader.settings.teams.blocked:
        raise HttpProblem(403, BLOCKED.format(user=user))


RUNS = "It runs: to stop it, delete it."
_BEFORE_IT_RUNS = frozenset(JobState) - {JobState.RUNNING, JobState.STOPPING, JobState.ENDED}


class EndJobHandler(JobApiHandler):
    async def end(self, kept: JobHistory) -> None:
        """End a job wherever it stands, and say whether it has ended."""
        record = self.admission.store.records.get(kept.id)
        if record is None:
            self.set_status(204)
            return
        name = actor_name(self.caller)
        await JobEnder(self.admission.store, self.leader.hub).end(record, name)
        self.set_status(202 if kept.id in self.admission.store.records else 204)


class CancelHandler(EndJobHandler):
    """Cancels a job before it runs. A pod may run before the server is ready, which the Hub knows."""

    async def post(self, job: str) -> None:
        kept = await self.acted(job)
        if kept.state is JobState.RUNNING:
            await self._cancel_unready(kept)
            return
        if kept.state not in _BEFORE_IT_RUNS and kept.state is not JobState.ENDED:
            raise HttpProblem(409, RUNS)
        await self.end(kept)

    async def _cancel_unready(self, kept: JobHistory) -> None:
        store = self.admission.store
        coming = await unready_job(store, self.leader.hub, kept.user, kept.server)
        if coming is None or coming.job.id != kept.id:
            raise HttpProblem(409, RUNS)
        await store.transact(
            lambda transaction: stop(transaction, kept.id, EventReason.CANCELLED, CANCELLED_BEFORE_START)
        )
        self.set_status(202)


class RequeueHandler(StartJobHandler):
    """A restart is a new job, of the same server and its options."""

    async def post(self, job: str) -> None:
        kept = await self.acted(job)
        check_may_start(self.leader, self.acts(), kept.user)
        options = await start_jobs.options_of(self.leader, kept)
        await self.start(StartRequest(kept.user, kept.server, options))


class JobsHandler(SubmitHandler):
    """Lists the jobs that the viewer may see, in pages."""

    async def get(self) -> None:
        viewer, query, admission = self.sees(), self.read_query(JobsQuery), self.admission
        found = await self.leader.repository.page(viewer, query.job_filter(), query.cursor, query.limit + 1)
        told, setting, now = found[: query.limit], self.setting(), admission.store.now()
        more, latest = len(found) > query.limit, await self.latest(told)
        items = [self.shown(kept, setting, now, latest) for kept in told]
        cursor = write_cursor(JobCursor(told[-1].submitted, told[-1].id)) if more else None
        self.reply(ListModel[JobModel](items=items, next=cursor))


class JobHandler(jobs.JobDetailHandler, EndJobHandler):
    async def delete(self, job: str) -> None:
        await self.end(await self.acted(job))
