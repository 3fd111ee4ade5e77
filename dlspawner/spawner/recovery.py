"""What a restarted Hub does with the servers that it remembers: those that run go on, and so does a start on its way.

JupyterHub checks each of them, once: is it alive, where is it, does it answer. A server that does not answer within
``http_timeout`` is stopped, and until then it is in a state ("check") in which JupyterHub shows no progress and answers
a stop with 500. A pod that waits for a node would be lost, or could not be stopped; so would one that runs, on a node
or behind a network that is silent for a moment.

So the check gets its answer at once. ``get_url`` is its moment, the only one at which the check (JupyterHub 5.5 to 6.1)
waits for the spawner while the server may still come up. What is left of a start goes on as what it is, a start:
pending "spawn", with the progress page, ended by a stop, and with the reason on the pages when it fails.

**A start that was over is never put back under the rules of a start**: not its pod's other containers, not its token,
not its silence end such a server. Its state says which it is. As long as its pod is alive, or nobody sees the pod, it
goes on, and what ends it later is what ends any server: a poll.

Refused: waiting in ``get_url``. Pending pods survive, but in the state "check", and no failure has a place to be shown.

What a killed Hub has not made of a pod's Secret and Services is made by the first poll, or beside the rest of the
start: each is looked at before it is made, because it is most likely there, and few pods are looked at at once.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from functools import partial
from ssl import SSLContext
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import jupyterhub
from jupyterhub.objects import Server
from jupyterhub.orm import APIToken
from jupyterhub.utils import make_ssl_context, maybe_future, url_path_join
from kubespawner.objects import make_owner_reference

from dlspawner.backoff import delays
from dlspawner.spawner import owned_objects, reach
from dlspawner.spawner.kube import pod_status
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_status import PodDict
from dlspawner.spawner.kube.pods import token, uid
from dlspawner.spawner.start import StartingSpawner


class RecoveringSpawner(StartingSpawner):
    """A KubeSpawner that goes on where a killed Hub has left it."""

    async def get_url(self) -> str:
        """Where the server is, asked after a restart of the Hub; a start that was on its way goes on."""
        known: str = await super().get_url()
        pod = self.pod()
        url = await self._address(pod) if pod is not None and self._may_answer(pod) else None
        if url is not None and await reach.answers_soon(url_path_join(url, "api"), self._tls()):
            if self._starting:
                self._starting = False
                self.save_state()
            return url
        if self._starting:
            resume_start(self)
            return known
        why = (
            pod_status.silence(pod)
            if pod is not None and pod_status.is_silent(pod)
            else "it may be busy, or out of reach"
        )
        self.log.warning(
            "pod=%s its server does not answer after a restart of the Hub and goes on: %s", self.pod_key, why
        )
        assume_up(self)
        return url or known

    def _may_answer(self, pod: PodDict) -> bool:
        if self._starting:
            return self.is_pod_running(pod) and self._is_saved(pod)
        return bool((pod.get("status") or {}).get("podIP"))

    async def _address(self, pod: PodDict) -> str | None:
        """Where its pod says that the server is; ``None`` where that cannot be told now."""
        if not self._knows_address(pod):
            await self._mend_children(pod)
        try:
            return f"{self._get_pod_url(pod)}{self.server.base_url}" if self._knows_address(pod) else None
        except Exception as problem:  # noqa: BLE001 - an administrator's hook, which no poll has tried yet
            self.log.warning("pod=%s its address cannot be told: %s", self.pod_key, type(problem).__name__)
            return None

    def _tls(self) -> SSLContext | None:
        """As JupyterHub asks a server."""
        if not self.internal_ssl:
            return None
        files = (self.user.settings.get(f"internal_ssl_{name}") for name in ("key", "cert", "ca"))
        made: SSLContext | None = make_ssl_context(*files)
        return made

    async def start_again(self) -> str:
        """The rest of a start that a restart of the Hub has interrupted."""
        await self._see_pods()
        self._waiting, self._began = None, asyncio.get_running_loop().time()
        pod = self.pod()
        if pod is None:
            reason = self._judge_gone().reason
            self._fails(reason, "job-failed")
            raise StartRefused(reason, reason="job-failed")
        if not self._is_saved(pod):
            said = "The Hub was restarted before it had made the job, and found an earlier one: start the job again."
            self._fails(said, "restarted")
            raise StartRefused(said, reason="restarted")
        mending = asyncio.create_task(self._mend_in_the_end(pod), name=f"what {self.pod_key} lacks")
        try:
            await self._until_running(pod)
            if not self._knows_address(pod):
                await asyncio.wait({mending}, timeout=self._left())
        finally:
            mending.cancel()  # a poll goes on with it
        if self._is_alive() and not self._knows_address(pod):
            said = "The job runs, but no way to it could be made: start it again, or ask an administrator."
            self._fails(said, "start-timeout")
            raise StartRefused(said, reason="start-timeout")
        url = str(self._get_pod_url(self.pod() or pod))
        # A server that was up before may be out of reach for longer than one that starts: Hub and network come up too.
        await self._until_accepting(url, self.start_timeout)
        return url

    async def _mend_in_the_end(self, pod: PodDict) -> None:
        """Nobody polls while a start goes on, and the pod may be waiting for what it lacks."""
        wait = delays()
        while not await self._mend_children(pod) and self._is_alive():  # noqa: ASYNC110 - pauses between tries
            await asyncio.sleep(next(wait))

    def _is_saved(self, pod: PodDict) -> bool:
        """Whether a pod of our name can be the one whose start was saved.

        Each start has a token of its own in the Hub's database before its pod is asked for, and a stop takes it out.
        """
        given = token(pod)
        session = self._hub_session if given else None
        if given is None or session is None:
            return True  # the pod has it from elsewhere
        known = APIToken.find(session, given)
        return known is not None and known.user_id == self.orm_spawner.user_id

    def _knows_address(self, pod: PodDict) -> bool:
        """Whether the way to a running pod can be told yet."""
        return True

    async def _mend_children(self, pod: PodDict) -> bool:
        """Make what is missing of a pod that a killed Hub left behind, and whether nothing is missing now.

        Never fails, because a poll that fails stops the job.
        """
        if uid(pod) == self._complete_pod:
            return True
        try:
            async with owned_objects.mending(self.k8s_api_request_retry_timeout):
                await self._ensure_children(pod)
                if self._has_stock_children:
                    await repair_stock_objects(self, pod)
                self._complete_pod = uid(pod)
        except (StartRefused, TimeoutError) as problem:
            self.log.warning("pod=%s may lack its Secret or Service, trying again later: %s", self.pod_key, problem)
        except Exception as problem:  # noqa: BLE001 - files of the Hub, answers that are none: all the same to a job
            # Where it happened, and not what: a message may quote a manifest.
            at = traceback.extract_tb(problem.__traceback__)[-1]
            self.log.warning(
                "pod=%s may lack its Secret or Service, trying again later: %s in %s of %s",
                *(self.pod_key, type(problem).__name__, at.name, at.filename),
            )
        else:
            return True
        return False


class AlwaysUpServer(Server):
    """Where a server is, or will be, for JupyterHub's check: it is told that somebody answers there."""

    async def wait_up(self, *_: Any, **__: Any) -> Any:
        headers: Mapping[str, str] = {"X-JupyterHub-Version": jupyterhub.__version__}
        return SimpleNamespace(headers=headers)


