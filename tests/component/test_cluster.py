"""The Kubernetes client on a scripted server and on the embedded one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from dlspawner.clients import kubernetes
from dlspawner.clients.kubernetes import (
    PODS,
    SECRETS,
    Conflict,
    KubernetesClient,
    KubernetesRejected,
    KubernetesUnavailable,
    ObjectNotFound,
    WatchEvent,
)
from dlspawner.devcluster import api as embedded
from tests.harness.http_servers import answering, never
from tests.harness.scripted_api import EXPIRED, ScriptedApi, Watched, bookmark, event, listed, pod

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: here}}]
clusters: [{name: c, cluster: {server: "%s"}}]
users: [{name: u, user: {token: secret}}]
"""


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    monkeypatch.setattr(kubernetes, "delays", lambda: iter([0.001] * 100))
    async with ScriptedApi(deque([listed(5)])).serving() as served:
        yield served


async def connected(url: str, folder: Path) -> KubernetesClient:
    path = folder / "kubeconfig"
    path.write_text(KUBECONFIG % url, encoding="utf-8")
    return await KubernetesClient.connect(path)


@pytest.fixture
async def cluster(api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesClient]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "internal.example.com")
    async with await connected(api.url, tmp_path) as made:
        yield made


async def _changes(cluster: KubernetesClient, count: int, *, optional: bool = False) -> list[tuple[str, str]]:
    seen: list[WatchEvent] = []
    async with asyncio.timeout(60):
        async for change in cluster.watch(PODS, "jobs", optional=optional):
            seen.append(change)
            if len(seen) == count:
                break
    return [(change.type, change.object.get("metadata", {}).get("name", "")) for change in seen]


async def test_the_configuration_gives_namespace_and_token(tmp_path: Path) -> None:
    requests: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(request)
        return web.json_response(pod("a", 1))

    async with answering(answer) as url, await connected(url, tmp_path) as cluster:
        assert (cluster.namespace, cluster.token) == ("here", "secret")
        await cluster.get(PODS, "a b", "n/s")
    assert requests[0].raw_path == "/api/v1/namespaces/n%2Fs/pods/a%20b"
    assert requests[0].headers["Authorization"] == "Bearer secret"


async def test_kubeconfig_may_name_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters, contexts = tmp_path / "clusters", tmp_path / "contexts"
    whole = yaml.safe_load(KUBECONFIG % "http://127.0.0.1:9")
    clusters.write_text(yaml.safe_dump({"clusters": whole["clusters"], "users": whole["users"]}), encoding="utf-8")
    contexts.write_text(yaml.safe_dump({"contexts": whole["contexts"], "current-context": "c"}), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", f"{clusters}:{contexts}")
    async with await KubernetesClient.connect() as cluster:
        assert (cluster.namespace, cluster.token) == ("here", "secret")


async def test_a_missing_configuration_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KubernetesUnavailable, match="nowhere"):
        await KubernetesClient.connect(tmp_path / "nowhere")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(KubernetesUnavailable, match="no KUBECONFIG, and not inside a cluster"):
        await KubernetesClient.connect()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, ObjectNotFound),
        (409, Conflict),
        (410, kubernetes.ResourceVersionExpired),
        (422, KubernetesRejected),
        (429, KubernetesUnavailable),
        (500, KubernetesUnavailable),
    ],
)
async def test_status_codes_and_errors(status: int, kind: type[kubernetes.KubernetesError], tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "because", "reason": "Why"}, status=status)

    async with answering(answer) as url, await connected(url, tmp_path) as cluster:
        with pytest.raises(kind, match="because") as caught:
            await cluster.get(PODS, "a", "here")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (status, "Why")


async def test_no_answer_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "DEADLINE_SECONDS", 0.05)
    async with answering(never) as url, await connected(url, tmp_path) as cluster:
        with pytest.raises(KubernetesUnavailable):
            await cluster.get(PODS, "a", "here")


async def test_a_refused_connection_is_unavailable(tmp_path: Path) -> None:
    async with await connected("http://127.0.0.1:1", tmp_path) as cluster:
        with pytest.raises(KubernetesUnavailable):
            await cluster.create(PODS, pod("a", 1), "here")


@pytest.mark.parametrize("said", ['["list"]', '"half'])
async def test_an_invalid_answer_is_unavailable(said: str, tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=said, content_type="application/json")

    async with answering(answer) as url, await connected(url, tmp_path) as cluster:
        with pytest.raises(KubernetesUnavailable):
            await cluster.get(PODS, "a", "here")


