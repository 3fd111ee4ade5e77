"""Which jobs there are on a server that have not ended: the book's index, so that nobody looks through all. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from dlspawner.core.jobs import Job, JobState
from dlspawner.manager.records import EXTERNAL_POD_PREFIX


class ServerIndex:
    """Jobs by their user and server, which never change; pods that are no job's are left out."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._jobs: dict[tuple[str, str], dict[str, Job]] = {}
        for job in jobs:
            self.put(job)

    def put(self, job: Job) -> None:
        """The job as it is from now on; one that has ended is there no longer."""
        if job.id.startswith(EXTERNAL_POD_PREFIX):
            return
        there = self._jobs.setdefault((job.user, job.server), {})
        if job.state is JobState.ENDED:
            there.pop(job.id, None)
        else:
            there[job.id] = job
        if not there:
            del self._jobs[job.user, job.server]

    def of(self, user: str, server: str) -> list[Job]:
        """The jobs on this server, the newest first."""
        return sorted(
            self._jobs.get((user, server), {}).values(), key=lambda job: (job.submitted, job.id), reverse=True
        )
