"""What a restarted Hub does with a start that was on its way: it goes on with it.

JupyterHub checks every server that it remembers, once: is it alive, where is it, does it answer. A server that does not
answer within ``http_timeout`` is stopped, and until then it is in a state ("check") in which JupyterHub shows no
progress and answers a stop with 500. A pod that waits for a node would be lost, or could not be stopped.

So the check gets its answer at once, and what is left of the start goes on as what it is, a start: pending "spawn",
with the progress page, ended by a stop, and with the reason on the pages when it fails. ``get_url`` is its moment, the
only one at which the check (JupyterHub 5.5 to 6.1) waits for the spawner while the server may still come up.

Refused: waiting in ``get_url``. Pending pods survive, but in the state "check", and no failure has a place to be shown.
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

from dlspawner.spawner import children, reach
from dlspawner.spawner.refusal import Refused
from dlspawner.spawner.requests import Problem

PodDict = Mapping[str, Any]


class Answered(Server):
    """Where a server will be, for JupyterHub's check: it is told that somebody answers there."""

    async def wait_up(self, *_: Any, **__: Any) -> Any:
        headers: Mapping[str, str] = {"X-JupyterHub-Version": jupyterhub.__version__}
        return SimpleNamespace(headers=headers)


def resume(spawner: Any) -> None:
    """Answer the check that is going on, and go on with the start; to be called by ``get_url`` as its last act."""
    start = asyncio.create_task(_resumed(spawner), name=f"start of {spawner.pod_key} after a restart")
    spawner._spawn_pending, spawner._spawn_future = True, start
    start.add_done_callback(partial(_over, spawner))
    spawner._server = Answered(orm_server=spawner.orm_spawner.server)


async def _resumed(spawner: Any) -> None:
    """As ``User.spawn`` of JupyterHub from the moment at which the pod exists."""
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
        if not isinstance(problem, Refused):
            spawner.log.exception("pod=%s its start cannot go on", spawner.pod_key)
        await spawner.user.stop(spawner.name)
        raise
    server = spawner.server
    place = urlsplit(url)
    server.proto, server.ip, server.port = place.scheme, place.hostname, reach.port(url)
    spawner.save_state()
    spawner._waiting_for_response = True
    await spawner.user._wait_up(spawner)  # stops the server that does not answer
    await spawner.user.settings["proxy"].add_user(spawner.user, spawner.name)
    spawner.start_polling()


def _over(spawner: Any, start: asyncio.Task[None]) -> None:
    if spawner._spawn_future is not start:
        return
    spawner._spawn_pending = False
    if start.cancelled() or start.exception() is None:
        spawner._spawn_future = None  # a failure stays: pages read from it why


async def mend(spawner: Any, pod: PodDict) -> None:
    """Make the Secret (``internal_ssl``) and the Service of KubeSpawner's that a killed Hub has left out."""
    if not (spawner.internal_ssl or spawner.services_enabled):
        return
    pods, owner = spawner.pods, make_owner_reference(pod["metadata"]["name"], pod["metadata"]["uid"])
    if spawner.internal_ssl and not await _has_secret(spawner, pod):
        spawner.cert_paths = await maybe_future(spawner.move_certs(await maybe_future(spawner.create_certs())))
        await children.ensure_object(pods, "secret", pods.plain(spawner.get_secret_manifest(owner)))
    service = spawner.get_service_manifest(owner, spawner._get_pod_port(pod))
    await children.ensure_object(pods, "service", pods.plain(service))


async def _has_secret(spawner: Any, pod: PodDict) -> bool:
    """Asked first: new certificates take the place of those that the person's other servers were started with."""
    read = spawner.api.read_namespaced_secret
    try:
        found = await spawner.requests.send(
            "look at a Secret", read, spawner.secret_name, spawner.namespace, expected=(404,)
        )
    except Problem:
        return False
    return any(owner["uid"] == pod["metadata"]["uid"] for owner in found["metadata"].get("ownerReferences") or ())
