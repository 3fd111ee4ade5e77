"""Gathers the evidence of use of running jobs: from the Hub (one list), from Prometheus, and from stored reports.

A job is judged by it only while the Hub lists its server: the list has the time of the last use by HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dlspawner.clients.hub import HubClient
from dlspawner.clients.prometheus import MetricsUnavailable, PrometheusClient
from dlspawner.core.config import IdleWindows
from dlspawner.core.idle import IdleDecision, IdleRule, JobActivity, evaluate, idle_rule_of, is_idle
from dlspawner.core.job import Job, JobState
from dlspawner.core.naming import PodIdentity
from dlspawner.core.template import ActivitySource, IdlePolicy
from dlspawner.manager.model.activity import ActivityStore, ExpectedReports
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import JobStore
from dlspawner.settings import Settings

ServerKey = tuple[str, str]  # a user and a server

NO_PROMETHEUS = "No Prometheus that measures GPUs is known; an administrator sets GpuMetrics.prometheus_url."
_LOOK_BACK = timedelta(hours=1)  # samples of GPUs that are asked for after a restart
_SLICE = timedelta(minutes=10)  # of one question, so that no answer is large
_OVERLAP = timedelta(minutes=2)  # for samples that come late
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class JobEvaluation:
    """One job in one round; ``idle``: it is known to be unused."""

    job: Job
    activity: JobActivity
    policy: IdleRule
    decision: IdleDecision
    idle: bool


@dataclass(slots=True)
class ActivityCollector:
    store: JobStore
    hub: HubClient
    prometheus: PrometheusClient | None
    namespaces: JobNamespaces
    settings: Callable[[], Settings]
    pods: Callable[[], Mapping[str, PodIdentity]]  # what pods say of the jobs that they are, by uid
    now: Callable[[], datetime]
    activities: ActivityStore = field(init=False)
    gpus_unknown: str | None = None  # why the use of GPUs is not known, where it is not
    collected: dict[str, datetime] = field(default_factory=dict)  # by source, when it last answered, or the beginning
    _http: Mapping[ServerKey, datetime | None] = field(default_factory=dict)
    _asked: datetime | None = None  # until when Prometheus was asked

    def __post_init__(self) -> None:
        self.activities = ActivityStore(self.now())
        self.collected = dict.fromkeys(("hub", "gpus") if self.prometheus else ("hub",), self.now())

    def running(self) -> list[JobRecord]:
        return [one for one in self.store.records.values() if one.job.state is JobState.RUNNING and one.job.started]

    async def collect(self) -> None:
        """Learn what is new; HubError when the Hub does not answer. What Prometheus cannot tell is `gpus_unknown`."""
        users = await self.hub.active_users()
        self._http = {(user.name, name): one.last_activity for user in users for name, one in user.servers.items()}
        self.collected["hub"] = self.now()
        unknown = await self._read_gpus()
        if not unknown:
            self.collected["gpus"] = self.now()
        if unknown and unknown != self.gpus_unknown:
            log.warning("the use of GPUs is not known, jobs with GPUs go on: %s", unknown)
        self.gpus_unknown = unknown
        self.activities.forget(record.job.id for record in self.running())
        self._note_watched()

    def is_listed(self, job: Job) -> bool:
        """True if the Hub has listed the job's server in its latest answer."""
        return (job.user, job.server) in self._http

    def evaluate(self, job: Job, now: datetime) -> JobEvaluation:
        """The verdict on a job that is listed, by what is known now."""
        policy, http = self.policy(job), self._http[job.user, job.server]
        activity = self.activities.activity(job, http, now, policy.culling, self.expected_reports(job))
        return JobEvaluation(job, activity, policy, evaluate(activity, policy, now), is_idle(activity, policy, now))

    def expected_reports(self, job: Job) -> ExpectedReports:
        """Returns the reports that are expected of a job; all kinds if its template is gone."""
        template = self.settings().template(job.template)
        gpus = self.store.cluster_state.cluster.units(job.request.gpu_type, job.request.gpus)
        if template is None:
            return ExpectedReports(kernels=True, ssh=True, gpus=gpus)
        return ExpectedReports(template.tells_kernels, template.ssh is not None, gpus)

    def policy(self, job: Job) -> IdleRule:
        """The windows of its template, team and preemptibility."""
        state, template = self.store.cluster_state, self.settings().template(job.template)
        team, idle = state.team(job.team), template.idle if template else IdlePolicy()
        return idle_rule_of(idle, team.idle if team else IdleWindows(), state.cluster.culling, job.preemptible)

    async def _read_gpus(self) -> str | None:
        if self.prometheus is None:
            return NO_PROMETHEUS
        culling, now = self.store.cluster_state.cluster.culling, self.now()
        since = max(now - _LOOK_BACK, self._asked - _OVERLAP if self._asked else now - _LOOK_BACK)
        full = self.namespaces.from_key
        running = [one for one in self.running() if one.job.request.gpus]
        jobs = {(full(pod.namespace), pod.name): one.job for one in running for pod in one.seen}
        try:
            while jobs and since < now:
                until = min(now, since + _SLICE)
                for namespace in dict.fromkeys(namespace for namespace, _ in jobs):
                    for pod, metrics in (await self.prometheus.gpus(namespace, since, until)).items():
                        if (namespace, pod) in jobs:
                            job = jobs[namespace, pod]
                            self.activities.report_gpus(job, self.expected_reports(job).gpus, metrics, culling)
                self._asked = since = until
        except MetricsUnavailable as problem:
            return str(problem)
        return None

    def _note_watched(self) -> None:
        """Jobs that only show something are used while a job of the same person runs that writes it."""
        named, now = self.pods(), self.now()
        running = [(one.job, named.get(one.pod_uid or "")) for one in self.running()]
        viewers = {job.id for job, _ in running if self.policy(job).counts == {ActivitySource.HTTP}}
        writers = [(job.user, pod.log_dir) for job, pod in running if pod and pod.log_dir and job.id not in viewers]
        for job, pod in running:
            shown = pod.log_dir if pod and job.id in viewers else None
            if shown and any(user == job.user and _below(written, shown) for user, written in writers):
                self.activities.put(job.id, replace(self.activities.of(job.id), log_writer_active=now))


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
