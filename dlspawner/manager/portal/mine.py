"""A person's jobs as the portal lists them, one row a server. PURE.

What runs and waits is in the book, which servers there are is the Hub's to say, and how the last job of one that is
stopped ended was written down. Where the Hub does not answer, the book's jobs are all that is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from dlspawner.core import naming
from dlspawner.core.endpoints import Forward, Target, forward, ssh_command
from dlspawner.core.estimates import Estimate
from dlspawner.core.jobs import Job, JobState
from dlspawner.core.limits import BLOCKED
from dlspawner.core.template import Endpoint, EndpointProtocol
from dlspawner.hubapi import HubServer
from dlspawner.manager.job_words import ENDING, GOING, end_sentence, progress_sentence, request_text
from dlspawner.manager.lastrows import LastEnd
from dlspawner.manager.looks import QueueStatus
from dlspawner.manager.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.ssh_config import vscode_link

TENSORBOARD = "tensorboard"
NOT_READY = "It runs, and its program does not answer yet."


class ServerState(Enum):
    """The state of a server in a person's words; the order is that of the list."""

    RUNNING = "running"
    STARTING = "starting"
    WAITING = "waiting"
    STOPPING = "stopping"
    STOPPED = "stopped"


_ORDER = list(ServerState)
_BY_STATE = {
    JobState.STARTING: ServerState.STARTING,
    JobState.RUNNING: ServerState.RUNNING,
    JobState.STOPPING: ServerState.STOPPING,
}


