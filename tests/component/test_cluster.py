"""The Kubernetes client on a scripted server and on the embedded one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
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
from dlspawner.devcluster import api
from tests.component.spawner.test_asking import answering

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: here}}]
clusters: [{name: c, cluster: {server: "%s"}}]
users: [{name: u, user: {token: secret}}]
"""
Answer = Callable[[web.Request], Any]


@dataclass
class Server:
    """Gives the answers in their order, and records the requests."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[web.Request] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else _hang
        response: web.StreamResponse = await answer(request)
        return response


async def _hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError("the request was not cancelled")


def _json(body: Any, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return answer


def _stream(*events: Any) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            data = (json.dumps(event) + "\n").encode()
            await response.write(data[: len(data) // 2])
            await response.write(data[len(data) // 2 :])
        return response

    return answer


def _pod(name: str, version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "managedFields": [{}]}}


def _list(*pods: dict[str, Any], version: int = 1, more: str = "") -> Answer:
    return _json({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(pods)})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    state = Server()
    async with answering(state.handle) as state.url:
        yield state


@pytest.fixture
async def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesClient]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "internal.example.com")
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG % server.url, encoding="utf-8")
    async with await KubernetesClient.connect(path) as connected:
        yield connected


async def _changes(cluster: KubernetesClient, count: int, *, optional: bool = False) -> list[tuple[str, str]]:
    seen: list[WatchEvent] = []
    async with asyncio.timeout(60):
        async for change in cluster.watch(PODS, "here", optional=optional):
            seen.append(change)
            if len(seen) == count:
                break
    return [(change.type, change.object.get("metadata", {}).get("name", "")) for change in seen]


async def test_the_configuration_gives_namespace_and_token(cluster: KubernetesClient, server: Server) -> None:
    server.answers.append(_json(_pod("a")))
    assert (cluster.namespace, cluster.token) == ("here", "secret")
    await cluster.get(PODS, "a b", "n/s")
    assert server.requests[0].raw_path == "/api/v1/namespaces/n%2Fs/pods/a%20b"
    assert server.requests[0].headers["Authorization"] == "Bearer secret"


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
async def test_status_codes_and_errors(
    cluster: KubernetesClient, server: Server, status: int, kind: type[kubernetes.KubernetesError]
) -> None:
    server.answers.append(_json({"kind": "Status", "message": "because", "reason": "Why"}, status))
    with pytest.raises(kind, match="because") as caught:
        await cluster.get(PODS, "a", "here")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (status, "Why")


async def test_no_answer_is_unavailable(cluster: KubernetesClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "DEADLINE_SECONDS", 0.05)
    with pytest.raises(KubernetesUnavailable):
        await cluster.get(PODS, "a", "here")


async def test_a_refused_connection_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG % "http://127.0.0.1:1", encoding="utf-8")
    async with await KubernetesClient.connect(path) as connected:
        with pytest.raises(KubernetesUnavailable):
            await connected.create(PODS, _pod("a"), "here")


async def test_an_invalid_answer_is_unavailable(cluster: KubernetesClient, server: Server) -> None:
    server.answers += [_json(["list"]), _stream("half")]
    for _ in range(2):
        with pytest.raises(KubernetesUnavailable):
            await cluster.get(PODS, "a", "here")


async def test_lists_are_read_in_pages_without_managed_fields(cluster: KubernetesClient, server: Server) -> None:
    server.answers += [_list(_pod("a"), more="token"), _list(_pod("b"))]
    pods = await cluster.list(PODS, "here", labels="x=y", fields="spec.nodeName=n")
    assert [pod["metadata"]["name"] for pod in pods] == ["a", "b"]
    assert "managedFields" not in pods[0]["metadata"]
    assert server.requests[1].query["continue"] == "token"
    assert server.requests[1].query["labelSelector"] == "x=y"


async def test_a_watch_is_resumed(cluster: KubernetesClient, server: Server) -> None:
    event = {"type": "MODIFIED", "object": _pod("a", 7)}
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    added = {"type": "ADDED", "object": _pod("b", 10)}
    server.answers += [_list(_pod("a"), version=5), _stream(event), _stream(bookmark), _stream(added)]
    seen = await _changes(cluster, 4)
    assert seen == [("ADDED", "a"), ("SYNCED", ""), ("MODIFIED", "a"), ("ADDED", "b")]
    versions = [request.query["resourceVersion"] for request in server.requests[1:]]
    assert versions == ["5", "7", "9"]


@pytest.mark.parametrize("as_status", [True, False])
async def test_a_watch_that_expired_reports_missed_changes(
    cluster: KubernetesClient, server: Server, as_status: bool
) -> None:
    gone = {"kind": "Status", "code": 410, "message": "too old"}
    expired = _json(gone, 410) if as_status else _stream({"type": "ERROR", "object": gone})
    server.answers += [_list(_pod("a"), _pod("b")), expired, _list(_pod("b", 3), _pod("c"))]
    assert await _changes(cluster, 7) == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("SYNCED", ""),
        ("MODIFIED", "b"),
        ("ADDED", "c"),
        ("DELETED", "a"),
        ("SYNCED", ""),
    ]


async def test_a_watch_survives_an_unavailable_server(
    cluster: KubernetesClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "delays", lambda: iter([0.001] * 100))
    down = _json({"message": "down"}, 503)
    garbage = _stream({"no": "event"})
    added = _stream({"type": "ADDED", "object": _pod("b", 10)})
    half_a_list = [_list(_pod("a"), more="next"), down]
    server.answers += [down, *half_a_list, _list(_pod("a")), down, garbage, added]
    assert await _changes(cluster, 4) == [("ADDED", "a"), ("MODIFIED", "a"), ("SYNCED", ""), ("ADDED", "b")]


@pytest.mark.parametrize("optional", [True, False])
async def test_a_kind_that_is_removed_takes_its_objects_along_only_if_it_is_optional(
    cluster: KubernetesClient, server: Server, monkeypatch: pytest.MonkeyPatch, optional: bool
) -> None:
    monkeypatch.setattr(kubernetes, "delays", lambda: iter([0.001] * 100))
    server.answers += [_list(_pod("a")), _json({"message": "no such kind"}, 404), _list(_pod("a"))]
    server.answers += [_stream({"type": "ADDED", "object": _pod("b", 10)})]
    removed = [("DELETED", "a"), ("SYNCED", ""), ("ADDED", "a"), ("SYNCED", "")] if optional else []
    if not optional:
        del server.answers[2]  # it goes on where it was
    seen = await _changes(cluster, 3 + len(removed), optional=optional)
    assert seen == [("ADDED", "a"), ("SYNCED", ""), *removed, ("ADDED", "b")]


async def test_an_object_that_disappears_during_a_failed_list_is_deleted(
    cluster: KubernetesClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "delays", lambda: iter([0.001] * 100))
    down = _json({"message": "down"}, 503)
    server.answers += [_list(_pod("a"), more="next"), down, _list(_pod("b"))]
    assert await _changes(cluster, 4) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a"), ("SYNCED", "")]


async def test_requests_on_the_embedded_server(tmp_path: Path) -> None:
    server = await api.start(tmp_path / "state")
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
