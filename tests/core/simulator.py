"""A cluster in fast motion: jobs come, start by the core's decisions, run their time and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dlspawner.core.decisions import Preempt
from dlspawner.core.jobs import Job, State
from dlspawner.core.quota import turns
from dlspawner.core.world import World
from tests.core.worlds import NOW


@dataclass(frozen=True, slots=True)
class Comes:
    """A job that is submitted after so many minutes and then needs so many to run."""

    job: Job
    minute: int
    minutes: int


def play(here: World, coming: Sequence[Comes], end: int = 10_000) -> dict[str, int]:
    """The minute in which each job first started. Whoever is stopped leaves at once and begins anew."""
    started: dict[str, int] = {}
    ends: dict[str, int] = {}
    minutes = {one.job.id: one.minutes for one in coming}
    left = sorted(coming, key=lambda one: (one.minute, one.job.id))
    minute = 0
    while (left or ends) and minute < end:
        minute = min([one.minute for one in left[:1]] + list(ends.values()))
        now = NOW + timedelta(minutes=minute)
        for name in [name for name, at in ends.items() if at <= minute]:
            del ends[name]
            here.remove(name)
        while left and left[0].minute <= minute:
            one = left.pop(0)
            here.put(replace(one.job, submitted=NOW + timedelta(minutes=one.minute), state=State.QUEUED))
        here.tick(now)
        for job, decision in turns(here, now):
            if isinstance(decision, Preempt):
                for name in decision.victims:
                    _stop(here, name)
                    del ends[name]
            _start(here, job, decision.nodes, now)
            started.setdefault(job.id, minute)
            ends[job.id] = minute + minutes[job.id]
    return started


def _start(here: World, job: Job, nodes: tuple[str, ...], now: datetime) -> None:
    here.put(replace(job, state=State.RUNNING, started=now, nodes=nodes))


def _stop(here: World, name: str) -> None:
    here.put(replace(here.jobs[name], state=State.QUEUED, started=None, nodes=()))
