"""NodePorts: what arrives at any simulated node's address on a Service's node port goes to one of its ready pods.

Endpoints are the pods of this process that match the Service's selector: they are known here before the API knows
them, and no other node could route to a loopback address. Bytes move through one shared buffer, socket to socket;
a side that is slow stops the other from being read, a side that says "no more" is half-closed.
Refused: asyncio's transports, which from 3.12 on keep a reference to a buffer that they could not send at once, and
splice(2), which costs four more descriptors a connection: one copy through the cache reaches four fifths of a direct
connection (890 of 1,130 MiB/s on two cores).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlspawner.clients.kubernetes import SERVICES, KubernetesClient
from dlspawner.devcluster.node.pod import Pod

log = logging.getLogger(__name__)

BUFFER_BYTES = 256 * 1024
# Rounds through the buffer before others get their turn.
ROUNDS = 8
CONNECT_SECONDS = 10.0
BACKLOG = 512
_buffer = bytearray(BUFFER_BYTES)
_view = memoryview(_buffer)


@dataclass(frozen=True, slots=True)
class Route:
    """One port of a Service."""

    namespace: str
    service: str
    selector: Mapping[str, str]
    target: str | int
    unready_too: bool


class Forwarder:
    """`run` it as a task; `pods` tells all pods of this process."""

    def __init__(self, cluster: KubernetesClient, addresses: Sequence[str], pods: Callable[[], list[Pod]]) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._pods = pods
        self._services: dict[str, dict[int, Route]] = {}
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._routes: dict[int, Route] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            async for change in self._cluster.watch(SERVICES):
                if change.type == "SYNCED":
                    continue
                uid = change.object["metadata"]["uid"]
                self._services.pop(uid, None)
                if change.type != "DELETED":
                    self._services[uid] = routes(change.object)
                self._listen()
        finally:
            for key in list(self._listeners):
                self._close(key)
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _listen(self) -> None:
        self._routes = {port: route for ports in self._services.values() for port, route in ports.items()}
        wanted = {(address, port) for address in self._addresses for port in self._routes}
        for key in self._listeners.keys() - wanted:
            self._close(key)
        for address, port in wanted - self._listeners.keys():
            try:
                listener = _listener(address, port)
            except OSError as error:
                log.warning("node port %s:%d cannot be opened: %s", address, port, error)
                continue
            self._listeners[address, port] = listener
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, port)

    def _close(self, key: tuple[str, int]) -> None:
        listener = self._listeners.pop(key)
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()

    def _accept(self, listener: socket.socket, port: int) -> None:
        for _ in range(BACKLOG):
            try:
                client, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors, most likely: others will be closed
                log.warning("node port %d: %s", port, error)
                return
            task = asyncio.create_task(self._connect(client, port), name=f"connection to node port {port}")
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connect(self, client: socket.socket, port: int) -> None:
        client.setblocking(False)
        with client, socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as server:
            backends = self._backends(port)
            if not backends:
                return
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await asyncio.get_running_loop().sock_connect(server, random.choice(backends))  # noqa: S311
            except (OSError, TimeoutError):
                return
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await relay(client, server)

    def _backends(self, port: int) -> list[tuple[str, int]]:
        route = self._routes.get(port)
        if route is None:
            return []
        found = []
        for pod in self._pods():
            labels = pod.manifest["metadata"].get("labels") or {}
            matches = pod.namespace == route.namespace and route.selector.items() <= labels.items()
            if matches and pod.ip and (pod.ready or route.unready_too):
                target = _target(pod, route.target)
                if target:
                    found.append((pod.ip, target))
        return found


def routes(service: Mapping[str, Any]) -> dict[int, Route]:
    """The node ports of a Service; none for other types and for Services without a selector."""
    spec = service["spec"]
    if spec.get("type") not in {"NodePort", "LoadBalancer"} or not spec.get("selector"):
        return {}
    metadata = service["metadata"]
    return {
        port["nodePort"]: Route(
            metadata["namespace"],
            metadata["name"],
            spec["selector"],
            port.get("targetPort") or port["port"],
            bool(spec.get("publishNotReadyAddresses")),
        )
        for port in spec.get("ports") or []
        if port.get("nodePort") and port.get("protocol", "TCP") == "TCP"
    }


async def relay(one: socket.socket, other: socket.socket) -> None:
    """Both ways until both have ended; the caller closes the sockets."""
    ways = [_Way(one, other), _Way(other, one)]
    try:
        await asyncio.gather(*(way.done for way in ways))
    except OSError:
        pass  # a reset ends both ways at once
    finally:
        for way in ways:
            way.stop()


class _Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source, sink
        self._pending = memoryview(b"")
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(source, self._readable)

    def stop(self) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if not self.done.done():
            self.done.cancel()
        elif not self.done.cancelled():
            self.done.exception()  # the other way may have told already

    def _readable(self) -> None:
        try:
            for _ in range(ROUNDS):
                size = self._source.recv_into(_buffer)
                if not size:
                    self._end()
                    return
                sent = self._send(_view[:size])
                if sent < size:
                    self._pending = memoryview(bytes(_view[sent:size]))
                    self._loop.remove_reader(self._source)
                    self._loop.add_writer(self._sink, self._writable)
                    return
                if size < BUFFER_BYTES:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)

    def _writable(self) -> None:
        try:
            self._pending = self._pending[self._send(self._pending) :]
        except OSError as error:
            self._fail(error)
            return
        if not self._pending:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._readable)

    def _send(self, data: memoryview) -> int:
        try:
            return self._sink.send(data)
        except BlockingIOError:
            return 0

    def _end(self) -> None:
        self._loop.remove_reader(self._source)
        with contextlib.suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)
        if not self.done.done():
            self.done.set_result(None)

    def _fail(self, error: OSError) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if not self.done.done():
            self.done.set_exception(error)


def _listener(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _target(pod: Pod, target: str | int) -> int:
    """A number, or the name of a port of one of the pod's containers; 0 if there is none."""
    if isinstance(target, int) or target.isdigit():
        return int(target)
    for container in pod.manifest["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return 0
