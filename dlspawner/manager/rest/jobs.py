"""ListJobs and GetJobDetail.

GET  jobs                what somebody may see, the newest first, those that have ended too
GET  jobs/{id}           one job, with its pods and, while it waits, what would start at once
GET  jobs/{id}/events    its transitions, with their reasons
"""

from __future__ import annotations

from dlspawner.core.jobs import State
from dlspawner.manager.kept import Kept, Place
from dlspawner.manager.rest import query, view
from dlspawner.manager.rest.asking import Resource
from dlspawner.manager.waiting_page import page_path
from dlspawner.manager.web import Problem


class Jobs(Resource):
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
        more = len(found) > limit
        self.reply(
            {
                "items": [self.shown(kept, setting, now) for kept in told],
                "next": query.cursor(Place(told[-1].submitted, told[-1].id)) if more else None,
            }
        )


class Detail(Resource):
    """One job."""

    async def get(self, job: str) -> None:
        viewer = self.sees()
        self.reply(self.detail(await self.seen(job, viewer)))

    def detail(self, kept: Kept) -> dict[str, object]:
        """More than a list tells."""
        desk = self.desk
        record = desk.book.records.get(kept.id)
        now = desk.book.now()
        waits = record is not None and record.job.state is State.QUEUED
        advice = desk.looks.advice(record.job, now) if record is not None and waits else ()
        return {
            **self.shown(kept, self.setting(), now),
            "requeue": kept.requeue,
            "pods": list(kept.pods),
            "alternatives": [
                {"gpus": view.amount(one.gpus), "gpu_type": one.gpu_type, "preemptible": one.preemptible}
                for one in advice
            ],
            "page": page_path(self.manager.service.prefix, kept.user, kept.server) if waits else None,
        }


class Events(Resource):
    """What became of it."""

    async def get(self, job: str) -> None:
        viewer = self.sees()
        await self.seen(job, viewer)
        found = await self.acting.ledger.history(job)
        self.reply({"items": view.events(found, all_details=viewer.all), "next": None})
