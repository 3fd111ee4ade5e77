"""SubmitJob: a server with options, for oneself or, by administrators of the Hub and services, for others.

    POST  jobs    {"server": "train", "options": {"template": "ipython", "gpus": 2}, "user": "alice"}

The answer is the job: 201 when it runs, 202 while it starts or waits in the queue. The options are the form's.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from dlspawner.manager.api import as_name, fields
from dlspawner.manager.job_words import NO_NAME, is_server_name
from dlspawner.manager.kept import JobFilter, JobHistory
from dlspawner.manager.resource import JobApiHandler
from dlspawner.manager.rest import once
from dlspawner.manager.rest.asking import JobResource
from dlspawner.manager.rest.once import Answer, Once, OtherRequest
from dlspawner.manager.starting import BLOCKED, NOT_FOR_OTHERS, JobStarter, StartRequest
from dlspawner.manager.web import HttpProblem

FIELDS: Mapping[str, type] = {"server": str, "user": str, "options": dict}
FOR_WHOM = "A service says for whom: the field user is missing."
MOST_OPTIONS = 100
_PREPARED = "The Hub prepares it."


class StartJobHandler(JobResource):
    """What starts jobs."""

    def starter(self) -> JobStarter:
        return JobStarter(self.admission, self.leader.ledger, self.leader.hub, self.manager.service.prefix)

    def answer(self, answer: Answer) -> None:
        self.set_header("Location", answer.location)
        self.reply(answer.content, answer.status)

    async def carry_out(self, wanted: StartRequest, request: object, work: Callable[[], Awaitable[Answer]]) -> None:
        """Answer this request for a start: once, where it has an ``Idempotency-Key``."""
        key, who = self.request.headers.get("Idempotency-Key"), self.check_parameters()
        if key is None:
            self.answer(await work())
            return
        if not once.is_key(key):
            raise HttpProblem(422, once.NO_KEY)

        async def found(since: datetime) -> Answer | None:
            kept = await self.starter().since(wanted, since)
            return None if kept is None else await self.told(202, wanted, kept)

        alone = Once(self.manager.store, self.manager.locks, f"{who.kind.value} {who.name}", self.admission.store.now)
        try:
            self.answer(await alone.carry_out(key, once.fingerprint(request), work, found))
        except OtherRequest:
            raise HttpProblem(422, once.OTHER_REQUEST) from None

    async def start(self, wanted: StartRequest) -> Answer:
        status, kept = await self.starter().start(wanted)
        return await self.told(status, wanted, kept)

    async def told(self, status: int, wanted: StartRequest, kept: JobHistory | None) -> Answer:
        jobs = f"{self.manager.service.prefix}api/jobs"
        if kept is None:
            told = {"id": None, "user": wanted.user, "server": wanted.server, "state": "submitted", "why": _PREPARED}
            return Answer(status, told, jobs)
        return Answer(status, await self.detail(kept), f"{jobs}/{kept.id}")


class SubmitHandler(StartJobHandler):
    """The collection's own method."""

    async def post(self) -> None:
        wanted = self._wanted()
        await self._check_name(wanted)
        request = [wanted.user, wanted.server, wanted.options]
        await self.carry_out(wanted, request, lambda: self.start(wanted))

    async def _check_name(self, wanted: StartRequest) -> None:
        """422 for a name that no new server gets; one that there was already is the Hub's to judge."""
        if not is_server_name(wanted.server):
            named = JobFilter(user=wanted.user, server=wanted.server)
            if not await self.leader.ledger.page(self.acts(), named, None, 1):
                raise HttpProblem(422, NO_NAME)

    def _wanted(self) -> StartRequest:
        viewer = self.acts()
        body = fields(self.read_object(), FIELDS, {"options"})
        user, server = body.get("user", viewer.name), body.get("server", "")
        if not user:
            raise HttpProblem(422, FOR_WHOM)
        if user != viewer.name and not viewer.all:
            raise HttpProblem(403, NOT_FOR_OTHERS)
        if not as_name(user) or as_name(server) != server:
            raise HttpProblem(422, "No user or server has such a name.")
        check_blocked(self, user)
        return StartRequest(user, server, _options(body["options"]))


def check_blocked(handler: JobApiHandler, user: str) -> None:
    """403 for people who may not work here."""
    if user in handler.leader.settings.teams.blocked:
        raise HttpProblem(403, BLOCKED.format(user=user))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Names and plain values, as the form has them; what they mean is the Hub's to check."""
    if len(given) > MOST_OPTIONS:
        raise HttpProblem(422, f"At most {MOST_OPTIONS} options can be given.")
    for name, value in given.items():
        plain = value is None or isinstance(value, str | bool | int)
        if not plain and not (isinstance(value, float) and math.isfinite(value)):
            raise HttpProblem(422, f"The option {name[:100]!r} must be text, a number, or true or false.")
    return given
