"""The page of one job: what it is, where it stands, and what became of it.

GET  jobs/{id}    for who may see it; 404 for everybody else, whether there is such a job or not
"""

from __future__ import annotations

from dlspawner.core.jobs import State
from dlspawner.manager import podeventrows
from dlspawner.manager.access import Right
from dlspawner.manager.portal import detail
from dlspawner.manager.portal_page import Page
from dlspawner.manager.waiting_page import page_path


class JobPage(Page):
    """The page itself."""

    async def get(self, job: str) -> None:
        self.person()
        viewer, acting, desk = self.viewer(Right.SEE), self.acting(), self.desk()
        kept = await self.kept(job)
        settings, now, record = acting.settings, desk.book.now(), desk.book.records.get(job)
        priority = next((one.name for one in settings.cluster.priorities if one.level == kept.priority), "")
        titles = {one.name: one.title for one in settings.templates}
        why = desk.looks.why(record.job, now) if record is not None else ""
        happened = await acting.ledger.read(lambda connection: podeventrows.of_job(connection, job))
        events = await acting.ledger.history(job)
        waits = record is not None and record.waits
        may_see_place = viewer.all or viewer.name == kept.user
        self.show_page(
            "job.html",
            job=kept,
            mine=kept.user == viewer.name,
            live=kept.state is not State.ENDED,
            log=viewer.reads(kept.user, kept.team) and bool(kept.pods or kept.started),
            facts=detail.facts(kept, titles, settings.teams.titles, priority),
            times=detail.times(kept),
            sentence=detail.says(kept, why, now, events[-1].detail if events else ""),
            steps=detail.steps(events, happened, all_details=viewer.all),
            waits=waits,
            wait=page_path(self.manager.service.prefix, kept.user, kept.server) if waits and may_see_place else "",
        )
