"""The two Python clients of the product read and write everything they use."""

import asyncio
from typing import Any

import kubernetes_asyncio.client
import kubernetes_asyncio.config
import kubernetes_asyncio.watch
import pytest
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from tests.contract.client import Client, pod


async def test_kubespawners_client(cluster: Client, namespace: str) -> None:
    client = kubernetes_asyncio.client
    configuration = client.Configuration()
    await kubernetes_asyncio.config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        core: Any = client.CoreV1Api(api)
        body = client.V1Pod(
            metadata=client.V1ObjectMeta(name="p", labels={"a": "b"}),
            spec=client.V1PodSpec(
                scheduler_name="nobody", containers=[client.V1Container(name="main", image="example.org/i:1")]
            ),
        )
        created = await core.create_namespaced_pod(namespace, body)
        assert created.metadata.creation_timestamp.tzinfo is not None
        listed = await core.list_namespaced_pod(namespace, label_selector="a=b", _preload_content=False)
        assert (await listed.json())["items"][0]["metadata"]["name"] == "p"
        async with asyncio.timeout(60):
            seen = await _first_event(core, namespace)
        assert (seen["type"], seen["object"].metadata.uid) == ("ADDED", created.metadata.uid)
        with pytest.raises(client.ApiException) as conflict:
            await core.create_namespaced_pod(namespace, body)
        assert (conflict.value.status, conflict.value.reason) == (409, "Conflict")
        options = client.V1DeleteOptions(grace_period_seconds=0)
        gone = await core.delete_namespaced_pod("p", namespace, body=options, grace_period_seconds=0)
        assert gone.metadata.name == "p"


async def _first_event(core: Any, namespace: str) -> Any:
    watch = kubernetes_asyncio.watch.Watch()
    options = {"field_selector": "metadata.name=p", "timeout_seconds": 30}
    async with watch.stream(core.list_namespaced_pod, namespace, **options) as stream:
        async for event in stream:
            return event
    raise AssertionError("no event came")


async def test_official_client(cluster: Client, namespace: str) -> None:
    configuration = aio_client.Configuration()
    await aio_config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    async with aio_client.ApiClient(configuration) as api:
        core: Any = aio_client.CoreV1Api(api)
        created = await core.create_namespaced_pod(namespace, pod(schedulerName="nobody"))
        assert created.status.phase == "Pending"
        patch = {"metadata": {"labels": {"team": "vision"}}}
        changed = await core.patch_namespaced_pod("p", namespace, patch)
        assert changed.metadata.labels == {"team": "vision"}
        found = await core.list_namespaced_pod(namespace, label_selector="team=vision", limit=1)
        assert [item.metadata.name for item in found.items] == ["p"]
        assert (await core.read_namespaced_pod_status("p", namespace)).status.phase == "Pending"
        assert {item.metadata.name for item in (await core.list_namespace()).items} >= {namespace}
