"""Starts through the Hub, which makes the pod after our admission: by REST, SSH, or for another user.

The Hub starts anything with our own token, so the caller of this module checks the rights of its own caller first. The
Hub's answer becomes a status and a sentence: a refusal 422, a running job 409, a place in the queue 202 like a start.

A job that has ended starts again with its own options, which the Manager has kept with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from dlspawner.clients.hub import HubClient, HubRejected, HubUnavailable
from dlspawner.core.decisions import JOB_ENDED
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.http.api.base import page_path
from dlspawner.manager.http.handlers import HttpProblem
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import JobFilter, JobHistory

NOT_FOR_OTHERS = "Only administrators of the Hub, and services, start jobs for other people."
BLOCKED = "{user} may not start jobs here. Ask an administrator."
RUNS = "A job of this server runs, starts or stops already. Stop it first, or use another server."
LOG_IN = "The Hub wants a fresh login from {user} before it starts anything: log in there, and ask again."
NO_USER = "The Hub has no user {user!r}, or no such server can be."
_LOOKS, _LOOK_SECONDS = 100, 0.05
_LOOKS_AT_ITS_END = 400  # its pod has ended, and the Manager hears so as soon as the machine has time
_WAITING = {JobState.PENDING_APPROVAL, JobState.QUEUED, JobState.LOGIN_REQUIRED}
_BY_ITSELF = {EventReason.FAILED, EventReason.FINISHED}
_EVERYBODYS = Viewer("", all=True)


def check_may_start(leader: LeaderElector, viewer: Viewer, user: str) -> None:
    """403 for viewers without the right to start jobs of this user, and for blocked users."""
    if user != viewer.name and not viewer.all:
        raise HttpProblem(403, NOT_FOR_OTHERS)
    if user in leader.settings.teams.blocked:
        raise HttpProblem(403, BLOCKED.format(user=user))


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A server to start; without options with those that the Hub has kept of it."""

    user: str
    server: str
    options: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class JobStarter:
    """Starts servers for people; ``prefix`` is where the Manager's pages are."""

    admission: AdmissionService
    repository: JobRepository
    hub: HubClient
    prefix: str

    async def start(self, wanted: StartRequest) -> tuple[int, JobHistory | None]:
        """201 for a job that runs, 202 for one that starts or waits; ``None``: the Hub has not said which it is yet.

        A server that has a job answers a request for the same options with that job, and any other request with 409:
        a request may be repeated after its answer was lost. If the Hub does not answer in time, the answer is the job
        for which the Hub has sent an admission request.
        """
        begun = self.admission.store.now()
        if (there := self._holding(wanted)) is not None:
            return await self._if_same(wanted, there)
        try:
            ready = await self.hub.start_server(wanted.user, wanted.server, wanted.options)
        except HubRejected as no:
            if no.is_there and (there := self._holding(wanted)) is not None:
                return await self._if_same(wanted, there)
            ran = await self._ran(wanted, begun) if no.status == JOB_ENDED or no.status >= 500 else None
            return (201, ran) if ran is not None else (202, await self._refused(wanted, no))
        except HubUnavailable:  # a Hub may wait as long as HubClient does before it answers 202
            found = await self.since(wanted, begun)
            if found is None:
                raise
            return 202, found
        return 201 if ready else 202, await self._appears(wanted, begun)

    async def since(self, wanted: StartRequest, begun: datetime) -> JobHistory | None:
        """The job that a start since then has brought about: nothing as long as the Hub has not asked for it.

        One that waited before, and is asked for again, has its first submit time.
        """
        job = self.admission.last_start_of(wanted.user, wanted.server, begun)
        if job is not None:
            return await self.repository.job_history(job)
        mine = JobFilter(user=wanted.user, server=wanted.server, since=begun)
        return next(iter(await self.repository.page(_EVERYBODYS, mine, None, 1)), None)

    async def _appears(self, wanted: StartRequest, begun: datetime) -> JobHistory | None:
        """The job, when the Hub has asked for it; before that it has hooks to run."""
        for _ in range(_LOOKS):
            found = await self.since(wanted, begun)
            if found is not None:
                return found
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def _ran(self, wanted: StartRequest, begun: datetime) -> JobHistory | None:
        """Returns a job that has ended already: to the Hub a start that failed, to its user a job with a log."""
        found = await self.since(wanted, begun)
        for _ in range(_LOOKS_AT_ITS_END):
            if found is None or found.submitted < begun or found.state in _WAITING:
                return None
            if found.state is JobState.ENDED:
                return found if found.started is not None or found.reason in _BY_ITSELF else None
            await asyncio.sleep(_LOOK_SECONDS)
            found = await self.repository.job_history(found.id)
        return None

    def _holding(self, wanted: StartRequest) -> str | None:
        """Returns the id of the job that the server has already; a scheduled job may be requested again."""
        store = self.admission.store
        jobs = (job for job in store.on(wanted.user, wanted.server) if job.holds)
        return next((job.id for job in jobs if not store.records[job.id].awaiting_start), None)

    async def _if_same(self, wanted: StartRequest, there: str) -> tuple[int, JobHistory]:
        """Returns the job that is there if it was submitted with these options; else 409."""
        kept, record = await self.repository.job_history(there), self.admission.store.records.get(there)
        known = record is not None and record.options and wanted.options is not None
        same = known and record is not None and json.loads(record.options) == dict(wanted.options or {})
        if not same or kept is None or kept.state in {JobState.STOPPING, JobState.ENDED}:
            raise HttpProblem(409, RUNS)
        return (201 if kept.state is JobState.RUNNING else 202), kept

    async def _refused(self, wanted: StartRequest, no: HubRejected) -> JobHistory:
        """The job that waits; a problem for every other no."""
        record = self.admission.starting_or_pending(wanted.user, wanted.server)
        waits = no.status == 429 and page_path(self.prefix, wanted.user, wanted.server) in str(no)
        kept = await self.repository.job_history(record.job.id) if waits and record is not None else None
        if kept is not None:
            return kept
        if no.wants_login:
            raise HttpProblem(403, LOG_IN.format(user=wanted.user))
        if no.status == 404:
            raise HttpProblem(404, NO_USER.format(user=wanted.user))
        if no.status in {403, 429}:
            raise HttpProblem(no.status, str(no))
        raise HttpProblem(422, str(no))


NOT_ENDED = "It has not ended. Only what has ended can be started again."
NO_OPTIONS = "The options of this job are not known: it was started without this Manager. Submit it anew."


async def options_of(leader: LeaderElector, kept: JobHistory) -> dict[str, object]:
    """Returns the options to start a job again with; a problem if it has not ended, or its options are not known."""
    if kept.state is not JobState.ENDED:
        raise HttpProblem(409, NOT_ENDED)
    record = await leader.repository.find(kept.id)
    if record is None or not record.options:
        raise HttpProblem(409, NO_OPTIONS)
    found: dict[str, object] = json.loads(record.options)
    return found
