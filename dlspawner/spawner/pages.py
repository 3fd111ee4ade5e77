"""The Hub's pages about jobs: the form, notes on the home page, the page inside a job.

The module reads the Hub's spawners and the pods of the watch, and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from jinja2 import Environment
from jupyterhub.utils import subdomain_hook_legacy, url_path_join

from dlspawner.clients.manager import PendingJobStatus
from dlspawner.core import endpoints, naming, text
from dlspawner.core.config import Team
from dlspawner.core.launch import options, pod_status
from dlspawner.core.launch.options import InvalidOptions
from dlspawner.core.link import sign_preview
from dlspawner.settings import Settings
from dlspawner.spawner import forms, pod_builder
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.start import STATE_ENDED

_TICKET_SECONDS = 86_400  # for which an open form has previews
SERVICE = "jobs"  # the Manager's name at the Hub

# After a refusal the Hub draws the form of the *default* server again, in the same request. This carries over which
# server it was and what had been chosen.
_submitted: ContextVar[tuple[str, dict[str, object]] | None] = ContextVar("submitted", default=None)


@dataclass(frozen=True, slots=True)
class ServerNote:
    """A note beside a server in JupyterHub's list: its SSH command, or the reason of its last job's end."""

    title: str
    sentence: str
    ssh_command: str | None


@dataclass(frozen=True, slots=True)
class QueuedView:
    """The queue status of a server that does not run: ``waits`` is ``None`` without an answer."""

    waits: bool | None
    sentence: str
    url: str


@cache
def _environment(directory: str) -> Environment:
    return forms.pages(Path(directory))


class LinkedSpawner(Protocol):
    """The attributes that the addresses of the Manager's pages need; `DLSpawner` has them."""

    name: str
    user: Any
    hub: Any
    orm_spawner: Any
    manager_url: str


class PageSpawner(LinkedSpawner, Protocol):
    """The attributes of a spawner that the Hub's pages show."""

    manager_token: str
    templates_dir: str
    _began: float
    _job_id: str | None

    @property
    def ssh_target(self) -> tuple[str, int] | None: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def person(self) -> pod_builder.Owner: ...

    def check_options(self, given: object) -> pod_builder.LaunchRequest: ...


class PageProperties:
    """The properties of a spawner that the Hub's templates use."""

    @property
    def portal_url(self: LinkedSpawner) -> str | None:
        return portal_url(self)

    @property
    def start_seconds(self: PageSpawner) -> float | None:
        """Returns for how long the start has been going on; ``None`` after a restart of the Hub."""
        return asyncio.get_running_loop().time() - self._began if self._began else None

    @property
    def job_url(self: PageSpawner) -> str | None:
        """Returns the Manager's page of the job of the latest start."""
        return f"{service_url(self)}jobs/{self._job_id}" if self.manager_url and self._job_id else None

    def log_page(self: PageSpawner) -> str:
        return f"{service_url(self)}jobs/{self._job_id}/log" if self.manager_url and self._job_id else ""

    @property
    def is_team_admin(self: PageSpawner) -> bool:
        """True if the user decides for a team: the navigation leads to its pages. False while the files are broken."""
        try:
            return any(self.user.name in team.admins for team in self.settings.teams.teams)
        except StartRefused:
            return False

    def server_notes(self: PageSpawner) -> list[ServerNote]:
        """Returns the notes for the home page of a Hub without a Manager."""
        return server_notes(self) if self.templates_dir else []


def _render(spawner: PageSpawner, page: str, **values: object) -> str:
    return _environment(str(Path(spawner.templates_dir) / "hub")).get_template(page).render(**values)


def base_url(spawner: LinkedSpawner) -> str:
    """Returns the proxy's base path: the Hub's own without its last part."""
    return str(spawner.hub.base_url).removesuffix("hub/")


