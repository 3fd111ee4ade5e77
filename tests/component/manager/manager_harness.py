"""The deciding part of a Manager, in the test's own process: a real API server and a real database, and no Hub."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from dlspawner.clients.hub import HubError, HubRejected, HubServer, HubUnavailable, HubUser
from dlspawner.clients.kubernetes import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    Conflict,
    KubernetesClient,
    KubernetesError,
    ObjectNotFound,
)
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.core import naming
from dlspawner.core.job import JobState
from dlspawner.core.resources import strip_manifest
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionResponse, AdmissionService
from dlspawner.manager.cluster.orphans import NEEDED
from dlspawner.manager.controllers import workqueue
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import Database, DatabaseUnavailable
from dlspawner.manager.logs.collector import LogRetention
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, Recipient
from dlspawner.manager.model.records import JobRecord, StopReason
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.config_reload import ConfigReloader, initial
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager import quota

AFTER_RESERVATION = timedelta(seconds=70)
P = ParamSpec("P")
T = TypeVar("T")
workqueue.LOOK_SECONDS = 0.05  # of Managers in the test's own process
NAMESPACE = "jobs"
_RESTRICTED = {
    **{"runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False},
    **{"capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
}


@dataclass
class Clock:
    """The time, and how much of it a test has skipped."""

    moved: timedelta = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.moved


@dataclass
class FakeHub:
    """What the Hub says of its servers; without any it does not answer. A start is what a test says it is."""

    servers: set[tuple[str, str]] | None = None
    looks: int = 0  # how often it was asked about a user
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    allows: frozenset[str] = frozenset(NEEDED)
    starts: Callable[[str, str], Awaitable[None]] | None = None
    started: list[tuple[str, str]] = field(default_factory=list)
    options: list[Mapping[str, object]] = field(default_factory=list)  # of the starts that came with some
    stopped: list[tuple[str, str]] = field(default_factory=list)
    used: dict[tuple[str, str], datetime] = field(default_factory=dict)  # when each was last
    over: set[tuple[str, str]] = field(default_factory=set)  # which servers have stopped
    pending: set[tuple[str, str]] = field(default_factory=set)  # which servers are being started
    kept: dict[tuple[str, str], Mapping[str, object]] = field(default_factory=dict)  # options of servers
    on_answer: Callable[[bool], None] = lambda _: None

    async def user(self, name: str) -> HubUser | None:
        self.looks += 1
        self.on_answer(self.servers is not None)
        return self._told(name)

    def _told(self, name: str) -> HubUser:
        if self.servers is None:
            raise HubUnavailable("there is none")
        mine = {
            server: HubServer(
                *(
                    server,
                    self.starts is None,
                    spawns,
                    (name, server) in self.over,
                    f"/user/{name}/{server}/".replace("//", "/"),
                ),
                self.kept.get((name, server), {}),
                self.used.get((name, server)),
            )
            for user, server in self.servers
            for spawns in ["spawn" if (user, server) in self.pending else None]
            if user == name
        }
        return HubUser(name, mine, groups=frozenset(one for one, names in self.groups.items() if name in names))

    async def remove_server(self, user: str, server: str) -> None:
        if (user, server) not in self.over:
            raise HubRejected(404, "There is no such server.")
        self.servers = (self.servers or set()) - {(user, server)}

    async def check_reachable(self) -> None:
        self.on_answer(self.servers is not None)
        if self.servers is None:
            raise HubUnavailable("there is none")

    async def group(self, name: str) -> frozenset[str] | None:
        if self.servers is None:
            raise HubUnavailable("there is none")
        return self.groups.get(name)

    async def scopes(self) -> frozenset[str]:
        return self.allows

    async def start_server(self, user: str, server: str = "", options: Mapping[str, object] | None = None) -> bool:
        self.started.append((user, server))
        if options is not None:
            self.options.append(options)
        if self.starts is not None:
            await self.starts(user, server)
        return False

    def refuses(self, error: Exception) -> None:
        """Answers every start with this error."""

        async def starts(user: str, server: str) -> None:
            raise error

        self.starts = starts

    async def stop_server(self, user: str, server: str = "") -> bool:
        self.stopped.append((user, server))
        return False

    async def active_users(self) -> list[HubUser]:
        if self.servers is None:
            raise HubUnavailable("there is none")
        return [self._told(name) for name in sorted({user for user, _ in self.servers})]


@dataclass
class StoppingHub(FakeHub):
    """``errors`` are raised first, one for each request; with ``ignores_stops`` it accepts a stop and does nothing."""

    cluster: KubernetesClient | None = None
    errors: list[HubError] = field(default_factory=list)
    ignores_stops: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def stop_server(self, user: str, server: str = "") -> bool:
        self.asked.append((user, server))
        if self.errors:
            raise self.errors.pop(0)
        assert self.cluster is not None
        if self.ignores_stops:
            return False
        for pod in await self.cluster.list(PODS, NAMESPACE):
            job = naming.read_job(pod["metadata"])
            if job is not None and (job.user, job.server) == (user, server):
                with contextlib.suppress(ObjectNotFound):
                    await self.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        return True


class Leader(LeaderElector):
    """A Manager, with what tests ask of it about jobs by their admission requests."""

    harness: ManagerHarness

    @property
    def service(self) -> AdmissionService:
        assert self.admission is not None
        return self.admission

    async def ask(self, request: AdmissionRequest) -> AdmissionResponse:
        return await self.service.review(request)

    async def transact(self, change: Callable[Concatenate[Transaction, P], T], *given: P.args, **named: P.kwargs) -> T:
        """Makes a change in a transaction of its own."""
        return await self.service.store.transact(lambda transaction: change(transaction, *given, **named))

    async def settled(self) -> None:
        """Until all that the Manager knows is in the database."""
        await self.transact(lambda transaction: None)

    def record(self, request: AdmissionRequest) -> JobRecord:
        return self.service.store.records[request.job]

    def state(self, request: AdmissionRequest) -> JobState:
        found = self.service.store.records.get(request.job)
        return JobState.ENDED if found is None else found.job.state

    def states(self) -> dict[str, JobState]:
        """The state of every job that has not ended."""
        return {job: found.job.state for job, found in self.service.store.records.items()}

    def started(self, *requests: AdmissionRequest) -> bool:
        """True if the Hub may make the pods of all these jobs, and knows it."""
        found = [self.service.store.records.get(request.job) for request in requests]
        return all(one is not None and one.reserved and not one.awaiting_start for one in found)

    def is_due(self, request: AdmissionRequest) -> bool:
        found = self.service.store.records.get(request.job)
        return found is not None and found.awaiting_start

    async def until_state(self, request: AdmissionRequest, wanted: JobState) -> None:
        await until(lambda: self.state(request) is wanted, f"it is {wanted}")

    async def reasons(self, request: AdmissionRequest) -> list[str]:
        """The reasons of all events of a job."""
        await self.settled()
        return [reason for _, _, reason in await self.repository.events(request.job)]

    async def until_reason(self, request: AdmissionRequest, reason: str, count: int = 1) -> None:
        async def written() -> bool:
            return (await self.reasons(request)).count(reason) >= count

        await until(written, f"{count} × {reason}")

    def notices(self, user: str = "alice") -> list[Notice]:
        return [*self.service.store.notices.read(Recipient(user), self.service.store.now())]

    async def run_job(self, request: AdmissionRequest, node: str = "gpu-1") -> dict[str, Any]:
        """Admits the job and lets its pod run, which is returned."""
        assert (await self.ask(request)).decision == "admit"
        return await self.run_pod(request, node)

    async def run_pod(self, request: AdmissionRequest, node: str = "gpu-1", **metadata: Any) -> dict[str, Any]:
        """Makes the pod of an admitted job, which runs, and is returned."""
        pod = await self.harness.make_pod(request, **metadata)
        await self.harness.bind(pod, node)
        await self.until_state(request, JobState.RUNNING)
        return pod

    async def stop_of(self, request: AdmissionRequest) -> StopReason:
        """Why the job, which may have ended, was stopped."""
        found = await self.repository.find(request.job)
        assert found is not None
        assert found.stop is not None
        return found.stop

    async def cancel(self, user: str = "alice") -> bool:
        """Cancels the request for the user's default server; True if there was one."""
        return await self.transact(lifecycle.cancel_request, user, "", user)

    async def stop(self, job: str, reason: EventReason, sentence: str = "Others need it.") -> bool:
        return await self.transact(lifecycle.stop, job, reason, sentence)

    def hub_starts(self, *requests: AdmissionRequest) -> None:
        """The Hub sends the admission request as soon as it is asked for a start."""
        by_user, hub = {one.user: one for one in requests}, self.harness.hub
        hub.servers = {(one.user, one.server) for one in requests}

        async def starts(user: str, server: str) -> None:
            await self.ask(by_user[user])

        hub.starts = starts

    async def hold_all_gpus(self) -> Callable[[], Awaitable[None]]:
        """Reserves all eight GPUs; the result releases them."""
        holder = wants("holder", gpus=8)
        assert (await self.ask(holder)).decision == "admit"

        async def release() -> None:
            await self.service.release_reservation(holder.job, "holder")

        return release

    async def queue_and_release(
        self,
        *requests: AdmissionRequest,
        error: Exception | None = None,
        starts: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        """Queues the jobs behind one with all GPUs, which ends.

        The Hub starts them, or refuses them with the error, or does what ``starts`` says.
        """
        release = await self.hold_all_gpus()
        for request in requests:
            assert (await self.ask(request)).decision == "wait"
        if error is None:
            self.hub_starts(*requests)
        else:
            self.harness.hub_refuses(error, *requests)
        self.harness.hub.starts = starts or self.harness.hub.starts
        await release()

    async def until_due(self, request: AdmissionRequest) -> None:
        """Queues the job behind one with all GPUs, which ends; the Hub does not answer."""
        release = await self.hold_all_gpus()
        await self.ask(request)
        await release()
        await until(lambda: self.is_due(request), "it is scheduled")


@dataclass
class ManagerHarness:
    """One cluster and one database; Managers come and go."""

    folder: Path
    db_url: str
    cluster: KubernetesClient
    clock: Clock = field(default_factory=Clock)
    hub: FakeHub = field(default_factory=FakeHub)
    reservation_seconds: float = 60
    lease_seconds: float = 60
    watch_all_namespaces: bool = False
    max_concurrent_starts: int = 20
    namespace: str = NAMESPACE  # where Managers look for pods
    special_namespace: str = ""
    reports: list[asyncio.Task[None]] = field(default_factory=list)  # of nodes, until the test's loop ends
    prometheus: PrometheusClient | None = None
    keeping: LogRetention = field(default_factory=LogRetention)
    debounce_seconds: float = 0.0  # for which news of pods that start wait for more: most tests would wait as well

    @contextlib.asynccontextmanager
    async def manager(self, *, waits: bool = True) -> AsyncIterator[Leader]:
        """A Manager that leads, unless it has to wait for the lease."""
        store = await asyncio.to_thread(Database.open, self.db_url)
        files = ConfigReloader(self.folder / "jobs", self.folder / "cluster.yaml", self.folder / "teams.yaml")
        leader = Leader(
            repository=JobRepository(store),
            files=files,
            settings=await initial(files, JobRepository(store)),
            hub=self.hub,  # type: ignore[arg-type]  # of the Hub's client the one method that is asked
            namespace=self.namespace,
            lease_seconds=self.lease_seconds,
            reservation_seconds=self.reservation_seconds,
            watch_all_namespaces=self.watch_all_namespaces,
            now=self.clock,
            max_concurrent_starts=self.max_concurrent_starts,
            prometheus=self.prometheus,
            cull_every=3600,
            special_namespace=self.special_namespace,
            log_retention=self.keeping,
            debounce_seconds=self.debounce_seconds,
        )
        leader.harness = self
        task = asyncio.create_task(leader.run())
        try:
            if waits:
                await until(lambda: leader.admission is not None, "it leads")
            yield leader
            if leader.admission is not None:  # the next Manager knows all that was seen of this one
                with contextlib.suppress(NotLeader, DatabaseUnavailable, TimeoutError):
                    async with asyncio.timeout(5):
                        await leader.settled()
        finally:
            task.cancel()
            await asyncio.wait({task})
            await store.close()

    async def make_node(self, name: str = "gpu-1", gpus: int = 8, resource: str = quota.GPU, **labels: str) -> None:
        amounts = {"cpu": "32", "memory": "128Gi", "pods": "110", resource: str(gpus)}
        status = {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
        await self.cluster.create(NODES, node)
        await self.cluster.patch(NODES, name, {"status": status}, subresource="status")
        self.reports.append(asyncio.create_task(report(self.cluster, name)))

    def set_quota(self, gpus: int) -> None:
        (self.folder / "teams.yaml").write_text(quota.TEAMS % gpus)

    def hub_refuses(self, error: Exception, *requests: AdmissionRequest) -> None:
        """The Hub has these servers, and answers every start with this error."""
        self.hub.servers = {(one.user, one.server) for one in requests}
        self.hub.refuses(error)

    async def make_pod(self, request: AdmissionRequest, **metadata: Any) -> dict[str, Any]:
        """One that no scheduler but `bind` gives a node."""
        pod = pod_of(request, **metadata)
        pod["spec"]["schedulerName"] = "tests"
        return await self.cluster.create(PODS, pod, request.namespace)

    async def bind(self, pod: dict[str, Any], node: str = "gpu-1", phase: str = "Running") -> None:
        """What the scheduler and the node say of it."""
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"name": node}}
        with contextlib.suppress(Conflict):  # it has one: a scheduler was quicker, or a test asks again
            await self.cluster.create(PODS, target, NAMESPACE, name=name, subresource="binding")
        state: dict[str, Any] = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
        statuses = [{"name": "notebook", "ready": phase == "Running", "state": state}]
        status = {"status": {"phase": phase, "containerStatuses": statuses}}
        await self.cluster.patch(PODS, name, status, NAMESPACE, subresource="status")

    async def finish(self, name: str, code: int, reason: str, at: str = "2026-01-01T00:00:00Z") -> None:
        """The pod's program ends."""
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}
        statuses = [{"name": "notebook", "ready": False, "state": state}]
        status = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses}}
        await self.cluster.patch(PODS, name, status, NAMESPACE, subresource="status")

    async def delete(self, pod: dict[str, Any], grace: int | None = None) -> None:
        await self.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=grace)

    async def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in await self.cluster.list(PODS, NAMESPACE)}


