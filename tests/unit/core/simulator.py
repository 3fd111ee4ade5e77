"""A cluster in fast motion: jobs come, start by the core's decisions, run their time and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.admission import schedule
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.node_info import Nodes
from dlspawner.core.scheduling.preemption import stale_reservations, stop_time, unneeded_victims
from tests.unit.core.factories import NOW


@dataclass(frozen=True, slots=True)
class Comes:
    """A job that is submitted after so many minutes and then needs so many to run."""

    job: Job
    minute: int
    minutes: int


def play(
    here: ClusterState, coming: Sequence[Comes], end: int = 10_000, *, places: dict[str, Nodes] | None = None
) -> dict[str, int]:
    """Returns the minute in which each job first started. Victims leave when they must, and are queued again.

    ``places`` is told where each job started last.
    """
    started: dict[str, int] = {}
    ends: dict[str, int] = {}
    minutes = {one.job.id: one.minutes for one in coming}
    left = sorted(coming, key=lambda one: (one.minute, one.job.id))
    minute = 0
    while (left or ends) and minute < end:
        notices = [_minute(job.notice) for job in here.jobs.values() if job.notice is not None]
        minute = min([one.minute for one in left[:1]] + list(ends.values()) + notices)
        now = NOW + timedelta(minutes=minute)
        for name in [name for name, at in ends.items() if at <= minute]:
            del ends[name]
            here.remove(name)
        while left and left[0].minute <= minute:
            one = left.pop(0)
            here.put(replace(one.job, submitted=NOW + timedelta(minutes=one.minute), state=JobState.QUEUED))
        _review(here, now, ends)
        here.tick(now)
        for job, decision in schedule(here, now):
            if isinstance(decision, Preempt):
                assert all(_may_leave_for(here.jobs[name], job) for name in decision.victims), "a job of another team"
                assert not job.reserved, "others were asked to leave for it already"
                leave = {name: stop_time(here.jobs[name], here, now) for name in decision.victims}
                for name, at in leave.items():
                    here.put(replace(here.jobs[name], notice=at))
                here.put(replace(job, nodes=decision.nodes))
                if not leave or max(leave.values()) > now:
                    continue
                _review(here, now, ends)
            if places is not None:
                places[job.id] = decision.nodes
            here.put(replace(job, state=JobState.RUNNING, started=now, nodes=decision.nodes))
            started.setdefault(job.id, minute)
            ends[job.id] = minute + minutes[job.id]
    return started


def _review(here: ClusterState, now: datetime, ends: dict[str, int]) -> None:
    """The Manager's periodic work: void reservations and notices, expired notices."""
    for job in stale_reservations(here):
        here.put(replace(job, nodes=()))
    for job in unneeded_victims(here):
        here.put(replace(job, notice=None))
    for job in [job for job in here.jobs.values() if job.notice is not None and job.notice <= now]:
        assert job.started is not None
        assert now - job.started >= here.cluster.scheduling.min_run, "stopped before its time"
        here.put(replace(job, state=JobState.QUEUED, started=None, nodes=(), notice=None))
        del ends[job.id]


def _may_leave_for(victim: Job, job: Job) -> bool:
    return victim.preemptible or victim.team == job.team


def _minute(at: datetime) -> int:
    return int((at - NOW) / timedelta(minutes=1))
