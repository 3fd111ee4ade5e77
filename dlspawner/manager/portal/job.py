"""The page of one job: what it is, where it stands, and what became of it.

GET  jobs/{id}    for who may see it; 404 for everybody else, whether there is such a job or not. What Kubernetes told
                  of its pods only for who may read its logs; with ``search`` only what became of it in these words
"""

from __future__ import annotations

from dlspawner.core.jobs import JobState
from dlspawner.manager import podeventrows, query
from dlspawner.manager.access import AccessRight, Viewer
from dlspawner.manager.kept import JobFilter, JobHistory
from dlspawner.manager.portal import detail
from dlspawner.manager.portal.mine import ServerRow, rows
from dlspawner.manager.portal.pages import MyJobsPageBase
from dlspawner.manager.waiting_page import page_path
from dlspawner.manager.web import HttpProblem

_MANY = 10  # steps that are searched


class JobPage(MyJobsPageBase):
    """The page itself."""

    async def get(self, job: str) -> None:
        self.person()
        words = self._searched()
        viewer, acting, desk = self.viewer(AccessRight.SEE), self.leader(), self.admission()
        kept = await self.kept(job)
        settings, now, record = acting.settings, desk.store.now(), desk.store.records.get(job)
        priority = next((one.name for one in settings.cluster.priorities if one.level == kept.priority), "")
        titles = {one.name: one.title for one in settings.templates}
        why = desk.explainer.why(record.job, now) if record is not None else ""
        reads = viewer.reads(kept.user, kept.team)
        happened = (
            await acting.ledger.read(lambda connection: podeventrows.read_pod_events(connection, job)) if reads else []
        )
        latest = await acting.ledger.latest_pod_events([job] if reads and kept.state is JobState.STARTING else [])
        events = await acting.ledger.history(job)
        waits = record is not None and record.is_pending
        may_see_place = viewer.all or viewer.name == kept.user
        row, links = await self._ways(kept)
        steps = detail.timeline(events, happened, all_details=viewer.all)
        sentence = detail.status_sentence(kept, why, now, events[-1].detail if events else "", latest.get(job, ""))
        self.show_page(
            "job.html",
            job=kept,
            mine=kept.user == viewer.name,
            row=row,
            links=links,
            live=kept.state is not JobState.ENDED,
            again=(viewer.all or kept.user == viewer.name)
            and kept.state is JobState.ENDED
            and await self._may_start(kept),
            log=reads and bool(kept.pods or kept.started),
            facts=detail.detail_rows(kept, titles, settings.teams.titles, priority),
            times=detail.time_rows(kept),
            sentence=sentence or (row.sentence if row else ""),
            steps=[one for one in steps if query.matches_search(words, one.sentence, one.detail, one.state)],
            search=words,
            searchable=len(steps) > _MANY or bool(words),
            waits=waits,
            wait=page_path(self.manager.service.prefix, kept.user, kept.server) if waits and may_see_place else "",
        )

    def _searched(self) -> str:
        try:
            return query.read_search({"search": self.get_query_arguments("search", strip=False)})
        except query.InvalidQuery as problem:
            raise HttpProblem(422, str(problem)) from None

    async def _may_start(self, kept: JobHistory) -> bool:
        """Whether *Start again* can do what it says, as far as we know: the Hub keeps the options of the latest job."""
        acting = self.leader()
        latest = await acting.ledger.page(Viewer("", all=True), JobFilter(user=kept.user, server=kept.server), None, 1)
        return bool(latest) and latest[0].id == kept.id and kept.user not in acting.settings.teams.blocked

    async def _ways(self, kept: JobHistory) -> tuple[ServerRow | None, dict[str, str]]:
        """The ways into a job of one's own, as the list of one's jobs has them."""
        name = self.person().name
        if kept.user != name or kept.state not in {JobState.STARTING, JobState.RUNNING}:
            return None, {}
        user = await self.hub_user(name)
        listed = rows(await self.facts(name, user))
        row = next((one for one in listed if one.job == kept.id), None)
        return (row, self.links(name, row, user)) if row is not None else (None, {})
