"""The page of one's own jobs and its buttons.

    GET   .                  my jobs, and my teams' quota; with `stopped`, a job, the result of its stop
    GET   new                the Hub's form for the `server` that is named: where a form without JavaScript leads to
    POST  start              the job in the form starts again with its options; without one: those that the Hub keeps.
                             Of others for administrators of the Hub, as REST's `requeue`
    POST  tensorboard        the TensorBoard of the job in the form: the one that runs, or a new one
    POST  remove             takes a stopped server off the list
    POST  jobs/{id}/stop     ends a job, with the right to act on it
    POST  jobs/{id}/keep     *keep alive*, for its owner

A button is answered by a redirect to a page that says what has happened; what the Hub refuses is said in its words.

Running and pending jobs come from the job store, the list of servers from the Hub, and the end of a stopped server's
last job from the database. While the Hub does not answer, only the jobs of the job store are shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from urllib.parse import urljoin

from dlspawner.clients.hub import HubError, HubRejected, HubServer, HubUser
from dlspawner.core import naming, text
from dlspawner.core.config import Team
from dlspawner.core.decisions import Estimate
from dlspawner.core.endpoints import Forward, Target, forward, ssh_command
from dlspawner.core.idle import IdleRule, JobActivity, idle_since
from dlspawner.core.job import Job, JobState
from dlspawner.core.launch import pod_status, rendering
from dlspawner.core.scheduling.limits import BLOCKED
from dlspawner.core.template import Endpoint, EndpointProtocol
from dlspawner.core.units import GPU, counted
from dlspawner.manager.admission.explain import QueueStatus
from dlspawner.manager.cluster.termination import JobEnder
from dlspawner.manager.culling.evidence import ActivityCollector
from dlspawner.manager.db.jobs import LastEnd
from dlspawner.manager.http.api import start_jobs
from dlspawner.manager.http.api.base import page_path
from dlspawner.manager.http.api.logs import read_log
from dlspawner.manager.http.api.models.requests import LogQuery
from dlspawner.manager.http.api.start_jobs import JobStarter, StartRequest, check_may_start
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem
from dlspawner.manager.http.portal.base import JOB_ID, NO_JOB, PortalPage, quota_shares
from dlspawner.manager.logs.reader import choose
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.job_history import (
    ENDING,
    GOING,
    NO_NAME,
    JobHistory,
    end_sentence,
    is_server_name,
    outcome,
    progress_sentence,
    request_text,
)
from dlspawner.manager.model.notice import CannotKeep
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.ssh_config import editor_links

_LAST_WORDS, _LINES = 3, 5  # failed jobs with the end of their logs, and its lines
_STOPPED = {
    JobState.STOPPING: "{} is being stopped. Its files are kept.",
    JobState.ENDED: "{} has ended. Its files are kept.",
}
NO_HUB = "The Hub does not answer at the moment: jobs that do not run are not shown, and none can be started."


class MyJobsPageBase(PortalPage):
    async def show_jobs(self, status: int = 200, **values: object) -> None:
        person, admission = self.person(), self.admission()
        user = await self.hub_user(person.name)
        facts = await self.facts(person.name, user)
        listed = await self._with_last_words(rows(facts))
        self.show_page(
            "my_jobs.html",
            status,
            jobs=[(row, self.links(person.name, row, user)) for row in listed],
            shares=quota_shares(admission.store.cluster_state, self._teams(person.name, user)),
            trouble="" if user is not None else NO_HUB,
            **{"path": "" if self.request.method == "GET" else self.manager.service.prefix, **values},
        )

    async def _with_last_words(self, listed: tuple[ServerRow, ...]) -> list[ServerRow]:
        """Returns the rows, the latest failed ones with the last lines of their logs."""
        log_reader, failed = (
            self.leader().log_reader,
            [row for row in listed if row.outcome == "failed" and row.has_run],
        )
        latest = sorted(failed, key=lambda row: str(row.since), reverse=True)[:_LAST_WORDS]
        words: dict[str, str] = {}
        for row in latest:
            if log_reader is None:
                break
            run = choose(await log_reader.runs(row.job), "", "", None, previous=False)
            with contextlib.suppress(HttpProblem):  # many logs are read already
                log = (await read_log(log_reader, self.person().name, run, LogQuery(tail=_LINES)))[1] if run else ""
                words[row.job] = "\n".join(log.rstrip().splitlines()[-_LINES:])
        return [replace(row, last_words=words.get(row.job, "")) for row in listed]

    async def facts(self, name: str, user: HubUser | None) -> RowContext:
        """Returns the data behind the rows of a user's jobs."""
        leader, admission = self.leader(), self.admission()
        settings, culler, state = leader.settings, leader.culler, admission.store.cluster_state
        # In a transaction: a job that has just ended is in the database by then, so that none is missing in both.
        records = await self.on_disk(lambda store: latest(store.records, name))
        jobs = [one.job for one in records.values()]
        starting = [job.id for job in jobs if job.state is JobState.STARTING]
        policies = [(job.id, culler.evidence.policy(job)) for job in jobs] if culler else []
        now, running = admission.store.now(), [job for job in jobs if job.state is JobState.RUNNING]
        return RowContext(
            user=name,
            titles={one.name: one.title for one in settings.templates},
            servers=user.servers if user is not None else None,
            records=records,
            statuses={
                server: admission.explainer.explain(one, advises=False)
                for server, one in records.items()
                if one.is_pending
            },
            pods=culler.evidence.pods() if culler else {},
            ended=await leader.repository.last_ends(name),
            teams=settings.teams.titles,
            endpoints={one.name: one.endpoints for one in settings.templates},
            silent=frozenset(name for name in state.closed if not state.node_infos[name].node.ready),
            log_dirs={
                one.name: str(option.default or "") for one in settings.templates if (option := one.option("log_dir"))
            },
            happened=await leader.repository.latest_pod_events(starting),
            growing={
                job.id: admission.explainer.why(job, admission.store.now())
                for job in jobs
                if job.state is JobState.RUNNING
            },
            stops={job.id: stop for job in running if culler and (stop := self._next_stop(culler.evidence, job, now))},
            uses={job.id: gpus_in_use(job, culler.evidence, now) for job in running} if culler else {},
            loads={job.id: culler.evidence.activities.gpu_load(job.id, now) for job in running} if culler else {},
            terminals=frozenset(one.name for one in settings.templates if one.tells_kernels),
            kept=frozenset(job for job, policy in policies if policy.window is not None),
            gateway=self.manager.ssh_target,
            has_keys=bool(await self.manager.database.keys(name)),
            blocked=name in settings.teams.blocked,
        )

    def _next_stop(self, evidence: ActivityCollector, job: Job, now: datetime) -> tuple[datetime, str] | None:
        activity = evidence.evaluate(job, now).activity if evidence.is_listed(job) else None
        return next_stop(job, evidence.policy(job), activity, now)

    def _teams(self, name: str, user: HubUser | None) -> tuple[Team, ...]:
        groups = user.groups if user is not None else self.caller.groups
        return self.admission().store.cluster_state.teams.team_of(name, tuple(groups))

    def links(self, name: str, row: ServerRow, user: HubUser | None) -> dict[str, str]:
        server = user.servers.get(row.server) if user is not None else None
        page = urljoin(self.manager.service.hub_host, server.url) if server else self.server_page(name, row.server)
        return {
            "open": page,
            "terminal": f"{page.rstrip('/')}/lab?terminal",
            "log": f"{self.manager.service.prefix}jobs/{row.job}/log",
            "pending": self.hub("spawn-pending", name, row.server),
            "form": self.hub("spawn", name, row.server),
            "wait": page_path(self.manager.service.prefix, name, row.server),
        }

    async def start_server(self, server: str, options: dict[str, object] | None = None) -> bool:
        """Ask the Hub for a start of one's own; whether it is ready at once. Its no is a sentence on the page."""
        person, admission = self.person(), self.admission()
        self.viewer(AccessRight.ACT)
        begun = admission.store.now()
        try:
            return await self.leader().hub.start_server(person.name, server, options)
        except HubRejected as no:
            comes = admission.starting_or_pending(person.name, server) is not None
            if comes and (no.is_there or admission.last_start_of(person.name, server, begun)):
                return False  # it has its place in the queue; what was refused otherwise is not what waits there
            raise HttpProblem(409 if no.status < 500 else 503, str(no)) from no
        except HubError as problem:
            raise HttpProblem(503, str(problem)) from problem

    def follow(self, server: str) -> None:
        """Go where the start is told of: to its place in the queue, or to the Hub."""
        name = self.person().name
        record = self.admission().starting_or_pending(name, server)
        if record is not None and record.is_pending:
            self.redirect(page_path(self.manager.service.prefix, name, server), status=303)
        else:
            self.redirect(self.hub("spawn-pending", name, server), status=303)


