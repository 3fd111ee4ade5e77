"""Decisions as values: the core's answers to the question if a job may start.

Every decision has a ``reason`` from one closed list, for logs and metrics (``reason=team-quota``), and a sentence for
the user, which names a request that would have worked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

# The Hub's answer to a start if its pod was created and has ended already; one that is refused is a 400, 403 or 429.
JOB_ENDED = 422


class Reason(Enum):
    """The reason of a decision; logs, metrics and the API have the values."""

    ADMITTED = "admitted"
    # it can start when others are stopped
    PREEMPTION = "preemption"
    # it waits
    APPROVAL = "approval"
    USER_CAP = "user-cap"
    TEAM_CAP = "team-cap"
    TEAM_QUOTA = "team-quota"
    BORROW_LIMIT = "borrow-limit"
    NO_FIT = "no-fit"
    HOST_PORTS = "host-ports"
    VICTIMS_TERMINATING = "victims-terminating"
    BLOCKED_BY_EARLIER = "blocked-by-earlier"
    ENGINE = "engine"
    # it can never start as things are; a job that is in the queue already waits for these, too
    BLOCKED = "blocked"
    UNKNOWN_TEAM = "unknown-team"
    UNKNOWN_TYPE = "unknown-type"
    UNKNOWN_TEMPLATE = "unknown-template"
    MALFORMED = "malformed"
    NOT_ALLOWED = "not-allowed"
    NODE_TOO_SMALL = "node-too-small"
    EXCEEDS_LIMIT = "exceeds-limit"


@dataclass(frozen=True, slots=True)
class Admit:
    """The job may start. ``nodes``: of each of its pods, as later decisions assume."""

    nodes: tuple[str | None, ...]
    reason: Reason = Reason.ADMITTED


@dataclass(frozen=True, slots=True)
class Preempt:
    """The job may start on ``nodes`` when the victims, by id, are gone; without victims, when terminating jobs are."""

    victims: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: Reason = Reason.PREEMPTION


@dataclass(frozen=True, slots=True)
class MustWait:
    """The job waits. ``position``: from 1, in its queue; ``until``: it cannot start before."""

    reason: Reason
    sentence: str
    position: int = 1
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The job can never start like this. ``maximum``: the milli-GPUs that could, if it requests too many."""

    reason: Reason
    sentence: str
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A job that would start at once instead: milli-GPUs, type, preemptible or not."""

    gpu_type: str
    gpus: int
    preemptible: bool


Decision = Admit | Preempt | MustWait | Refuse


class EngineSays(Enum):
    """Sentences for a job's owner about an engine: the cause of a wait or stop; ``words`` are the engine's own."""

    NO_ANSWER = "{engine} has not answered yet; the job keeps its place."
    NOT_TAKEN = "{engine} does not take this job now. It keeps its place, and is offered again and again."
    NOT_STARTED = "{engine} does not take this job now. Start it again later, or ask an administrator."
    NOT_ADMITTED = "{engine} has not admitted it yet: {words}"
    CHECKS_PENDING = "{engine} has reserved its quota, and waits for its checks: {words}"
    NOT_PLACED = "{engine} has its pods, and has not placed them yet."
    NO_PLACE = "{engine} has no place for it yet: {words}"
    TAKES_BACK = "{engine} takes its GPUs back: {words}"
    STOPPED = "{engine} has stopped it for another job: {words}"

    def sentence(self, engine: str, words: str = "") -> str:
        """Returns the sentence with the engine's title, and its words with a full stop."""
        said = words.strip()
        return self.value.format(engine=engine, words=said if said.endswith((".", "!")) else f"{said}.")


@dataclass(frozen=True, slots=True)
class EngineWaits:
    """The engine has the job, and has not admitted it: its reason, and the position from 1 where it tells one."""

    sentence: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class EngineAdmits:
    """The engine has room for the job."""


@dataclass(frozen=True, slots=True)
class EngineEvicts:
    """The engine takes back what it gave; the sentence says why."""

    sentence: str


EngineVerdict = EngineWaits | EngineAdmits | EngineEvicts


@dataclass(frozen=True, slots=True)
class Estimate:
    """The probable range of a job's start; ``jobs``: the number of ended jobs behind the run times."""

    earliest: datetime
    latest: datetime
    jobs: int = 0

    @property
    def basis(self) -> str:
        """The source of the estimate, for users."""
        if not self.jobs:
            return "an estimate from what is free, and what is being stopped"
        return f"an estimate from how long {self.jobs} such jobs ran"

    def remaining(self, now: datetime) -> Estimate | None:
        """Returns the remaining time; ``None`` once the estimate proved wrong."""
        return replace(self, earliest=max(self.earliest, now)) if self.latest >= now else None
