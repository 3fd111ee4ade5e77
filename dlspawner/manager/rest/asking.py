"""What the resources that tell jobs share: a job as JSON, with what the queue says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from dlspawner.core.jobs import State
from dlspawner.core.json_values import amount
from dlspawner.manager.access import Right
from dlspawner.manager.desk import Desk
from dlspawner.manager.hopeless import LOG_IN
from dlspawner.manager.kept import Kept
from dlspawner.manager.resource import Resource
from dlspawner.manager.rest import view
from dlspawner.manager.waiting_page import page_path


class JobResource(Resource):
    """A resource that tells jobs."""

    def setting(self) -> view.Setting:
        settings, service = self.acting.settings, self.manager.service
        return view.Setting(
            f"{service.hub_host}{service.base_url}",
            self.manager.ssh_target,
            settings.cluster.priorities,
            {template.name: template for template in settings.templates},
            settings.teams.titles,
        )

    async def latest(self, jobs: Sequence[Kept]) -> dict[str, str]:
        """What Kubernetes told last of those that start, and whose logs the viewer may read; how others ended."""
        viewer, starting = self.viewer(Right.SEE), (kept for kept in jobs if kept.state is State.STARTING)
        ledger, read = self.acting.ledger, [kept.id for kept in starting if viewer.reads(kept.user, kept.team)]
        return {**await ledger.happened(read), **await ledger.how_ended(jobs)}

    def shown(self, kept: Kept, setting: view.Setting, now: datetime, latest: Mapping[str, str]) -> dict[str, object]:
        """A job as JSON, with what the queue says of it."""
        return view.job(kept, setting, live(self.desk, kept, now), latest.get(kept.id, ""))

    async def detail(self, kept: Kept) -> dict[str, object]:
        """More of one job than a list tells."""
        latest, desk = await self.latest([kept]), self.desk
        record = desk.book.records.get(kept.id)
        now = desk.book.now()
        waits = record is not None and record.job.state in {State.QUEUED, State.WAITING_APPROVAL}
        viewer = self.viewer(Right.SEE)
        has_page = waits and (viewer.all or viewer.name == kept.user)
        advice = desk.looks.advice(record.job, now) if record is not None and waits else ()
        return {
            **self.shown(kept, self.setting(), now, latest),
            "requeue": kept.requeue,
            "pods": list(kept.pods),
            "alternatives": [
                {"gpus": amount(one.gpus), "gpu_type": one.gpu_type, "preemptible": one.preemptible} for one in advice
            ],
            "page": page_path(self.manager.service.prefix, kept.user, kept.server) if has_page else None,
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
    position, why = desk.looks.place(job, now)
    return view.Live(why, position, desk.looks.estimate(job, now))
