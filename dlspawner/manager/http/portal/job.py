"""The page of one job: what it is, where it stands, and its history.

GET  jobs/{id}    for viewers that may see it; 404 for all others, also if there is no such job. Kubernetes events of
its pods only for viewers that may read its logs; with ``search`` only the lines with these words
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from dlspawner.core import naming, units
from dlspawner.core.endpoints import Target, ssh_command
from dlspawner.core.job import JobState
from dlspawner.core.launch import host_ports
from dlspawner.core.template import JobPorts
from dlspawner.core.text import moment
from dlspawner.manager.db import pod_events as pod_event_rows
from dlspawner.manager.http.api.base import matches_search, page_path
from dlspawner.manager.http.api.models.requests import SearchQuery
from dlspawner.manager.http.portal.my_jobs import MyJobsPageBase, ServerRow, rows
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.event_reason import find_reason
from dlspawner.manager.model.job_history import (
    JobHistory,
    JobTransition,
    PodEventMessage,
    end_sentence,
    gpus_text,
    progress_sentence,
)
from dlspawner.manager.model.records import JobRecord

_MANY = 10  # steps that are searched


class JobPage(MyJobsPageBase):
    async def get(self, job: str) -> None:
        self.person()
        words = self.read_query(SearchQuery).search
        viewer, leader, admission = self.viewer(AccessRight.SEE), self.leader(), self.admission()
        kept = await self.kept(job)
        settings, now, record = leader.settings, admission.store.now(), admission.store.records.get(job)
        priority = next((one.name for one in settings.cluster.priorities if one.level == kept.priority), "")
        titles = {one.name: one.title for one in settings.templates}
        ports = next((one.ports for one in settings.templates if one.name == kept.template), ())
        why = admission.explainer.why(record.job, now) if record is not None else ""
        reads = viewer.reads(kept.user, kept.team)
        happened = (
            await leader.repository.read(lambda connection: pod_event_rows.read_pod_events(connection, job))
            if reads
            else []
        )
        latest = await leader.repository.latest_pod_events([job] if reads and kept.state is JobState.STARTING else [])
        events = await leader.repository.history(job)
        waits = record is not None and record.is_pending
        may_see_place = viewer.all or viewer.name == kept.user
        row, links = await self._ways(kept)
        steps = timeline(events, happened, all_details=viewer.all)
        sentence = status_sentence(kept, why, now, events[-1].detail if events else "", latest.get(job, ""))
        self.show_page(
            "job.html",
            job=kept,
            mine=kept.user == viewer.name,
            row=row,
            links=links,
            shells=ssh_lines(record, self.manager.ssh_target) if row and row.ssh else [],
            live=kept.state is not JobState.ENDED,
            again=(viewer.all or kept.user == viewer.name)
            and kept.state is JobState.ENDED
            and await self._may_start(kept),
            log=reads and bool(kept.pods or kept.started),
            facts=[
                *detail_rows(kept, titles, settings.teams.titles, priority),
                *((settings.cluster.resource_title(name), units.shown(amount)) for name, amount in kept.extended),
                *pod_rows(record),
                *port_rows(record, ports),
            ],
            times=time_rows(kept),
            sentence=sentence or (row.sentence if row else ""),
            steps=[one for one in steps if matches_search(words, one.sentence, one.detail, one.state)],
            search=words,
            searchable=len(steps) > _MANY or bool(words),
            waits=waits,
            wait=page_path(self.manager.service.prefix, kept.user, kept.server) if waits and may_see_place else "",
        )

    async def _may_start(self, kept: JobHistory) -> bool:
        """True if *Start again* can work: options known, server without a job, user not blocked."""
        record = await self.leader().repository.find(kept.id)
        free = not self.admission().store.on(kept.user, kept.server)
        blocked = kept.user in self.leader().settings.teams.blocked
        return free and not blocked and record is not None and bool(record.options)

    async def _ways(self, kept: JobHistory) -> tuple[ServerRow | None, dict[str, str]]:
        """The ways into a job of one's own, as the list of one's jobs has them."""
        name = self.person().name
        if kept.user != name or kept.state not in {JobState.STARTING, JobState.RUNNING}:
            return None, {}
        user = await self.hub_user(name)
        listed = rows(await self.facts(name, user))
        row = next((one for one in listed if one.job == kept.id), None)
        return (row, self.links(name, row, user)) if row is not None else (None, {})


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One transition, or something that Kubernetes tells of a pod."""

    at: datetime
    state: str
    sentence: str
    detail: str
    pod: bool = False


