"""A scheduling cycle in memory: the decisions carried out at once, without users, pods and database.

The Manager takes the same steps in the same order (``admission.schedule``, then ``preemption.due_steps``), writes each
to its database and notifies people. Here a pod runs as soon as its job was admitted, and is gone as soon as it was
stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.preemption import Step, due_steps, stale_reservations, stop_time


@dataclass(frozen=True, slots=True)
class Changes:
    """The jobs of one cycle: those that run now, those with a notice since, and those that were stopped (as before)."""

    started: list[Job] = field(default_factory=list)
    noticed: list[Job] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)


def run(state: ClusterState, now: datetime, failed: Callable[[Job, Exception], None] | None = None) -> Changes:
    """Carries out what is due; a stopped job that requeues is in the queue again, the others are gone.

    A job without a decision, by a fault of ours, is passed to ``failed``; without that the exception is raised.
    """
    done, due = Changes(), True
    while due:
        for job in stale_reservations(state):
            state.put(replace(job, nodes=()))
        state.tick(now, steady=True)
        for job, found in admission.schedule(state, now, failed):
            if isinstance(found, Preempt):
                for victim in (state.jobs[name] for name in found.victims):
                    told = replace(victim, notice=stop_time(victim, state, now))
                    state.put(told)
                    done.noticed.append(told)
                state.put(replace(job, nodes=found.nodes))
            else:
                done.started.append(start(job, found.nodes, state, now))
        due = _carry_out_steps(state, now, done)
    return done


def start(job: Job, nodes: tuple[str | None, ...], state: ClusterState, now: datetime) -> Job:
    """Puts an admitted job as running, and returns it."""
    runs = admission.as_admitted(job, nodes, state, JobState.RUNNING, started=now)
    state.put(runs)
    return runs


def _carry_out_steps(state: ClusterState, now: datetime, done: Changes) -> bool:
    """True if a job was stopped. Victims are spared after the pass over the queue, which may need them again."""
    stopped = False
    for step, job, until in due_steps(state, now):
        if step is Step.RELEASE:
            state.put(replace(job, nodes=()))
        elif step is not Step.STOP:
            told = replace(job, notice=until)
            state.put(told)
            if until is not None:
                done.noticed.append(told)
        else:
            stopped = True
            done.stopped.append(job)
            if job.requeue:
                state.put(replace(job, state=JobState.QUEUED, started=None, nodes=(), notice=None, ports=()))
            else:
                state.remove(job.id)
    return stopped
