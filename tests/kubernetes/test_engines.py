"""The experiment of kube-batch's article on real schedulers: jobs of three and of four pods on four GPUs.

One runs whole, the other waits whole, and runs when there is room; with Kubernetes' own scheduler each may hold what
the other needs, for ever. The pods have a node and no kubelet: where they would run is what is asked here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dlspawner.core.config import ClusterConfig, PriorityClasses, SchedulerConfig, SchedulingConfig
from dlspawner.core.decisions import EngineAdmits, EngineEvicts, EngineVerdict, EngineWaits
from dlspawner.core.job import Job
from dlspawner.core.launch.additions import merged
from dlspawner.core.schedulers.coscheduling import COSCHEDULING
from dlspawner.core.schedulers.engine import Observed
from dlspawner.core.schedulers.gang import GANG
from dlspawner.core.schedulers.pod_groups import PodGroups
from dlspawner.core.schedulers.volcano import VOLCANO
from tests.contract.client import Client, node
from tests.e2e.people import wait_for
from tests.kubernetes import engines, planes
from tests.kubernetes.conftest import renew_lease
from tests.unit.core.factories import CLUSTER, wants

pytestmark = pytest.mark.slow

GPU = "nvidia.com/gpu"
PODS = f"/api/v1/namespaces/{planes.NAMESPACE}/pods"
CLASSES = PriorityClasses("guaranteed", "preemptible")
HERE = replace(CLUSTER, scheduling=SchedulingConfig(classes=CLASSES))
SCHEDULERS = {"volcano": VOLCANO, "coscheduling": COSCHEDULING, "gang": GANG}
NAMES = {"coscheduling": engines.COSCHEDULING, "gang": "default-scheduler"}


@dataclass
class World:
    """One node with four GPUs, and the engine that places pods on it."""

    real: engines.Engine
    engine: PodGroups
    cluster: ClusterConfig

    @property
    def client(self) -> Client:
        return self.real.client

    def make_group(self, job: Job) -> None:
        for one in self.engine.objects(job, self.cluster, Observed({}, {})):
            self.client.create(self._path(one.kind.group_version, one.kind.plural), one.manifest)

    def make_pod(self, job: Job, number: int) -> None:
        (addition, *_) = self.engine.additions(job, self.cluster, Observed({}, {}))[number:]
        self.client.create(PODS, merged(plain(f"{job.id}-{number}", job.request.pods[number].gpus // 1000), addition))

    def make(self, *jobs: Job) -> None:
        """The groups first, as the Manager does it, and then the pods of all jobs in turn."""
        for job in jobs:
            self.make_group(job)
        for number in range(max(len(job.request.pods) for job in jobs)):
            for job in jobs:
                if number < len(job.request.pods):
                    self.make_pod(job, number)

    def end(self, job: Job) -> None:
        assert self.engine.kind is not None
        self.client.delete(f"{self._path(self.engine.kind.group_version, self.engine.kind.plural)}/{job.id}")
        for number in range(len(job.request.pods)):
            self.client.request("DELETE", f"{PODS}/{job.id}-{number}", query={"gracePeriodSeconds": 0})

    def placed(self, job: Job) -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in self._pods(job))

    def verdict(self, job: Job) -> EngineVerdict | None:
        assert self.engine.kind is not None
        path = f"{self._path(self.engine.kind.group_version, self.engine.kind.plural)}/{job.id}"
        own = {(self.engine.kind, job.id): self.client.get(path)}
        return self.engine.verdict(job, Observed(own, {}, tuple(self._pods(job))))

    def until(self, job: Job, wanted: Callable[[EngineVerdict | None], bool], what: str) -> None:
        def seen() -> bool:
            self._reap()
            return wanted(self.verdict(job))

        wait_for(seen, f"{job.id}: {what}", 120)

    def _reap(self) -> None:
        """Pods that are to end do, as a kubelet would have it."""
        for pod in self.client.get(PODS)["items"]:
            if pod["metadata"].get("deletionTimestamp"):
                self.client.request("DELETE", f"{PODS}/{pod['metadata']['name']}", query={"gracePeriodSeconds": 0})

    def _pods(self, job: Job) -> list[dict[str, Any]]:
        return [pod for pod in self.client.get(PODS)["items"] if pod["metadata"]["name"].startswith(f"{job.id}-")]

    def _path(self, version: str, plural: str) -> str:
        return f"/apis/{version}/namespaces/{planes.NAMESPACE}/{plural}"


def plain(name: str, gpus: int) -> dict[str, Any]:
    resources = {"limits": {GPU: str(gpus), "cpu": "100m", "memory": "64Mi"}}
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "example.org/image:1", "resources": resources, "securityContext": security}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


@contextlib.contextmanager
def gpu_node(client: Client) -> Iterator[None]:
    name, stop = "gpus", threading.Event()
    client.create("/api/v1/nodes", node(name, {"kubernetes.io/hostname": name}, **{GPU: "4"}))
    client.until(f"/api/v1/nodes/{name}", lambda seen: not seen["spec"].get("taints"), "no taint")
    with ThreadPoolExecutor(1) as threads:
        kubelet = threads.submit(renew_lease, client, name, stop)
        try:
            yield
        finally:
            stop.set()
            kubelet.result(60)


@pytest.fixture(scope="module", params=list(SCHEDULERS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with engines.started(request.param) as real, gpu_node(real.client):
        for name, value in (("guaranteed", 1000), ("preemptible", 0)):
            real.client.create(
                "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value}
            )
        scheduler = SchedulerConfig(
            queues=(("vision", "default"),), scheduler_name=NAMES.get(request.param, request.param)
        )
        yield World(real, SCHEDULERS[request.param], replace(HERE, scheduler=scheduler))


def says_why(told: EngineVerdict | None) -> bool:
    return isinstance(told, EngineWaits) and "no place for it yet: " in told.sentence


def job(name: str, pods: int, **more: Any) -> Job:
    return wants(name, "vision", (1,) * pods, **more)


def test_one_runs_whole_and_the_other_waits_whole_until_there_is_room(world: World) -> None:
    three, four = job("three", 3), job("four", 4)
    world.make(three, four)
    wait_for(lambda: world.placed(three) + world.placed(four) in {3, 4}, "one of them has its nodes", 60)
    first, second = (three, four) if world.placed(three) else (four, three)
    world.until(first, lambda told: told == EngineAdmits(), "it is placed")
    assert world.placed(first) == len(first.request.pods)
    world.until(second, says_why, "the engine says why it waits")
    assert world.placed(second) == 0
    world.real.kill()
    world.end(first)
    world.real.start()  # nothing of the waiting job is lost with the engine
    world.until(second, lambda told: told == EngineAdmits(), "it is placed")
    assert world.placed(second) == len(second.request.pods)
    world.end(second)


def test_preemptible_job_goes_for_a_guaranteed_one_and_its_verdict_says_so(world: World) -> None:
    borrower, owner = job("borrower", 4, preemptible=True), job("owner", 4)
    world.make(borrower)
    world.until(borrower, lambda told: told == EngineAdmits(), "it is placed")
    world.make(owner)
    wait_for(lambda: isinstance(world.verdict(borrower), EngineEvicts), "the engine evicts it", 120)
    world.until(owner, lambda told: told == EngineAdmits(), "it has its GPUs")
    world.end(owner)
    world.end(borrower)


def test_guaranteed_job_stays(world: World) -> None:
    first, second = job("first", 3), job("second", 3)
    world.make(first)
    world.until(first, lambda told: told == EngineAdmits(), "it is placed")
    world.make(second)
    world.until(second, says_why, "the engine says why it waits")
    assert world.verdict(first) == EngineAdmits()
    world.end(first)
    world.until(second, lambda told: told == EngineAdmits(), "it is placed")
    world.end(second)


def test_default_scheduler_lets_both_jobs_hold_what_the_other_needs(world: World) -> None:
    for number in range(4):
        for name, count in (("a", 3), ("b", 4)):
            if number < count:
                world.client.create(PODS, plain(f"{name}-{number}", 1))
    placed: list[str] = []

    def full() -> bool:
        pods = world.client.get(PODS)["items"]
        placed[:] = [pod["metadata"]["name"][0] for pod in pods if pod["spec"].get("nodeName")]
        return len(placed) == 4

    wait_for(full, "all GPUs are taken", 60)
    assert sorted(placed) == ["a", "a", "b", "b"]
    for name, count in (("a", 3), ("b", 4)):
        for number in range(count):
            world.client.request("DELETE", f"{PODS}/{name}-{number}", query={"gracePeriodSeconds": 0})
