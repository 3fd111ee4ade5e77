"""Small clusters: a cluster, teams, nodes and jobs in few words, for tests of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, NamedTuple

from dlspawner.core.config import (
    ClusterConfig,
    CpuMemory,
    GpuType,
    SchedulingConfig,
    Team,
    TeamQuota,
    TeamsConfig,
    UserCaps,
)
from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node, NodePlacement
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.scheduling.admission import schedule
from dlspawner.core.scheduling.cluster_state import ClusterState, Snapshot
from dlspawner.core.scheduling.preemption import stop_time
from dlspawner.core.units import GPU

GIB = 1024**3
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
GPU_HOUR = 3600.0 * GPU

A100 = GpuType("a100", "A100", "nvidia.com/gpu", CpuMemory(4000, 16 * GIB), 64, (("gpu", "a100"),))
V100 = GpuType("v100", "V100", "nvidia.com/gpu", CpuMemory(2000, 8 * GIB), 64, (("gpu", "v100"),))
MI300 = GpuType("mi300", "MI300", "amd.com/gpu", CpuMemory(4000, 16 * GIB), 64)
MIG = GpuType("a100-1g", "A100 1g", "nvidia.com/mig-1g.10gb", CpuMemory(500, 2 * GIB), 64, share=Fraction(1, 7))
TYPES = {kind.name: kind for kind in (A100, V100, MI300, MIG)}
CLUSTER = ClusterConfig((A100, V100, MI300, MIG), CpuMemory(500, GIB), CpuMemory(4000, 8 * GIB))
HURRIED = replace(CLUSTER, scheduling=SchedulingConfig(notice=timedelta(0), min_run=timedelta(0)))


class Case(NamedTuple):
    """A cluster, the job that asks, and what is decided or said of it."""

    here: ClusterState
    job: Job
    expected: str


def team(name: str, quota: int | Mapping[str, int | Fraction] = 0, **more: Any) -> Team:
    """A team with a quota of A100s, or of several types; caps and limits in GPUs."""
    quotas = {"a100": quota} if isinstance(quota, int) else quota
    limits = {name: more.pop(name, None) for name in ("soft", "hard", "borrow_limit")}
    soft, hard, more["borrow_limit"] = (None if gpus is None else gpus * GPU for gpus in limits.values())
    more["user_caps"] = UserCaps(soft, hard)
    return Team(name, name, quota=tuple(TeamQuota(kind, gpus) for kind, gpus in quotas.items()), **more)


def node(name: str, gpus: int = 8, kind: str | None = "a100", **more: Any) -> Node:
    """A node with plenty of CPU and memory, and so many units of a type."""
    found = TYPES[kind] if kind else None
    return replace(
        Node(
            name,
            ((found.resource, gpus * GPU),) if found and gpus else (),
            cpu_milli=64_000,
            memory_bytes=512 * GIB,
            labels=found.node_selector if found else (),
        ),
        **more,
    )


def ask(gpus: int | Iterable[int] = 1, kind: str = "a100", cpu: int = 1000, memory: int = GIB) -> ResourceRequest:
    """The request of a job: so many units of a type, or a number for each of several pods."""
    numbers = [gpus] if isinstance(gpus, int) else list(gpus)
    found = TYPES[kind]
    place = NodePlacement(found.node_selector, tolerations=found.tolerations)
    pods = [
        PodRequest(found.resource, one * found.milli, cpu, memory, place) if one else PodRequest("", 0, cpu, memory)
        for one in numbers
    ]
    return ResourceRequest(kind if any(numbers) else None, tuple(pods))


def wants(name: str, of: str, gpus: int | Iterable[int] = 1, **more: Any) -> Job:
    """A request; ``waited`` is how long ago it was submitted."""
    charge = more.pop("charge", None) or ask(gpus, more.pop("kind", "a100"), more.pop("cpu", 1000))
    submitted = NOW - more.pop("waited", timedelta(0))
    return Job(name, more.pop("user", "alice"), of, submitted, charge, **more)


def queues(name: str, of: str, gpus: int | Iterable[int] = 1, **more: Any) -> Job:
    return wants(name, of, gpus, state=JobState.QUEUED, **more)


def runs(name: str, of: str, gpus: int | Iterable[int], *nodes: str, **more: Any) -> Job:
    """A job that has been running for an hour, or as long as ``age`` says."""
    age = more.pop("age", HOUR)
    state = more.pop("state", JobState.RUNNING)
    return wants(name, of, gpus, state=state, nodes=nodes, started=NOW - age, waited=age, **more)


def cluster_state(
    *things: Team | Node | Job,
    cluster: ClusterConfig = CLUSTER,
    blocked: Iterable[str] = (),
    templates: Mapping[str, Sequence[str]] | None = None,
    borrowing: Iterable[str] | None = None,
) -> ClusterState:
    teams = tuple(one for one in things if isinstance(one, Team))
    nodes = tuple(one for one in things if isinstance(one, Node))
    jobs = tuple(one for one in things if isinstance(one, Job))
    lend = None if borrowing is None else frozenset(borrowing)
    return ClusterState.of(Snapshot(cluster, TeamsConfig(teams, frozenset(blocked), templates, lend), nodes, jobs))


def act(here: ClusterState, job: Job, decision: Admit | Preempt, now: datetime) -> None:
    """Carries out a decision at once: the victims are gone, and the job runs."""
    if isinstance(decision, Preempt):
        for victim in decision.victims:
            here.remove(victim)
    here.put(replace(job, state=JobState.RUNNING, started=now, nodes=decision.nodes))


def ask_to_leave(here: ClusterState, job: Job, decision: Preempt, now: datetime) -> None:
    """Gives all victims their notice, and reserves the nodes for the job."""
    for name in decision.victims:
        victim = here.jobs[name]
        here.put(replace(victim, notice=stop_time(victim, here, now)))
    here.put(replace(job, nodes=decision.nodes))


def notice_pass(here: ClusterState, now: datetime) -> dict[str, tuple[str, ...]]:
    """Starts the jobs that may start and gives notice; returns the victims by job."""
    asked = {}
    for job, decision in schedule(here, now):
        if isinstance(decision, Preempt):
            ask_to_leave(here, job, decision, now)
            asked[job.id] = decision.victims
        else:
            act(here, job, decision, now)
    return asked


def one_pass(here: ClusterState, now: datetime) -> list[str]:
    """Starts the jobs that may start; returns their names in order."""
    started = []
    for job, decision in schedule(here, now):
        act(here, job, decision, now)
        started.append(job.id)
    return started
