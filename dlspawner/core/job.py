"""A job as the Manager knows it: its user, team, resource request and state."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from dlspawner.core.config import SpecialPermission
from dlspawner.core.resources import Extended, ResourceRequest


class JobState(Enum):
    """The life of a job, in its order. Only ``queued`` competes; a job of the other waiting states keeps its place."""

    SUBMITTED = "submitted"
    PENDING_APPROVAL = "pending-approval"
    QUEUED = "queued"
    LOGIN_REQUIRED = "login-required"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"

    @property
    def holds(self) -> bool:
        """True if a job in this state holds its resources: from *admit* until its pods are gone."""
        return self is _RUNNING or self is _STARTING or self is _STOPPING


# Members of the enum by global names: attribute look-ups in the class would be measurable.
_QUEUED, _STARTING, _RUNNING, _STOPPING = JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING


@dataclass(frozen=True, slots=True)
class Permissions:
    """The special permissions that a job asks for and the image that gets them; ``approved``: exactly these, for it."""

    special: tuple[SpecialPermission, ...]
    image: str = ""
    approved: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One launch on a named server. ``priority`` is the level's number.

    ``submitted`` is its first submit time, also after a requeue; ``started`` is the time since which it runs, ``None``
    before. ``nodes``: one for each pod, ``None`` if unknown; of a waiting job, its reservation. ``notice``: when a
    victim will be stopped; ``idle``: known to be unused; ``approved``: soft caps do not apply; ``exempt_from_quota``:
    started without a quota, or without admission, so that no quota takes away its GPUs. ``inadmissible``: the Hub's
    sentence on why it cannot start the job as it is. ``ports``: the host's, of each pod.
    """

    id: str
    user: str
    team: str
    submitted: datetime
    request: ResourceRequest = field(default_factory=ResourceRequest)
    server: str = ""
    template: str = ""
    priority: int = 0
    preemptible: bool = False
    state: JobState = JobState.SUBMITTED
    started: datetime | None = None
    nodes: tuple[str | None, ...] = ()
    notice: datetime | None = None
    idle: bool = False
    requeue: bool = False
    approved: bool = False
    exempt_from_quota: bool = False
    special: Permissions | None = None
    inadmissible: str = ""
    ports: tuple[tuple[int, ...], ...] = ()

    @property
    def holds(self) -> bool:
        state = self.state
        return state is _RUNNING or state is _STARTING or state is _STOPPING

    @property
    def quota_extended(self) -> Extended:
        """The extended resources that are charged to its team's quota: none of a preemptible job."""
        return () if self.preemptible else self.request.extended

    @property
    def terminating(self) -> bool:
        """True if its resources become free without further action."""
        return self.state is _STOPPING or (self.notice is not None and self.holds)

    @property
    def reserved(self) -> bool:
        return self.state is _QUEUED and bool(self.nodes)

    @property
    def reserved_gpus(self) -> int:
        """Milli-GPUs of its reservation; they are counted for its team and its user already."""
        return self.request.gpus if self.reserved else 0
