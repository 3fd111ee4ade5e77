"""The Hub, the Manager and the cluster as the gateway sees them; the fakes of other tests pass the same tests.

The real Hub and Manager are those of the Manager's tests, the cluster is the embedded API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from dlspawner.clients.hub import HubClient
from dlspawner.clients.kubernetes import NAMESPACES, PODS, Conflict, KubernetesClient
from dlspawner.clients.manager import StartStatus, read_key
from ssh_gateway.backends.cluster import ClusterJobDirectory, condition, read_target
from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager, SshEndpoint
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.core.routing import JobCondition
from tests.component.gateway.cluster import NAMESPACE, create_pod, create_service, job
from tests.component.gateway.peers import FakeAuthBackend, FakeJobDirectory
from tests.component.gateway.test_app import register as register_key
from tests.component.manager.real_hub import RealHub
from tests.harness.ports import free_port

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHFc0GDwAZFcXyQ8d0h5pqS4Sy1ZMzIP9RJpFDGo6h+t"


@dataclass
class Registry:
    """Users, and the way to give them keys and tokens."""

    auth_backend: HubAndManager
    register: Callable[[str, asyncssh.SSHKey], None]
    token: Callable[[str], str]


@pytest.fixture(params=["fake", "real"])
def registry(request: pytest.FixtureRequest) -> Registry:
    if request.param == "fake":
        fake = FakeAuthBackend()

        def give_token(user: str) -> str:
            fake.tokens[f"token of {user}"] = TokenOwner(user, every_server)
            return f"token of {user}"

        return Registry(fake, fake.register, give_token)
    real_hub = request.getfixturevalue("real_hub")

    def register(user: str, key: asyncssh.SSHKey) -> None:
        register_key(real_hub, real_hub.token(user), key)

    return Registry(request.getfixturevalue("auth_backend"), register, real_hub.token)


@pytest.fixture
async def auth_backend(real_hub: RealHub) -> AsyncIterator[HubAndManager]:
    """The real Hub and Manager."""
    token = real_hub.tokens["gateway"]
    async with HubClient(real_hub.hub_api, token) as hub:
        yield HubAndManager(hub, f"{real_hub.manager}/services/jobs", token)


@pytest.fixture
async def cluster(kubeconfig: Path) -> AsyncIterator[KubernetesClient]:
    async with await KubernetesClient.connect(kubeconfig) as found:
        yield found


def new_user() -> str:
    return f"user-{uuid.uuid4().hex[:8]}"


async def test_registered_key_has_its_data_and_fingerprint(registry: Registry) -> None:
    user, key = new_user(), asyncssh.generate_private_key("ssh-ed25519")
    registry.register(user, key)
    (found,) = await registry.auth_backend.registered_keys(user)
    assert (found.data, found.fingerprint) == (key.public_data, key.get_fingerprint())
    await registry.auth_backend.key_used(user, found)


async def test_token_has_its_owner_and_opens_the_owner_s_servers(registry: Registry) -> None:
    user = new_user()
    bearer = await registry.auth_backend.token_owner(registry.token(user))
    assert (bearer.user, bearer.person, bearer.opens("train")) == (user, True, True)


async def test_invalid_token_has_no_owner(registry: Registry) -> None:
    for token in ("", "wrong", "with space", "ü", "x" * 4096):
        assert await registry.auth_backend.token_owner(token) is None


async def test_unknown_user_has_no_keys_servers_or_starts(registry: Registry) -> None:
    for name in ("unknown-user", "..none..", "a b+c/ü"):
        assert await registry.auth_backend.registered_keys(name) == ()
    assert await registry.auth_backend.servers("unknown-user") == frozenset()
    assert await registry.auth_backend.start(new_user(), "train") == StartStatus("off")
    assert await registry.auth_backend.start_status(new_user(), "train", "") == StartStatus("off")


async def test_token_for_one_server_opens_only_that(real_hub: RealHub, auth_backend: HubAndManager) -> None:
    user = new_user()
    bearer = await auth_backend.token_owner(real_hub.server_token(user, "train"))
    assert (bearer.user, bearer.opens("train"), bearer.opens("eval")) == (user, True, False)
    of_service = await auth_backend.token_owner(real_hub.tokens["other"])
    assert not of_service.person


async def test_silent_hub_and_manager_are_unavailable_with_a_sentence() -> None:
    async with HubClient("http://127.0.0.1:9/hub/api", "x", deadline_seconds=0.2) as hub:
        auth_backend = HubAndManager(hub, "http://127.0.0.1:9", "x", deadline_seconds=0.2)
        with pytest.raises(BackendUnavailable, match="the Hub does not answer"):
            await auth_backend.token_owner("token")
        with pytest.raises(BackendUnavailable, match="the keys service does not answer"):
            await auth_backend.registered_keys("alice")
        with pytest.raises(BackendUnavailable):
            await auth_backend.report_activity("alice", {"": datetime.now(UTC)})
        with pytest.raises(BackendUnavailable, match="the Manager does not answer"):
            await auth_backend.open_notices("", 0)


async def test_silent_cluster_is_unavailable_with_a_sentence(kubeconfig: Path, tmp_path: Path) -> None:
    away = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{free_port()}", kubeconfig.read_text())
    (tmp_path / "kubeconfig").write_text(away)
    async with await KubernetesClient.connect(tmp_path / "kubeconfig") as cluster:
        with pytest.raises(BackendUnavailable, match="the cluster does not answer"):
            await ClusterJobDirectory(cluster, NAMESPACE).endpoint("alice", "train")


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"id": 1, "key": "a b!", "fingerprint": "x"}, {"id": 1, "key": 7, "fingerprint": "x"}],
)  # fmt: skip
def test_unreadable_key_is_ignored(entry: object) -> None:
    assert read_key(entry) is None


@dataclass
class PlacedJobs:
    """A directory of jobs, and the function that adds a running job."""

    job_directory: ClusterJobDirectory
    launch: Callable[[str, str], object]


@pytest.fixture(params=["fake", "real"])
def placed(request: pytest.FixtureRequest) -> PlacedJobs:
    if request.param == "fake":
        fake = FakeJobDirectory()

        async def launch(user: str, server: str) -> SshEndpoint:
            fake.targets[user, server] = SshEndpoint(
                "j-aaaaaaaaaaaa", user, server, "127.0.0.1", 30022, "person", HOST_KEY
            )
            return fake.targets[user, server]

        return PlacedJobs(fake, launch)
    cluster = request.getfixturevalue("cluster")

    async def create(user: str, server: str) -> SshEndpoint:
        made = job(user, server, ssh_host_key=HOST_KEY)
        name = f"jupyter-{uuid.uuid4().hex[:8]}"
        await create_pod(cluster, name, made)
        port = await create_service(cluster, name, made)
        return SshEndpoint(made.id, user, server, "127.0.0.1", port, "person", HOST_KEY)

    return PlacedJobs(ClusterJobDirectory(cluster, NAMESPACE), create)


async def test_exact_server_of_the_user_is_found_with_address_host_key_and_account(placed: PlacedJobs) -> None:
    user = new_user()
    launched = {server: await placed.launch(user, server) for server in ("train", "")}
    jobs = {(found.server, found.condition) for found in await placed.job_directory.jobs(user)}
    assert jobs == {("train", JobCondition.READY), ("", JobCondition.READY)}
    assert {server: await placed.job_directory.endpoint(user, server) for server in launched} == launched
    assert await placed.job_directory.jobs(user[:-1]) == ()
    assert await placed.job_directory.endpoint(user[:-1], "train") is None
    assert await placed.job_directory.endpoint(user, "trai") is None


async def test_further_pods_of_a_job_are_found_by_their_own_names(cluster: KubernetesClient) -> None:
    user = new_user()
    first = job(user, "train", ssh_host_key=HOST_KEY)
    ports = {}
    for number, pod in enumerate(("worker-1", "chief", "worker-0")):  # the first pod is not the oldest here
        one = replace(first, pod=pod, first_pod="" if pod == "chief" else f"first-{user}")
        await create_pod(cluster, f"pod-{number}-{user}", one)
        ports[pod] = await create_service(cluster, f"pod-{number}-{user}", one)
    job_directory = ClusterJobDirectory(cluster, NAMESPACE)
    found = await job_directory.jobs(user)
    assert {one.name for one in found} == {"train", "train.chief", "train.worker-0", "train.worker-1"}
    assert {one.server for one in found} == {"train"}
    for pod, port in {**ports, "": ports["chief"]}.items():
        target = await job_directory.endpoint(user, f"train.{pod}" if pod else "train")
        assert (target.port, target.server) == (port, "train")
    assert await job_directory.endpoint(user, "train.worker-2") is None


async def test_pod_with_another_user_s_label_is_ignored(cluster: KubernetesClient) -> None:
    """Labels select; the exact names in the annotations decide."""
    user = new_user()
    forged = job("mallory", "train", ssh_host_key=HOST_KEY)
    await create_pod(cluster, f"forged-{user}", forged)
    labels = {"metadata": {"labels": {"dlspawner.dev/user": user}}}
    await cluster.patch(PODS, f"forged-{user}", labels, NAMESPACE)
    job_directory = ClusterJobDirectory(cluster, NAMESPACE)
    assert await job_directory.jobs(user) == ()
    assert await job_directory.endpoint(user, "train") is None


async def test_newer_copy_of_a_pod_is_ignored(cluster: KubernetesClient) -> None:
    """Whoever can make pods, and a Service for them: the Hub's own came first."""
    user, server, forger = new_user(), "train", asyncssh.generate_private_key("ssh-ed25519")
    job_directory, own = ClusterJobDirectory(cluster, NAMESPACE), job(user, server, ssh_host_key=HOST_KEY)
    await create_pod(cluster, f"z-own-{user}", own)
    port = await create_service(cluster, f"z-own-{user}", own)
    await asyncio.sleep(1.1)  # Kubernetes says in whole seconds when a pod was made
    theirs = replace(own, ssh_host_key=forger.export_public_key().decode().strip())
    await create_pod(cluster, f"a-forged-{user}", theirs)
    await create_service(cluster, f"a-forged-{user}", theirs)
    target = await job_directory.endpoint(user, server)
    assert (target.port, target.host_key) == (port, HOST_KEY)
    await cluster.patch(PODS, f"z-own-{user}", {"status": {"phase": "Pending"}}, NAMESPACE, subresource="status")
    assert await job_directory.endpoint(user, server) is None, "not while its own is on its way, either"


