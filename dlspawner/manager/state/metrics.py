"""The Manager's own metrics, in a registry of their own.

Counters follow committed events (`record`), so that a decision without a commit is not counted. They are of this
process: after a restart they begin at 0, as Prometheus expects. Gauges (GPUs held, queued, free) are read from the
leader's job store at each scrape; other Managers have none, so that a sum over several Managers counts nothing
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dlspawner.core.job import JobState
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.usage_report import (
    PendingGpus,
    TeamTypeUsage,
    TypeCapacity,
    capacity_by_type,
    usage_by_team,
)
from dlspawner.core.units import GPU
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobEvent

NO_GPUS = "none"  # the GPU type of jobs without any
CULLS = (EventReason.IDLE, EventReason.LIFETIME)
_WAITS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
_LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ManagerMetrics:
    """All metrics of one process; ``cluster_state`` is the leader's, and ``None`` in a process that does not lead."""

    def __init__(self, cluster_state: Callable[[], ClusterState | None] = lambda: None) -> None:
        self.cluster_state = cluster_state
        self.evidence: Callable[[], Mapping[str, datetime]] = (
            dict  # of the Manager that acts: when each source answered
        )
        self.registry = own = CollectorRegistry()
        self._requeued: dict[str, datetime] = {}
        own.register(_StateCollector(self))  # the first, so that what it expects is there at the first look
        self._decisions = Counter(
            "dlspawner_decisions",
            "Answers to the Hub's question whether a job may start, by outcome (admit, wait, refuse) and reason.",
            ["outcome", "reason"],
            registry=own,
        )
        self._waits = Histogram(
            "dlspawner_wait_seconds",
            "From submit, or from being stopped and queued again, until a job was let in.",
            ["gpu_type", "preemptible"],
            buckets=_WAITS,
            registry=own,
        )
        self._preemptions = Counter(
            "dlspawner_preemptions", "Jobs stopped for others, after notice.", ["team", "gpu_type"], registry=own
        )
        self._culls = Counter(
            "dlspawner_culls",
            "Jobs stopped as unused, or as old as they may get.",
            ["reason", "gpu_type"],
            registry=own,
        )
        self._ends = Counter(
            "dlspawner_job_ends", "Jobs that ended, by their last event's reason.", ["reason"], registry=own
        )
        self._wrong_ports = Counter(
            "dlspawner_wrong_ports",
            "Programs of jobs on the host's network that listened on ports which were not the job's.",
            ["template"],
            registry=own,
        )
        self.loop_lag = Histogram(
            "dlspawner_loop_lag_seconds",
            "By how much the Manager's event loop was late, measured twice a second.",
            buckets=_LAGS,
            registry=own,
        )
        ProcessCollector(registry=own)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)

    def decided(self, outcome: str, reason: str) -> None:
        self._decisions.labels(outcome, reason).inc()

    def wrong_port(self, template: str) -> None:
        self._wrong_ports.labels(template).inc()

    def record(self, entries: Sequence[JobEvent]) -> None:
        """These transitions are on the disk."""
        for entry in entries:
            self._note(entry)

    def _note(self, entry: JobEvent) -> None:
        job, reason = entry.record.job, entry.reason
        kind = job.request.gpu_type or NO_GPUS
        if reason is EventReason.ADMITTED:
            since = max(job.submitted, self._requeued.pop(job.id, job.submitted))
            preemptible = "true" if job.preemptible else "false"
            self._waits.labels(kind, preemptible).observe(max(timedelta(0), entry.at - since).total_seconds())
        elif reason is EventReason.REQUEUED:
            self._requeued[job.id] = entry.at
        elif job.state is JobState.ENDED:
            self._requeued.pop(job.id, None)
            self._ends.labels(reason.value).inc()
        elif job.state is JobState.STOPPING and reason is EventReason.PREEMPTED:
            self._preemptions.labels(job.team, kind).inc()
        elif job.state is JobState.STOPPING and reason in CULLS:
            self._culls.labels(reason.value, kind).inc()

    def expect(self, places: Iterable[PendingGpus], types: Iterable[str]) -> None:
        """Initialises counters with 0: a rate over a series that does not exist would be empty."""
        for team, kind in places:
            self._preemptions.labels(team, kind)
        for reason in EventReason:
            if reason.end_text:
                self._ends.labels(reason.value)
        for kind in types:
            for reason in CULLS:
                self._culls.labels(reason.value, kind)
            for preemptible in ("false", "true"):
                self._waits.labels(kind, preemptible)


