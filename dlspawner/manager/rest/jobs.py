"""ListJobs and GetJobDetail.

GET  jobs                what somebody may see, the newest first, those that have ended too
GET  jobs/{id}           one job, with its pods and, while it waits, what would start at once
GET  jobs/{id}/events    its transitions, with their reasons; of very many the latest, and ``shortened`` is true;
                         with ?search= only those with these words
"""

from __future__ import annotations

from dlspawner.manager import query
from dlspawner.manager.jobrows import MOST_EVENTS
from dlspawner.manager.kept import JobCursor
from dlspawner.manager.resource import JobApiHandler
from dlspawner.manager.rest import submit, view
from dlspawner.manager.rest.asking import JobResource
from dlspawner.manager.web import HttpProblem


class JobsHandler(submit.SubmitHandler):
    """All that somebody may see, in pages."""

    async def get(self) -> None:
        viewer, given, desk = self.sees(), self.given(), self.admission
        try:
            query.check_parameters(given, *query.FILTERS, "limit", "cursor")
            wanted, limit, after = query.read_filter(given), query.read_limit(given), query.read_after(given)
        except query.InvalidQuery as problem:
            raise HttpProblem(422, str(problem)) from None
        found = await self.leader.ledger.page(viewer, wanted, after, limit + 1)
        told, setting, now = found[:limit], self.setting(), desk.store.now()
        more, latest = len(found) > limit, await self.latest(told)
        self.reply(
            {
                "items": [self.shown(kept, setting, now, latest) for kept in told],
                "next": query.cursor(JobCursor(told[-1].submitted, told[-1].id)) if more else None,
            }
        )


class JobDetailHandler(JobResource):
    """One job."""

    async def get(self, job: str) -> None:
        viewer = self.sees()
        self.reply(await self.detail(await self.seen(job, viewer)))


class JobEventsHandler(JobApiHandler):
    """What became of it."""

    async def get(self, job: str) -> None:
        viewer = self.sees()
        await self.seen(job, viewer)
        words = self.searched()
        found = await self.leader.ledger.history(job, MOST_EVENTS + 1)
        told = view.event_views(found[-MOST_EVENTS:], all_details=viewer.all)
        items = [
            one
            for one in told
            if query.matches_search(words, *(str(one[name]) for name in ("state", "reason", "detail")))
        ]
        self.reply({"items": items, "next": None, "shortened": len(found) > MOST_EVENTS})
