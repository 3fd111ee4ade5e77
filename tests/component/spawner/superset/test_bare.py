"""Every public method of KubeSpawner on a bare instance, as tools construct it: without a row in the Hub's database.

The same calls, in the order of a server's life, by KubeSpawner and by DLSpawner without templates, each on a cluster of
its own: what is returned is equal.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from jupyterhub.objects import Hub
from kubernetes_asyncio.config import kube_config
from kubespawner import KubeSpawner, clients
from traitlets.config import Config

from dlspawner.spawner import DLSpawner
from tests.component.spawner.superset.cluster import POD_IP, Cluster, running
from tests.component.spawner.superset.recording import USUAL, without_chance

NAMESPACE = "bare"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "jupyter-alice", "uid": "1"}
RUNS = {"status": {"phase": "Running", "podIP": POD_IP, "containerStatuses": [{"ready": True}]}, "metadata": OWNER}


async def started(spawner: Any) -> Any:
    starting = asyncio.ensure_future(spawner.start())
    telling = asyncio.ensure_future(_messages(spawner))
    url = await starting
    return url, bool(await telling)


async def _messages(spawner: Any) -> list[Any]:
    return [event async for event in spawner.progress()]


def loaded(state: Mapping[str, Any]) -> Callable[[Any], Any]:
    def call(spawner: Any) -> Any:
        spawner.load_state(state)
        return spawner.pod_name

    return call


# A method, and a call of it on a spawner whose earlier calls are done.
CALLS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("get_state", lambda spawner: spawner.get_state()),
    ("load_state", loaded({})),
    ("load_state", loaded({"pod_name": "jupyter-of-another-time"})),
    ("load_state", loaded({"pod_name": "jupyter-alice"})),
    ("clear_state", lambda spawner: spawner.clear_state()),
    ("get_env", lambda spawner: spawner.get_env()),
    ("get_pvc_manifest", lambda spawner: spawner.get_pvc_manifest()),
    ("get_secret_manifest", lambda spawner: spawner.get_secret_manifest(OWNER)),
    ("get_service_manifest", lambda spawner: spawner.get_service_manifest(OWNER, 8888)),
    ("get_pod_manifest", lambda spawner: spawner.get_pod_manifest()),
    ("is_pod_running", lambda spawner: spawner.is_pod_running(None)),
    ("is_pod_running", lambda spawner: spawner.is_pod_running(RUNS)),
    ("pod_has_uid", lambda spawner: spawner.pod_has_uid(None)),
    ("pod_has_uid", lambda spawner: spawner.pod_has_uid(RUNS)),
    ("load_user_options", lambda spawner: spawner.load_user_options()),
    ("poll", lambda spawner: spawner.poll()),
    ("start", started),
    ("progress", _messages),
    ("get_state", lambda spawner: spawner.get_state()),
    ("poll", lambda spawner: spawner.poll()),
    ("stop", lambda spawner: spawner.stop()),
    ("poll", lambda spawner: spawner.poll()),
    ("stop", lambda spawner: spawner.stop()),
    ("stop", lambda spawner: spawner.stop(now=True)),
    ("delete_forever", lambda spawner: spawner.delete_forever()),
)


def make_bare(cls: type[Any], cluster: Cluster) -> Any:
    traits = {**USUAL, "namespace": NAMESPACE, "k8s_api_ssl_ca_cert": cluster.authority, "image": "example.org/jobs:1"}
    config = Config({"KubeSpawner": {**traits, "storage_pvc_ensure": True, "storage_capacity": "1Gi"}})
    user = SimpleNamespace(
        name="alice", id=1, url="/user/alice/", escaped_name="alice", groups=[], encrypted_auth_state=None
    )
    spawner = cls(user=user, hub=Hub(ip="10.0.0.9", port=8081, base_url="/hub/"), config=config, api_token="a-token")
    spawner.cert_paths = dict.fromkeys(("keyfile", "certfile", "cafile"), __file__)
    spawner.internal_trust_bundles = {"hub-ca": __file__}
    return spawner


async def outcome(spawner: Any, call: Callable[[Any], Any]) -> Any:
    """The value that the call returns, as plain data."""
    value = call(spawner)
    value = await value if inspect.isawaitable(value) else value
    if hasattr(value, "to_dict"):
        value = spawner.api.api_client.sanitize_for_serialization(value)
    return without_chance(value)


async def outcomes(cls: type[Any], directory: Path) -> list[Any]:
    async with running(directory) as cluster:
        clients.load_config.cache_clear()
        with patch.object(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig)):
            await cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            cluster.may_run[NAMESPACE].set()
            try:
                async with asyncio.timeout(120):
                    spawner = make_bare(cls, cluster)
                    return [await outcome(spawner, call) for _, call in CALLS]
            finally:
                await cls._stop_all_reflectors()
                clients.load_config.cache_clear()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    stock, ours = (
        asyncio.run(outcomes(cls, tmp_path_factory.mktemp(cls.__name__))) for cls in (KubeSpawner, DLSpawner)
    )
    return stock, ours


@pytest.mark.parametrize("place", range(len(CALLS)), ids=[f"{at}-{name}" for at, (name, _) in enumerate(CALLS)])
def test_call_on_a_bare_instance_has_the_parents_outcome(place: int, both: tuple[list[Any], list[Any]]) -> None:
    stock, ours = both
    assert ours[place] == stock[place]


def test_the_server_is_reached(both: tuple[list[Any], list[Any]]) -> None:
    stock, _ = both
    assert (f"http://{POD_IP}:8888", True) in stock


def test_every_public_method_is_called() -> None:
    public = {name for name, value in vars(KubeSpawner).items() if inspect.isfunction(value) and name[0] != "_"}
    assert public == {name for name, _ in CALLS}