def detail_rows(
    kept: JobHistory, titles: Mapping[str, str], teams: Mapping[str, str], priority: str
) -> list[tuple[str, str]]:
    """Returns the known details of a job by their label on the page; unknown ones are left out."""
    cores = f"{kept.cpu_milli / 1000:g} CPU {'core' if kept.cpu_milli == 1000 else 'cores'}"
    cpu = f"{cores}, {units.size(kept.memory_bytes)} memory"
    given = [
        ("Template", titles.get(kept.template, kept.template)),
        ("Owner", kept.user),
        ("Team", teams.get(kept.team, kept.team)),
        ("GPUs", gpus_text(kept.gpus_milli, kept.gpu_type) + (", preemptible" if kept.preemptible else "")),
        ("CPU and memory", cpu),
        ("Priority", priority),
        ("Requeue after preemption", "yes" if kept.requeue else "no"),
        ("Nodes", ", ".join(node for node in kept.nodes if node)),
        ("Pods", ", ".join(kept.pods)),
        ("Job", kept.id),
    ]
    return [(name, value) for name, value in given if value]


def pod_rows(record: JobRecord | None) -> list[tuple[str, str]]:
    """Returns node, GPUs and state of each pod of a job of several that has not ended, by the pod's name."""
    if record is None or len(record.job.request.pods) == 1:
        return []
    job, found = record.job, list[tuple[str, str]]()
    for index, pod in enumerate(record.pods):
        if pod is not None:
            node = job.nodes[index] if index < len(job.nodes) else None
            gpus = gpus_text(job.request.pods[index].gpus, job.request.gpu_type)
            state = "started" if pod.running else "starting"
            found.append((pod.role or pod.name, ", ".join(one for one in (node, gpus, state) if one)))
    return found


def port_rows(record: JobRecord | None, ports: Sequence[JobPorts]) -> list[tuple[str, str]]:
    """Returns the host's ports of each pod of a job that holds them, by the pod's name."""
    if record is None or not record.job.holds:
        return []
    found = list[tuple[str, str]]()
    for pod, own in zip_longest(record.pods, host_ports.of_job(ports, record.job.ports)):
        if own:
            text = ", ".join(f"{name} {host_ports.listed(numbers)}".strip() for name, numbers in own.items())
            found.append((f"Ports of {pod.role or pod.name}" if pod else "Ports", text))
    return found


def ssh_lines(record: JobRecord | None, gateway: Target | None) -> list[tuple[str, str]]:
    """Returns the ssh command of each further pod that runs, by the pod's name within the job."""
    if record is None or gateway is None:
        return []
    job, further = record.job, [pod.role for pod in record.seen if naming.pod_of(pod.name) and pod.running]
    return [(role, ssh_command(job.user, f"{job.server}.{role}", gateway)) for role in further]


def time_rows(kept: JobHistory) -> list[tuple[str, datetime]]:
    """When it was asked for, began and ended, as far as that has happened."""
    given = (("Submitted", kept.submitted), ("Started", kept.started), ("Ended", kept.ended))
    return [(name, at) for name, at in given if at is not None]


def status_sentence(kept: JobHistory, why: str, now: datetime, last: str = "", happened: str = "") -> str:
    """The one sentence about where it stands; ``last`` is the detail of its last event.

    ``happened``: the latest that Kubernetes told of its pods, while it starts.
    """
    if kept.state is JobState.ENDED:
        return end_sentence(kept.reason, last, kept.stop)
    if kept.stop is not None:
        return kept.stop.message
    if kept.notice is not None:
        return f"It will be preempted {moment(kept.notice, now)}."
    return why or progress_sentence(kept.state, None, happened)


def timeline(
    events: Iterable[JobTransition], happened: Iterable[PodEventMessage], *, all_details: bool
) -> list[TimelineStep]:
    """Returns its transitions and the events of its pods, latest first.

    Details may name jobs of other users: ``all_details`` is for viewers that may see these.
    """
    found = [_step(one, all_details=all_details) for one in events]
    found += [
        TimelineStep(one.at, "", one.sentence, f"{one.count} times" if one.count > 1 else "", pod=True)
        for one in happened
    ]
    return sorted(found, key=lambda step: step.at)[::-1]


def _step(event: JobTransition, *, all_details: bool) -> TimelineStep:
    reason = find_reason(event.reason)
    text = reason.user_text if reason is not None else event.reason
    shows_detail = all_details or (reason is not None and reason.has_public_detail)
    return TimelineStep(event.at, event.state.value, text, event.detail if shows_detail else "")