class MyJobsPage(MyJobsPageBase):
    """The page itself; where nothing is decided here, people have no other page than that of their keys."""

    async def get(self) -> None:
        if self.manager.leader is None:
            self.redirect(f"{self.manager.service.prefix}keys")
            return
        await self.show_jobs(said=await self._said())

    async def _said(self) -> str:
        """Returns the sentence on a job that was stopped; links may name any job, so it tells the present state."""
        person, job = self.person(), self.get_query_argument("stopped", "")
        kept = (
            await self.leader().repository.visible_job(self.viewer(AccessRight.SEE), job)
            if JOB_ID.fullmatch(job)
            else None
        )
        if kept is None:
            return ""
        name = kept.server or "The default server"
        return _STOPPED.get(kept.state, "").format(name if kept.user == person.name else f"{name} of {kept.user}")


class NewJobPage(MyJobsPageBase):
    """On the way from a name to the Hub's form, for browsers that make no address of it themselves."""

    async def get(self) -> None:
        person, server = self.person(), self.get_query_argument("server", "").strip().lower()
        if not is_server_name(server):
            await self.show_jobs(422, problem=NO_NAME, path=self.manager.service.prefix)
            return
        self.redirect(self.hub("spawn", person.name, server))


class _Button(MyJobsPageBase):
    def get(self, *_: str) -> None:
        self.back()  # the address of a form was loaded by GET

    async def answer(self, problem: HttpProblem) -> None:
        """The page with what was wrong."""
        await self.show_jobs(problem.status_code, problem=problem.detail)