def assume_up(spawner: Any) -> None:
    """Answer the check that is going on; to be called by ``get_url`` as its last act."""
    spawner._server = AlwaysUpServer(orm_server=spawner.orm_spawner.server)


def resume_start(spawner: Any) -> None:
    """The same, and go on with the start."""
    start = asyncio.create_task(_resumed(spawner), name=f"start of {spawner.pod_key} after a restart")
    spawner._spawn_pending, spawner._spawn_future = True, start
    start.add_done_callback(partial(_over, spawner))
    assume_up(spawner)


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
        spawner.start_polling()  # also without a route, which the Hub adds when it looks at all of them


def _over(spawner: Any, start: asyncio.Task[None]) -> None:
    if spawner._spawn_future is not start:
        return
    spawner._spawn_pending = False
    if start.cancelled() or start.exception() is None:
        spawner._spawn_future = None  # a failure stays: pages read from it why


async def repair_stock_objects(spawner: Any, pod: PodDict) -> None:
    """Make the Secret (``internal_ssl``) and the Service of KubeSpawner's that a killed Hub has left out."""
    pods, owner = spawner.pods, make_owner_reference(pod["metadata"]["name"], pod["metadata"]["uid"])
    # New certificates take the place of those that the person's other servers were started with.
    if spawner.internal_ssl and await owned_objects.find(pods, "secret", spawner.secret_name, uid(pod)) is None:
        spawner.cert_paths = await maybe_future(spawner.move_certs(await maybe_future(spawner.create_certs())))
        await owned_objects.ensure_object(pods, "secret", pods.plain(spawner.get_secret_manifest(owner)))
    service = spawner.get_service_manifest(owner, spawner._get_pod_port(pod))
    await owned_objects.ensure_object(pods, "service", pods.plain(service), look_first=True)