def wants(user: str = "alice", gpus: int = 1, resource: str = quota.GPU, **more: Any) -> AdmissionRequest:
    """An admission request of this user."""
    made = AdmissionRequest(
        job=naming.job_id(secrets.token_bytes(8)),
        user=user,
        server="",
        team="default",
        template="tiny",
        preemptible=False,
        priority="",
        requeue=False,
        request_seconds=3,
        namespace=NAMESPACE,
        pods=(strip_manifest(_spec(gpus, resource)),),
        nonce=secrets.token_urlsafe(16),
        options=json.dumps({"template": "tiny", "gpus": gpus}),
    )
    return replace(made, **more)


def _spec(gpus: int, resource: str) -> dict[str, Any]:
    limits = {"cpu": "50m", "memory": "64Mi", **({resource: str(gpus)} if gpus else {})}
    container = {"name": "notebook", "image": "x", "resources": {"limits": limits, "requests": limits}}
    return {"spec": {"containers": [container]}}


def pod_of(request: AdmissionRequest, **metadata: Any) -> dict[str, Any]:
    """The pod that the Hub would make."""
    job = naming.PodIdentity(
        *(request.job, request.user, request.server, request.team, request.template),
        gpus=1,
        preemptible=request.preemptible,
        priority=request.priority,
        requeue=request.requeue,
        nonce=request.nonce,
    )
    named = {
        "name": f"jupyter-{request.user}",
        "labels": naming.job_labels(job),
        "annotations": naming.job_annotations(job),
        **metadata,
    }
    container = {**request.pods[0]["spec"]["containers"][0], "image": "x", "securityContext": _RESTRICTED}
    spec = {**request.pods[0]["spec"], "containers": [container], "terminationGracePeriodSeconds": 30}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}