class StartButton(_Button):
    """*Start again*: a job with its own options, a server with those that the Hub has kept."""

    async def post(self) -> None:
        server, job = (self.get_body_argument(name, "", strip=False) for name in ("server", "job"))
        try:
            if not job:
                await self.start_server(server)
            else:
                kept = await self._checked(job, server)
                options = await start_jobs.options_of(self.leader(), kept)
                if kept.user != self.person().name:
                    await self._start_for(kept, options)
                    return
                await self.start_server(server, options)
        except HubError as problem:
            await self.answer(HttpProblem(503, str(problem)))
            return
        except HttpProblem as problem:
            await self.answer(problem)
            return
        self.follow(server)

    async def _checked(self, job: str, server: str) -> JobHistory:
        """Returns the job if the viewer may start it again."""
        self.person()
        kept = await self.kept(job)
        if kept.server != server:
            raise HttpProblem(404, NO_JOB)
        check_may_start(self.leader(), self.viewer(AccessRight.ACT), kept.user)
        return kept

    async def _start_for(self, kept: JobHistory, options: dict[str, object]) -> None:
        """Starts another user's job: the new job has a page; the Hub shows the start to its user only."""
        leader = self.leader()
        starter = JobStarter(self.admission(), leader.repository, leader.hub, self.manager.service.prefix)
        _, new = await starter.start(StartRequest(kept.user, kept.server, options))
        self.back(f"jobs/{(new or kept).id}")


class TensorBoardButton(_Button):
    """On the log directory of a job that runs, as its own template."""

    async def post(self) -> None:
        of = self.get_body_argument("server", "", strip=False)
        try:
            name = await self._open(of)
        except HttpProblem as problem:
            await self.answer(problem)
            return
        self.follow(name)

    async def _open(self, of: str) -> str:
        person = self.person()
        user = await self.hub_user(person.name)
        row = next((one for one in rows(await self.facts(person.name, user)) if one.server == of), None)
        if row is None or not row.shows_logs:
            raise HttpProblem(404, "This job has no log directory that a TensorBoard could show.")
        name = naming.tensorboard_server(of)
        server = user.servers.get(name) if user is not None else None
        if server is None or not (server.ready or server.pending):
            await self.start_server(name, self._options(row))
        return name

    def _options(self, row: ServerRow) -> dict[str, object]:
        """A team is told where the template offers it: logs may lie in the data of the team that pays for the job."""
        board = self.leader().settings.template(TENSORBOARD)
        offers = board is not None and board.option("team") is not None
        team = {"team": row.team} if offers and row.team else {}
        return {"template": TENSORBOARD, "log_dir": row.log_dir, **team}


class RemoveButton(_Button):
    """Takes a stopped named server off the list; its history stays."""

    async def post(self) -> None:
        server = self.get_body_argument("server", "", strip=False)
        try:
            await self.leader().hub.remove_server(self.person().name, server)
        except HubRejected as no:
            await self.answer(HttpProblem(409, str(no)))
        except HubError as problem:
            await self.answer(HttpProblem(503, str(problem)))
        else:
            self.back()


