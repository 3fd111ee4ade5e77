"""What the resources for people and programs share: the acting Manager, the query, jobs that somebody may see."""

from __future__ import annotations

from datetime import datetime

from dlspawner.core import queueing
from dlspawner.core.jobs import State
from dlspawner.manager.access import Right, Viewer
from dlspawner.manager.acting import Acting
from dlspawner.manager.desk import Desk
from dlspawner.manager.hopeless import LOG_IN
from dlspawner.manager.jobs_api import NOT_HERE, NOT_YET
from dlspawner.manager.kept import Kept
from dlspawner.manager.rest import view
from dlspawner.manager.rest.query import Given
from dlspawner.manager.waiting_page import page_path
from dlspawner.manager.web import ApiHandler, Problem

NO_JOB = "There is no such job of yours."
ONLY_SEEN = "You may see this job, and not do that to it."


class Resource(ApiHandler):
    """A resource of somebody who may see jobs."""

    @property
    def acting(self) -> Acting:
        """The part that decides; 501 where there is none."""
        if self.manager.acting is None:
            raise Problem(501, NOT_HERE)
        return self.manager.acting

    @property
    def desk(self) -> Desk:
        """Where it is decided; 503 while that is not here."""
        desk = self.acting.desk
        if desk is None:
            raise Problem(503, NOT_YET)
        return desk

    def sees(self) -> Viewer:
        """Who looks."""
        self.known()
        return self.viewer(Right.SEE)

    def acts(self) -> Viewer:
        """Who does something."""
        self.known()
        return self.viewer(Right.ACT)

    async def acted(self, job: str) -> Kept:
        """A job that somebody may act on; 403 for one that they only see, 404 for any other."""
        sees = self.sees()
        kept = await self.seen(job, sees)
        if not self.acts().reaches(kept.user, kept.team):
            raise Problem(403, ONLY_SEEN)
        return kept

    def given(self) -> Given:
        """The query; 422 for what is no text."""
        try:
            return {name: [value.decode() for value in values] for name, values in self.request.query_arguments.items()}
        except UnicodeDecodeError:
            raise Problem(422, "The query is not UTF-8.") from None

    async def seen(self, job: str, viewer: Viewer) -> Kept:
        """A job that somebody may see; 404 for any other, whether there is one or not."""
        kept = await self.acting.ledger.kept(job)
        if kept is None or not viewer.reaches(kept.user, kept.team):
            raise Problem(404, NO_JOB)
        return kept

    def setting(self) -> view.Setting:
        settings, service = self.acting.settings, self.manager.service
        return view.Setting(
            f"{service.hub_host}{service.base_url}",
            self.manager.ssh_target,
            settings.cluster.priorities,
            {template.name: template for template in settings.templates},
        )

    def shown(self, kept: Kept, setting: view.Setting, now: datetime) -> dict[str, object]:
        """A job as JSON, with what the queue says of it."""
        return view.job(kept, setting, live(self.desk, kept, now))

    def detail(self, kept: Kept) -> dict[str, object]:
        """More of one job than a list tells."""
        desk = self.desk
        record = desk.book.records.get(kept.id)
        now = desk.book.now()
        waits = record is not None and record.job.state in {State.QUEUED, State.WAITING_APPROVAL}
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


def live(desk: Desk, kept: Kept, now: datetime) -> view.Live | None:
    """What the queue says of a job that waits; ``None`` for any other."""
    record = None if kept.state is State.ENDED else desk.book.records.get(kept.id)
    if record is None:
        return None
    job = record.job
    if job.state is State.WAITING_LOGIN:
        return view.Live(LOG_IN)
    if job.state is State.WAITING_APPROVAL:
        return view.Live(desk.looks.why(job, now))
    if job.state is not State.QUEUED:
        return None
    position = queueing.position(job, desk.book.world, now)
    return view.Live(desk.looks.why(job, now), position, desk.looks.estimate(job, now))
