"""The watch of pods on a real API server: lists in pages, and versions that are too old."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kubernetes_asyncio import client, config

from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner.kube import reflector
from dlspawner.spawner.kube.pod_store import PodWatch
from tests.contract.client import RESTRICTED_CONTAINER

pytestmark = pytest.mark.kubernetes
PATIENCE = 60.0


@pytest.fixture
async def core(monkeypatch: pytest.MonkeyPatch, kubernetes: object) -> AsyncIterator[client.CoreV1Api]:
    configuration = client.Configuration()
    await config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    async with client.ApiClient(configuration) as session:
        made = client.CoreV1Api(session)
        monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: made)
        yield made


@pytest.fixture
async def watch(core: client.CoreV1Api, jobs_namespace: str) -> AsyncIterator[PodWatch]:
    made = PodWatch(namespace=jobs_namespace, labels={"component": "test"})
    yield made
    await made.stop()


def manifest(name: str, **labels: str) -> dict[str, Any]:
    """A pod that no scheduler takes, and that Pod Security *restricted* admits."""
    container = {"name": "notebook", "image": "example.org/image:1", "securityContext": RESTRICTED_CONTAINER}
    spec = {"schedulerName": "nobody", "containers": [container]}
    return {"metadata": {"name": name, "labels": {"component": "test", **labels}}, "spec": spec}


def there(pod: PodDict | None) -> bool:
    return pod is not None


async def test_pods_are_listed_in_pages_and_followed(
    core: client.CoreV1Api, watch: PodWatch, jobs_namespace: str
) -> None:
    names = [f"p{number:03}" for number in range(2 * reflector.PAGE + 3)]
    await asyncio.gather(*(core.create_namespaced_pod(jobs_namespace, manifest(name)) for name in names))
    await core.create_namespaced_pod(jobs_namespace, manifest("stranger", component="other"))
    await watch.start()
    assert sorted(watch.pods) == [f"{jobs_namespace}/{name}" for name in names]
    assert all("managedFields" not in pod["metadata"] for pod in watch.pods.values())

    key = f"{jobs_namespace}/new"
    created = await core.create_namespaced_pod(jobs_namespace, manifest("new"))
    seen = await watch.until(key, there, PATIENCE)
    assert seen is not None
    assert seen["metadata"]["uid"] == created.metadata.uid
    await core.delete_namespaced_pod("new", jobs_namespace, grace_period_seconds=0)
    await watch.until(key, lambda pod: pod is None, PATIENCE)
    assert watch.gone[key]["metadata"]["uid"] == created.metadata.uid


async def test_after_a_version_that_is_too_old_everything_is_listed_again(
    core: client.CoreV1Api, watch: PodWatch, jobs_namespace: str
) -> None:
    await core.create_namespaced_pod(jobs_namespace, manifest("a"))
    await watch.start()
    await watch.stop()
    await core.delete_namespaced_pod("a", jobs_namespace, grace_period_seconds=0)
    await core.create_namespaced_pod(jobs_namespace, manifest("b"))
    watch._version = "1"  # older than anything that the API server still knows
    await watch.start()
    await watch.until(f"{jobs_namespace}/b", there, PATIENCE)
    await watch.until(f"{jobs_namespace}/a", lambda pod: pod is None, PATIENCE)

    assert f"{jobs_namespace}/a" in watch.gone


async def test_the_api_server_s_certificate_is_one_that_python_3_13_takes() -> None:
    cluster = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())["clusters"][0]["cluster"]
    trusted = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    trusted.verify_flags |= ssl.VERIFY_X509_STRICT
    server = urlsplit(cluster["server"])
    _, writer = await asyncio.open_connection(server.hostname, server.port, ssl=trusted)
    writer.close()
    await writer.wait_closed()
