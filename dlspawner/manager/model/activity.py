"""The stored use of running jobs, between the reports and the judgement.

Kernels are told by the pod itself, SSH by the gateway, GPUs by Prometheus, HTTP by the Hub, which keeps that itself.
The rest is kept in the database, so that a restart forgets no use. Each report contains how long ago the use was: the
clocks of pods and gateways are theirs. Times without evidence count as use:

* A gateway tells all sessions that are open in every report, and of one that has ended until we have heard it. A
  session that was open when its gateway was last heard may be in use as long as nothing is heard.
* There is no report on sessions of a gateway that has ended before its report. When none reported for a while, and
  then another one does, the jobs with SSH were in use until then.
* Samples of GPUs from before the job are another's; a gap in them is not filled (`core.idle.merge_samples`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pydantic import TypeAdapter

from dlspawner.clients.prometheus import GpuSample, JobMetrics
from dlspawner.core.config import Culling
from dlspawner.core.idle import (
    SSH_REPORT_TIMEOUT,
    GpuUse,
    JobActivity,
    SentWarning,
    gpu_use,
    merge_samples,
    report_timeout,
)
from dlspawner.core.job import Job

_OFTEN = SSH_REPORT_TIMEOUT / 6  # the time of an SSH report is written down no more often
_REMEMBERED = timedelta(days=1)  # by a gateway, of ended sessions without an accepted report
_SLOT_SECONDS, _SLOTS = 300, 12  # of the last hour's use of GPUs
Seconds = float | None  # how long ago; None for never


@dataclass(frozen=True, slots=True)
class ActivityRecord:
    """The known use of one job; see `core.idle.JobActivity`.

    ``ssh_gateway`` has reported the open session, ``ssh_by`` was the last gateway with a report.
    """

    kernel_report: datetime | None = None
    kernel_busy: datetime | None = None
    ssh: datetime | None = None
    ssh_open: bool = False
    ssh_gateway: str = ""
    ssh_report: datetime | None = None
    ssh_by: str = ""
    kept: datetime | None = None
    log_writer_active: datetime | None = None
    gpus: tuple[tuple[str, GpuUse], ...] = ()
    warned: tuple[SentWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class SshSessionReport:
    """A gateway's word on the sessions of one server."""

    user: str
    server: str
    seconds: Seconds  # since the last byte
    open: bool


@dataclass(frozen=True, slots=True)
class ExpectedReports:
    """The reports expected of a job: its kernels, its SSH sessions, so many GPUs or parts of GPUs. A missing report is
    not the same as no use."""

    kernels: bool
    ssh: bool
    gpus: int


