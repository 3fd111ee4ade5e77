"""REST resources of SSH: keys, access, configuration, settings, and starts by a login.

It sends the keys that sessions were opened with, as pairs of a user's name and a fingerprint, and receives the keys
that are registered no more, and the blocked users of ``teams.yaml``. By the scope custom:ssh-keys:read, for all users.

The host keys are read from `Manager.ssh_host_key_file` for every answer, so a new key is told at once. While the Hub
does not answer, or nothing is decided here, no server is named; what is told then still reaches each of them.

Starts by a login: the gateway asks, for a user with a credential that it has just verified. Scope custom:ssh-starts.

* Nothing starts against the user's setting (`api/ssh-settings`) or the template's (``start_on_connect``), and no server
  that has never been, but for one with the name of a template that always starts by a login. All that is ``off``.
* What has ended a moment ago is not started: programs that connect again by themselves, as editors do, would make every
  stop one of seconds. Templates that always start by a login are for exactly that.
* It is a start like any other: the Hub and the admission service decide about it, and a refusal is passed on in their
  words.
* Of several logins at once one starts the server, and the others read where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from dlspawner.clients.hub import HubError, HubIdentity, HubServer, IdentityKind, has_scope, own_server
from dlspawner.core.config import TeamsConfig
from dlspawner.core.job import JobState
from dlspawner.core.template import EndpointProtocol, Template
from dlspawner.core.text import LOG_IN_AGAIN
from dlspawner.manager.db.store import DatabaseUnavailable, FoundKey, TooManyKeys
from dlspawner.manager.http.api.base import as_name, page_path, read_host_keys
from dlspawner.manager.http.api.models.requests import (
    KeyBody,
    SshAccessBody,
    SshSettingsBody,
    StartQuery,
    SuggestedKeyBody,
    SuggestedKeysBody,
)
from dlspawner.manager.http.api.models.responses import (
    AddedKeysModel,
    KeyModel,
    KeysModel,
    SshConfigModel,
    SshSettingsModel,
)
from dlspawner.manager.http.api.start_jobs import RUNS, StartRequest
from dlspawner.manager.http.api.submit import StartJobHandler, check_blocked
from dlspawner.manager.http.auth import NOT_THE_GATEWAY, READ_KEYS, may_manage_keys, may_read_keys, may_suggest_keys
from dlspawner.manager.http.handlers import (
    NOTHING_HERE,
    ApiHandler,
    HttpProblem,
    IdentityHandler,
    ManagerContext,
    PageHandler,
)
from dlspawner.manager.model import ssh_keys
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.job_history import end_sentence, progress_sentence
from dlspawner.manager.model.ssh_keys import MAX_INPUT, KeyRejected, PublicKey
from dlspawner.ssh_config import CONFIG_FILE, KNOWN_HOSTS_FILE, SshAccessConfig, Unwritable, config, known_hosts

MAX_SOURCE = 200


class UserApiHandler(ApiHandler):
    def current_user_name(self) -> HubIdentity:
        """Returns the caller's identity if the caller may manage keys; 403 otherwise."""
        identity = self.caller
        self.refuse(may_manage_keys(identity, f"{self.manager.service.prefix}keys", by_token=self.by_token))
        return identity


class OwnKeysHandler(UserApiHandler):
    async def get(self) -> None:
        keys = await self.manager.database.keys(self.current_user_name().name)
        self.reply(KeysModel(keys=[KeyModel.model_validate(key) for key in keys]))

    async def post(self) -> None:
        person = self.current_user_name()
        body = self.read_body(KeyBody)
        parsed = ssh_keys.parse_keys(body.key, self.manager.min_rsa_bits)
        if isinstance(parsed, KeyRejected):
            raise HttpProblem(422, " ".join(parsed.sentences))
        name = ssh_keys.clean_name(body.name)
        if name and len(parsed) > 1:
            raise HttpProblem(422, "A name fits one key; these are several, which are named by their comments.")
        keys = ssh_keys.with_names(parsed, name)
        result = await self.manager.database.add_keys(person.name, keys, self.manager.now(), ssh_keys.MOST_KEYS)
        if isinstance(result, TooManyKeys):
            raise HttpProblem(409, result.sentence)
        new, known = ([KeyModel.model_validate(key) for key in keys] for keys in (result.new, result.known))
        self.reply(AddedKeysModel(keys=new, known=known), 201 if new else 200)


class OwnKeyHandler(UserApiHandler):
    async def delete(self, id_: str) -> None:
        if await self.manager.database.remove_key(self.current_user_name().name, int(id_)) is None:
            raise HttpProblem(404, "You have no such key.")
        self.set_status(204)


