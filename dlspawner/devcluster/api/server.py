"""Starts and stops the API server: files first, then the port, then the controllers, and the kubeconfig last."""

import asyncio
import datetime as dt
import logging
from dataclasses import dataclass
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from dlspawner.devcluster.api import tls
from dlspawner.devcluster.api.controllers import Controllers
from dlspawner.devcluster.api.handlers import Api, application
from dlspawner.devcluster.api.objects.resources import NAMESPACES, PRIORITY_CLASSES
from dlspawner.devcluster.api.registry import Registry
from dlspawner.devcluster.api.relay import Relay
from dlspawner.devcluster.api.store import Store

log = logging.getLogger(__name__)

NAMESPACE = "jobs"  # of the kubeconfig's context
NAMESPACES_AT_START = ("default", "kube-node-lease", "kube-system", NAMESPACE)
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_MAX_REQUEST = 64 * 1024 * 1024  # read at most; what is larger than Kubernetes' limit gets its proper Status
_DRAIN_SECONDS = 2


@dataclass(slots=True)
class RunningApi:
    """A server that answers. `stop` ends it and everything it started."""

    url: str
    kubeconfig: Path
    _api: Api
    _server: HTTPServer
    _controllers: Controllers

    async def stop(self) -> None:
        self._server.stop()
        self._api.stop()
        await self._controllers.stop()
        await self._api.relay.stop()
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._server.close_all_connections()
        except TimeoutError:
            log.warning("some connections did not close in time")
        self._api.store.close()


async def start(state_dir: Path, port: int = 0) -> RunningApi:
    """Serves the state directory's objects on 127.0.0.1; port 0 takes a free one.

    Raises `StateInUse` when another server owns the directory and OSError when the port is taken.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = tls.credentials(state_dir)
    store = Store(state_dir / "objects.sqlite")
    try:
        sockets = bind_sockets(port, "127.0.0.1")
    except OSError:
        store.close()
        raise
    registry = Registry(store, _now)
    relay = Relay(store, kept.token)
    api = Api(registry, kept.token, relay)
    controllers = Controllers(registry)
    _make_first_objects(registry)
    server = HTTPServer(application(api), ssl_options=kept.server_context(), max_body_size=_MAX_REQUEST)
    server.add_sockets(sockets)
    api.address = f"127.0.0.1:{sockets[0].getsockname()[1]}"
    controllers.start()
    url = f"https://{api.address}"
    kubeconfig = state_dir / "kubeconfig"
    tls.write_private(kubeconfig, tls.kubeconfig(url, kept, NAMESPACE))
    return RunningApi(url, kubeconfig, api, server, controllers)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _make_first_objects(registry: Registry) -> None:
    """The objects that every cluster has."""
    for name in NAMESPACES_AT_START:
        if registry.store.get(NAMESPACES, "", name) is None:
            registry.create(NAMESPACES, "", {"metadata": {"name": name}})
    for name, value in SYSTEM_PRIORITIES.items():
        if registry.store.get(PRIORITY_CLASSES, "", name) is None:
            registry.create(PRIORITY_CLASSES, "", {"metadata": {"name": name}, "value": value})