@dataclass(slots=True)
class ActivityStore:
    """The facts of all running jobs; `changed` are those that are not written down yet."""

    begun: datetime
    facts: dict[str, ActivityRecord] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    # By job, of GPU and slot: the latest sample, sum and count. Only here: after a restart an hour is asked for again.
    _loads: dict[str, dict[tuple[str, int], tuple[datetime, float, int]]] = field(default_factory=dict)
    _heard: dict[str, datetime] = field(default_factory=dict)

    def of(self, job: str) -> ActivityRecord:
        return self.facts.get(job) or ActivityRecord()

    def put(self, job: str, facts: ActivityRecord) -> None:
        if self.of(job) != facts:
            self.facts[job] = facts
            self.changed.add(job)

    def forget(self, running: Iterable[str]) -> None:
        """Keep only what is known of these jobs."""
        known = set(running)
        self.facts = {job: facts for job, facts in self.facts.items() if job in known}
        self.changed &= known
        self._loads = {job: loads for job, loads in self._loads.items() if job in known}

    def report_kernels(self, job: str, busy: bool, seconds: Seconds, now: datetime) -> None:
        """A pod's word: whether a kernel is busy, and how long ago one was."""
        facts = self.of(job)
        last = now if busy else _ago(seconds, now)
        self.put(job, replace(facts, kernel_report=now, kernel_busy=_latest(facts.kernel_busy, last)))

    def report_ssh(self, gateway: str, told: Mapping[str, SshSessionReport], now: datetime) -> None:
        """A gateway's word on all of its sessions, by job; what is not among them is closed."""
        self._heard[gateway] = now
        for job, session in told.items():
            facts = self.of(job)
            last = _latest(facts.ssh, _ago(session.seconds, now))
            if session.open:
                self.put(job, replace(facts, ssh=last, ssh_open=True, ssh_gateway=gateway))
            elif facts.ssh_gateway in {gateway, ""}:
                self.put(job, replace(facts, ssh=last, ssh_open=False, ssh_gateway=""))
            else:
                self.put(job, replace(facts, ssh=last))
        for job, facts in tuple(self.facts.items()):
            if not facts.ssh_open or job in told:
                continue
            if facts.ssh_gateway == gateway:
                self.put(job, replace(facts, ssh_open=False, ssh_gateway=""))
            elif now - self._last_heard(facts) > SSH_REPORT_TIMEOUT:  # another one is there and that one is not
                self.put(job, replace(facts, ssh=now, ssh_open=False, ssh_gateway=""))

    def confirm_ssh_reports(self, gateway: str, jobs: Iterable[Job], now: datetime, culling: Culling) -> None:
        """A gateway has told of all of its sessions; `jobs` are those that people can log in to."""
        for job in jobs:
            facts = self.of(job.id)
            last = facts.ssh_report or job.started or now
            if facts.ssh_report is not None and now - last < _OFTEN:
                continue
            unseen = now - last > (_REMEMBERED if facts.ssh_by == gateway else report_timeout(culling))
            ssh = now if unseen else facts.ssh
            self.put(job.id, replace(facts, ssh=ssh, ssh_report=now, ssh_by=gateway))

    def report_gpus(self, job: Job, count: int, found: Mapping[str, JobMetrics], culling: Culling) -> None:
        """New samples of the GPUs of a job's pod, or of its parts of GPUs; the job has ``count`` of them."""
        facts, started = self.of(job.id), job.started
        known = dict(facts.gpus)
        for name, metrics in found.items():
            own = [sample for sample in metrics.samples if started is None or sample[0] >= started]
            self._add_loads(job.id, name, own)
            use = merge_samples(known.get(name), gpu_use(own, culling, metrics.memory_bytes), culling)
            if use is not None:
                known[name] = use
        if known:
            newest = max(use.last for use in known.values())
            fresh = {name: use for name, use in known.items() if newest - use.last <= culling.metrics_age}
            if len(fresh) >= count:
                known = fresh  # a GPU that the pod no longer has
            self.put(job.id, replace(facts, gpus=tuple(sorted(known.items()))))

    def _add_loads(self, job: str, gpu: str, samples: Iterable[GpuSample]) -> None:
        loads = self._loads.setdefault(job, {})
        for at, percent in samples:
            slot = int(at.timestamp()) // _SLOT_SECONDS
            last, total, count = loads.get((gpu, slot), (None, 0.0, 0))
            if last is None or at > last:
                loads[gpu, slot] = (at, total + percent, count + 1)
                loads.pop((gpu, slot - _SLOTS), None)

    def gpu_load(self, job: str, now: datetime) -> tuple[float | None, ...]:
        """Returns the utilisation of all GPUs of a job in the last hour: means of five minutes, oldest first.

        ``None`` where nothing was measured; empty if nothing was measured at all.
        """
        by_slot: dict[int, list[float]] = {}
        for (_, slot), (_, total, count) in self._loads.get(job, {}).items():
            by_slot.setdefault(slot, []).append(total / count)
        end = int(now.timestamp()) // _SLOT_SECONDS + 1
        means = [by_slot.get(slot) for slot in range(end - _SLOTS, end)]
        return tuple(sum(one) / len(one) if one else None for one in means) if any(means) else ()

    def activity(
        self, job: Job, http: datetime | None, now: datetime, culling: Culling, tells: ExpectedReports
    ) -> JobActivity:
        """All that is known of a job's use."""
        facts = self.of(job.id)
        ssh = facts.ssh
        if facts.ssh_open and now - self._last_heard(facts) > report_timeout(culling):
            ssh = now
        return JobActivity(
            started=job.started or now,
            http=http,
            tells_kernels=tells.kernels,
            kernel_busy=facts.kernel_busy,
            kernel_report=facts.kernel_report,
            tells_ssh=tells.ssh,
            ssh_report=facts.ssh_report,
            ssh=ssh,
            ssh_open=facts.ssh_open,
            gpu_count=tells.gpus,
            gpus=tuple(use for _, use in facts.gpus),
            kept=facts.kept,
            watched=facts.log_writer_active,
            warned=facts.warned,
        )

    def _last_heard(self, facts: ActivityRecord) -> datetime:
        return self._heard.get(facts.ssh_gateway, self.begun)


def _ago(seconds: Seconds, now: datetime) -> datetime | None:
    return None if seconds is None else now - timedelta(seconds=max(0.0, seconds))


def _latest(*times: datetime | None) -> datetime | None:
    return max((at for at in times if at is not None), default=None)


_FACTS = TypeAdapter(ActivityRecord)


def write_facts(facts: ActivityRecord) -> str:
    """Facts as JSON, for the database."""
    return _FACTS.dump_json(facts).decode()


def read_facts(text: str) -> ActivityRecord:
    return _FACTS.validate_json(text)
