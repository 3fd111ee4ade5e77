"""The only Kubernetes client outside KubeSpawner: plain dicts in and out, over the official package's asyncio flavour.

It owns the connection, its deadlines, and the translation of all foreign errors into five:

    KubernetesError
    ├── ObjectNotFound          404
    ├── Conflict                409: the object exists already, or another client changed it first
    ├── ResourceVersionExpired  410: a resourceVersion or a list's continuation is too old
    ├── KubernetesRejected      any other 4xx: the cluster refused; ``reason`` and the message have the cause
    └── KubernetesUnavailable   5xx, time-out, TLS, connection: the result is unknown

Rules: every call has a deadline; nothing is retried here except the watch, because only the caller knows if a request
that timed out may be sent twice. A watch never ends by itself. Lists are read in pages and ``managedFields`` are
dropped at once, so that one answer never holds the event loop for long (FACTS 32).

Refused: the package's generated calls and models. Models sent to another flavour of the package silently become
snake_case JSON (FACTS 14), and a resource is just a path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlencode

import aiohttp
import yaml
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import OpenApiException

from dlspawner.backoff import delays
from dlspawner.no_proxy import reach_directly

log = logging.getLogger(__name__)

Object = dict[str, Any]
Objects = list[Object]
PatchType = Literal["merge", "strategic", "json"]

PAGE = 200
DEADLINE_SECONDS = 30.0
# The server ends a watch after this long; a connection that died silently is noticed a little later.
WATCH_SECONDS = 240
_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class KubernetesError(Exception):
    """A request to the Kubernetes API failed; the message is for operators."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ObjectNotFound(KubernetesError):
    """The object does not exist (or its namespace or kind does not)."""


class Conflict(KubernetesError):
    """The object exists already, or was changed meanwhile."""


class ResourceVersionExpired(KubernetesError):
    """The resourceVersion is no longer kept: list again."""


class KubernetesRejected(KubernetesError):
    """The API server understood the request and refused it; repeating the same request will not help."""


