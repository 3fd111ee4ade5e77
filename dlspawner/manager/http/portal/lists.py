"""The portal's pages for all users, and for administrators.

GET  queue      what waits: places, reasons
GET  cluster    GPU types and nodes, before one starts a job
POST cluster/cordon, cluster/{node}/uncordon   for administrators of the Hub
GET  teams      members, admins, quotas and use; of a team admin their teams, of a Hub admin all
GET  all        every job that its reader may see, ended ones too, with filters: for most people their own

All users see that a job waits, where, for which team, how large and since when: that is what says how long one's own
may take. Its owner and exact reason are for viewers that may see the job (`access`): a sentence may say how many jobs
its person has. Others read the kind of reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dlspawner.clients.hub import HubClient, HubError
from dlspawner.core.config import DEFAULT_TEAM, Team
from dlspawner.core.decisions import Estimate, Reason
from dlspawner.core.job import Job, JobState
from dlspawner.core.launch.options import usable_templates
from dlspawner.core.scheduling import queue, usage_report
from dlspawner.core.scheduling.cluster_state import ClusterState, queue_key
from dlspawner.core.units import GPU
from dlspawner.manager.admission.explain import Explainer
from dlspawner.manager.cluster.maintenance import NodeMaintenance
from dlspawner.manager.http.api.cluster import change_node
from dlspawner.manager.http.api.models.requests import LIVE, STATES, JobsQuery, write_cursor
from dlspawner.manager.http.handlers import NOTHING_HERE, HttpProblem
from dlspawner.manager.http.portal.base import PortalPage, quota_shares
from dlspawner.manager.model.access import AccessRight, Viewer
from dlspawner.manager.model.job_history import JobCursor, JobHistory, end_sentence, gpus_text, size_text

PER_PAGE = 50
NO_GPUS = "-"  # as a GPU type, of the choices of a form in which an empty one is any
_DRAWN = 16  # GPUs of a node at most that are drawn one by one
_MEMBERS = 200  # that are named
_QUESTIONS = 10  # that the Hub is asked at one time for one page


class QueuePage(PortalPage):
    """In the order in which it is looked at; one's own jobs first."""

    def get(self) -> None:
        self.person()
        viewer, admission, begin = self.viewer(AccessRight.SEE), self.admission(), self.begin()
        state, now = admission.store.cluster_state, admission.store.now()
        explainer = admission.explainer
        order = explainer.waiting(now)
        mine = [job for job in order if job.user == viewer.name] if not begin else []
        shown = order[begin : begin + PER_PAGE]
        self.show_page(
            "queue.html",
            mine=queued_rows(state, now, viewer, mine, explainer),
            waiting=queued_rows(state, now, viewer, shown, explainer),
            count=len(order),
            begin=begin,
            older=begin + PER_PAGE if begin + PER_PAGE < len(order) else None,
            newer=max(0, begin - PER_PAGE) if begin else None,
        )

    def begin(self) -> int:
        """Returns the number of entries on the earlier pages."""
        text = self.get_query_argument("from", "0")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


@dataclass(frozen=True, slots=True)
class GpuSquare:
    """One GPU of a node as the page draws it: ``kind`` is its colour, ``told`` what the viewer may know of its job."""

    kind: str  # guaranteed, borrowed, other, free or closed
    told: str
    job: str = ""  # that the viewer may open


