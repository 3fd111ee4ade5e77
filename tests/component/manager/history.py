"""Past jobs, written into a database as by a Manager."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import insert

from dlspawner.core.job import JobState
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.manager.db.store import Database
from dlspawner.manager.db.tables import job_events, jobs
from dlspawner.manager.model.records import write_request

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = NOON.date()
_NUMBERS = itertools.count()
_STATES = {
    "Q": JobState.QUEUED,
    "T": JobState.STARTING,
    "R": JobState.RUNNING,
    "X": JobState.STOPPING,
    "E": JobState.ENDED,
}


@dataclass(frozen=True)
class Past:
    """One job; ``told`` are its states and hours after noon: ``Q0 T1 R1 E4``."""

    told: str
    user: str = "alice"
    team: str = "vision"
    gpus: int = 1
    gpu_type: str | None = "gpu"
    server: str = ""
    reason: str | None = None
    job: str = ""
    noon: datetime = NOON

    @property
    def steps(self) -> list[tuple[datetime, JobState]]:
        return [(self.noon + timedelta(hours=float(one[1:])), _STATES[one[0]]) for one in self.told.split()]

    def row(self) -> dict[str, Any]:
        steps, kind = self.steps, self.gpu_type if self.gpus else None
        started = next((at for at, state in steps if state is JobState.RUNNING), None)
        charge = ResourceRequest(kind, (PodRequest("nvidia.com/gpu" if kind else "", 1000 * self.gpus, 50, 2**26),))
        return {
            "job": self.job,
            "user_name": self.user,
            "server_name": self.server,
            "team": self.team,
            "template": "tiny",
            "priority": 0,
            "preemptible": False,
            "state": steps[-1][1].value,
            "gpu_type": kind,
            "gpus_milli": 1000 * self.gpus,
            "cpu_milli": 50,
            "memory_bytes": 2**26,
            "request": write_request(charge),
            "nodes": json.dumps(["gpu-1"]),
            "submitted": steps[0][0],
            "request_seconds": 3.0,
            "started": started,
            "ended": steps[-1][0] if steps[-1][1] is JobState.ENDED else None,
            "stop_reason": self.reason,
        }

    def events(self) -> Iterator[dict[str, Any]]:
        for at, state in self.steps:
            yield {"job": self.job, "at": at, "state": state.value, "reason": "test", "detail": ""}


async def write_past(store: Database, *past: Past) -> list[str]:
    """Their ids."""
    written: list[str] = await store.write(lambda connection: put_past(connection, *past))
    return written


def put_past(connection: Any, *past: Past) -> list[str]:
    """Their ids; within a transaction that writes more."""
    named = [
        replace(one, job=one.job or f"j-{next(_NUMBERS):012d}".replace("0", "a").replace("1", "b")) for one in past
    ]
    connection.execute(insert(jobs), [one.row() for one in named])
    connection.execute(insert(job_events), [event for one in named for event in one.events()])
    return [one.job for one in named]


def day(offset: int = 0) -> date:
    return DAY + timedelta(days=offset)