class KeySuggestionsHandler(ApiHandler):
    """Suggests the keys that a job found; skips files without an acceptable key, as any file may be called id.pub."""

    async def put(self) -> None:
        identity = self.caller
        self.refuse(may_suggest_keys(identity))
        found = [_found(item, self.manager.min_rsa_bits) for item in self.read_body(SuggestedKeysBody).keys]
        server = own_server(identity) or ""
        valid = [one for one in found if one is not None]
        await self.manager.database.suggest(identity.name, server, valid, self.manager.now())
        self.set_status(204)


class UserKeysHandler(ApiHandler):
    """A user's keys for the gateway. An unknown name is answered like one without keys, by the same work."""

    async def get(self, user: str) -> None:
        self.refuse(may_read_keys(self.caller, user))
        keys = await self.manager.database.keys(as_name(user))
        told = [{"id": key.id, "key": key.key, "fingerprint": key.fingerprint, "name": key.name} for key in keys]
        self.reply({"keys": told})


class KeyUsedHandler(ApiHandler):
    """The gateway saw a login with this key."""

    async def post(self, user: str, id_: str) -> None:
        self.refuse(may_read_keys(self.caller, user))
        if not await self.manager.database.key_used(as_name(user), int(id_), self.manager.now()):
            raise HttpProblem(404, "The user has no such key.")
        self.set_status(204)


def _found(item: SuggestedKeyBody, min_rsa_bits: int) -> FoundKey | None:
    """One suggestion, or None for what is not a key."""
    if len(item.key) > MAX_INPUT or ssh_keys.is_private(item.key):
        return None
    parsed = ssh_keys.parse_keys(item.key, min_rsa_bits)
    if isinstance(parsed, KeyRejected):
        return None
    first: PublicKey = parsed[0]
    return FoundKey(first, ssh_keys.clean_name(item.source, MAX_SOURCE))


MOST = 240 * 1024


class SshAccessHandler(ApiHandler):
    """Answers which users are blocked and which keys are gone; a Manager without files blocks no user."""

    async def post(self) -> None:
        self.refuse(None if has_scope(self.caller.scopes, READ_KEYS) else NOT_THE_GATEWAY)
        asked = set(self.read_body(SshAccessBody, MOST).keys)
        registered = await self.manager.database.registered(asked)
        leader = self.manager.leader
        teams = leader.settings.teams if leader is not None else TeamsConfig()
        self.reply({"blocked": sorted(teams.blocked), "gone": sorted(asked - registered)})


NO_GATEWAY = "There is no SSH gateway here."
FOR_PEOPLE = "This is about a person's own jobs; a service has none."


class SshConfigHandler(ApiHandler):
    """For the command line, which makes the file itself."""

    async def get(self) -> None:
        self.reply(SshConfigModel.model_validate(await access_of(self)))


class _File(PageHandler):
    name: str
    content: Callable[[SshAccessConfig], str]

    async def get(self) -> None:
        try:
            content = type(self).content(await access_of(self))
        except Unwritable as problem:
            raise HttpProblem(409, str(problem)) from None
        if not content:
            raise HttpProblem(404, NOTHING_HERE)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Content-Disposition", f"attachment; filename={self.name}")
        self.finish(content)


class SshConfigFileHandler(_File):
    name = CONFIG_FILE
    content = staticmethod(config)


class KnownHostsFileHandler(_File):
    """The pinned host keys, as a known_hosts file."""

    name = KNOWN_HOSTS_FILE
    content = staticmethod(known_hosts)


async def access_of(handler: IdentityHandler) -> SshAccessConfig:
    """Returns the SSH access of the caller's own jobs."""
    viewer = handler.viewer(AccessRight.SEE)
    if handler.caller.kind is not IdentityKind.USER:
        raise HttpProblem(403, FOR_PEOPLE)
    target = handler.manager.ssh_target
    if target is None:
        raise HttpProblem(404, NO_GATEWAY)
    servers = await _servers(handler.manager, viewer.name)
    return SshAccessConfig(viewer.name, *target, servers, read_host_keys(handler.manager.ssh_host_key_file))


async def _servers(manager: ManagerContext, user: str) -> tuple[str, ...]:
    """The named servers that had a job once and offer SSH, as far as that is known."""
    if manager.leader is None:
        return ()
    templates = {template.name: template for template in manager.leader.settings.templates}
    try:
        found = await manager.leader.hub.user(user)
        used = await manager.leader.repository.servers(user)
    except (HubError, DatabaseUnavailable):
        return ()
    servers = found.servers.values() if found is not None else ()
    had_jobs = (one for one in servers if one.name in used or not one.stopped)
    return tuple(sorted(one.name for one in had_jobs if one.name and _offers_ssh(one, templates)))