def service_url(spawner: LinkedSpawner) -> str:
    """Returns the Manager's URL: with a domain per user (JupyterHub.subdomain_host) it has a domain of its own."""
    settings = getattr(spawner.user, "settings", {})
    host = ""
    if settings.get("subdomain_host"):
        hub = urlsplit(settings["subdomain_host"])
        hook = settings.get("subdomain_hook", subdomain_hook_legacy)
        own = hook(SERVICE, hub.hostname, kind="service")
        host = f"{hub.scheme}://{own}:{hub.port}" if hub.port else f"{hub.scheme}://{own}"
    return f"{host}{base_url(spawner)}services/{SERVICE}/"


def wait_url(spawner: LinkedSpawner, server: str) -> str:
    parts = (quote(str(name), safe="@") for name in (spawner.user.name, server))
    return f"{service_url(spawner)}wait/{'/'.join(parts)}"


def portal_url(spawner: LinkedSpawner) -> str | None:
    """The Manager's page of a person's jobs and quota; it has none where there is no Manager."""
    return service_url(spawner) if spawner.manager_url else None


def keys_url(spawner: PageSpawner) -> str | None:
    return f"{service_url(spawner)}keys" if spawner.manager_url else None


# The form


def form(spawner: PageSpawner, free: Mapping[str, tuple[float, float]] | None = None) -> str:
    """Returns the options form with the options of the refused request, else with those of the last start.

    ``free``: how many GPUs of each type are free, and on one node, as far as known.
    """
    server, given = _submitted.get() or (spawner.name or "", _stored(spawner.orm_spawner))
    settings, person = spawner.settings, spawner.person
    if person.name in settings.teams.blocked:
        return f"<p>{pod_builder.BLOCKED}</p>"
    templates = options.usable_templates(settings.templates, person.teams)
    if not templates:
        return "<p>There is no job template that you may use; an administrator can allow one to your team.</p>"
    asked = options.find_template(settings.templates, given, person.teams, settings.cluster.default_template)
    checked = templates[0] if isinstance(asked, InvalidOptions) else asked
    teams = _payer_first(spawner, person.teams)
    return _render(
        spawner,
        "job_form.html",
        panels=forms.panels(
            settings,
            teams,
            checked.name,
            given,
            (free or {}) if spawner.manager_url and spawner.manager_token else None,
        ),
        server=server,
        ssh_login=ssh_command(spawner, server),
        jobs_url=portal_url(spawner) or url_path_join(spawner.hub.base_url, "home"),
        cluster_url=f"{service_url(spawner)}cluster" if spawner.manager_url else "",
        preview_url=f"{service_url(spawner)}preview" if spawner.manager_url and spawner.manager_token else "",
        spawn_url=url_path_join(spawner.hub.base_url, "spawn", quote(str(spawner.user.name), safe="@")),
        ticket=sign_preview(
            spawner.manager_token, person.name, tuple(team.name for team in teams), time.time() + _TICKET_SECONDS
        ),
    )


def _payer_first(spawner: PageSpawner, teams: tuple[Team, ...]) -> tuple[Team, ...]:
    """The person's teams, first the one that paid for the server they have used last; the form proposes that one."""
    orm_spawners = spawner.user.orm_user.orm_spawners.values()
    latest = sorted((one for one in orm_spawners if one.last_activity), key=lambda one: one.last_activity, reverse=True)
    chosen = [team for team in (_stored(one).get("team") for one in latest) if team]
    return tuple(sorted(teams, key=lambda team: team.name not in chosen[:1]))


def read_form(spawner: PageSpawner, submitted: Mapping[str, Any]) -> dict[str, object]:
    """A submitted form as checked user options."""
    settings, person = spawner.settings, spawner.person
    named = {options.TEMPLATE_KEY: forms.first_value(submitted.get(options.TEMPLATE_KEY))}
    template = options.find_template(settings.templates, named, person.teams, settings.cluster.default_template)
    if isinstance(template, InvalidOptions):
        raise StartRefused(*template.sentences, reason="template")
    given = forms.read_form_options(submitted, template)
    _submitted.set((spawner.name or "", given))
    return spawner.check_options(given).kept(given)


