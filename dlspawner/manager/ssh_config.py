"""What a person's own OpenSSH needs to know, so that ``ssh train.dl`` works: as data, and as two files to download.

    GET  api/ssh-config     who, through which gateway, to which servers; what `dlspawner ssh-config` reads
    GET  ssh-config         the file for ~/.ssh (`dlspawner.ssh_config`)
    GET  ssh-known-hosts    the gateway's host keys

The host keys are read from `Manager.ssh_host_key_file` for every answer, so a new key is told at once. While the Hub
does not answer, or nothing is decided here, no server is named; what is told then still reaches each of them.
"""

from __future__ import annotations

from collections.abc import Callable

from dlspawner.core.template import EndpointProtocol, Template
from dlspawner.hubapi import HubError, HubServer, IdentityKind
from dlspawner.manager.access import AccessRight
from dlspawner.manager.host_keys import read_host_keys
from dlspawner.manager.pages import STALE_PAGE
from dlspawner.manager.store import DatabaseUnavailable
from dlspawner.manager.web import (
    NOTHING_HERE,
    ApiHandler,
    HttpProblem,
    IdentityHandler,
    ManagerContext,
    PageHandler,
    Routes,
)
from dlspawner.ssh_config import CONFIG_FILE, KNOWN_HOSTS_FILE, SshAccessConfig, Unwritable, config, known_hosts

NO_GATEWAY = "There is no SSH gateway here."
FOR_PEOPLE = "This is about a person's own jobs; a service has none."


class SshConfigHandler(ApiHandler):
    """For the command line, which makes the file itself."""

    async def get(self) -> None:
        self.check_parameters()
        access = await access_of(self)
        self.reply(
            {
                "user": access.user,
                "host": access.host,
                "port": access.port,
                "servers": list(access.servers),
                "host_keys": list(access.host_keys),
            }
        )


class _File(PageHandler):
    name: str
    content: Callable[[SshAccessConfig], str]

    async def get(self) -> None:
        if self.identity is None:
            raise HttpProblem(403, STALE_PAGE)
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
    """The configuration."""

    name = CONFIG_FILE
    content = staticmethod(config)


class KnownHostsFileHandler(_File):
    """What is pinned."""

    name = KNOWN_HOSTS_FILE
    content = staticmethod(known_hosts)


async def access_of(handler: IdentityHandler) -> SshAccessConfig:
    """What whoever asks may know of their own ways in."""
    viewer = handler.viewer(AccessRight.SEE)
    if handler.identity is None or handler.identity.kind is not IdentityKind.USER:
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
        used = await manager.leader.ledger.servers(user)
    except (HubError, DatabaseUnavailable):
        return ()
    servers = found.servers.values() if found is not None else ()
    had_jobs = (one for one in servers if one.name in used or not one.stopped)
    return tuple(sorted(one.name for one in had_jobs if one.name and _offers_ssh(one, templates)))


def _offers_ssh(server: HubServer, templates: dict[str, Template]) -> bool:
    template = templates.get(str(server.user_options.get("template", "")))
    return template is None or any(way.protocol is EndpointProtocol.SSH for way in template.endpoints)


CONFIG_ROUTES: Routes = (
    ("api/ssh-config", SshConfigHandler),
    ("ssh-config", SshConfigFileHandler),
    ("ssh-known-hosts", KnownHostsFileHandler),
)
