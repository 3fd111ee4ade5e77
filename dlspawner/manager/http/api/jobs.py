"""ListJobs and GetJobDetail, a job's events, and a job as JSON with what the queue says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from dlspawner.core.config import PriorityLevel
from dlspawner.core.decisions import Estimate
from dlspawner.core.endpoints import Target, forward, ssh_command, ssh_login
from dlspawner.core.job import JobState
from dlspawner.core.launch import host_ports
from dlspawner.core.template import EndpointProtocol, Template
from dlspawner.core.text import amount
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.db.jobs import MOST_EVENTS
from dlspawner.manager.http.api.base import JobApiHandler, matches_search, page_path
from dlspawner.manager.http.api.models.requests import SearchQuery
from dlspawner.manager.http.api.models.responses import (
    AlternativeModel,
    ApprovalModel,
    EndpointModel,
    EstimateModel,
    EventListModel,
    EventModel,
    JobDetailModel,
    JobModel,
    StopModel,
)
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import JobHistory, JobTransition, end_sentence, progress_sentence
from dlspawner.manager.state.lifecycle import LOG_IN


class JobResource(JobApiHandler):
    def setting(self) -> ViewContext:
        settings, service = self.leader.settings, self.manager.service
        return ViewContext(
            f"{service.hub_host}{service.base_url}",
            self.manager.ssh_target,
            settings.cluster.priorities,
            {template.name: template for template in settings.templates},
            settings.teams.titles,
        )

    async def latest(self, jobs: Sequence[JobHistory]) -> dict[str, str]:
        """Returns the last Kubernetes events of starting jobs with readable logs, and the ends of others."""
        viewer, starting = self.viewer(AccessRight.SEE), (kept for kept in jobs if kept.state is JobState.STARTING)
        repository, read = self.leader.repository, [kept.id for kept in starting if viewer.reads(kept.user, kept.team)]
        return {**await repository.latest_pod_events(read), **await repository.end_details(jobs)}

    def shown(self, kept: JobHistory, setting: ViewContext, now: datetime, latest: Mapping[str, str]) -> JobModel:
        """A job as JSON, with what the queue says of it."""
        return job_view(kept, setting, live(self.admission, kept, now), latest.get(kept.id, ""))

    async def detail(self, kept: JobHistory) -> JobDetailModel:
        """More of one job than a list tells."""
        latest, admission = await self.latest([kept]), self.admission
        record = admission.store.records.get(kept.id)
        now = admission.store.now()
        waits = record is not None and record.job.state in {JobState.QUEUED, JobState.PENDING_APPROVAL}
        viewer = self.viewer(AccessRight.SEE)
        has_page = waits and (viewer.all or viewer.name == kept.user)
        setting = self.setting()
        template = setting.templates.get(kept.template)
        ports = record.job.ports if record is not None and record.job.holds else ()
        advice = admission.explainer.advice(record.job, now) if record is not None and waits else ()
        return JobDetailModel(
            **dict(self.shown(kept, setting, now, latest)),
            requeue=kept.requeue,
            pods=kept.pods,
            extended={name: amount(milli) for name, milli in kept.extended},
            ports=host_ports.of_job(template.ports if template else (), ports),
            alternatives=[AlternativeModel.model_validate(one) for one in advice],
            page=page_path(self.manager.service.prefix, kept.user, kept.server) if has_page else None,
        )


def live(admission: AdmissionService, kept: JobHistory, now: datetime) -> LiveStatus | None:
    """Returns the queue's status of a pending job, and the growth of a running one; ``None`` for any other."""
    record = None if kept.state is JobState.ENDED else admission.store.records.get(kept.id)
    if record is None:
        return None
    job = record.job
    if job.state is JobState.LOGIN_REQUIRED:
        return LiveStatus(LOG_IN)
    if job.state in {JobState.PENDING_APPROVAL, JobState.RUNNING}:
        return LiveStatus(admission.explainer.why(job, now))
    if job.state is not JobState.QUEUED:
        return None
    position, why = admission.explainer.position(job, now)
    return LiveStatus(why, position, admission.explainer.estimate(job, now))


class JobDetailHandler(JobResource):
    async def get(self, job: str) -> None:
        viewer = self.sees()
        self.reply(await self.detail(await self.seen(job, viewer)))