class StopButton(_Button):
    async def post(self, job: str) -> None:
        record = self.record(job, AccessRight.ACT)
        await JobEnder(self.admission().store, self.leader().hub).end(record, self.person().name)
        self.back(stopped=job)


class KeepJobButton(_Button):
    async def post(self, job: str) -> None:
        record, culler = self.record(job, AccessRight.ACT), self.leader().culler
        if record.job.user != self.person().name:
            raise HttpProblem(403, "Only its owner can keep a job running.")
        if culler is None:
            raise HttpProblem(503, NOT_YET)
        try:
            said = await culler.keep_alive(job)
        except CannotKeep as problem:
            await self.answer(HttpProblem(409, str(problem)))
            return
        await self.show_jobs(said=said)


TENSORBOARD = "tensorboard"
NOT_READY = "Running; its server does not answer yet."


class ServerState(Enum):
    """The state of a server in a person's words; the order is that of the list."""

    RUNNING = "running"
    STARTING = "starting"
    QUEUED = "queued"
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
    team: str = ""
    summary: str = ""
    sentence: str = ""
    job: str = ""
    since: datetime | None = None
    position: int = 0
    estimate: Estimate | None = None  # of its start, while it waits
    ssh: str = ""
    editors: tuple[tuple[str, str], ...] = ()  # names and links
    lacks_key: bool = False  # true while its owner has registered no SSH key
    ports: tuple[PortLink, ...] = ()
    log_dir: str = ""
    shows_logs: bool = False  # whether a TensorBoard can show its log directory
    is_ready: bool = False
    kept: bool = False
    asks: bool = False  # true while it waits for an approval
    has_run: bool = False  # whether its last job had a pod, so that there may be a log
    nodes: str = ""
    stop: tuple[datetime, str] | None = None  # when it is stopped as things are, and why
    gpu_use: str = ""
    gpu_load: tuple[float | None, ...] = ()  # percent in the last hour, oldest first
    has_terminal: bool = False
    last_words: str = ""  # of the log of a failed one
    outcome: str = "stopped"  # of a stopped one: how its last job ended

    @property
    def title(self) -> str:
        return self.server or "default server"

    @property
    def can_stop(self) -> bool:
        return bool(self.job) and self.state not in {ServerState.STOPPING, ServerState.STOPPED}


@dataclass(frozen=True, slots=True)
class RowContext:
    """The data behind the rows of one user."""

    user: str
    titles: Mapping[str, str]  # of templates, by name
    servers: Mapping[str, HubServer] | None  # None: the Hub does not answer
    records: Mapping[str, JobRecord]  # what has not ended, by server
    statuses: Mapping[str, QueueStatus]  # of those that wait, by server
    pods: Mapping[str, naming.PodIdentity]  # by uid
    ended: Mapping[str, LastEnd]  # the last one of each server
    teams: Mapping[str, str]  # titles by name
    endpoints: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)  # by template
    silent: frozenset[str] = frozenset()  # names of nodes that do not answer the cluster
    log_dirs: Mapping[str, str] = field(default_factory=dict)  # of templates that have one: that of jobs that name none
    happened: Mapping[str, str] = field(default_factory=dict)  # the latest told of the pods of those that start, by job
    growing: Mapping[str, str] = field(default_factory=dict)  # how many of their pods those that run have, by job
    stops: Mapping[str, tuple[datetime, str]] = field(default_factory=dict)  # when and why, by job
    uses: Mapping[str, str] = field(default_factory=dict)  # of GPUs, by job
    loads: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # GPUs in the last hour, by job
    terminals: frozenset[str] = frozenset()  # templates with JupyterLab, which opens terminals
    kept: frozenset[str] = frozenset()  # ids of jobs that would be stopped for being unused
    gateway: Target | None = None
    has_keys: bool = True
    blocked: bool = False  # whether they may not start jobs at all


def next_stop(job: Job, policy: IdleRule, activity: JobActivity | None, now: datetime) -> tuple[datetime, str] | None:
    """Returns when a running job is stopped if nothing changes, and why; of several the earliest."""
    found = [(job.notice, "preempted")] if job.notice is not None else []
    if not policy.culling.dry_run:
        if policy.lifetime is not None and job.started is not None:
            found.append((job.started + policy.lifetime, "end of its lifetime"))
        since = idle_since(activity, policy, now) if activity else None
        if since is not None and policy.window is not None:
            found.append((since + policy.window, "unless it is used"))
    return min(found, default=None)