class _StateCollector(Collector):
    def __init__(self, metrics: ManagerMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[GaugeMetricFamily]:
        return []  # so that making the registry asks nothing

    def collect(self) -> Iterator[GaugeMetricFamily]:
        cluster_state = self._metrics.cluster_state()
        acting = GaugeMetricFamily("dlspawner_leader", "1 on the Manager that decides, 0 on those that stand by.")
        acting.add_metric((), 0 if cluster_state is None else 1)
        yield acting
        if cluster_state is None:
            return
        teams, types = usage_by_team(cluster_state), capacity_by_type(cluster_state)
        self._metrics.expect(teams, types)
        yield from _of_teams(teams)
        yield from _of_types(types)
        yield _of_jobs(cluster_state)
        answered = GaugeMetricFamily(
            "dlspawner_evidence_timestamp_seconds",
            "When a source of the use of jobs last answered: the Hub, or the Prometheus that measures GPUs.",
            labels=["source"],
        )
        for source, at in self._metrics.evidence().items():
            answered.add_metric((source,), at.timestamp())
        yield answered


def _of_teams(standing: dict[PendingGpus, TeamTypeUsage]) -> Iterator[GaugeMetricFamily]:
    told: tuple[tuple[str, str, Callable[[TeamTypeUsage], int]], ...] = (
        ("quota", "GPUs that a team is entitled to.", lambda one: one.quota),
        ("held", "GPUs that guaranteed jobs hold, charged to the quota.", lambda one: one.guaranteed),
        ("borrowed", "GPUs that preemptible jobs hold, charged to no quota.", lambda one: one.borrowed),
        ("queued", "GPUs that jobs wait for, without those that wait for an approval.", lambda one: one.queued),
        ("waiting_approval", "GPUs of jobs that wait for an administrator's approval.", lambda one: one.unapproved),
    )
    for name, help_, value in told:
        family = GaugeMetricFamily(f"dlspawner_gpus_{name}", help_, labels=["team", "gpu_type"])
        for place, one in sorted(standing.items()):
            family.add_metric(place, value(one) / GPU)
        yield family


def _of_types(capacity: dict[str, TypeCapacity]) -> Iterator[GaugeMetricFamily]:
    total = GaugeMetricFamily("dlspawner_gpus_capacity", "GPUs of all nodes.", labels=["gpu_type"])
    free = GaugeMetricFamily("dlspawner_gpus_free", "GPUs that no job holds, usable or not.", labels=["gpu_type"])
    unusable = GaugeMetricFamily(
        "dlspawner_gpus_unusable",
        "Free GPUs of no use now: on closed nodes, or too few on one node for any job in the queue.",
        labels=["gpu_type", "why"],
    )
    for kind, one in sorted(capacity.items()):
        total.add_metric((kind,), one.total / GPU)
        free.add_metric((kind,), one.free / GPU)
        unusable.add_metric((kind, "closed"), one.unschedulable / GPU)
        unusable.add_metric((kind, "fragmented"), one.fragmented / GPU)
    yield from (total, free, unusable)


def _of_jobs(cluster_state: ClusterState) -> GaugeMetricFamily:
    counts: dict[JobState, int] = {state: 0 for state in JobState if state not in {JobState.SUBMITTED, JobState.ENDED}}
    for job in cluster_state.jobs.values():
        counts[job.state] = counts.get(job.state, 0) + 1
    family = GaugeMetricFamily("dlspawner_jobs", "Jobs that have not ended, with and without GPUs.", labels=["state"])
    for state, count in counts.items():
        family.add_metric((state.value,), count)
    return family