async def test_jobs_with_special_permissions_are_found_in_their_namespace(cluster: KubernetesClient) -> None:
    user, second = new_user(), "jobs-special"
    with contextlib.suppress(Conflict):
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": second}}
        await cluster.create(NAMESPACES, made)
    ports = {}
    for server, namespace in (("train", NAMESPACE), ("root", second)):
        found = job(user, server, ssh_host_key=HOST_KEY)
        await create_pod(cluster, f"{server}-{user}", found, namespace=namespace)
        ports[server] = await create_service(cluster, f"{server}-{user}", found, namespace)
    job_directory = ClusterJobDirectory(cluster, NAMESPACE, second)
    assert {one.server for one in await job_directory.jobs(user)} == {"train", "root"}
    for server, port in ports.items():
        target = await job_directory.endpoint(user, server)
        assert target.port == port
    assert await ClusterJobDirectory(cluster, NAMESPACE).endpoint(user, "root") is None


@pytest.mark.parametrize("address", [None, "127.0.0.1"], ids=["no node yet", "no Service"])
async def test_pod_without_node_or_service_has_no_target(cluster: KubernetesClient, address: str | None) -> None:
    user = new_user()
    await create_pod(cluster, f"pod-{user}", job(user, "train", ssh_host_key=HOST_KEY), address=address)
    job_directory = ClusterJobDirectory(cluster, NAMESPACE)
    (found,) = await job_directory.jobs(user)
    assert found.condition is (JobCondition.READY if address else JobCondition.STARTING)
    assert await job_directory.endpoint(user, "train") is None