@dataclass(frozen=True, slots=True)
class PortLink:
    """A way in that is no SSH: for other pods, and through SSH where the job has that."""

    name: str
    protocol: str
    port: int
    forward: Forward | None


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One server. ``since``: of the state; ``kept``: it would be stopped for being unused, so it can be kept alive."""

    server: str
    state: ServerState
    template: str = ""
    summary: str = ""
    sentence: str = ""
    job: str = ""
    since: datetime | None = None
    position: int = 0
    estimate: Estimate | None = None  # of its start, while it waits
    ssh: str = ""
    is_recorded: bool = False  # what terminals show that come in by ssh
    vscode: str = ""
    ports: tuple[PortLink, ...] = ()
    log_dir: str = ""
    shows_logs: bool = False  # whether a TensorBoard can show its log directory
    is_ready: bool = False
    kept: bool = False
    asks: bool = False  # whether it waits for somebody's approval
    has_run: bool = False  # whether its last job had a pod, so that there may be a log

    @property
    def title(self) -> str:
        return self.server or "default server"

    @property
    def can_stop(self) -> bool:
        return bool(self.job) and self.state not in {ServerState.STOPPING, ServerState.STOPPED}


@dataclass(frozen=True, slots=True)
class RowContext:
    """What the rows of one person are made of."""

    user: str
    titles: Mapping[str, str]  # of templates, by name
    servers: Mapping[str, HubServer] | None  # None: the Hub does not answer
    records: Mapping[str, JobRecord]  # what has not ended, by server
    looks: Mapping[str, QueueStatus]  # of those that wait, by server
    pods: Mapping[str, naming.PodIdentity]  # by uid
    ended: Mapping[str, LastEnd]  # the last one of each server
    teams: Mapping[str, str]  # titles by name
    endpoints: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)  # by template
    happened: Mapping[str, str] = field(default_factory=dict)  # the latest told of the pods of those that start, by job
    kept: frozenset[str] = frozenset()  # ids of jobs that would be stopped for being unused
    recorded: frozenset[str] = frozenset()  # names of teams whose terminals are
    gateway: Target | None = None
    blocked: bool = False  # whether they may not start jobs at all


def latest(records: Mapping[str, JobRecord], user: str) -> dict[str, JobRecord]:
    """What has not ended of one person, by server: of two what does not leave, or came later."""
    found: dict[str, JobRecord] = {}
    for record in records.values():
        job = record.job
        if job.user != user or job.id.startswith(EXTERNAL_POD_PREFIX):
            continue
        other = found.get(job.server)
        if other is None or _freshness(record) > _freshness(other):
            found[job.server] = record
    return found


def _freshness(record: JobRecord) -> tuple[bool, datetime]:
    return (record.job.state is not JobState.STOPPING, record.job.submitted)


def rows(facts: RowContext) -> tuple[ServerRow, ...]:
    """The list: what runs first, then by name.

    A server that the Hub has and that never had a job is none: somebody only looked at its form, or was refused.
    """
    servers = facts.servers or {}
    names = {name for name, one in servers.items() if name in facts.ended or not one.stopped}
    found = [_row(facts, name, servers.get(name)) for name in names | set(facts.records)]
    return tuple(sorted(found, key=lambda row: (_ORDER.index(row.state), row.server)))


def _row(facts: RowContext, name: str, server: HubServer | None) -> ServerRow:
    record = facts.records.get(name)
    if record is not None:
        return _live(facts, record, server)
    return _without_job(facts, name, server)


def _live(facts: RowContext, record: JobRecord, server: HubServer | None) -> ServerRow:
    job, pod = record.job, facts.pods.get(record.pod_uid or "")
    state = ServerState.WAITING if record.is_pending else _BY_STATE.get(job.state, ServerState.WAITING)
    look = facts.looks.get(job.server)
    runs = state is ServerState.RUNNING
    is_late = runs and server is not None and server.pending == "spawn"
    is_ready = runs and (server is None or server.ready) and not is_late
    says = NOT_READY if is_late else _says(record, look, facts.happened)
    command = ssh_command(facts.user, job.server, facts.gateway) if facts.gateway and pod and pod.ssh_host_key else ""
    return ServerRow(
        server=job.server,
        state=state,
        template=job.template,
        summary=_summary(facts, job),
        sentence=BLOCKED if facts.blocked and state is ServerState.WAITING else says,
        job=job.id,
        since=job.started if runs else None if state is ServerState.STOPPING else job.submitted,
        position=look.position if look and look.state == "queued" and not facts.blocked else 0,
        estimate=look.estimate if look and not facts.blocked else None,
        ssh=command if runs else "",
        is_recorded=job.team in facts.recorded,
        vscode=vscode_link(job.server) or "" if runs and command else "",
        ports=_ports(facts, job, has_ssh=bool(command)) if runs else (),
        log_dir=pod.log_dir or "" if pod else "",
        shows_logs=_shows_logs(facts, job.template, pod.log_dir if pod else None),
        is_ready=is_ready,
        kept=runs and job.id in facts.kept,
        asks=job.state is JobState.PENDING_APPROVAL,
    )


def _says(record: JobRecord, look: QueueStatus | None, happened: Mapping[str, str]) -> str:
    job = record.job
    if record.stop is not None:
        return record.stop.message
    if job.state is JobState.LOGIN_REQUIRED:
        return "Its turn came, and the Hub wants you to log in again before it starts."
    if record.awaiting_start:
        return "Its turn has come: it is being started."
    if look is not None and job.state is JobState.PENDING_APPROVAL:
        return f"It waits for an approval. {look.sentence}"
    if look is not None and look.state == "queued":
        of = f" of {look.waiting} that wait for the same" if look.waiting > 1 else ""
        return f"Number {look.position} in the queue{of}. {look.sentence}".strip()
    return progress_sentence(job.state, None, happened.get(job.id, ""))


def _without_job(facts: RowContext, name: str, server: HubServer | None) -> ServerRow:
    """A server of the Hub's without a job that we know: it is stopped, or about to be one."""
    last = facts.ended.get(name)
    template = _text(server.user_options.get("template")) if server else ""
    state, is_ready, sentence = ServerState.STOPPED, False, ""
    if server is not None and not server.stopped:
        state = {"spawn": ServerState.STARTING, "stop": ServerState.STOPPING}.get(
            server.pending or "", ServerState.RUNNING
        )
        is_ready = server.ready
        sentence = {ServerState.STARTING: GOING, ServerState.STOPPING: ENDING}.get(state, "")
    stopped = state is ServerState.STOPPED
    return ServerRow(
        server=name,
        state=state,
        template=template,
        summary=facts.titles.get(template, template),
        sentence=end_sentence(last.reason, last.detail, last.stop) if last and stopped else sentence,
        job=last.job if last and stopped else "",
        since=last.at if last and stopped else None,
        has_run=bool(last and stopped and last.has_run),
        is_ready=is_ready,
    )


def _ports(facts: RowContext, job: Job, *, has_ssh: bool) -> tuple[PortLink, ...]:
    gateway = facts.gateway if has_ssh else None
    return tuple(
        PortLink(
            one.name,
            one.protocol.value,
            one.port,
            forward(facts.user, job.server, gateway, one) if gateway else None,
        )
        for one in facts.endpoints.get(job.template, ())
        if one.protocol is not EndpointProtocol.SSH
    )


def _summary(facts: RowContext, job: Job) -> str:
    words = (facts.titles.get(job.template, job.template), request_text(job, facts.teams.get(job.team, job.team)))
    return ", ".join(word for word in words if word)


def _shows_logs(facts: RowContext, template: str, log_dir: str | None) -> bool:
    return bool(log_dir) and TENSORBOARD in facts.titles and template != TENSORBOARD


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