def gpus_in_use(job: Job, evidence: ActivityCollector, now: datetime) -> str:
    """Returns how many of a running job's GPUs are busy; empty where that is not known."""
    oldest = now - evidence.policy(job).culling.metrics_age
    gpus = [use for _, use in evidence.activities.of(job.id).gpus if use.last >= oldest]
    busy = sum(use.last_busy == use.last for use in gpus)
    return f"{busy} of {counted(len(gpus) * GPU)} busy" if gpus else ""


def latest(records: Mapping[str, JobRecord], user: str) -> dict[str, JobRecord]:
    """Returns the user's jobs that have not ended, by server: of two the one that does not stop, or the later one."""
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
    """Returns the rows: running jobs first, then by name.

    A server of the Hub that never had a job is left out: its form was opened, or its start was refused.
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
    state = ServerState.QUEUED if record.is_pending else _BY_STATE.get(job.state, ServerState.QUEUED)
    look = facts.statuses.get(job.server)
    runs = state is ServerState.RUNNING
    is_late = runs and server is not None and server.pending == "spawn"
    is_ready = runs and (server is None or server.ready) and not is_late
    says = NOT_READY if is_late else _says(record, look, facts.happened) or facts.growing.get(job.id, "")
    silent = [node for node in job.nodes if node in facts.silent]
    if runs and silent:
        says = pod_status.silent_node(str(silent[0]))
    command = ssh_command(facts.user, job.server, facts.gateway) if facts.gateway and pod and pod.ssh_host_key else ""
    return ServerRow(
        server=job.server,
        state=state,
        template=job.template,
        team=job.team,
        summary=_summary(facts, job),
        sentence=BLOCKED if facts.blocked and state is ServerState.QUEUED else says,
        job=job.id,
        since=job.started if runs else None if state is ServerState.STOPPING else job.submitted,
        position=look.position if look and look.state == "queued" and not facts.blocked else 0,
        estimate=look.estimate if look and not facts.blocked else None,
        ssh=command if runs else "",
        editors=editor_links(job.server) if runs and command else (),
        lacks_key=not facts.has_keys,
        ports=_ports(facts, job, has_ssh=bool(command)) if runs else (),
        log_dir=pod.log_dir or "" if pod else "",
        shows_logs=_shows_logs(facts, job.template, pod.log_dir if pod else None),
        is_ready=is_ready,
        kept=runs and job.id in facts.kept,
        asks=job.state is JobState.PENDING_APPROVAL,
        nodes=", ".join(dict.fromkeys(node for node in job.nodes if node)) if job.holds else "",
        stop=facts.stops.get(job.id),
        gpu_use=facts.uses.get(job.id, ""),
        gpu_load=facts.loads.get(job.id, ()),
        has_terminal=is_ready and job.template in facts.terminals,
    )


def _says(record: JobRecord, look: QueueStatus | None, happened: Mapping[str, str]) -> str:
    job = record.job
    if record.stop is not None:
        return record.stop.message
    if job.state is JobState.LOGIN_REQUIRED:
        return text.LOG_IN_AGAIN
    if record.awaiting_start:
        in_cluster = f"Waiting in the cluster. {look.sentence if look is not None else ''}".strip()
        return in_cluster if record.waits_in_cluster else text.RESERVED
    if look is not None and job.state is JobState.PENDING_APPROVAL:
        return f"Waiting for approval. {look.sentence}"
    if look is not None and look.state == "queued":
        of = f" of {look.waiting}" if look.waiting > 1 else ""
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
    log_dir = _kept_log_dir(facts, template, server) if stopped else ""
    return ServerRow(
        server=name,
        state=state,
        template=template,
        team=_text(server.user_options.get("team")) if server else "",
        log_dir=log_dir,
        shows_logs=_shows_logs(facts, template, log_dir),
        summary=facts.titles.get(template, template),
        sentence=end_sentence(last.reason, last.detail, last.stop) if last and stopped else sentence,
        job=last.job if last and stopped else "",
        since=last.at if last and stopped else None,
        has_run=bool(last and stopped and last.has_run),
        outcome=outcome(last.reason, last.stop) if last else "stopped",
        is_ready=is_ready,
    )


def _kept_log_dir(facts: RowContext, template: str, server: HubServer | None) -> str:
    """The log directory of a stopped server's last job, as its owner wrote it; empty where each job has its own."""
    if server is None or template not in facts.log_dirs:
        return ""
    path = _text(server.user_options.get("log_dir")) or facts.log_dirs[template]
    return "" if "${" in path or rendering.in_job_directory(path) else path


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
