"""The leader's work for history once a minute: it samples, aggregates ended jobs, and deletes old rows.

Samples are facts without an event: GPUs that are free and of no use (`core.scheduling.usage_report`), and what the GPUs
of jobs computed, where a Prometheus knows. A minute without a leader, or in which Prometheus did not answer, is not
there. Everything is done in transactions that are small enough for admissions to pass in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from statistics import fmean

from sqlalchemy import Connection

from dlspawner.clients.prometheus import MetricsUnavailable, PrometheusClient
from dlspawner.core.accounting import NONE, GpuTime, Span, measured, total
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.usage_report import capacity_by_type
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.state.job_store import JobStore

EVERY = timedelta(minutes=1)
_LONGEST = 2 * EVERY  # that one sample stands for
_TOGETHER = 200  # jobs in one transaction
_PAUSE_SECONDS = 0.05  # between two of them
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class HistoryRetention:
    """For how many days jobs that have ended, and GPU-hours, are kept; 0 is for ever."""

    jobs: int = 0
    hours: int = 0


@dataclass(slots=True)
class HistoryKeeper:
    """The history of one store: `run_once` runs every `EVERY`."""

    store: JobStore
    repository: JobRepository
    prometheus: PrometheusClient | None
    namespaces: JobNamespaces
    retention: HistoryRetention = field(default_factory=HistoryRetention)
    _sampled: datetime | None = None  # until when

    async def run_once(self) -> None:
        now = self.store.now()
        span = (max(self._sampled or now, now - _LONGEST), now)
        self._sampled = now
        await self._sample_free(span)
        await self._sample_use(span)
        await self._repeat(lambda connection: gpu_hours.aggregate(connection, now, _TOGETHER))
        await self._forget(now)

    async def _sample_free(self, span: Span) -> None:
        found: dict[tuple[date, str], dict[str, int]] = {}
        for kind, capacity in capacity_by_type(self.store.cluster_state).items():
            for name, milli in asdict(capacity).items():
                for day, amount in total(milli, [span]).items():
                    found.setdefault((day, kind), {})[name] = amount
        if found:
            await self.repository.write_as_leader(self.store.term, partial(gpu_hours.add_free_gpus, sampled=found))

    async def _sample_use(self, span: Span) -> None:
        jobs = self._running()
        if self.prometheus is None or not jobs or span[0] >= span[1]:
            return
        pods = {}
        try:
            for namespace in dict.fromkeys(namespace for namespace, _ in jobs):
                for pod, gpus in (await self.prometheus.gpus(namespace, *span)).items():
                    pods[namespace, pod] = gpus
        except MetricsUnavailable:
            return  # culling asks as well, and says so
        found: dict[tuple[str, date], GpuTime] = {}
        cluster = self.store.cluster_state.cluster
        for where, gpus in pods.items():
            job = jobs.get(where)
            if job is not None and job.started is not None:
                means = (fmean(value for _, value in one.samples) for one in gpus.values() if one.samples)
                share = job.request.gpus // cluster.units(job.request.gpu_type, job.request.gpus)
                for day, amount in measured(means, (max(span[0], job.started), span[1]), share).items():
                    found[job.id, day] = found.get((job.id, day), NONE) + amount
        names = sorted({job for job, _ in found})
        for some in (set(names[at : at + _TOGETHER]) for at in range(0, len(names), _TOGETHER)):
            part = {key: amount for key, amount in found.items() if key[0] in some}
            await self.repository.write_as_leader(self.store.term, partial(gpu_hours.add_gpu_use, sampled=part))

    def _running(self) -> dict[tuple[str, str], Job]:
        """The jobs that run with GPUs, by their pods' namespaces and names."""
        return {
            (self.namespaces.from_key(pod.namespace), pod.name): record.job
            for record in self.store.records.values()
            if record.job.state is JobState.RUNNING and record.job.request.gpus and record.job.started
            for pod in record.seen
        }

    async def _forget(self, now: datetime) -> None:
        if self.retention.jobs:
            before = now - timedelta(days=self.retention.jobs)
            await self._repeat(lambda connection: gpu_hours.prune_jobs(connection, before, _TOGETHER))
        if self.retention.hours:
            day = now.astimezone(UTC).date() - timedelta(days=self.retention.hours)
            await self.repository.write_as_leader(self.store.term, partial(gpu_hours.prune_days, before=day))

    async def _repeat(self, change: Callable[[Connection], int]) -> None:
        """Until there is nothing left to do."""
        done = 1
        while done:
            done = await self.repository.write_as_leader(self.store.term, change)
            await asyncio.sleep(_PAUSE_SECONDS)
