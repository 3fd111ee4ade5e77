"""What people see of their jobs on the Hub's pages: the form, the list on the home page, the page inside a job.

Everything here is for showing. It reads the Hub's spawners and the pods that the watch knows, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from jinja2 import Environment
from jupyterhub.utils import subdomain_hook_legacy, url_path_join

from dlspawner.clients.manager import PendingJobStatus, UserNotice
from dlspawner.core import endpoints, naming
from dlspawner.core.config import Team
from dlspawner.core.launch import options, pod_status, rendering
from dlspawner.core.launch.options import InvalidOptions
from dlspawner.core.template import Template
from dlspawner.settings import Settings
from dlspawner.spawner import forms, pod_builder
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.start import STATE_ENDED
from dlspawner.ssh_config import vscode_link

TENSORBOARD = "tensorboard"
SERVICE = "jobs"  # the Manager's name at the Hub
NOT_RUNNING = "not running"  # the state of a server that does not run while the queue is unknown

# After a refusal the Hub draws the form of the *default* server again, in the same request. This carries over which
# server it was and what had been chosen.
_submitted: ContextVar[tuple[str, dict[str, object]] | None] = ContextVar("submitted", default=None)


@dataclass(frozen=True, slots=True)
class StartForm:
    """A form that starts a server with options that are already chosen."""

    url: str
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TensorBoardView:
    """The TensorBoard of a job: its address when it runs, and how to start it when not."""

    url: str | None
    start: StartForm


@dataclass(frozen=True, slots=True)
class JobView:
    server: str
    title: str
    state: str
    summary: str
    url: str
    pending_url: str
    form_url: str
    api_url: str
    reason: str | None = None
    ssh_command: str | None = None
    vscode_url: str | None = None
    log_dir: str | None = None
    tensorboard: TensorBoardView | None = None
    again: StartForm | None = None
    wait_url: str | None = None


@dataclass(frozen=True, slots=True)
class HomeView:
    jobs: Sequence[JobView]
    notices: Sequence[UserNotice]
    unknown: str | None = None  # the sentence on unknown queue positions


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

    @property
    def ssh_target(self) -> tuple[str, int] | None: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def person(self) -> pod_builder.Owner: ...

    def check_options(self, given: object) -> pod_builder.LaunchRequest: ...


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


def notices_url(spawner: PageSpawner) -> str:
    return f"{service_url(spawner)}notices"


def portal_url(spawner: PageSpawner) -> str | None:
    """The Manager's page of a person's jobs and quota; it has none where there is no Manager."""
    return service_url(spawner) if spawner.manager_url else None


def keys_url(spawner: PageSpawner) -> str | None:
    return f"{service_url(spawner)}keys" if spawner.manager_url else None


# The form


def form(spawner: PageSpawner) -> str:
    """The options form; after a refusal with what had been chosen, else with what was chosen last time."""
    server, given = _submitted.get() or (spawner.name or "", _stored(spawner.orm_spawner))
    settings, person = spawner.settings, spawner.person
    if person.name in settings.teams.blocked:
        return f"<p>{pod_builder.BLOCKED}</p>"
    templates = options.usable_templates(settings.templates, person.teams)
    if not templates:
        return "<p>There is no job template that you may use; an administrator can allow one to your team.</p>"
    asked = options.find_template(settings.templates, given, person.teams, settings.cluster.default_template)
    checked = templates[0] if isinstance(asked, InvalidOptions) else asked
    return _render(
        spawner,
        "job_form.html",
        panels=forms.panels(
            settings,
            _payer_first(spawner, person.teams),
            checked.name,
            given,
            counted=bool(spawner.manager_url and spawner.manager_token),
        ),
        server=server,
        ssh_login=ssh_command(spawner, server),
        home_url=url_path_join(spawner.hub.base_url, "home"),
        cluster_url=f"{service_url(spawner)}cluster" if spawner.manager_url else "",
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
        title=f"{job.user}, {job.server or 'default server'}",
        command=command,
        host=host,
        port=port,
        user=user,
        login=f"{user}@{host}",
        alias=job.server or "job",
        keys_url=keys_url(spawner),
        token_url=url_path_join(hub, "token"),
        home_url=url_path_join(hub, "home"),
    )


# The home page


def job_views(spawner: PageSpawner, places: Mapping[str, PendingJobStatus] | None) -> list[JobView]:
    """Returns every server of the user: running ones first, then by name; ``spawner`` may be any of them.

    ``places``: ``None`` if the queue is unknown.
    """
    views = list(_views(spawner, places))
    return sorted(views, key=lambda view: (view.state in ("stopped", NOT_RUNNING), view.server))


def _views(spawner: PageSpawner, places: Mapping[str, PendingJobStatus] | None) -> Iterator[JobView]:
    for name, orm_spawner in spawner.user.orm_user.orm_spawners.items():
        live = _live(spawner, name)
        if name == "" and not (live and live.active) and not _stored(orm_spawner):
            continue  # the default server, which this user never used
        view = _view(spawner, name, orm_spawner, live, places.get(name) if places is not None else None)
        yield replace(view, state=NOT_RUNNING) if view.state == "stopped" and places is None else view


def _live(spawner: PageSpawner, name: str) -> Any:
    """The Hub's spawner of a server if it has one; asking its dictionary with [] would make one."""
    spawners = spawner.user.spawners
    return spawners[name] if name in spawners else None  # noqa: SIM401 - its get() makes a spawner as well


