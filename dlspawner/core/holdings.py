"""Holdings: what the jobs of one team hold or were promised, counted where somebody asks for it.

All but ``cpu_jobs`` are milli-GPUs. Read them by ``get``: what was never counted is not there, what is gone may be 0.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dlspawner.core.jobs import Job


def _counts() -> defaultdict[str, int]:
    return defaultdict(int)


def _levels() -> defaultdict[str, defaultdict[int, int]]:
    return defaultdict(lambda: defaultdict(int))


@dataclass(slots=True)
class TeamUsage:
    """Kept by ``World``, which alone changes it."""

    guaranteed: defaultdict[str, int] = field(default_factory=_counts)  # by type, promises included
    reserved: defaultdict[str, int] = field(default_factory=_counts)  # of them what nobody holds yet
    releasing: defaultdict[str, int] = field(default_factory=_counts)  # of them what those hold who leave
    levels: defaultdict[str, defaultdict[int, int]] = field(default_factory=_levels)  # who stay, by type and priority
    borrowed: defaultdict[str, int] = field(default_factory=_counts)  # by type
    by_user: defaultdict[str, int] = field(default_factory=_counts)  # promises included
    reserved_by_user: defaultdict[str, int] = field(default_factory=_counts)  # by user
    cpu_jobs: defaultdict[str, int] = field(default_factory=_counts)  # jobs without GPUs, by user

    def count(self, job: Job, sign: int, holds: bool, leaving: bool) -> None:
        """A job that ``holds`` its charge, or was promised it, comes (1) or goes (-1)."""
        charge = job.request
        kind, gpus = charge.gpu_type, sign * charge.gpus
        if kind is None:
            self.cpu_jobs[job.user] += sign
            return
        self.by_user[job.user] += gpus
        if not holds:
            self.reserved_by_user[job.user] += gpus
        if job.preemptible:
            self.borrowed[kind] += gpus
            return
        self.guaranteed[kind] += gpus
        if not holds:
            self.reserved[kind] += gpus
        elif leaving:
            self.releasing[kind] += gpus
        else:
            self.levels[kind][job.priority] += gpus


NO_USAGE = TeamUsage()  # of a team without jobs; nobody counts there