def gpu_squares(state: ClusterState, viewer: Viewer) -> dict[str, list[GpuSquare]]:
    """Returns a square for each whole GPU of each node, those in use first; nodes with parts of GPUs are left out."""
    found: dict[str, list[GpuSquare]] = {}
    for job in (one for one in state.jobs.values() if one.holds):
        square = _square(job, state, viewer)
        for node, pod in zip(job.nodes, job.request.pods, strict=False):
            if node is not None and pod.gpus % GPU == 0:
                found.setdefault(node, []).extend([square] * (pod.gpus // GPU))
    drawn: dict[str, list[GpuSquare]] = {}
    for here in usage_report.node_statuses(state):
        total, free = (sum(getattr(one, name) for one in here.gpus) for name in ("total", "free"))
        if here.gpus and total <= _DRAWN * GPU and not any(one.total % GPU or one.free % GPU for one in here.gpus):
            held = found.get(here.name, [])[: total // GPU]
            left = GpuSquare("free", "free") if here.state == "ready" else GpuSquare("closed", f"node {here.state}")
            rest = total // GPU - len(held)
            others = max(0, rest - free // GPU) if here.state == "ready" else 0
            other = GpuSquare("other", "in use outside this Hub, or reserved")
            drawn[here.name] = [*held, *[other] * others, *[left] * (rest - others)]
    return drawn


def _square(job: Job, state: ClusterState, viewer: Viewer) -> GpuSquare:
    team = state.team(job.team)
    sees = viewer.reaches(job.user, job.team)
    words = [f"team {(team.title or team.name) if team else job.team}"]
    words += [f"{job.user} / {job.server or 'default server'}"] if sees else []
    words += ["preemptible"] if job.preemptible else []
    words += ["idle"] if job.idle else []
    return GpuSquare("borrowed" if job.preemptible else "guaranteed", ", ".join(words), job.id if sees else "")


class ClusterPage(PortalPage):
    """The free and the closed part of the cluster."""

    def get(self) -> None:
        self.show_cluster()

    def show_cluster(self, problem: str = "", status: int = 200) -> None:
        self.person()
        store = self.admission().store
        nodes = usage_report.node_statuses(store.cluster_state)
        kinds = [one for one in usage_report.type_statuses(store.cluster_state, nodes) if one.total]
        borrowed = Counter[str]()
        for (_, kind), use in usage_report.usage_by_team(store.cluster_state).items():
            borrowed[kind] += use.borrowed
        only = self.get_query_argument("type", "")
        self.show_page(
            "cluster.html",
            status,
            kinds=kinds,
            borrowed=borrowed,
            only=only,
            nodes=[node for node in nodes if not only or any(one.gpu_type == only for one in node.gpus)],
            taints={name: info.node.taints for name, info in store.cluster_state.node_infos.items()},
            squares=gpu_squares(store.cluster_state, self.viewer(AccessRight.SEE)),
            closed=[node for node in nodes if node.state != "ready"],
            titles={kind.gpu_type.name: kind.gpu_type.title for kind in kinds},
            extended={one.name: one.title or one.name for one in store.cluster_state.cluster.extended_resources},
            may_change=self.viewer(AccessRight.SEE).all,
            problem=problem,
            path=f"{self.manager.service.prefix}cluster" if problem else "",
        )


class _NodeButton(ClusterPage):
    """For administrators of the Hub."""

    def get(self, *_: str) -> None:
        self.back("cluster")

    async def change(self, node: str, change: Callable[[NodeMaintenance, str], Awaitable[None]]) -> None:
        try:
            await change_node(self, node, change)
        except HttpProblem as problem:
            self.show_cluster(problem.detail, problem.status_code)
        else:
            self.back("cluster")


class CordonButton(_NodeButton):
    async def post(self) -> None:
        self.person()
        node, reason = self.get_body_argument("node", ""), self.get_body_argument("reason", "").strip()
        if not reason:
            self.show_cluster("Say why: people who miss the node read it here.", 422)
            return
        await self.change(node, lambda nodes, who: nodes.cordon(node, reason, who))


class UncordonButton(_NodeButton):
    async def post(self, node: str) -> None:
        self.person()
        await self.change(node, lambda nodes, who: nodes.uncordon(node, who))


class TeamsPage(PortalPage):
    """The teams that the viewer administers."""

    async def get(self) -> None:
        self.person()
        viewer, state = self.viewer(AccessRight.SEE), self.admission().store.cluster_state
        known = state.teams
        if not viewer.all and not viewer.teams:
            raise HttpProblem(404, NOTHING_HERE)
        every = known.teams if known.named(DEFAULT_TEAM) else (*known.teams, Team(DEFAULT_TEAM))
        teams = [team for team in every if viewer.administers(team.name)]
        hub, places = self.leader().hub, asyncio.Semaphore(_QUESTIONS)
        members = await asyncio.gather(*(self._members(team, hub, places) for team in teams))
        self.show_page(
            "teams.html",
            teams=[(team, there, quota_shares(state, (team,))) for team, there in zip(teams, members, strict=True)],
            most=_MEMBERS,
        )

    @staticmethod
    async def _members(team: Team, hub: HubClient, places: asyncio.Semaphore) -> list[str] | None:
        """Returns the members; ``None`` if the Hub does not answer."""
        try:
            async with places:
                group = await hub.group(team.name)
        except HubError:
            return None
        return sorted({*(group or ()), *team.members})


class AllJobsPage(PortalPage):
    """Jobs of all that the reader reaches, ended ones too, the newest first; for most people their own."""

    async def get(self) -> None:
        self.person()
        viewer, leader = self.viewer(AccessRight.SEE), self.leader()
        self.admission()
        given = {name: value for name in JobsQuery.model_fields if (value := self.get_query_argument(name, ""))}
        try:
            query = self.read_query(JobsQuery)
        except HttpProblem as wrong:
            self._show(viewer, [], given, 422, problem=wrong.detail)
            return
        wanted = query.job_filter()
        wanted = replace(wanted, gpu_type="") if wanted.gpu_type == NO_GPUS else wanted
        found = await leader.repository.page(viewer, wanted, query.cursor, PER_PAGE + 1)
        last = found[PER_PAGE - 1] if len(found) > PER_PAGE else None
        older = write_cursor(JobCursor(last.submitted, last.id)) if last else ""
        shown = found[:PER_PAGE]
        how = await leader.repository.end_details(shown)
        ends = {
            kept.id: end_sentence(kept.reason, how.get(kept.id, ""), kept.stop)
            for kept in shown
            if kept.state is JobState.ENDED
        }
        self._show(viewer, shown, given, ends=ends, older=older)

    def _show(
        self, viewer: Viewer, jobs: Sequence[JobHistory], given: Mapping[str, str], code: int = 200, **more: object
    ) -> None:
        settings = self.leader().settings
        titles, groups = settings.teams.titles, self.person().groups
        own = settings.teams.team_of(viewer.name, tuple(groups))
        names = {team.name for team in own}
        offered = settings.templates if viewer.all else usable_templates(settings.templates, own)
        self.show_page(
            "all_jobs.html",
            code,
            jobs=jobs,
            people=viewer.all or bool(viewer.teams),
            choices={name: title for name, title in titles.items() if viewer.all or name in names},
            given=given,
            states=[LIVE, *STATES],
            kinds=[(NO_GPUS, "no GPU"), *((kind.name, kind.title or kind.name) for kind in settings.cluster.gpu_types)],
            teams=titles,
            templates={one.name: one.title for one in settings.templates},
            offered=[(one.name, one.title) for one in offered],
            gpus=gpus_text,
            **more,
        )


# What others read of a reason; the words are about the job, never about its person.
REASONS = {
    Reason.TEAM_QUOTA: "its team's quota is in use",
    Reason.BORROW_LIMIT: "its team borrows as much as it may",
    Reason.NO_FIT: "no node has room for it now",
    Reason.HOST_PORTS: "too few ports of the host's network are free",
    Reason.BLOCKED_BY_EARLIER: "it lets one pass that has waited for longer",
    Reason.VICTIMS_TERMINATING: "it waits for jobs that are leaving",
    Reason.PREEMPTION: "it waits for jobs that are leaving",
    Reason.ADMITTED: "its turn comes any moment",
    Reason.ENGINE: "the cluster's scheduler has not admitted it yet",
    Reason.TEAM_CAP: "its team has as many jobs as it may",
}
OTHERWISE = "a limit that is its own"


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A pending job. ``user``, ``server`` and ``job`` are empty for viewers that may not see them.

    ``place`` is 0 for a job whose pods wait in the cluster.
    """

    place: int
    of: int
    team: str
    size: str
    preemptible: bool
    submitted: datetime
    why: str
    estimate: Estimate | None = None
    mine: bool = False
    who: str = ""
    server: str = ""
    job: str = ""

    @property
    def title(self) -> str:
        return self.server or "default server"


def queued_rows(
    state: ClusterState, now: datetime, viewer: Viewer, jobs: Sequence[Job], explainer: Explainer
) -> tuple[QueuedRow, ...]:
    """These jobs, as this reader may see them."""
    return tuple(_one(state, now, viewer, job, explainer) for job in jobs)


def _one(state: ClusterState, now: datetime, viewer: Viewer, job: Job, explainer: Explainer) -> QueuedRow:
    mine, knows = job.user == viewer.name, viewer.reaches(job.user, job.team)
    team = state.team(job.team)
    kind = explainer.reason(job, now)
    place = 0 if job.state is JobState.STARTING else queue.position(job, state, now)
    return QueuedRow(
        place=place,
        of=max(place, sum(len(keys) for keys in state.queues.get(queue_key(job), {}).values())),
        team=(team.title or team.name) if team else job.team,
        size=size_text(job),
        preemptible=job.preemptible,
        submitted=job.submitted,
        why=explainer.why(job, now) if mine or (knows and kind in REASONS) else _neutral(kind),
        estimate=explainer.estimate(job, now),
        mine=mine,
        who=job.user if knows else "",
        server=job.server if knows else "",
        job=job.id if knows else "",
    )


def _neutral(kind: Reason) -> str:
    words = REASONS.get(kind, OTHERWISE)
    return f"{words[0].upper()}{words[1:]}."