def _stored(orm_spawner: Any) -> Mapping[str, object]:
    """Returns the user options that the Hub keeps of a server, unchecked."""
    try:
        found: Mapping[str, object] = _writable(pod_builder.unnested(getattr(orm_spawner, "user_options", None)))
    except StartRefused:
        return {}
    return found


def _writable(value: Any) -> Any:
    """The value without what no page can hold: JSON has halves of characters, and what was refused is kept."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_writable(key): _writable(one) for key, one in value.items()}
    return [_writable(one) for one in value] if isinstance(value, list) else value


# The page inside a job


def ssh_command(spawner: PageSpawner, server: str) -> str | None:
    """Returns the command that reaches a server of this user through the gateway."""
    target = spawner.ssh_target
    return endpoints.ssh_command(str(spawner.user.name), server, target) if target is not None else None


def job_page(spawner: PageSpawner, job: naming.PodIdentity) -> str:
    """The page that a job without a web application of its own shows."""
    host, port = spawner.ssh_target or ("", 22)
    command = ssh_command(spawner, job.server) if job.ssh_host_key else None
    user = endpoints.ssh_login(str(spawner.user.name), job.server)
    hub = str(spawner.hub.base_url)
    return _render(
        spawner,
        "job_page.html",
        title=f"{job.user} / {job.server or 'default server'}",
        command=command,
        host=host,
        port=port,
        user=user,
        login=f"{user}@{host}",
        alias=job.server or "job",
        keys_url=keys_url(spawner),
        logo_url=url_path_join(hub, "logo"),
        token_url=url_path_join(hub, "token"),
        jobs_url=portal_url(spawner) or url_path_join(hub, "home"),
    )


# The home page of a Hub without a Manager


def server_notes(spawner: PageSpawner) -> list[ServerNote]:
    """Returns a note for each server that has something to tell; ``spawner`` may be any of the user's."""
    return [note for name, row in spawner.user.orm_user.orm_spawners.items() if (note := _note(spawner, name, row))]


def _note(spawner: PageSpawner, name: str, orm_spawner: Any) -> ServerNote | None:
    live, title = _live(spawner, name), name or "default server"
    if live is None or not live.active:
        ended = (orm_spawner.state or {}).get(STATE_ENDED)
        return ServerNote(title, ended, None) if isinstance(ended, str) else None
    pod, job = live.pod(), live.job()
    silent = pod_status.silence(pod) if pod and pod_status.is_silent(pod) else ""
    command = ssh_command(spawner, name) if job and job.ssh_host_key and live.ready else None
    return ServerNote(title, silent, command) if silent or command else None


def _live(spawner: PageSpawner, name: str) -> Any:
    """The Hub's spawner of a server if it has one; asking its dictionary with [] would make one."""
    spawners = spawner.user.spawners
    return spawners[name] if name in spawners else None  # noqa: SIM401 - its get() makes a spawner as well


def queued(spawner: LinkedSpawner, places: Mapping[str, PendingJobStatus] | None) -> QueuedView:
    """The place of a spawner's own server."""
    server = spawner.name or ""
    place = places.get(server) if places is not None else None
    waits = None if places is None else place is not None
    return QueuedView(waits, _place(place) if place else "", wait_url(spawner, server))


def _place(place: PendingJobStatus) -> str:
    if place.state == "login-required":
        return text.LOG_IN_AGAIN
    if place.state == "pending-approval":
        return f"Waiting for approval. {place.why}".rstrip()
    if place.state == "starting":
        return text.RESERVED
    if place.never:
        return f"{text.AS_REQUESTED_NEVER} {place.why}".rstrip()
    if not place.position:
        return f"Waiting in the cluster; it starts automatically. {place.why}".rstrip()
    return f"{text.queue_place(place.position)} {place.why}".rstrip()
