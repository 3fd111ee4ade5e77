"""The portal's pages of what is everybody's, and of administrators.

GET  queue      what waits: places, reasons
GET  cluster    GPU types and nodes, before one starts a job
GET  teams      members, admins, quotas and use; of a team admin their teams, of a Hub admin all
GET  all        every job that its reader may see, ended ones too, with filters: for most people their own
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dlspawner.core import queueing, status
from dlspawner.core.jobs import JobState
from dlspawner.core.model import DEFAULT_TEAM, Team
from dlspawner.core.options import usable_templates
from dlspawner.hubapi import HubClient, HubError
from dlspawner.manager import query
from dlspawner.manager.access import AccessRight, Viewer
from dlspawner.manager.job_words import end_sentence, gpus_text
from dlspawner.manager.kept import JobCursor, JobHistory
from dlspawner.manager.portal.shares import quota_shares
from dlspawner.manager.portal.waiting import QueuedReason, queued_rows
from dlspawner.manager.portal_page import PortalPage
from dlspawner.manager.web import NOTHING_HERE, HttpProblem

PER_PAGE = 50
NO_GPUS = "-"  # as a GPU type, of the choices of a form in which an empty one is any
_MEMBERS = 200  # that are named
_QUESTIONS = 10  # that the Hub is asked at one time for one page


class QueuePage(PortalPage):
    """In the order in which it is looked at; one's own jobs first."""

    def get(self) -> None:
        self.person()
        viewer, desk, begin = self.viewer(AccessRight.SEE), self.admission(), self.begin()
        world, now = desk.store.cluster_state, desk.store.now()
        order = queueing.order(world, now)
        looks = desk.explainer
        telling = QueuedReason(
            lambda job: looks.why(job, now), lambda job: looks.reason(job, now), lambda job: looks.estimate(job, now)
        )
        mine = [job for job in order if job.user == viewer.name] if not begin else []
        shown = order[begin : begin + PER_PAGE]
        self.show_page(
            "queue.html",
            mine=queued_rows(world, now, viewer, mine, telling),
            waiting=queued_rows(world, now, viewer, shown, telling),
            count=len(order),
            begin=begin,
            older=begin + PER_PAGE if begin + PER_PAGE < len(order) else None,
            newer=max(0, begin - PER_PAGE) if begin else None,
        )

    def begin(self) -> int:
        """How many are on the pages before."""
        text = self.get_query_argument("from", "0")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


class ClusterPage(PortalPage):
    """What is free, and what is closed."""

    def get(self) -> None:
        self.person()
        book = self.admission().store
        nodes = status.node_statuses(book.cluster_state)
        kinds = [one for one in status.type_statuses(book.cluster_state, nodes) if one.total]
        self.show_page(
            "cluster.html",
            kinds=kinds,
            nodes=nodes,
            closed=[node for node in nodes if node.state != "ready"],
            titles={kind.gpu_type.name: kind.gpu_type.title for kind in kinds},
        )


class TeamsPage(PortalPage):
    """The teams that somebody administers."""

    async def get(self) -> None:
        self.person()
        viewer, world = self.viewer(AccessRight.SEE), self.admission().store.cluster_state
        known = world.teams
        if not viewer.all and not viewer.teams:
            raise HttpProblem(404, NOTHING_HERE)
        every = known.teams if known.named(DEFAULT_TEAM) else (*known.teams, Team(DEFAULT_TEAM))
        teams = [team for team in every if viewer.administers(team.name)]
        hub, places = self.leader().hub, asyncio.Semaphore(_QUESTIONS)
        members = await asyncio.gather(*(self._members(team, hub, places) for team in teams))
        self.show_page(
            "teams.html",
            teams=[(team, there, quota_shares(world, (team,))) for team, there in zip(teams, members, strict=True)],
            most=_MEMBERS,
        )

    @staticmethod
    async def _members(team: Team, hub: HubClient, places: asyncio.Semaphore) -> list[str] | None:
        """Who is in it; ``None`` where the Hub does not tell."""
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
        viewer, acting = self.viewer(AccessRight.SEE), self.leader()
        self.admission()
        given = {
            name: [self.get_query_argument(name)]
            for name in (*query.FILTERS, "cursor")
            if self.get_query_argument(name, "")
        }
        asked = {**given, "gpu_type": [""]} if given.get("gpu_type") == [NO_GPUS] else given
        try:
            wanted, after = query.read_filter(asked), query.read_after(asked)
        except query.InvalidQuery as wrong:
            self._show(viewer, [], given, 422, problem=str(wrong))
            return
        found = await acting.ledger.page(viewer, wanted, after, PER_PAGE + 1)
        last = found[PER_PAGE - 1] if len(found) > PER_PAGE else None
        older = query.cursor(JobCursor(last.submitted, last.id)) if last else ""
        shown = found[:PER_PAGE]
        how = await acting.ledger.end_details(shown)
        ends = {
            kept.id: end_sentence(kept.reason, how.get(kept.id, ""), kept.stop)
            for kept in shown
            if kept.state is JobState.ENDED
        }
        self._show(viewer, shown, given, ends=ends, older=older)

    def _show(
        self, viewer: Viewer, jobs: Sequence[JobHistory], given: query.Given, code: int = 200, **more: object
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
            given={name: values[0] for name, values in given.items()},
            states=[query.LIVE, *(state.value for state in JobState)],
            kinds=[(NO_GPUS, "no GPU"), *((kind.name, kind.name) for kind in settings.cluster.gpu_types)],
            teams=titles,
            templates={one.name: one.title for one in settings.templates},
            offered=[(one.name, one.title) for one in offered],
            gpus=gpus_text,
            **more,
        )