def _offers_ssh(server: HubServer, templates: dict[str, Template]) -> bool:
    template = templates.get(str(server.user_options.get("template", "")))
    return template is None or any(way.protocol is EndpointProtocol.SSH for way in template.endpoints)


START = "custom:ssh-starts"
START_NOT_THE_GATEWAY = (
    f"Starting what others log in to needs the scope {START}, which only the SSH gateway should hold."
)
RESTART_AFTER = timedelta(minutes=5)  # an end: editors connect again by themselves
SshStart = dict[str, str | None]  # what a login's start has come to
OFF: SshStart = {"state": "off", "job": None, "sentence": "", "page": ""}
ENDED = "{server} has ended a moment ago, and a login does not start it again before {minutes}."


class SshStartHandler(StartJobHandler):
    async def post(self, user: str, server: str) -> None:
        user, server = self._names(user, server)
        check_blocked(self, user)
        async with self.manager.locks.of("ssh-start", user, server):
            found = await self._where(user, server)
            if found is None:
                found = await self._start(user, server)
        self.reply(found)

    async def get(self, user: str, server: str) -> None:
        user, server = self._names(user, server)
        found = await self._where(user, server)
        if found is None:
            found = await self._ended(user, server, self.read_query(StartQuery).job)
        self.reply(found)

    def _names(self, user: str, server: str) -> tuple[str, str]:
        if not has_scope(self.caller.scopes, START):
            raise HttpProblem(403, START_NOT_THE_GATEWAY, scope=START)
        if not as_name(user) or as_name(server) != server:
            raise HttpProblem(404, "No user or server has such a name.")
        return user, server

    async def _start(self, user: str, server: str) -> SshStart:
        known = await self.leader.hub.user(user)
        there = known.servers.get(server) if known is not None else None
        prefers = await self.manager.database.starts_by_login(user)
        templates = self.leader.settings.templates
        kept = there if there is not None and there.user_options else None
        always = template_to_start(server, None, templates, prefers=prefers)
        if kept is not None and always is not None and server not in await self.leader.repository.last_ends(user):
            kept = None  # of a request that was refused: nothing has ever run by it
        template = template_to_start(server, kept, templates, prefers=prefers)
        if known is None or template is None:
            return {**OFF}
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
        last = (await self.leader.repository.last_ends(user)).get(server)
        if last is not None and self._now() - last.at < RESTART_AFTER:
            until = last.at + RESTART_AFTER
            raise HttpProblem(
                409, ENDED.format(server=server or "Your default server", minutes=f"{until:%H:%M:%S UTC}")
            )

    async def _where(self, user: str, server: str) -> SshStart | None:
        """Returns the state of a pending, starting or running job; ``None`` without one."""
        admission = self.admission
        record = admission.starting_or_pending(user, server)
        if record is None:
            holds = [job for job in admission.store.on(user, server) if job.holds]
            if not holds or any(job.state is JobState.RUNNING for job in holds):
                return self._stands("running", holds[0].id, user, server) if holds else None
            stop = admission.store.records[holds[0].id].stop
            return self._stands("stopping", holds[0].id, user, server, progress_sentence(JobState.STOPPING, stop))
        job = record.job
        if not record.is_pending:
            return self._stands("starting", job.id, user, server)
        if job.state is JobState.LOGIN_REQUIRED:
            return self._stands(job.state.value, job.id, user, server, LOG_IN_AGAIN)
        look = admission.explainer.explain(record, advises=False)
        place = f"number {look.position} in the queue. " if job.state is JobState.QUEUED else ""
        return self._stands(look.state, job.id, user, server, f"{place}{look.sentence}".strip())

    async def _ended(self, user: str, server: str, job: str) -> SshStart:
        """Returns the end of the start that a login has requested, or *starting* if its job is not known yet."""
        last = (await self.leader.repository.last_ends(user)).get(server)
        if last is None or last.job != job:
            return self._stands("starting", job or None, user, server)
        return self._stands("ended", job, user, server, end_sentence(last.reason, last.detail, last.stop))

    def _stands(self, state: str, job: str | None, user: str, server: str, said: str = "") -> SshStart:
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


class SshSettingsHandler(UserApiHandler):
    async def get(self) -> None:
        starts = await self.manager.database.starts_by_login(self.current_user_name().name)
        self.reply(SshSettingsModel(start_on_connect=starts))

    async def put(self) -> None:
        person = self.current_user_name()
        body = self.read_body(SshSettingsBody)
        await self.manager.database.start_by_login(person.name, body.start_on_connect)
        self.reply(SshSettingsModel(start_on_connect=body.start_on_connect))
