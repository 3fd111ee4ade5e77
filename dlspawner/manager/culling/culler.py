"""Finds unused jobs, warns their owners, and stops them. `core.idle` decides when a job is idle.

Every round collects the evidence (`evidence`), stores it, judges every running job, and carries out the decisions in
one transaction. A round without an answer of the Hub judges no job; a job with GPUs and no known samples continues.

A job that is known to be unused is marked in the cluster state: preemption takes it first. Its idle periods are stored,
so that other idle windows can be replayed (`history.trace`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

from dlspawner.clients.hub import HubError, HubUnavailable
from dlspawner.core import units
from dlspawner.core.idle import Cause, KeepJob, SentWarning, StopJob, WarnUser, idle_since
from dlspawner.core.job import Job, JobState
from dlspawner.core.text import WHEN
from dlspawner.core.units import counted
from dlspawner.manager.culling.evidence import ActivityCollector, JobEvaluation
from dlspawner.manager.db.activity import (
    read_activities,
    read_open_idle_periods,
    write_activities,
    write_idle_periods,
)
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model import notice as notice_model
from dlspawner.manager.model.activity import SshSessionReport
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import job_store, lifecycle, notify
from dlspawner.manager.state.job_store import Transaction

_KINDS = {Cause.UNUSED: NoticeKind.IDLE, Cause.LIFETIME: NoticeKind.LIFETIME}
_REASONS = {Cause.UNUSED: EventReason.IDLE, Cause.LIFETIME: EventReason.LIFETIME}
_IDLE_PERIOD = timedelta(minutes=5)  # shorter ones are not written down
_DEBOUNCE = timedelta(seconds=5)  # the button within this time changes nothing
DRY = "Nothing stops this job for being unused: here it is only written down what would be stopped."
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class CullReport:
    """The result of the latest round; ``gpus_unknown`` is the reason if the use of GPUs is not known."""

    at: datetime
    dry_run: bool
    gpus_unknown: str | None
    judged: tuple[JobEvaluation, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepAliveResult:
    """The result of *keep alive*: no stop before ``until``; ``longest``: pressing it again does not help."""

    until: datetime | None
    longest: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class _Warnings:
    job: str
    all: tuple[SentWarning, ...]


@dataclass(slots=True)
class Culler:
    """The rounds of one leader: `evaluate_all` runs every ``Manager.cull_every`` seconds."""

    evidence: ActivityCollector
    repository: JobRepository
    report: CullReport | None = None
    _dry: frozenset[tuple[str, Cause]] = frozenset()
    _idle: dict[str, datetime] = field(default_factory=dict)  # since when, by job, as written down
    _one_round: asyncio.Lock = field(default_factory=asyncio.Lock)
    _one_save: asyncio.Lock = field(default_factory=asyncio.Lock)  # an older state never replaces a newer one

    async def load(self) -> None:
        self.evidence.activities.facts = await self.repository.read(read_activities)
        self._idle = await self.repository.read(read_open_idle_periods)

    # What others tell

    @property
    def report_seconds(self) -> float:
        """Returns the interval of kernel reports in seconds: short enough that one report may be lost."""
        return min(60.0, self.evidence.store.cluster_state.cluster.culling.metrics_age.total_seconds() / 3)

    def record(self, job: str) -> JobRecord | None:
        return self.evidence.store.records.get(job)

    def report_kernels(self, user: str, server: str, busy: bool, seconds: float | None) -> bool:
        """A pod tells of its kernels; False when no job runs on this server."""
        for record in self.evidence.running():
            if (record.job.user, record.job.server) == (user, server):
                self.evidence.activities.report_kernels(record.job.id, busy, seconds, self.evidence.now())
                return True
        return False

    async def report_ssh(self, gateway: str, sessions: Iterable[SshSessionReport]) -> None:
        """A gateway tells of its sessions. It forgets what it was heard to say, so that is written down first."""
        jobs = {(one.job.user, one.job.server): one.job.id for one in self.evidence.running()}
        told = {jobs[key]: one for one in sessions if (key := (one.user, one.server)) in jobs}
        evidence, now = self.evidence, self.evidence.now()
        open_to_ssh = [one.job for one in evidence.running() if evidence.expected_reports(one.job).ssh]
        evidence.activities.confirm_ssh_reports(gateway, open_to_ssh, now, evidence.store.cluster_state.cluster.culling)
        evidence.activities.report_ssh(gateway, told, now)
        await self._save()

    async def keep_alive(self, job: str) -> str:
        record = self.record(job)
        if record is None or record.job.state is not JobState.RUNNING:
            raise notice_model.CannotKeep("This job does not run any more.")
        try:
            kept = await self.keep(record)
        except HubError as problem:
            raise notice_model.CannotKeep(str(problem)) from None
        if kept.longest:
            raise notice_model.CannotKeep(kept.sentence)
        return kept.sentence

    async def keep(self, record: JobRecord) -> KeepAliveResult:
        """Keeps a job alive after a new evaluation; raises HubUnavailable when the Hub does not answer."""
        evidence, job = self.evidence, record.job
        now, facts = evidence.now(), evidence.activities.of(job.id)
        if facts.kept is None or abs(now - facts.kept) > _DEBOUNCE:
            evidence.activities.put(job.id, replace(facts, kept=now))
            await self._save()
            log.info("job=%s user=%s server=%s reason=keep-alive", job.id, job.user, job.server)
            await self._apply([evidence.evaluate(job, now)] if evidence.is_listed(job) else [])
        if not evidence.is_listed(job):  # or not any more: a round may have ended meanwhile
            raise HubUnavailable("The Hub has not told yet whether this job is used: try again in a minute.")
        policy, since = evidence.policy(job), evidence.evaluate(job, now).decision.idle_since
        if since is None or policy.window is None:
            return KeepAliveResult(None, False, "Nothing stops this job for being unused now.")
        if policy.culling.dry_run:
            return KeepAliveResult(None, False, DRY)
        if since < (evidence.activities.of(job.id).kept or now):
            most = span_text(policy.culling.keep_alive)
            return KeepAliveResult(
                since + policy.window, True, f"It can not be kept longer than {most} after its last use."
            )
        return KeepAliveResult(
            since + policy.window, False, f"It is kept for {span_text(policy.window)}, longer while it is used."
        )

    # The round

    async def evaluate_all(self) -> None:
        evidence = self.evidence
        async with self._one_round:
            await evidence.collect()
            await self._save()
            now = evidence.now()
            judged = tuple(evidence.evaluate(one.job, now) for one in evidence.running() if evidence.is_listed(one.job))
            await self._apply(judged)
            await self._write_idle_periods(judged, now)
            self._log_dry(judged)
            self.report = CullReport(
                now, evidence.store.cluster_state.cluster.culling.dry_run, evidence.gpus_unknown, judged
            )

    async def _apply(self, judged: Sequence[JobEvaluation]) -> None:
        """Carries out these decisions and stores the warnings."""
        activities = self.evidence.activities
        for changed in await self.evidence.store.transact(
            lambda transaction: self._apply_decision(transaction, judged)
        ):
            activities.put(changed.job, replace(activities.of(changed.job), warned=changed.all))
        await self._save()

    def _apply_decision(self, transaction: Transaction, judged: Iterable[JobEvaluation]) -> list[_Warnings]:
        """Carries out one decision in a transaction; returns the warnings of the jobs from then on."""
        changed = []
        for found in judged:
            record = transaction.record(found.job.id)
            if record is None or record.job.state is not JobState.RUNNING or not self.evidence.is_listed(record.job):
                continue
            transaction.store.mark_idle(record.job.id, found.idle)
            # A report of use may have arrived since.
            one = found if isinstance(found.decision, KeepJob) else self.evidence.evaluate(record.job, transaction.now)
            warned = self._stop_or_warn(transaction, one)
            if warned != one.activity.warned:
                changed.append(_Warnings(one.job.id, warned))
        return changed

    def _stop_or_warn(self, transaction: Transaction, one: JobEvaluation) -> tuple[SentWarning, ...]:
        job, had = one.job, one.activity.warned
        match one.decision:
            case WarnUser(percent, why, since, until):
                cause = f"{percent} % since {since.isoformat(timespec='seconds')}"
                text = warning_text(job, why, transaction.now - since)
                notify.post(transaction, job, _KINDS[why], text, cause=cause, until=until, keep=why is Cause.UNUSED)
                return (*had, SentWarning(transaction.now, percent, why))
            case StopJob(why, since, dry_run=False):
                lifecycle.stop(transaction, job.id, _REASONS[why], stopped_text(job, why, transaction.now - since))
                return had
            case _:
                void = {warned.why for warned in had if _is_void(warned, one) or _has_lapsed(transaction, warned, one)}
                if void:
                    job_store.withdraw(transaction, job.id, *(_KINDS[why] for why in void))
                return tuple(warned for warned in had if warned.why not in void)

    async def _write_idle_periods(self, judged: Sequence[JobEvaluation], now: datetime) -> None:
        """Writes down since when jobs are idle, and when they are used again."""
        ended, begun = dict[str, tuple[datetime, datetime]](), dict[str, datetime]()
        for one in judged:
            job, since = one.job.id, idle_since(one.activity, one.policy, now)
            known = self._idle.get(job)
            if since is None or (known is not None and since <= known):
                continue
            if known is not None:
                ended[job] = (known, since)
            if now - since >= _IDLE_PERIOD:
                begun[job] = since
        if ended or begun:
            write = partial(write_idle_periods, ended=ended, begun=begun)
            await self.repository.write_as_leader(self.evidence.store.term, write)
        kept = {job: since for job, since in self._idle.items() if job not in ended and self.record(job) is not None}
        self._idle = {**kept, **begun}

    def _log_dry(self, judged: Iterable[JobEvaluation]) -> None:
        """Once for each job that would have been stopped."""
        would = {
            (one.job.id, one.decision.why): one
            for one in judged
            if isinstance(one.decision, StopJob) and one.decision.dry_run
        }
        for key in would.keys() - self._dry:
            job, since = would[key].job, would[key].decision.idle_since
            line = "dry run: job=%s user=%s server=%s would be stopped reason=%s since=%s"
            log.info(line, job.id, job.user, job.server, _REASONS[key[1]], since)
        self._dry = frozenset(would)

    async def _save(self) -> None:
        activities = self.evidence.activities
        async with self._one_save:
            changed = frozenset(activities.changed)
            if not changed:
                return
            activities.changed.clear()
            try:
                facts = {job: activities.of(job) for job in changed}
                await self.repository.write_as_leader(self.evidence.store.term, partial(write_activities, facts=facts))
            except (NotLeader, DatabaseUnavailable):
                activities.changed |= changed
                raise


def _is_void(warned: SentWarning, one: JobEvaluation) -> bool:
    """True if a warning is void: the job was used since, or the policy would not stop it any more."""
    if one.policy.culling.dry_run:
        return True
    if warned.why is Cause.LIFETIME:
        return one.policy.lifetime is None
    since = one.decision.idle_since
    return one.policy.window is None or (since is not None and warned.at < since)


def _has_lapsed(transaction: Transaction, warned: SentWarning, one: JobEvaluation) -> bool:
    """True if the time named by a warning has passed without a stop, because the use is not known any more.

    Its owner would read for as long as that lasts that the job stops now, and is warned anew when it is known again.
    """
    if warned.why is not Cause.UNUSED or one.decision.idle_since is not None:
        return False
    notice = transaction.store.notices.pending((one.job.id, _KINDS[warned.why]))
    return notice is not None and notice.until is not None and notice.until <= transaction.now


def held_text(job: Job) -> str:
    """Returns what a job holds as text: ``2 a100 GPUs``, ``4 CPU and 8Gi of memory``."""
    if job.request.gpus:
        return counted(job.request.gpus, f"{job.request.gpu_type} GPU" if job.request.gpu_type else "GPU")
    cpu = sum(pod.cpu_milli for pod in job.request.pods)
    memory = sum(pod.memory_bytes for pod in job.request.pods)
    return f"{units.cpu(cpu)} CPU and {units.size(memory)} of memory"


def span_text(span: timedelta) -> str:
    """A span of time in at most two units: ``3 d 2 h``, ``1 h 30 min``, ``45 min``, ``50 s``."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def warning_text(job: Job, why: Cause, span: timedelta) -> str:
    match why:
        case Cause.LIFETIME:
            return f"This job has run for {span_text(span)} and stops {WHEN}, at the end of its lifetime; files stay."
        case Cause.UNUSED:
            return f"{held_text(job)} unused for {span_text(span)}. The job stops {WHEN} unless it is used; files stay."
        case Cause.USED | Cause.UNKNOWN | Cause.EXEMPT:
            raise ValueError(why)
        case _:
            assert_never(why)


def stopped_text(job: Job, why: Cause, span: timedelta) -> str:
    again = "Your files are kept; “Start again” starts it with the same options."
    if why is Cause.LIFETIME:
        return f"The job was stopped at the end of its lifetime, after {span_text(span)}. {again}"
    return f"The job was stopped because it was not used for {span_text(span)} ({held_text(job)}). {again}"
