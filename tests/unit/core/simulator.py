"""A cluster in fast motion: jobs come, run their time and go; between them the core's own cycles are carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import cycle
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.node_info import Nodes
from dlspawner.core.units import GPU
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

    No node and no quota is exceeded after any cycle.
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
            submitted = NOW + timedelta(minutes=one.minute)
            here.put(replace(one.job, submitted=submitted, state=JobState.QUEUED, requeue=True))
        done = cycle.run(here, now)
        _check_amounts(here)
        for job in done.stopped:
            assert job.started is not None
            assert now - job.started >= here.cluster.scheduling.min_run, "stopped before its time"
        for job in done.started:
            if places is not None:
                places[job.id] = job.nodes
            started.setdefault(job.id, minute)
        again = {job.id: minute + minutes[job.id] for job in done.started}
        ends = {name: at for name, at in (ends | again).items() if here.jobs[name].holds}
    return started


def _check_amounts(here: ClusterState) -> None:
    """No node has given more than it has, and no team holds or was promised more than its quota."""
    assert all(amount >= 0 for room in here.node_infos.values() for amount in room.gpus.values())
    for of in here.teams.teams:
        assert all(here.guaranteed(of.name, one.gpu_type) <= of.entitled(one.gpu_type) for one in of.quota)
        assert all(here.extended(of.name, name) <= quota * GPU for name, quota in of.extended_quota)


def _minute(at: datetime) -> int:
    return int((at - NOW) / timedelta(minutes=1))