def _view(spawner: PageSpawner, name: str, orm_spawner: Any, live: Any, place: PendingJobStatus | None) -> JobView:
    stored = _stored(orm_spawner)
    job: naming.PodIdentity | None = live.job() if live is not None and live.active else None
    template = _template(spawner, job.template if job else stored.get(options.TEMPLATE_KEY))
    state = _state(live)
    if state == "stopped" and place is not None:
        state = "waiting"
    log_dir = job.log_dir if job else _last_log_dir(spawner, stored)
    hub, user = str(spawner.hub.base_url), _path_name(spawner)
    command = ssh_command(spawner, name) if job and job.ssh_host_key and state == "running" else None
    again = StartForm(url_path_join(hub, "spawn", user, name), _fields(stored)) if stored and template else None
    return JobView(
        server=name,
        title=name or "default server",
        state=state,
        summary=_summary(spawner, template, job, stored),
        url=spawner.user.server_url(name),
        pending_url=url_path_join(hub, "spawn-pending", user, name),
        form_url=url_path_join(hub, "spawn", user, name),
        api_url=url_path_join(hub, "api/users", user, *(("servers", name) if name else ("server",))),
        reason=_place(place) if state == "waiting" and place else _reason(orm_spawner, live, state),
        ssh_command=command,
        vscode_url=vscode_link(name) if command and spawner.manager_url else None,
        log_dir=log_dir,
        tensorboard=_tensorboard(spawner, name, log_dir, template, job.team if job else _text(stored.get("team"))),
        again=again,
        wait_url=wait_url(spawner, name) if state == "waiting" else None,
    )


def queued(spawner: LinkedSpawner, places: Mapping[str, PendingJobStatus] | None) -> QueuedView:
    """The place of a spawner's own server."""
    server = spawner.name or ""
    place = places.get(server) if places is not None else None
    waits = None if places is None else place is not None
    return QueuedView(waits, _place(place) if place else "", wait_url(spawner, server))


def _place(place: PendingJobStatus) -> str:
    if place.state == "login-required":
        return "Its turn came, and the Hub wants you to log in again before it starts."
    if place.state == "pending-approval":
        return f"It waits for an approval. {place.why}".rstrip()
    if place.state == "starting":
        return "Its turn has come: it is being started."
    if place.never:
        return f"It keeps its place in the queue, and cannot start as things are. {place.why}".rstrip()
    if not place.position:
        return f"It waits in the cluster and starts by itself. {place.why}".rstrip()
    return f"It is number {place.position} in the queue and starts by itself. {place.why}".rstrip()


def _reason(orm_spawner: Any, live: Any, state: str) -> str | None:
    """Why a job ended, or why one that should run may not answer."""
    if state == "stopped":
        kept = (orm_spawner.state or {}).get(STATE_ENDED)
        return kept if isinstance(kept, str) else None if _stored(orm_spawner) else "It was never started."
    pod = live.pod() if state == "running" else None
    return pod_status.silence(pod) if pod and pod_status.is_silent(pod) else None


def _last_log_dir(spawner: PageSpawner, stored: Mapping[str, object]) -> str | None:
    """Returns the log directory of a stopped job; ``None`` if it belonged to one launch, or without a launch."""
    try:
        wish = spawner.check_options(stored) if stored else None
    except StartRefused:
        return None
    path = pod_builder.log_dir(wish, spawner.person) if wish else None
    return None if path is None or rendering.in_job_directory(path) else path


def _tensorboard(
    spawner: PageSpawner, server: str, log_dir: str | None, template: Template | None, team: str | None
) -> TensorBoardView | None:
    board = _template(spawner, TENSORBOARD)
    if log_dir is None or board is None or (template is not None and template.name == TENSORBOARD):
        return None
    name, hub, user = naming.tensorboard_server(server), str(spawner.hub.base_url), _path_name(spawner)
    live = _live(spawner, name)
    if live is not None and live.active and (job := live.job()) is not None and job.template != TENSORBOARD:
        return None  # a job of another kind has that name
    state = _state(live)
    # One that runs is opened even if it was started on another directory: a second start would only be refused.
    urls = {"running": spawner.user.server_url(name), "starting": url_path_join(hub, "spawn-pending", user, name)}
    fields = [(options.TEMPLATE_KEY, TENSORBOARD), ("log_dir", log_dir)]
    if (
        team
        and board.option("team")
        and team in {one.name for one in options.usable_teams(board, spawner.person.teams)}
    ):
        fields.append(("team", team))  # logs may lie in the data of the team that pays for the job
    return TensorBoardView(urls.get(state), StartForm(url_path_join(hub, "spawn", user, name), tuple(fields)))


def _path_name(spawner: PageSpawner) -> str:
    return quote(spawner.user.name, safe="@")


def _state(live: Any) -> str:
    if live is None or not live.active:
        return "stopped"
    if live.pending == "stop":
        return "stopping"
    return "running" if live.ready else "starting"


def _summary(
    spawner: PageSpawner, template: Template | None, job: naming.PodIdentity | None, stored: Mapping[str, object]
) -> str:
    words = [template.title if template else _text(stored.get(options.TEMPLATE_KEY)) or ""]
    if job is not None and job.gpus:
        kind = _text(stored.get("gpu_type"))
        words.append(f"{job.gpus} GPU{'' if job.gpus == 1 else 's'}{f' of type {kind}' if kind else ''}")
    if job is not None and job.preemptible:
        words.append("preemptible")
    if job is not None and job.team:
        team = spawner.settings.teams.named(job.team)
        words.append(f"team {(team.title or team.name) if team else job.team}")
    return ", ".join(word for word in words if word)


def _template(spawner: PageSpawner, name: object) -> Template | None:
    return next((template for template in spawner.settings.templates if template.name == name), None)


def _fields(stored: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    plain = {name: value for name, value in stored.items() if isinstance(value, bool | int | float | str)}
    return tuple((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in plain.items())


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
