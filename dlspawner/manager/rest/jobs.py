"""ListJobs and GetJobDetail.

GET  jobs                what somebody may see, the newest first, those that have ended too
GET  jobs/{id}           one job, with its pods and, while it waits, what would start at once
GET  jobs/{id}/events    its transitions, with their reasons; of very many the latest, and ``shortened`` is true;
                         with ?search= only those with these words
"""

from __future__ import annotations

from dlspawner.manager import query
from dlspawner.manager.jobrows import MOST_EVENTS
from dlspawner.manager.kept import Place
from dlspawner.manager.resource import Resource
from dlspawner.manager.rest import submit, view
from dlspawner.manager.rest.asking import JobResource
from dlspawner.manager.web import Problem


class Jobs(submit.Submit):
    """All that somebody may see, in pages."""

    async def get(self) -> None:
        viewer, given, desk = self.sees(), self.given(), self.desk
        try:
            query.known(given, *query.FILTERS, "limit", "cursor")
            wanted, limit, after = query.read_filter(given), query.read_limit(given), query.read_after(given)
        except query.Wrong as problem:
            raise Problem(422, str(problem)) from None
        found = await self.acting.ledger.page(viewer, wanted, after, limit + 1)
        told, setting, now = found[:limit], self.setting(), desk.book.now()
        more, latest = len(found) > limit, await self.latest(told)
        self.reply(
            {
                "items": [self.shown(kept, setting, now, latest) for kept in told],
                "next": query.cursor(Place(told[-1].submitted, told[-1].id)) if more else None,
            }
        )


class Detail(JobResource):
    """One job."""

    async def get(self, job: str) -> None:
        viewer = self.sees()
        self.reply(await self.detail(await self.seen(job, viewer)))


class Events(Resource):
    """What became of it."""

    async def get(self, job: str) -> None:
        viewer = self.sees()
        await self.seen(job, viewer)
        words = self.searched()
        found = await self.acting.ledger.history(job, MOST_EVENTS + 1)
        told = view.events(found[-MOST_EVENTS:], all_details=viewer.all)
        items = [one for one in told if query.has(words, *(str(one[name]) for name in ("state", "reason", "detail")))]
        self.reply({"items": items, "next": None, "shortened": len(found) > MOST_EVENTS})