class JobEventsHandler(JobApiHandler):
    async def get(self, job: str) -> None:
        viewer = self.sees()
        await self.seen(job, viewer)
        words = self.read_query(SearchQuery).search
        found = await self.leader.repository.history(job, MOST_EVENTS + 1)
        told = event_views(found[-MOST_EVENTS:], all_details=viewer.all)
        items = [one for one in told if matches_search(words, one.state.value, one.reason, one.detail)]
        self.reply(EventListModel(items=items, next=None, shortened=len(found) > MOST_EVENTS))


# Details of these events are other people's jobs.
_OF_OTHERS = frozenset({EventReason.PREEMPTION_NOTICE, EventReason.NODES_RESERVED})


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """The status of a live job beyond what the database keeps."""

    why: str = ""
    position: int | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class ViewContext:
    """The context of shown jobs: the addresses of the Hub and of the gateway, and the administrators' files."""

    base_url: str  # of the Hub's public address, ends with /
    gateway: Target | None
    priorities: tuple[PriorityLevel, ...]
    templates: Mapping[str, Template]
    teams: Mapping[str, str] = field(default_factory=dict)  # their titles, by name

    def priority(self, level: int) -> str:
        """The level's name; of one that is in no file any more its number."""
        return next((one.name for one in self.priorities if one.level == level), str(level))


def job_view(kept: JobHistory, setting: ViewContext, live: LiveStatus | None = None, latest: str = "") -> JobModel:
    """The whole of it.

    ``latest``: of one that starts what Kubernetes told last of its pods, of one that has ended its end's details.
    """
    stop = kept.stop
    return JobModel(
        id=kept.id,
        user=kept.user,
        server=kept.server,
        team=kept.team,
        team_title=setting.teams.get(kept.team, kept.team),
        template=kept.template,
        state=kept.state,
        reason=kept.reason,
        why=(live.why if live else "") or _why(kept, latest),
        position=live.position if live else None,
        estimate=EstimateModel.model_validate(live.estimate) if live and live.estimate else None,
        priority=setting.priority(kept.priority),
        preemptible=kept.preemptible,
        gpus=amount(kept.gpus_milli),
        gpu_type=kept.gpu_type,
        cpu=amount(kept.cpu_milli),
        memory_bytes=kept.memory_bytes,
        nodes=kept.nodes if kept.state.holds or kept.state is JobState.ENDED else (),
        submitted=kept.submitted,
        started=kept.started,
        ended=kept.ended,
        endpoints=endpoint_views(kept, setting) if kept.state is JobState.RUNNING else [],
        stop=StopModel(reason=stop.code, sentence=stop.message, at=kept.stopped) if stop else None,
        notice=kept.notice,
        approval=ApprovalModel.model_validate(kept.approval) if kept.approval else None,
    )


def event_views(found: Iterable[JobTransition], *, all_details: bool) -> list[EventModel]:
    """A job's transitions; ``all_details``: also those that name other people's jobs."""
    shown = (one if all_details or one.reason not in _OF_OTHERS else replace(one, detail="") for one in found)
    return [EventModel.model_validate(one) for one in shown]


def endpoint_views(kept: JobHistory, setting: ViewContext) -> list[EndpointModel]:
    """The ways into a job: its page, then what its template offers.

    What is no SSH is for other pods, and where the job has an sshd, by ``forward`` at ``address`` of one's own machine.
    """
    user, server = quote(kept.user, safe="@"), quote(kept.server, safe="")
    page = f"{setting.base_url}user/{user}/{f'{server}/' if server else ''}"
    found = [EndpointModel(name="notebook", protocol="http", url=page)]
    template = setting.templates.get(kept.template)
    offered = template.endpoints if template else ()
    has_ssh = any(one.protocol is EndpointProtocol.SSH for one in offered)
    for one in offered:
        more: dict[str, Any] = {}
        if one.protocol is EndpointProtocol.SSH:
            command = ssh_command(kept.user, kept.server, setting.gateway) if setting.gateway else None
            more = {"login": ssh_login(kept.user, kept.server), "command": command}
        elif has_ssh and setting.gateway:
            there = forward(kept.user, kept.server, setting.gateway, one)
            more = {"forward": there.command, "address": there.address}
        found.append(EndpointModel(name=one.name, protocol=one.protocol.value, port=one.port, **more))
    return found


def _why(kept: JobHistory, latest: str) -> str:
    if kept.state is JobState.ENDED:
        return end_sentence(kept.reason, latest, kept.stop)
    return progress_sentence(kept.state, kept.stop, latest)
