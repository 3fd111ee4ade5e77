"""Small worlds: a cluster, teams, nodes and jobs in few words, for tests of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dlspawner.core.amounts import GPU
from dlspawner.core.charge import Charge, PodCharge
from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.jobs import Job, State
from dlspawner.core.model import Amount, Cluster, GpuType, Quota, Scheduling, Team, Teams, UserCaps
from dlspawner.core.nodes import Node, Placement
from dlspawner.core.preemption import leaves_at
from dlspawner.core.quota import turns
from dlspawner.core.world import Snapshot, World

GIB = 1024**3
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
GPU_HOUR = 3600.0 * GPU

A100 = GpuType("a100", "A100", "nvidia.com/gpu", Amount(4000, 16 * GIB), 64, (("gpu", "a100"),))
V100 = GpuType("v100", "V100", "nvidia.com/gpu", Amount(2000, 8 * GIB), 64, (("gpu", "v100"),))
MI300 = GpuType("mi300", "MI300", "amd.com/gpu", Amount(4000, 16 * GIB), 64)
TYPES = {kind.name: kind for kind in (A100, V100, MI300)}
CLUSTER = Cluster((A100, V100, MI300), Amount(500, GIB), Amount(4000, 8 * GIB))
HURRIED = replace(CLUSTER, scheduling=Scheduling(notice=timedelta(0), min_run=timedelta(0)))


def team(name: str, quota: int | dict[str, int] = 0, **more: Any) -> Team:
    """A team with a quota of A100s, or of several types."""
    quotas = quota if isinstance(quota, dict) else {"a100": quota}
    if "hard" in more or "soft" in more:
        more["user_caps"] = UserCaps(more.pop("soft", None), more.pop("hard", None))
    return Team(name, name, quota=tuple(Quota(kind, gpus) for kind, gpus in quotas.items()), **more)


def node(name: str, gpus: int = 8, kind: str | None = "a100", **more: Any) -> Node:
    """A node with plenty of CPU and memory."""
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


def ask(gpus: int | Iterable[int] = 1, kind: str = "a100", cpu: int = 1000, memory: int = GIB) -> Charge:
    """What a job asks for: so many GPUs, or a number for each of several pods."""
    numbers = [gpus] if isinstance(gpus, int) else list(gpus)
    found = TYPES[kind]
    place = Placement(found.node_selector, tolerations=found.tolerations)
    pods = [
        PodCharge(found.resource, one * GPU, cpu, memory, place) if one else PodCharge("", 0, cpu, memory)
        for one in numbers
    ]
    return Charge(kind if any(numbers) else None, tuple(pods))


def wants(name: str, of: str, gpus: int | Iterable[int] = 1, **more: Any) -> Job:
    """A request; ``waited`` is how long ago it was submitted."""
    charge = more.pop("charge", None) or ask(gpus, more.pop("kind", "a100"), more.pop("cpu", 1000))
    submitted = NOW - more.pop("waited", timedelta(0))
    return Job(name, more.pop("user", "alice"), of, submitted, charge, **more)


def queues(name: str, of: str, gpus: int | Iterable[int] = 1, **more: Any) -> Job:
    return wants(name, of, gpus, state=State.QUEUED, **more)


def runs(name: str, of: str, gpus: int | Iterable[int], *nodes: str, **more: Any) -> Job:
    """A job that has been running for an hour, or as long as ``age`` says."""
    age = more.pop("age", HOUR)
    state = more.pop("state", State.RUNNING)
    return wants(name, of, gpus, state=state, nodes=nodes, started=NOW - age, waited=age, **more)


def world(
    *things: Team | Node | Job,
    cluster: Cluster = CLUSTER,
    blocked: Iterable[str] = (),
    templates: Mapping[str, Sequence[str]] | None = None,
    borrowing: Iterable[str] | None = None,
) -> World:
    teams = tuple(one for one in things if isinstance(one, Team))
    nodes = tuple(one for one in things if isinstance(one, Node))
    jobs = tuple(one for one in things if isinstance(one, Job))
    lend = None if borrowing is None else frozenset(borrowing)
    return World.of(Snapshot(cluster, Teams(teams, frozenset(blocked), templates, lend), nodes, jobs))


def act(here: World, job: Job, decision: Admit | Preempt, now: datetime) -> None:
    """Do what a decision says at once: whoever must leave is gone, and the job runs."""
    if isinstance(decision, Preempt):
        for victim in decision.victims:
            here.remove(victim)
    here.put(replace(job, state=State.RUNNING, started=now, nodes=decision.nodes))


def ask_to_leave(here: World, job: Job, decision: Preempt, now: datetime) -> None:
    """Give everybody the notice, and promise the job its place."""
    for name in decision.victims:
        victim = here.jobs[name]
        here.put(replace(victim, notice=leaves_at(victim, here, now)))
    here.put(replace(job, nodes=decision.nodes))


def notice_pass(here: World, now: datetime) -> dict[str, tuple[str, ...]]:
    """Start whatever may start, ask others to leave; whom for which job."""
    asked = {}
    for job, decision in turns(here, now):
        if isinstance(decision, Preempt):
            ask_to_leave(here, job, decision, now)
            asked[job.id] = decision.victims
        else:
            act(here, job, decision, now)
    return asked


def one_pass(here: World, now: datetime) -> list[str]:
    """Start whatever may start; the names of the jobs in their turn."""
    started = []
    for job, decision in turns(here, now):
        act(here, job, decision, now)
        started.append(job.id)
    return started
