"""Starts that we ask the Hub for, which makes the pod and asks us whether it may: by REST, SSH, or for somebody else.

The Hub starts anything with our own token, so whoever calls this has looked before whether its caller may. What the Hub
answers becomes a status and a sentence: a refusal 422, what runs already 409, a place in the queue 202 like a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core.decisions import JOB_ENDED
from dlspawner.core.jobs import JobState
from dlspawner.hubapi import HubClient, HubRejected, HubUnavailable
from dlspawner.manager.access import Viewer
from dlspawner.manager.acting import LeaderElector
from dlspawner.manager.desk import AdmissionService
from dlspawner.manager.kept import JobFilter, JobHistory
from dlspawner.manager.ledger import JobRepository
from dlspawner.manager.waiting_page import page_path
from dlspawner.manager.web import HttpProblem

NOT_FOR_OTHERS = "Only administrators of the Hub, and services, start jobs for other people."
BLOCKED = "{user} may not start jobs here. Ask an administrator."
RUNS = "A job of this server runs, starts or stops already. Stop it first, or use another server."
LOG_IN = "The Hub wants a fresh login from {user} before it starts anything: log in there, and ask again."
NO_USER = "The Hub has no user {user!r}, or no such server can be."
_LOOKS, _LOOK_SECONDS = 100, 0.05
_LOOKS_AT_ITS_END = 400  # its pod has ended, and the Manager hears so as soon as the machine has time
_WAITING = {JobState.PENDING_APPROVAL, JobState.QUEUED, JobState.LOGIN_REQUIRED}
_BY_ITSELF = {"failed", "finished"}  # as `reconcile` writes it down
_EVERYBODYS = Viewer("", all=True)


def check_may_start(acting: LeaderElector, viewer: Viewer, user: str) -> None:
    """403 for who may act on jobs and start none for this person, and for a person who may not work here."""
    if user != viewer.name and not viewer.all:
        raise HttpProblem(403, NOT_FOR_OTHERS)
    if user in acting.settings.teams.blocked:
        raise HttpProblem(403, BLOCKED.format(user=user))


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A server to start; without options with those that the Hub kept."""

    user: str
    server: str
    options: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class JobStarter:
    """Starts servers for people; ``prefix`` is where the Manager's pages are."""

    desk: AdmissionService
    ledger: JobRepository
    hub: HubClient
    prefix: str

    async def start(self, wanted: StartRequest) -> tuple[int, JobHistory | None]:
        """201 for a job that runs, 202 for one that starts or waits; ``None``: the Hub has not said which it is yet."""
        begun = self.desk.store.now()
        if self._holds(wanted):
            raise HttpProblem(409, RUNS)
        try:
            ready = await self.hub.start_server(wanted.user, wanted.server, wanted.options)
        except HubRejected as no:
            ran = await self._ran(wanted, begun) if no.status == JOB_ENDED or no.status >= 500 else None
            return (201, ran) if ran is not None else (202, await self._refused(wanted, no))
        except HubUnavailable:
            found = await self.since(wanted, begun)
            if found is None:
                raise
            return 202, found
        return 201 if ready else 202, await self._appears(wanted, begun)

    async def since(self, wanted: StartRequest, begun: datetime) -> JobHistory | None:
        """The job that a start since then has brought about: nothing as long as the Hub has not asked for it.

        One that waited before, and is asked for again, has its first submit time.
        """
        job = self.desk.last_start_of(wanted.user, wanted.server, begun)
        if job is not None:
            return await self.ledger.job_history(job)
        mine = JobFilter(user=wanted.user, server=wanted.server, since=begun)
        return next(iter(await self.ledger.page(_EVERYBODYS, mine, None, 1)), None)

    async def _appears(self, wanted: StartRequest, begun: datetime) -> JobHistory | None:
        """The job, when the Hub has asked for it; before that it has hooks to run."""
        for _ in range(_LOOKS):
            found = await self.since(wanted, begun)
            if found is not None:
                return found
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def _ran(self, wanted: StartRequest, begun: datetime) -> JobHistory | None:
        """The job whose program has ended already: to the Hub a start that failed, to its person a job with a log."""
        found = await self.since(wanted, begun)
        for _ in range(_LOOKS_AT_ITS_END):
            if found is None or found.submitted < begun or found.state in _WAITING:
                return None
            if found.state is JobState.ENDED:
                return found if found.started is not None or found.reason in _BY_ITSELF else None
            await asyncio.sleep(_LOOK_SECONDS)
            found = await self.ledger.job_history(found.id)
        return None

    def _holds(self, wanted: StartRequest) -> bool:
        """Whether the server has a job already; one whose turn has come may be asked for again."""
        book = self.desk.store
        return any(job.holds and not book.records[job.id].awaiting_start for job in book.on(wanted.user, wanted.server))

    async def _refused(self, wanted: StartRequest, no: HubRejected) -> JobHistory:
        """The job that waits; a problem for every other no."""
        record = self.desk.starting_or_pending(wanted.user, wanted.server)
        waits = no.status == 429 and page_path(self.prefix, wanted.user, wanted.server) in str(no)
        kept = await self.ledger.job_history(record.job.id) if waits and record is not None else None
        if kept is not None:
            return kept
        if no.wants_login:
            raise HttpProblem(403, LOG_IN.format(user=wanted.user))
        if no.status == 404:
            raise HttpProblem(404, NO_USER.format(user=wanted.user))
        if no.is_there and self._holds(wanted):
            raise HttpProblem(409, RUNS)
        if no.status in {403, 429}:
            raise HttpProblem(no.status, str(no))
        raise HttpProblem(422, str(no))
