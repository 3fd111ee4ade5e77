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
from dlspawner.core.jobs import Job, State
from dlspawner.core.limits import BLOCKED
from dlspawner.core.template import Endpoint, Protocol
from dlspawner.hubapi import Server
from dlspawner.manager.job_words import ENDING, GOING, asked, end, going
from dlspawner.manager.lastrows import Ended
from dlspawner.manager.looks import Look
from dlspawner.manager.records import OF_POD, Record
from dlspawner.ssh_config import vscode_link

TENSORBOARD = "tensorboard"
NOT_READY = "It runs, and its program does not answer yet."


class Shown(Enum):
    """The state of a server in a person's words; the order is that of the list."""

    RUNNING = "running"
    STARTING = "starting"
    WAITING = "waiting"
    STOPPING = "stopping"
    STOPPED = "stopped"


_ORDER = list(Shown)
_BY_STATE = {
    State.STARTING: Shown.STARTING,
    State.RUNNING: Shown.RUNNING,
    State.STOPPING: Shown.STOPPING,
}


@dataclass(frozen=True, slots=True)
class Port:
    """A way in that is no SSH: for other pods, and through SSH where the job has that."""

    name: str
    protocol: str
    port: int
    forward: Forward | None


@dataclass(frozen=True, slots=True)
class Row:
    """One server. ``since``: of the state; ``kept``: it would be stopped for being unused, so it can be kept alive."""

    server: str
    state: Shown
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
    ports: tuple[Port, ...] = ()
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
        return bool(self.job) and self.state not in {Shown.STOPPING, Shown.STOPPED}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows of one person are made of."""

    user: str
    titles: Mapping[str, str]  # of templates, by name
    servers: Mapping[str, Server] | None  # None: the Hub does not answer
    records: Mapping[str, Record]  # what has not ended, by server
    looks: Mapping[str, Look]  # of those that wait, by server
    pods: Mapping[str, naming.Job]  # by uid
    ended: Mapping[str, Ended]  # the last one of each server
    teams: Mapping[str, str]  # titles by name
    endpoints: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)  # by template
    happened: Mapping[str, str] = field(default_factory=dict)  # the latest told of the pods of those that start, by job
    kept: frozenset[str] = frozenset()  # ids of jobs that would be stopped for being unused
    recorded: frozenset[str] = frozenset()  # names of teams whose terminals are
    gateway: Target | None = None
    blocked: bool = False  # whether they may not start jobs at all


def latest(records: Mapping[str, Record], user: str) -> dict[str, Record]:
    """What has not ended of one person, by server: of two what does not leave, or came later."""
    found: dict[str, Record] = {}
    for record in records.values():
        job = record.job
        if job.user != user or job.id.startswith(OF_POD):
            continue
        other = found.get(job.server)
        if other is None or _freshness(record) > _freshness(other):
            found[job.server] = record
    return found


def _freshness(record: Record) -> tuple[bool, datetime]:
    return (record.job.state is not State.STOPPING, record.job.submitted)


def rows(facts: Facts) -> tuple[Row, ...]:
    """The list: what runs first, then by name.

    A server that the Hub has and that never had a job is none: somebody only looked at its form, or was refused.
    """
    servers = facts.servers or {}
    names = {name for name, one in servers.items() if name in facts.ended or not one.stopped}
    found = [_row(facts, name, servers.get(name)) for name in names | set(facts.records)]
    return tuple(sorted(found, key=lambda row: (_ORDER.index(row.state), row.server)))


def _row(facts: Facts, name: str, server: Server | None) -> Row:
    record = facts.records.get(name)
    if record is not None:
        return _live(facts, record, server)
    return _without_job(facts, name, server)


def _live(facts: Facts, record: Record, server: Server | None) -> Row:
    job, pod = record.job, facts.pods.get(record.pod_uid or "")
    state = Shown.WAITING if record.waits else _BY_STATE.get(job.state, Shown.WAITING)
    look = facts.looks.get(job.server)
    runs = state is Shown.RUNNING
    is_late = runs and server is not None and server.pending == "spawn"
    is_ready = runs and (server is None or server.ready) and not is_late
    says = NOT_READY if is_late else _says(record, look, facts.happened)
    command = ssh_command(facts.user, job.server, facts.gateway) if facts.gateway and pod and pod.ssh_host_key else ""
    return Row(
        server=job.server,
        state=state,
        template=job.template,
        summary=_summary(facts, job),
        sentence=BLOCKED if facts.blocked and state is Shown.WAITING else says,
        job=job.id,
        since=job.started if runs else None if state is Shown.STOPPING else job.submitted,
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
        asks=job.state is State.WAITING_APPROVAL,
    )


def _says(record: Record, look: Look | None, happened: Mapping[str, str]) -> str:
    job = record.job
    if record.stop is not None:
        return record.stop.sentence
    if job.state is State.WAITING_LOGIN:
        return "Its turn came, and the Hub wants you to log in again before it starts."
    if record.due:
        return "Its turn has come: it is being started."
    if look is not None and job.state is State.WAITING_APPROVAL:
        return f"It waits for an approval. {look.sentence}"
    if look is not None and look.state == "queued":
        of = f" of {look.waiting} that wait for the same" if look.waiting > 1 else ""
        return f"Number {look.position} in the queue{of}. {look.sentence}".strip()
    return going(job.state, None, happened.get(job.id, ""))


def _without_job(facts: Facts, name: str, server: Server | None) -> Row:
    """A server of the Hub's without a job that we know: it is stopped, or about to be one."""
    last = facts.ended.get(name)
    template = _text(server.user_options.get("template")) if server else ""
    state, is_ready, sentence = Shown.STOPPED, False, ""
    if server is not None and not server.stopped:
        state = {"spawn": Shown.STARTING, "stop": Shown.STOPPING}.get(server.pending or "", Shown.RUNNING)
        is_ready = server.ready
        sentence = {Shown.STARTING: GOING, Shown.STOPPING: ENDING}.get(state, "")
    stopped = state is Shown.STOPPED
    return Row(
        server=name,
        state=state,
        template=template,
        summary=facts.titles.get(template, template),
        sentence=end(last.reason, last.detail, last.stop) if last and stopped else sentence,
        job=last.job if last and stopped else "",
        since=last.at if last and stopped else None,
        has_run=bool(last and stopped and last.has_run),
        is_ready=is_ready,
    )


def _ports(facts: Facts, job: Job, *, has_ssh: bool) -> tuple[Port, ...]:
    gateway = facts.gateway if has_ssh else None
    return tuple(
        Port(
            one.name,
            one.protocol.value,
            one.port,
            forward(facts.user, job.server, gateway, one) if gateway else None,
        )
        for one in facts.endpoints.get(job.template, ())
        if one.protocol is not Protocol.SSH
    )


def _summary(facts: Facts, job: Job) -> str:
    words = (facts.titles.get(job.template, job.template), asked(job, facts.teams.get(job.team, job.team)))
    return ", ".join(word for word in words if word)


def _shows_logs(facts: Facts, template: str, log_dir: str | None) -> bool:
    return bool(log_dir) and TENSORBOARD in facts.titles and template != TENSORBOARD


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