async def test_lists_are_read_in_pages_without_managed_fields(cluster: KubernetesClient, api: ScriptedApi) -> None:
    first = pod("a", 1, metadata={"managedFields": [{}]})
    api.lists = deque([listed(1, first, more="token"), listed(1, pod("b", 1))])
    pods = await cluster.list(PODS, "jobs", labels="x=y", fields="spec.nodeName=n")
    assert [one["metadata"]["name"] for one in pods] == ["a", "b"]
    assert "managedFields" not in pods[0]["metadata"]
    assert api.asked[1]["continue"] == "token"
    assert api.asked[1]["labelSelector"] == "x=y"


async def test_a_watch_is_resumed(cluster: KubernetesClient, api: ScriptedApi) -> None:
    api.lists = deque([listed(5, pod("a", 1))])
    changed = event("MODIFIED", pod("a", 7))
    in_pieces = [changed[: len(changed) // 2], changed[len(changed) // 2 :]]
    api.watches += [Watched(in_pieces), Watched([bookmark(9)]), Watched([event("ADDED", pod("b", 10))])]
    seen = await _changes(cluster, 4)
    assert seen == [("ADDED", "a"), ("SYNCED", ""), ("MODIFIED", "a"), ("ADDED", "b")]
    assert api.resumed == ["5", "7", "9"]


@pytest.mark.parametrize("expired", [Watched(status=410), Watched([EXPIRED])], ids=["status", "event"])
async def test_a_watch_that_expired_reports_missed_changes(
    cluster: KubernetesClient, api: ScriptedApi, expired: Watched
) -> None:
    api.lists = deque([listed(1, pod("a", 1), pod("b", 1)), listed(3, pod("b", 3), pod("c", 1))])
    api.watches.append(expired)
    assert await _changes(cluster, 7) == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("SYNCED", ""),
        ("MODIFIED", "b"),
        ("ADDED", "c"),
        ("DELETED", "a"),
        ("SYNCED", ""),
    ]


async def test_a_watch_survives_an_unavailable_server(cluster: KubernetesClient, api: ScriptedApi) -> None:
    api.lists = deque([503, listed(1, pod("a", 1), more="next"), 503, listed(1, pod("a", 1))])
    garbage = Watched([b'{"no": "event"}\n'])
    api.watches += [Watched(status=503), garbage, Watched([event("ADDED", pod("b", 10))])]
    assert await _changes(cluster, 4) == [("ADDED", "a"), ("MODIFIED", "a"), ("SYNCED", ""), ("ADDED", "b")]


@pytest.mark.parametrize("optional", [True, False])
async def test_a_kind_that_is_removed_takes_its_objects_along_only_if_it_is_optional(
    cluster: KubernetesClient, api: ScriptedApi, optional: bool
) -> None:
    api.lists = deque([listed(1, pod("a", 1))])
    api.watches += [Watched(status=404), Watched([event("ADDED", pod("b", 10))])]
    removed = [("DELETED", "a"), ("SYNCED", ""), ("ADDED", "a"), ("SYNCED", "")] if optional else []
    seen = await _changes(cluster, 3 + len(removed), optional=optional)
    assert seen == [("ADDED", "a"), ("SYNCED", ""), *removed, ("ADDED", "b")]


async def test_an_object_that_disappears_during_a_failed_list_is_deleted(
    cluster: KubernetesClient, api: ScriptedApi
) -> None:
    api.lists = deque([listed(1, pod("a", 1), more="next"), 503, listed(1, pod("b", 1))])
    assert await _changes(cluster, 4) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a"), ("SYNCED", "")]


async def test_requests_on_the_embedded_server(tmp_path: Path) -> None:
    server = await embedded.start(tmp_path / "state")
    try:
        async with await KubernetesClient.connect(server.kubeconfig) as cluster:
            manifest = {"metadata": {"name": "s", "namespace": "jobs"}, "stringData": {"a": "b"}}
            created = await cluster.create(SECRETS, manifest)
            with pytest.raises(Conflict):
                await cluster.create(SECRETS, manifest)
            with pytest.raises(Conflict):
                await cluster.delete(SECRETS, "s", "jobs", uid="another")
            patched = await cluster.patch(SECRETS, "s", {"metadata": {"labels": {"x": "y"}}}, "jobs")
            with pytest.raises(Conflict):
                await cluster.replace(SECRETS, "s", created, "jobs")
            assert await cluster.replace(SECRETS, "s", patched, "jobs")
            assert len(await cluster.list(SECRETS, labels="x=y")) == 1
            await cluster.delete(SECRETS, "s", "jobs")
            with pytest.raises(ObjectNotFound):
                await cluster.get(SECRETS, "s", "jobs")
            with pytest.raises(KubernetesRejected):
                await cluster.create(SECRETS, {"metadata": {"name": "Not A Name", "namespace": "jobs"}})
    finally:
        await server.stop()
