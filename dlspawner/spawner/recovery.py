"""The servers in the database of a restarted Hub: running servers continue, and so do interrupted starts.

JupyterHub checks each server once: is it alive, what is its address, does it answer. A server that does not answer
within ``http_timeout`` is stopped, and until then it is in a state ("check") in which JupyterHub shows no progress and
answers a stop with 500. A pod that waits for a node would be lost, or could not be stopped; so would a running pod on a
node, or behind a network, that is silent for a moment.

So the check gets its answer at once, in ``get_url``, the only call in which the check (JupyterHub 5.5 to 6.1) waits for
the spawner while the server may still come up. An interrupted start continues as a start: pending "spawn", with the
progress page, ended by a stop, and with the reason on the pages if it fails.

**A finished start is never treated as a start again**: such a server is ended neither for its pod's other containers,
nor for its token, nor because it is silent. The saved state tells which starts were finished. The server continues as
long as its pod is alive, or the pod cannot be seen; later a poll ends it as any server.

Refused: waiting in ``get_url``. Pending pods survive, but in the state "check", which shows no reason of a failure.

The first poll, or the rest of the start, creates the Secret and Services that a killed Hub did not create. Each is read
before it is created, because it most likely exists, and few pods are checked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import jupyterhub
from jupyterhub.objects import Server
from jupyterhub.utils import maybe_future
from kubespawner.objects import make_owner_reference

from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner import owned_objects, reach
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import uid


class AlwaysUpServer(Server):
    """The address of a server for JupyterHub's check: it reports that a server answers there."""

    async def wait_up(self, *_: Any, **__: Any) -> Any:
        headers: Mapping[str, str] = {"X-JupyterHub-Version": jupyterhub.__version__}
        return SimpleNamespace(headers=headers)


def assume_up(spawner: Any) -> None:
    """Answers the running check; ``get_url`` calls it last."""
    spawner._server = AlwaysUpServer(orm_server=spawner.orm_spawner.server)


def resume_start(spawner: Any) -> None:
    """Answers the running check, and continues the start."""
    start = asyncio.create_task(_resumed(spawner), name=f"start of {spawner.pod_key} after a restart")
    spawner._spawn_pending, spawner._spawn_future = True, start
    start.add_done_callback(partial(_over, spawner))
    assume_up(spawner)


async def _resumed(spawner: Any) -> None:
    """Does the same as ``User.spawn`` of JupyterHub after the creation of the pod."""
    try:
        async with asyncio.timeout(spawner.start_timeout):
            while spawner._check_pending:  # noqa: ASYNC110 - not once, as JupyterHub is today
                await asyncio.sleep(0.05)
    except TimeoutError:
        spawner._check_pending = False  # the check has failed without saying so
    spawner._server = None  # the property makes a plain one again
    spawner.stop_polling()
    spawner.log.info("pod=%s its start goes on after a restart of the Hub", spawner.pod_key)
    try:
        url = await spawner.start_again()
    except Exception as problem:
        if not isinstance(problem, StartRefused):
            spawner.log.exception("pod=%s its start cannot go on", spawner.pod_key)
        await spawner.user.stop(spawner.name)
        raise
    server = spawner.server
    place = urlsplit(url)
    server.proto, server.ip, server.port = place.scheme, place.hostname, reach.port_of(url)
    spawner._starting = False
    spawner.save_state()
    spawner._waiting_for_response = True
    await spawner.user._wait_up(spawner)  # stops the server that does not answer
    try:
        await spawner.user.settings["proxy"].add_user(spawner.user, spawner.name)
    finally:
        spawner.start_polling()  # also without a route, which the Hub adds when it checks all routes


def _over(spawner: Any, start: asyncio.Task[None]) -> None:
    if spawner._spawn_future is not start:
        return
    spawner._spawn_pending = False
    if start.cancelled() or start.exception() is None:
        spawner._spawn_future = None  # a failure stays: pages read from it why


async def repair_stock_objects(spawner: Any, pod: PodDict) -> None:
    """Creates the missing Secret (``internal_ssl``) and Service of KubeSpawner after the Hub was killed."""
    pods, owner = spawner.pods, make_owner_reference(pod["metadata"]["name"], pod["metadata"]["uid"])
    # New certificates replace those of the user's other servers.
    if spawner.internal_ssl and await owned_objects.find(pods, "secret", spawner.secret_name, uid(pod)) is None:
        spawner.cert_paths = await maybe_future(spawner.move_certs(await maybe_future(spawner.create_certs())))
        await owned_objects.ensure_object(pods, "secret", pods.plain(spawner.get_secret_manifest(owner)))
    service = spawner.get_service_manifest(owner, spawner._get_pod_port(pod))
    await owned_objects.ensure_object(pods, "service", pods.plain(service), look_first=True)
