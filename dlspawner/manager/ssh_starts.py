"""Starts by a login: the gateway asks, for the person whose credential it has just verified. Scope custom:ssh-starts.

    POST  api/ssh-starts/{user}/{server}          start it unless it is on its way; where it stands then
    GET   api/ssh-starts/{user}/{server}?job=ID   where it stands, after such a start

* Nothing starts against the person's wish (`api/ssh-settings`) or the template's (``start_on_connect``), and no server
  that has never been, but for one with the name of a template that always starts by a login. All that is ``off``.
* What has ended a moment ago is not started: programs that connect again by themselves, as editors do, would make every
  stop one of seconds. Templates that always start by a login are for exactly that.
* It is a start like any other: the Hub and the desk judge it, and their no is told in their words.
* Of several logins at once one starts the server, and the others read where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from dlspawner.core.jobs import JobState
from dlspawner.core.template import Template
from dlspawner.hubapi import HubServer, has_scope
from dlspawner.manager.api import UserApiHandler, as_name, fields
from dlspawner.manager.job_words import end_sentence
from dlspawner.manager.rest.submit import StartJobHandler, check_blocked
from dlspawner.manager.starting import RUNS, StartRequest
from dlspawner.manager.waiting_page import page_path
from dlspawner.manager.web import HttpProblem, Routes

START = "custom:ssh-starts"
START_NOT_THE_GATEWAY = (
    f"Starting what others log in to needs the scope {START}, which only the SSH gateway should hold."
)
OFF: Mapping[str, object] = {"state": "off", "job": None, "sentence": "", "page": ""}
ENDED = "{server} has ended a moment ago, and a login does not start it again before {minutes}."
LOG_IN = "Its turn came, and the Hub wants you to log in there again before it starts."


class SshStartHandler(StartJobHandler):
    """One server of a person's."""

    async def post(self, user: str, server: str) -> None:
        user, server = self._names(user, server)
        check_blocked(self, user)
        async with self.manager.locks.held("ssh-start", user, server):
            found = await self._where(user, server)
            if found is None:
                found = await self._start(user, server)
        self.reply(found)

    async def get(self, user: str, server: str) -> None:
        user, server = self._names(user, server)
        found = await self._where(user, server)
        if found is None:
            found = await self._ended(user, server, self.get_query_argument("job", ""))
        self.reply(found)

    def _names(self, user: str, server: str) -> tuple[str, str]:
        if not has_scope(self.check_parameters().scopes, START):
            raise HttpProblem(403, START_NOT_THE_GATEWAY, scope=START)
        if not as_name(user) or as_name(server) != server:
            raise HttpProblem(404, "No user or server has such a name.")
        return user, server

    async def _start(self, user: str, server: str) -> Mapping[str, object]:
        known = await self.leader.hub.user(user)
        there = known.servers.get(server) if known is not None else None
        prefers = await self.manager.store.starts_by_login(user)
        templates = self.leader.settings.templates
        kept = there if there is not None and there.user_options else None
        always = template_to_start(server, None, templates, prefers=prefers)
        if kept is not None and always is not None and server not in await self.leader.ledger.last_ends(user):
            kept = None  # of a request that was refused: nothing has ever run by it
        template = template_to_start(server, kept, templates, prefers=prefers)
        if known is None or template is None:
            return OFF
        if template.start_on_connect is None:
            await self._refuse_again(user, server)
        options = None if kept is not None else {"template": template.name}
        try:
            _, begun = await self.starter().start(StartRequest(user, server, options))
        except HttpProblem as problem:
            if problem.detail != RUNS:
                raise
            begun = None  # it runs by now, or stops: the gateway sees which
        found = await self._where(user, server)
        return found or self._stands("starting", begun.id if begun is not None else None, user, server)

    async def _refuse_again(self, user: str, server: str) -> None:
        last = (await self.leader.ledger.last_ends(user)).get(server)
        wait = timedelta(seconds=self.manager.ssh_restart_seconds)
        if last is not None and self._now() - last.at < wait:
            until = last.at + wait
            raise HttpProblem(409, ENDED.format(server=server or "Your default server", minutes=_clock(until)))

    async def _where(self, user: str, server: str) -> Mapping[str, object] | None:
        """Where a job that waits, starts or runs stands; ``None`` where there is none."""
        desk = self.admission
        record = desk.starting_or_pending(user, server)
        if record is None:
            holds = [job for job in desk.store.on(user, server) if job.holds]
            runs = any(job.state is JobState.RUNNING for job in holds)
            return self._stands("running" if runs else "stopping", holds[0].id, user, server) if holds else None
        job = record.job
        if not record.is_pending:
            return self._stands("starting", job.id, user, server)
        if job.state is JobState.LOGIN_REQUIRED:
            return self._stands(job.state.value, job.id, user, server, LOG_IN)
        look = desk.explainer.explain(record, advises=False)
        place = f"number {look.position} in the queue. " if job.state is JobState.QUEUED else ""
        return self._stands(look.state, job.id, user, server, f"{place}{look.sentence}".strip())

    async def _ended(self, user: str, server: str, job: str) -> Mapping[str, object]:
        """What became of the start that a login has asked for; one that is not known yet is on its way."""
        last = (await self.leader.ledger.last_ends(user)).get(server)
        if last is None or last.job != job:
            return self._stands("starting", job or None, user, server)
        return self._stands("ended", job, user, server, end_sentence(last.reason, last.detail, last.stop))

    def _stands(self, state: str, job: str | None, user: str, server: str, said: str = "") -> Mapping[str, object]:
        page = page_path(self.manager.service.prefix, user, server)
        return {"state": state, "job": job, "sentence": said, "page": page}

    def _now(self) -> datetime:
        return self.admission.store.now()


def template_to_start(
    server: str, there: HubServer | None, templates: Iterable[Template], *, prefers: bool
) -> Template | None:
    """The template that a login to this server starts; ``None`` where it starts nothing."""
    named = {template.name: template for template in templates}
    if there is not None and there.user_options:
        template = named.get(str(there.user_options.get("template", "")))
        allowed = template is not None and (
            template.start_on_connect if template.start_on_connect is not None else prefers
        )
        return template if allowed else None
    template = named.get(server)
    return template if template is not None and template.start_on_connect else None


def _clock(at: datetime) -> str:
    return at.strftime("%H:%M:%S UTC")


class SshSettingsHandler(UserApiHandler):
    """What a person wants of their logins."""

    async def get(self) -> None:
        self.reply({"start_on_connect": await self.manager.store.starts_by_login(self.current_user_name().name)})

    async def put(self) -> None:
        person = self.current_user_name()
        body = fields(self.read_object(), {"start_on_connect": bool}, {"start_on_connect"})
        await self.manager.store.start_by_login(person.name, body["start_on_connect"])
        self.reply({"start_on_connect": body["start_on_connect"]})


START_ROUTES: Routes = (
    (r"api/ssh-starts/([^/]*)/([^/]*)", SshStartHandler),
    ("api/ssh-settings", SshSettingsHandler),
)