READY = job("alice", "train", ssh_host_key=HOST_KEY)
POD = {"metadata": {"name": "p"}, "status": {"phase": "Running", "hostIP": "10.0.0.7"}}
SERVICE = {
    "metadata": {"labels": {"dlspawner.dev/job": READY.id}},
    "spec": {"type": "NodePort", "clusterIP": "10.9.9.9", "ports": [{"name": "ssh", "port": 22, "nodePort": 30022}]},
}


async def test_deleted_jobs_are_not_running(cluster: KubernetesClient) -> None:
    kept, stopped = job(new_user(), "kept"), job(new_user(), "stopped")
    job_directory = ClusterJobDirectory(cluster, NAMESPACE)
    for one in (kept, stopped):
        await create_pod(cluster, one.id, one)
    asked = {kept.id, stopped.id, *(f"j-{number:012}".replace("0", "c").replace("1", "d") for number in range(120))}
    assert await job_directory.running(asked) == {kept.id, stopped.id}
    await cluster.delete(PODS, stopped.id, NAMESPACE)
    assert await job_directory.running(asked) == {kept.id}
    assert await job_directory.running(()) == frozenset()


async def test_access_state_names_the_removed_keys(registry: Registry) -> None:
    mine, theirs = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    user, other = new_user(), new_user()
    registry.token(user)
    registry.token(other)
    registry.register(user, mine)
    registry.register(other, theirs)
    asked = {(user, mine.get_fingerprint()), (user, theirs.get_fingerprint()), (other, theirs.get_fingerprint())}
    told = await registry.auth_backend.access_state(asked)
    assert (told.gone_keys, told.blocked) == ({(user, theirs.get_fingerprint())}, frozenset())
    assert (await registry.auth_backend.access_state(())).gone_keys == frozenset()