async def report(cluster: KubernetesClient, node: str) -> None:
    """A node that is alive says so; one that is silent for 40 seconds is taken for lost, and tests may be slow."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node}}
    try:
        with contextlib.suppress(Conflict):  # of an earlier node of this name
            await cluster.create(LEASES, lease, "kube-node-lease")
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            await cluster.patch(LEASES, node, {"spec": {"renewTime": now}}, "kube-node-lease")
            await asyncio.sleep(5)
    except (KubernetesError, RuntimeError):  # the cluster is gone, and the test with it
        return


async def until(question: Any, what: str, seconds: float = 60) -> None:
    """Until it is true; `question` may be asynchronous."""
    async with asyncio.timeout(seconds):
        while True:
            answer = question()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(0.02)
    raise AssertionError(what)


def prepare(folder: Path, gpus: int = 8) -> None:
    """The administrators' files."""
    (folder / "jobs").mkdir()
    (folder / "jobs" / "tiny.yaml").write_text(json.dumps(quota.TEMPLATE))
    (folder / "cluster.yaml").write_text(quota.CLUSTER % quota.GPU)
    (folder / "teams.yaml").write_text(quota.TEAMS % gpus)


async def make_namespace(cluster: KubernetesClient, name: str = NAMESPACE) -> None:
    with contextlib.suppress(Conflict):
        await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
