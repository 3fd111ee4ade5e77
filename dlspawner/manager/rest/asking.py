"""What the resources that tell jobs share: a job as JSON, with what the queue says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from dlspawner.core.jobs import JobState
from dlspawner.core.json_values import amount
from dlspawner.manager.access import AccessRight
from dlspawner.manager.desk import AdmissionService
from dlspawner.manager.hopeless import LOG_IN
from dlspawner.manager.kept import JobHistory
from dlspawner.manager.resource import JobApiHandler
from dlspawner.manager.rest import view
from dlspawner.manager.waiting_page import page_path


class JobResource(JobApiHandler):
    """A resource that tells jobs."""

    def setting(self) -> view.ViewContext:
        settings, service = self.leader.settings, self.manager.service
        return view.ViewContext(
            f"{service.hub_host}{service.base_url}",
            self.manager.ssh_target,
            settings.cluster.priorities,
            {template.name: template for template in settings.templates},
            settings.teams.titles,
        )

    async def latest(self, jobs: Sequence[JobHistory]) -> dict[str, str]:
        """What Kubernetes told last of those that start, and whose logs the viewer may read; how others ended."""
        viewer, starting = self.viewer(AccessRight.SEE), (kept for kept in jobs if kept.state is JobState.STARTING)
        ledger, read = self.leader.ledger, [kept.id for kept in starting if viewer.reads(kept.user, kept.team)]
        return {**await ledger.latest_pod_events(read), **await ledger.end_details(jobs)}

    def shown(
        self, kept: JobHistory, setting: view.ViewContext, now: datetime, latest: Mapping[str, str]
    ) -> dict[str, object]:
        """A job as JSON, with what the queue says of it."""
        return view.job_view(kept, setting, live(self.admission, kept, now), latest.get(kept.id, ""))

    async def detail(self, kept: JobHistory) -> dict[str, object]:
        """More of one job than a list tells."""
        latest, desk = await self.latest([kept]), self.admission
        record = desk.store.records.get(kept.id)
        now = desk.store.now()
        waits = record is not None and record.job.state in {JobState.QUEUED, JobState.PENDING_APPROVAL}
        viewer = self.viewer(AccessRight.SEE)
        has_page = waits and (viewer.all or viewer.name == kept.user)
        advice = desk.explainer.advice(record.job, now) if record is not None and waits else ()
        return {
            **self.shown(kept, self.setting(), now, latest),
            "requeue": kept.requeue,
            "pods": list(kept.pods),
            "alternatives": [
                {"gpus": amount(one.gpus), "gpu_type": one.gpu_type, "preemptible": one.preemptible} for one in advice
            ],
            "page": page_path(self.manager.service.prefix, kept.user, kept.server) if has_page else None,
        }


def live(desk: AdmissionService, kept: JobHistory, now: datetime) -> view.LiveStatus | None:
    """What the queue says of a job that waits; ``None`` for any other."""
    record = None if kept.state is JobState.ENDED else desk.store.records.get(kept.id)
    if record is None:
        return None
    job = record.job
    if job.state is JobState.LOGIN_REQUIRED:
        return view.LiveStatus(LOG_IN)
    if job.state is JobState.PENDING_APPROVAL:
        return view.LiveStatus(desk.explainer.why(job, now))
    if job.state is not JobState.QUEUED:
        return None
    position, why = desk.explainer.position(job, now)
    return view.LiveStatus(why, position, desk.explainer.estimate(job, now))
