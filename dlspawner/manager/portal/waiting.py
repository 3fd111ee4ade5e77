"""The queue as the portal shows it. PURE.

Everybody sees that a job waits, where, for which team, how large and since when: that is what says how long one's own
may take. Whose it is and why exactly it waits is for who may see the job (`access`): a sentence may say how many jobs
its person has. Others read the kind of reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core import queueing
from dlspawner.core.decisions import Reason
from dlspawner.core.estimates import Estimate
from dlspawner.core.jobs import Job
from dlspawner.core.world import ClusterState, queue_key
from dlspawner.manager.access import Viewer
from dlspawner.manager.job_words import size_text

# What others read of a reason; the words are about the job, never about its person.
REASONS = {
    Reason.TEAM_QUOTA: "its team's quota is in use",
    Reason.BORROW_LIMIT: "its team borrows as much as it may",
    Reason.NO_FIT: "no node has room for it now",
    Reason.BLOCKED_BY_EARLIER: "it lets one pass that has waited for longer",
    Reason.VICTIMS_TERMINATING: "it waits for jobs that are leaving",
    Reason.PREEMPTION: "it waits for jobs that are leaving",
    Reason.ADMITTED: "its turn comes any moment",
    Reason.TEAM_CAP: "its team has as many jobs as it may",
}
OTHERWISE = "a limit that is its own"


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """One job that waits. ``who``, ``server`` and ``job`` are empty for who may not know."""

    place: int
    of: int
    team: str
    size: str
    preemptible: bool
    submitted: datetime
    why: str
    estimate: Estimate | None = None
    mine: bool = False
    who: str = ""
    server: str = ""
    job: str = ""

    @property
    def title(self) -> str:
        return self.server or "default server"


@dataclass(frozen=True, slots=True)
class QueuedReason:
    """Where reasons come from: the sentence for who may read it, and the kind and the estimate for everybody."""

    sentence: Callable[[Job], str]
    kind: Callable[[Job], Reason]
    estimate: Callable[[Job], Estimate | None] = lambda _: None


def queued_rows(
    world: ClusterState, now: datetime, viewer: Viewer, jobs: Sequence[Job], telling: QueuedReason
) -> tuple[QueuedRow, ...]:
    """These jobs, as this reader may see them."""
    return tuple(_one(world, now, viewer, job, telling) for job in jobs)


def _one(world: ClusterState, now: datetime, viewer: Viewer, job: Job, telling: QueuedReason) -> QueuedRow:
    mine, knows = job.user == viewer.name, viewer.reaches(job.user, job.team)
    team = world.team(job.team)
    kind = telling.kind(job)
    return QueuedRow(
        place=queueing.position(job, world, now),
        of=sum(len(keys) for keys in world.queues.get(queue_key(job), {}).values()),
        team=(team.title or team.name) if team else job.team,
        size=size_text(job),
        preemptible=job.preemptible,
        submitted=job.submitted,
        why=telling.sentence(job) if mine or (knows and kind in REASONS) else _neutral(kind),
        estimate=telling.estimate(job),
        mine=mine,
        who=job.user if knows else "",
        server=job.server if knows else "",
        job=job.id if knows else "",
    )


def _neutral(kind: Reason) -> str:
    words = REASONS.get(kind, OTHERWISE)
    return f"{words[0].upper()}{words[1:]}."
