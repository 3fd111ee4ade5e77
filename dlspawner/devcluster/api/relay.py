"""Logs and exec: the API server authorises, finds the node, and passes bytes between client and kubelet.

The kubelet is reached at the node's InternalIP and `status.daemonEndpoints.kubeletEndpoint.Port`, by plain HTTP (both
ends are on loopback) with the cluster's own bearer token; paths and queries are the kubelet's. Upgraded connections
(SPDY/3.1 of older kubectl, WebSocket of newer clients) are not understood, only tunnelled: each direction is read only
as fast as the other end takes it.
"""

import asyncio
import contextlib
import urllib.parse
from collections.abc import Mapping

import aiohttp
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient
from tornado.web import RequestHandler

from dlspawner.devcluster.api import errors, requests
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import NODES
from dlspawner.devcluster.api.store import Object, Store, Version

_CONNECT_SECONDS = 5
_CHUNK = 64 * 1024
_LOG_OPTIONS = ("follow", "previous", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "timestamps", "stream")
_HOP_HEADERS = ("host", "authorization", "content-length", "content-type", "transfer-encoding")


class Relay:
    """Connections to kubelets."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._tunnels: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        for task in self._tunnels:
            task.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)

    async def stream_log(self, handler: RequestHandler, pod: Version, query: Mapping[str, str]) -> None:
        manifest = pod.read()
        requests.check_log_options(pod.name, query)
        container = _container(pod, manifest, query.get("container", ""))
        if not manifest["spec"].get("nodeName"):
            handler.set_status(204)  # nothing can have been written yet
            handler.clear_header("Content-Type")
            return
        host, port = self._kubelet(pod, manifest)
        options = {name: query[name] for name in _LOG_OPTIONS if name in query}
        url = f"http://{host}:{port}/containerLogs/{pod.namespace}/{pod.name}/{container}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(url, params=options) as response,
            ):
                if response.status >= 400:
                    raise ApiError(response.status, _reason(response.status), (await response.text()).strip())
                handler.set_header("Content-Type", "text/plain; charset=utf-8")
                await handler.flush()
                async for chunk in response.content.iter_any():
                    handler.write(chunk)
                    await handler.flush()
        except StreamClosedError:
            pass  # the reader has had enough
        except aiohttp.ClientError as error:
            if handler._headers_written:  # too late for a status: the stream ends short
                return
            raise _unreachable(url, error) from error

    async def tunnel(self, handler: RequestHandler, pod: Version, action: str) -> None:
        """Hands the client's connection over to the kubelet, upgrade and all."""
        manifest = pod.read()
        arguments = handler.request.query_arguments
        container = _container(pod, manifest, _last(arguments, "container"))
        host, port = self._kubelet(pod, manifest)
        if "Upgrade" not in handler.request.headers:
            raise errors.bad_request("Upgrade request required")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                kubelet = await TCPClient().connect(host, port)
        except (OSError, TimeoutError, StreamClosedError) as error:
            raise _unreachable(f"http://{host}:{port}", error) from error
        await kubelet.write(self._upgrade_request(handler, pod, action, container))
        client = handler.detach()
        task = asyncio.create_task(_both_ways(client, kubelet), name=f"tunnel {action} {pod.namespace}/{pod.name}")
        self._tunnels.add(task)
        task.add_done_callback(self._tunnels.discard)

    def _upgrade_request(self, handler: RequestHandler, pod: Version, action: str, container: str) -> bytes:
        request = handler.request
        pairs = [(name, value) for name, values in request.query_arguments.items() for value in values]
        # What the kubelet reads is called otherwise than what a client asks with.
        names = {"stdin": "input", "stdout": "output", "stderr": "error"}
        query = urllib.parse.urlencode(
            [pair for name, value in pairs if name != "container" for pair in _spellings(name, value, names)]
        )
        lines = [
            f"{request.method} /{action}/{pod.namespace}/{pod.name}/{container}?{query} HTTP/1.1",
            f"Host: {pod.fields['spec.nodeName']}",
            f"Authorization: Bearer {self._token}",
        ]
        lines += [f"{name}: {value}" for name, value in request.headers.get_all() if name.lower() not in _HOP_HEADERS]
        if request.method == "POST":
            lines.append("Content-Length: 0")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _kubelet(self, pod: Version, manifest: Object) -> tuple[str, int]:
        name = manifest["spec"].get("nodeName")
        if not name:
            raise errors.bad_request(f"pod {pod.name} does not have a host assigned")
        node = self._store.get(NODES, "", name)
        if node is None:
            raise errors.not_found(NODES, name)
        status = node.read().get("status", {})
        addresses = {address["type"]: address["address"] for address in status.get("addresses") or []}
        port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
        if "InternalIP" not in addresses or not port:
            raise errors.plain(f"no preferred addresses found; known addresses: {list(addresses.values())}")
        return addresses["InternalIP"], int(port)


def _spellings(name: str, value: bytes, names: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Both the client's and the kubelet's word, so that either reader is served."""
    if name not in names:
        return [(name, value)]
    return [(name, value), (names[name], b"1" if value in (b"true", b"1") else b"0")]


def _last(arguments: Mapping[str, list[bytes]], name: str) -> str:
    return arguments[name][-1].decode() if arguments.get(name) else ""


def _container(pod: Version, manifest: Object, asked: str) -> str:
    """The container that is meant: the only one, the annotated default, or the one that was named."""
    spec = manifest["spec"]
    names = [container["name"] for container in spec.get("containers") or []]
    initial = [container["name"] for container in spec.get("initContainers") or []]
    if asked:
        if asked not in (*names, *initial):
            raise errors.bad_request(f"container {asked} is not valid for pod {pod.name}")
        return asked
    default = (manifest["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if default in names:
        return str(default)
    if len(names) == 1:
        return str(names[0])
    choices = f"choose one of: [{' '.join(names)}]"
    if initial:
        choices += f" or one of the init containers: [{' '.join(initial)}]"
    raise errors.bad_request(f"a container name must be specified for pod {pod.name}, {choices}")


def _reason(code: int) -> str:
    return {400: "BadRequest", 404: "NotFound"}.get(code, "InternalError")


def _unreachable(url: str, error: BaseException) -> ApiError:
    return errors.internal(f"error dialing backend: {url}: {error or type(error).__name__}")


async def _both_ways(client: IOStream, kubelet: IOStream) -> None:
    """Until either side closes; then both do."""
    ways = [asyncio.create_task(_pour(client, kubelet)), asyncio.create_task(_pour(kubelet, client))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        client.close()
        kubelet.close()


async def _pour(source: IOStream, sink: IOStream) -> None:
    with contextlib.suppress(StreamClosedError):
        while True:
            await sink.write(await source.read_bytes(_CHUNK, partial=True))