class KubernetesUnavailable(KubernetesError):
    """No answer, or an inconclusive one: the request may or may not have been carried out."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch. ``SYNCED`` (no object) follows every complete list: the events before it are the complete
    state.

    A ``DELETED`` found by a new list has only the object's namespace, name and uid.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED", "SYNCED"]
    object: Object


class KubernetesClient:
    """One connection pool to one API server. Use as an async context manager, or call `close`."""

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        """Use `connect`; ``namespace`` is the configuration's, for callers without one of their own."""
        self.namespace = namespace
        self._api = ApiClient(configuration)

    @classmethod
    async def connect(cls, kubeconfig: str | Path | None = None) -> Self:
        """Connects by kubeconfig files (argument, else ``$KUBECONFIG``), else by the pod's service account.

        Reads files only: an API server that is down is noticed at the first call.
        """
        configuration = Configuration()
        configuration.retries = None  # decided here, see the module's docstring
        path = kubeconfig or os.environ.get("KUBECONFIG", "")
        try:
            if path:
                await kubernetes_config.load_kube_config(
                    config_file=str(path), client_configuration=configuration, persist_config=False
                )
                _, current = kubernetes_config.list_kube_config_contexts(str(path))
                namespace = current["context"].get("namespace") or "default"
            else:
                kubernetes_config.load_incluster_config(client_configuration=configuration)
                namespace = _IN_CLUSTER_NAMESPACE.read_text(encoding="utf-8").strip()
            reach_directly(configuration.host)
            return cls(configuration, namespace)
        except (kubernetes_config.ConfigException, OSError, yaml.YAMLError) as error:
            where = f"kubeconfig {path}" if path else "no KUBECONFIG, and not inside a cluster"
            raise KubernetesUnavailable(f"cannot configure the Kubernetes client ({where}): {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()

    @property
    def token(self) -> str:
        """Returns this client's bearer token; empty if it uses certificates."""
        value = str(self._api.configuration.api_key.get("BearerToken", ""))
        return value.removeprefix("Bearer ")

    async def get(
        self, kind: ResourceKind, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        return await self._call("GET", kind.path(namespace, name, subresource))

    async def list(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Objects:
        items: Objects = []
        async for page, _ in self._pages(kind, namespace, labels, fields):
            items += page
        return items

    async def create(
        self,
        kind: ResourceKind,
        manifest: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str = "",
        subresource: str = "",
    ) -> Object:
        """Creates an object; with ``name`` and ``subresource``, by an object's subresource, such as a token."""
        namespace = namespace or manifest.get("metadata", {}).get("namespace")
        return await self._call("POST", kind.path(namespace, name, subresource), body=manifest)

    async def replace(
        self,
        kind: ResourceKind,
        name: str,
        manifest: Mapping[str, Any],
        namespace: str | None = None,
        subresource: str = "",
    ) -> Object:
        return await self._call("PUT", kind.path(namespace, name, subresource), body=manifest)

    async def patch(  # noqa: PLR0913  (a patch names an object, a part of it and a dialect)
        self,
        kind: ResourceKind,
        name: str,
        patch: Mapping[str, Any] | Objects,
        namespace: str | None = None,
        *,
        subresource: str = "",
        type: PatchType = "merge",
    ) -> Object:
        return await self._call(
            "PATCH", kind.path(namespace, name, subresource), body=patch, content_type=_PATCH_TYPES[type]
        )

    async def delete(
        self, kind: ResourceKind, name: str, namespace: str | None = None, *, grace: int | None = None, uid: str = ""
    ) -> None:
        """Deletes an object; ``grace=None`` keeps its grace period; ``uid`` guards against deleting a namesake."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        await self._call("DELETE", kind.path(namespace, name), body=options)

    async def log(self, pod: str, namespace: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        """Yields a container's output, piece by piece; the next piece is read when the caller has taken the last one.

        KubernetesRejected without any output so far, or without an earlier run; KubernetesUnavailable if `seconds` pass
        before the end.
        """
        timeout = aiohttp.ClientTimeout(total=wanted.seconds, sock_connect=DEADLINE_SECONDS)
        response = await self._send("GET", PODS.path(namespace, pod, "log"), wanted.query, None, "", timeout)
        left = wanted.most
        try:
            async for chunk in _chunks(response):
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    return
        finally:
            response.close()

    async def watch(  # noqa: PLR0912  (the ways in which a watch ends)
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        optional: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        """Yields all existing objects, then every change, for ever.

        After a failure, which is logged, it waits, and continues or lists again; no change is lost. An ``optional``
        kind may be missing from the cluster, and then has no objects; otherwise 404 is a failure like any other.
        """
        known: dict[str, Object] = {}
        version = ""
        waits = delays()
        while True:
            try:
                if not version:
                    seen: dict[str, Object] = {}
                    async for page, listed in self._pages(kind, namespace, labels, fields):  # noqa: B007  (used after the loop)
                        for item in page:
                            before = known.get(item["metadata"]["uid"])
                            # Known from here on: if the list fails half-way, an object deleted before the next list
                            # would never be reported as deleted.
                            seen[item["metadata"]["uid"]] = known[item["metadata"]["uid"]] = _identity(item)
                            yield WatchEvent("MODIFIED" if before else "ADDED", item)
                    for uid in known.keys() - seen.keys():
                        yield WatchEvent("DELETED", known[uid])
                    known, version = seen, listed
                    yield WatchEvent("SYNCED", {})
                async for event in self._events(kind, namespace, labels, fields, version):
                    waits = delays()
                    item = event["object"]
                    version = item["metadata"]["resourceVersion"]
                    if event["type"] == "BOOKMARK":
                        continue
                    if event["type"] == "DELETED":
                        known.pop(item["metadata"]["uid"], None)
                    else:
                        known[item["metadata"]["uid"]] = _identity(item)
                    yield WatchEvent(event["type"], item)
            except ResourceVersionExpired:
                version = ""
            except KubernetesError as error:
                if optional and isinstance(error, ObjectNotFound):
                    for gone in known.values():
                        yield WatchEvent("DELETED", gone)
                    known, version = {}, ""
                    yield WatchEvent("SYNCED", {})
                wait = next(waits)
                log.warning("watch kind=%s error=%s retry_in=%.1fs", kind.plural, error, wait)
                await asyncio.sleep(wait)

    async def _pages(
        self, kind: ResourceKind, namespace: str | None, labels: str, fields: str
    ) -> AsyncIterator[tuple[Objects, str]]:
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE), "continue": ""}
        while True:
            answer = await self._call("GET", kind.path(namespace), query=query)
            items = answer.get("items") or []
            for item in items:
                item["metadata"].pop("managedFields", None)
            yield items, answer["metadata"]["resourceVersion"]
            query["continue"] = answer["metadata"].get("continue", "")
            if not query["continue"]:
                return

    async def _events(
        self, kind: ResourceKind, namespace: str | None, labels: str, fields: str, version: str
    ) -> AsyncIterator[Object]:
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=DEADLINE_SECONDS, sock_read=WATCH_SECONDS + 30)
        response = await self._send("GET", kind.path(namespace), query, None, "", timeout)
        try:
            buffer = bytearray()
            async for chunk in _chunks(response):
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(bytes(line))
        finally:
            response.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
        response = await self._send(method, path, query or {}, body, content_type, timeout)
        try:
            answer = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise KubernetesUnavailable(f"{method} {path}: {error or type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise KubernetesUnavailable(f"{method} {path}: the answer is not an object")
        return answer

    async def _send(  # noqa: PLR0913, PLR0917  (one private seam to the foreign client)
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json, */*"}  # logs are plain text
        if content_type:
            headers["Content-Type"] = content_type
        url = self._api.configuration.host + path
        if wanted := {key: value for key, value in query.items() if value}:
            url += "?" + urlencode(wanted)
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            answer = await self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = answer.response
            if response.status >= 400:
                raise _refusal(response.status, f"{method} {path}", await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError, OpenApiException) as error:
            raise KubernetesUnavailable(f"{method} {path}: {error or type(error).__name__}") from error
        return response


def _refusal(status: int, what: str, body: bytes) -> KubernetesError:
    try:
        answer = json.loads(body)
        message, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = body[:300].decode(errors="replace"), ""
    kinds: dict[int, type[KubernetesError]] = {404: ObjectNotFound, 409: Conflict, 410: ResourceVersionExpired}
    # 408 and 429 mean "not now": as inconclusive as a 5xx.
    kind = kinds.get(status, KubernetesUnavailable if status >= 500 or status in {408, 429} else KubernetesRejected)
    return kind(f"{what}: {message or f'HTTP {status}'}", status=status, reason=reason)


def _event(line: bytes) -> Object:
    try:
        event: Object = json.loads(line)
        item = event["object"]
        if event["type"] == "ERROR":
            raise _refusal(int(item.get("code", 500)), "watch", json.dumps(item).encode())
        item["metadata"].pop("managedFields", None)
    except (ValueError, KeyError, TypeError) as error:
        raise KubernetesUnavailable(f"a watch event that cannot be read: {line[:120]!r}") from error
    return event


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise KubernetesUnavailable(f"the answer broke off: {error or type(error).__name__}") from error


def _identity(item: Object) -> Object:
    kept = {key: item["metadata"].get(key) for key in ("namespace", "name", "uid")}
    return {"metadata": {key: value for key, value in kept.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource as named in the API's paths."""

    group_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Returns the path; ``namespace=None`` with a namespaced kind means all namespaces."""
        prefix = "/api/" if "/" not in self.group_version else "/apis/"
        parts = [prefix + self.group_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [part for part in (self.plural, quote(name, safe=""), subresource) if part]
        return "/".join(parts)


PODS = ResourceKind("v1", "pods")
SERVICES = ResourceKind("v1", "services")
SECRETS = ResourceKind("v1", "secrets")
CONFIG_MAPS = ResourceKind("v1", "configmaps")
EVENTS = ResourceKind("v1", "events")
SERVICE_ACCOUNTS = ResourceKind("v1", "serviceaccounts")
CLAIMS = ResourceKind("v1", "persistentvolumeclaims")
VOLUMES = ResourceKind("v1", "persistentvolumes", namespaced=False)
NODES = ResourceKind("v1", "nodes", namespaced=False)
PRIORITY_CLASSES = ResourceKind("scheduling.k8s.io/v1", "priorityclasses", namespaced=False)
NAMESPACES = ResourceKind("v1", "namespaces", namespaced=False)
LEASES = ResourceKind("coordination.k8s.io/v1", "leases")


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The requested part of a container's log: at most `most` bytes from its beginning, or of its last lines (`tail`).

    `since`: from this time on, to the second; `seconds`: time limit of reading, and with `follow` of waiting for more.
    """

    container: str
    previous: bool = False
    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: str = ""
    seconds: float = DEADLINE_SECONDS
    most: int = 64 * 2**20

    @property
    def query(self) -> dict[str, str]:
        flags = {"previous": self.previous, "follow": self.follow, "timestamps": self.timestamps}
        tail = {} if self.tail is None else {"tailLines": str(self.tail)}
        chosen = {name: "true" for name, wanted in flags.items() if wanted}
        return {"container": self.container, "sinceTime": self.since, **tail, **chosen}