async def test_deleted_users_are_named(real_hub: RealHub, auth_backend: HubAndManager) -> None:
    stays, leaves = new_user(), new_user()
    for user in (stays, leaves):
        real_hub.token(user)
    assert await auth_backend.deleted_users({stays, leaves}) == frozenset()
    real_hub.setup("DELETE", f"/users/{leaves}")
    assert await auth_backend.deleted_users({stays, leaves}) == {leaves}


OTHER = {"metadata": {"labels": {"dlspawner.dev/job": "j-zzzzzzzzzzzz"}}}


@pytest.mark.parametrize(
    ("service", "address"),
    [
        (SERVICE, ("10.0.0.7", 30022)),
        ({**SERVICE, "spec": {**SERVICE["spec"], "type": "ClusterIP"}}, ("10.9.9.9", 22)),
        ({**SERVICE, **OTHER}, None),
        ({**SERVICE, "metadata": {}}, None),
    ],
    ids=["the node and NodePort", "the address of a ClusterIP Service", "the Service of another job", "no label"],
)
def test_target_is_the_address_of_the_own_service(service: dict[str, Any], address: tuple[str, int] | None) -> None:
    target = read_target(POD, service, READY)
    assert (target and (target.host, target.port)) == address


@pytest.mark.parametrize(
    ("metadata", "status", "expected"),
    {
        "running": ({}, {"phase": "Running", "hostIP": "10.0.0.7"}, JobCondition.READY),
        "running without an address": ({}, {"phase": "Running"}, JobCondition.STARTING),
        "no status yet": ({}, {}, JobCondition.STARTING),
        "being deleted": ({"deletionTimestamp": "now"}, {"phase": "Running", "hostIP": "x"}, JobCondition.STOPPING),
        "ended": ({}, {"phase": "Failed"}, JobCondition.STOPPING),
    }.values(),
)
def test_condition_of_a_job_follows_from_its_pod(
    metadata: dict[str, str], status: dict[str, str], expected: JobCondition
) -> None:
    assert condition({"metadata": metadata, "status": status}, READY) is expected


def test_job_without_a_host_key_has_no_ssh() -> None:
    assert condition(POD, replace(READY, ssh_host_key=None)) is JobCondition.WITHOUT_SSH
