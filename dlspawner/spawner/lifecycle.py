"""The life of a server after its start: polls, the end of its pod, stops, and restarts of the Hub.

`LifecycleSpawner` knows no templates, teams or Manager, and sends the manifests that KubeSpawner makes. README.md
beside this file lists the differences. Rules:

* The pod is the record of its server: everything that a restarted Hub needs is read from the pod.
* A pod that has ended is deleted, with its grace period, before the Hub receives the exit code.
* A stop waits until the pod is gone.

**A stop during a start.** JupyterHub (5.5 to 6.1) cancels the start's task, waits for a second and stops the server;
the spawner is not notified. A Hub that ends cancels the same tasks, and a start that fails is stopped by its own task.
A user's stop differs from both: it comes from outside the start's task, for a start that was neither over nor has
failed. JupyterHub polls first, and the poll detects it, because a server that does not run is never asked to stop. The
request for the start may still wait for an answer. A cancelled task has none, and JupyterHub would answer 500, so the
request is answered here, before JupyterHub's handler: callbacks of the start's task run before every waiter of the
task. A Hub that ends cancels the handler's own task too, which runs first: tornado answers then, with 500 and no words,
for which there are words here (`_answer`).

**A restart of the Hub.** `recovery` explains it, and holds what JupyterHub itself does in a start.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.orm import APIToken
from jupyterhub.utils import make_ssl_context, url_path_join
from tornado import web

from dlspawner import tracing
from dlspawner.backoff import delays
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner import engine_pods, owned_objects, reach, recovery
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import token, uid
from dlspawner.spawner.kube.requests import NO_END
from dlspawner.spawner.start import StartingSpawner

# Between the end of a pod's grace period and its disappearance: the node's report, and the watch.
_STOP_SECONDS = 30

# In the task of a start that has failed, and in those of the hooks that it calls: that start.
_CLEARS_UP: ContextVar[asyncio.Future[Any] | None] = ContextVar("clears up", default=None)


STOPPED = "The server was stopped before it had started."
RESTARTS = "The Hub is being restarted. A start whose job is made already goes on by itself: look at it in a moment."


class LifecycleSpawner(StartingSpawner):
    """A KubeSpawner that tells the truth, survives restarts and bad days, and is ready when the pod is."""

    _cleared_up: asyncio.Future[Any] | None = None  # the start that has failed, from the moment the Hub clears up
    _under_way = False  # whether a start was begun, hooks and all, that is neither over nor has failed

    def clear_state(self) -> None:
        """Called by JupyterHub first in every start, and last in every stop."""
        super().clear_state()
        self._under_way = not self._stop_pending
        if self._under_way and self._spawn_future is not None and self.handler is not None:
            self._spawn_future.add_done_callback(partial(_tell, self.handler))
            self.handler.send_error = partial(_answer, self.handler.send_error)

    async def cancel_pending(self) -> None:
        """A hook for a server that does not run and may be started without a request of its person."""

    async def person_is_renamed(self, old: str, new: str) -> None:
        """A hook, called before the Hub renames the person, and if it fails once more the other way round."""

    async def person_is_removed(self) -> None:
        """A hook, called when the person's servers have stopped and before the Hub removes the person."""

    async def _start(self) -> str:
        headers = self.handler.request.headers if self.handler else {}
        with tracing.span("start", {"dlspawner.user": self.user.name, "dlspawner.server": self.name or ""}, headers):
            url = await super()._start()
        self._under_way = False
        return url

    async def poll(self) -> int | None:
        if self._under_way and self._stop_pending and self._is_undisturbed():
            self._under_way = False
            await self._interrupted()
        if self._stop_pending and asyncio.current_task() is self._spawn_future:
            self._cleared_up = self._spawn_future
            _CLEARS_UP.set(self._spawn_future)
        if self._unasked and not self._sees_pods():
            if self._is_cleared_up() and not await self._undone(None):
                return None
            # A start that could not begin: there is nothing to wait for.
            return pod_status.evaluate_gone(None).exit_code
        try:
            await self._start_watching_pods()
        except StartRefused:
            return None  # without a list of pods no end is known
        pod = self.pod()
        if pod is None and self._unsure:
            return None  # so that the Hub asks us to stop it
        if pod is not None and self._begun:
            self._begun = False
            if not self._start_pending:
                self.save_state()
        judged = pod_status.evaluate(pod) if pod else self._judge_gone()
        if isinstance(judged, pod_status.Terminated):
            return await self._has_ended(pod, judged)
        if pod is not None and not (self._start_pending or self._stop_pending or self._ended):
            await self._mend_children(pod)
        if pod is not None and self.is_pod_running(pod) and self._knows_address(pod):
            self._follow_address(pod)
        return None

    def _follow_address(self, pod: PodDict) -> None:
        """Keep the Hub's idea of the pod's address up to date, as the parent's poll, which looks for a pod again."""
        now, known = str(self._get_pod_url(pod)), self.server.url if self.server else ""
        host, port = urlsplit(now).hostname, reach.port_of(now)
        if known and (host, port) != (urlsplit(known).hostname, reach.port_of(known)):
            self.log.warning("pod=%s has another address now: %s:%s", self.pod_key, host, port)
            self.server.ip, self.server.port = host, port
            self._commit()

    async def _has_ended(self, pod: PodDict | None, judged: pod_status.Terminated) -> int | None:
        """Remember why and let the pod go; ``None`` as long as the Hub must not hear of it yet."""
        undone = self._is_cleared_up()
        if undone and not await self._undone(pod):
            return None
        # What the person stopped, or never started, needs no explanation, and a start that failed has its own; and the
        # first one is the true one.
        if not (undone or self._ended or self._stop_pending or self._start_pending):
            self._ended = await self._why_ended(pod, judged)
            self.log.info("pod=%s ended: exit_code=%s %s", self.pod_key, judged.exit_code, self._ended)
            if not self._ended.startswith(pod_status.FINISHED):
                self._show_end(self._ended)
        if pod is not None and not pod["metadata"].get("deletionTimestamp") and self._is_to_go(pod):
            await self._before_deletion(pod)
            try:
                await self.pods.delete(pod, self.pods.grace(pod))
                await self._after_deletion(pod)
            except (StartRefused, TimeoutError) as problem:
                self.log.warning("pod=%s cannot be deleted now, the next poll tries again: %s", self.pod_key, problem)
                return None
        return judged.exit_code

    async def _why_ended(self, pod: PodDict | None, judged: pod_status.Terminated) -> str:
        """The sentence that the person reads."""
        return await self.pods.why_ended(pod, judged) if pod else judged.reason

    async def _before_deletion(self, pod: PodDict) -> None:
        """A hook before a pod is deleted; never fails, and takes seconds at most."""

    async def _after_deletion(self, pod: PodDict) -> None:
        """A hook after the deletion of a pod was requested; never fails."""

    def _is_to_go(self, pod: PodDict) -> bool:
        """True if the pod of an ended job is to be deleted: one that its node restarts would have no server."""
        return bool(self.delete_stopped_pods) or not pod_status.stays_ended(pod)

    def _show_end(self, reason: str) -> None:
        """Lets JupyterHub's own pages show why the server has ended.

        They keep and show why a *start* has failed, of a spawner whose last start has an exception; there is no place
        for an end. The next start makes a new spawner; this one is kept until then, without what its start had.
        """
        self._forget_start()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.set_exception(StartRefused(reason, reason="ended", status=424))
        ended.exception()  # asyncio warns of an exception that was never retrieved
        self._spawn_future = ended

    def _is_cleared_up(self) -> bool:
        """True if a start has failed and the Hub clears up after it: then it must not hear that it has ended.

        JupyterHub (6.1) asks when ``slow_spawn_timeout`` is over, would take the failure from a future that is not done
        yet, and show "Internal Server Error" for the sentence that it is about to get.
        """
        failed = self._cleared_up
        return bool(self._stop_pending) and failed is not None and failed is self._spawn_future and not failed.done()

    async def _undone(self, pod: PodDict | None) -> bool:
        """Waits until the failed start is cleared up, so that the caller can report why; the task that clears up
        continues.

        It does not wait for an earlier job's pod, nor for a pod whose deletion was not requested yet.
        """
        failed: asyncio.Future[Any] = self._spawn_future
        if _CLEARS_UP.get() is failed:
            return pod is None or self._unasked or not pod["metadata"].get("deletionTimestamp")
        await asyncio.wait({failed}, timeout=self.start_timeout)
        return failed.done()

    async def stop(self, now: bool = False) -> None:
        """End the pod with its grace period, and return when it is gone.

        Does nothing inside a start: KubeSpawner stops a pod whose Service, Secret or hook has failed, and the reason
        would be lost when the start's time is over before the pod is gone. The Hub (5.5 to 6.1) stops what a failed
        start has left; one that is killed before finds the pod as any other, because its state is saved. Nor after
        a start that has left its pods to an engine.
        """
        if self._in_start or self._left_in_cluster:
            return
        # The Hub forgets a server whose stop has failed: nothing ends a stop but an answer of the API server.
        with suppress(StartRefused):
            await self._start_watching_pods()
        pod = self.pod() or await self._unseen()
        if pod is not None and self._unasked and engine_pods.is_placed_by_engine(pod):
            return  # an earlier start has left it in the cluster, and this one was refused
        if pod is not None:
            await self._before_deletion(pod)
            seconds = self.pods.grace(pod, now=now)
            pods = replace(self.pods, pod_seconds=max(self.start_timeout, seconds + _STOP_SECONDS))
            await pods.delete(pod, seconds, NO_END)
            await self._after_deletion(pod)
            if not await pods.gone(pod):
                silence = pod_status.silence(pod)
                self.log.warning("pod=%s stays until its node answers or is removed: %s", self.pod_key, silence)
        self._unsure = False

    async def _unseen(self) -> PodDict | None:
        """The pod that the watch does not show: it may be behind, or have no connection."""
        found = await self.pods.read(NO_END)
        if found is not None and self._sees_pods():
            self.pod_reflector.learn(found)  # so that it is seen to go
        return found

    # A stop during a start

    def _is_undisturbed(self) -> bool:
        """True if no start is still busy; one that has failed is, until what it left is stopped."""
        start: Any = self._spawn_future
        return start is None or start.done()

    async def _interrupted(self) -> None:
        """A hook for a stop before the start was over; the pod, if there is any, is stopped next."""

    # After a restart of the Hub

    async def get_url(self) -> str:
        """Returns the server's address after a restart of the Hub; a start that was on its way continues."""
        known: str = await super().get_url()
        pod = self.pod()
        url = await self._address(pod) if pod is not None and self._may_answer(pod) else None
        if url is not None and await reach.answers_soon(url_path_join(url, "api"), self._tls()):
            if self._starting:
                self._starting = False
                self.save_state()
            return url
        if self._starting:
            recovery.resume_start(self)
            return known
        why = (
            pod_status.silence(pod)
            if pod is not None and pod_status.is_silent(pod)
            else "it may be busy, or out of reach"
        )
        self.log.warning(
            "pod=%s its server does not answer after a restart of the Hub and goes on: %s", self.pod_key, why
        )
        recovery.assume_up(self)
        return url or known

    def _may_answer(self, pod: PodDict) -> bool:
        if self._starting:
            return self.is_pod_running(pod) and self._is_saved(pod)
        return bool((pod.get("status") or {}).get("podIP"))

    async def _address(self, pod: PodDict) -> str | None:
        """Returns the server's address by its pod; ``None`` if it is not known now."""
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
        """Creates missing objects during a start: there are no polls then, and the pod may wait for them."""
        wait = delays()
        while not await self._mend_children(pod) and self._is_alive():  # noqa: ASYNC110 - pauses between tries
            await asyncio.sleep(next(wait))

    def _is_saved(self, pod: PodDict) -> bool:
        """True if a pod of our name can be the one whose start was saved.

        Each start has a token of its own in the Hub's database before its pod is asked for, and a stop takes it out.
        """
        given = token(pod)
        session = self._hub_session if given else None
        if given is None or session is None:
            return True  # the pod has it from elsewhere
        known = APIToken.find(session, given)
        return known is not None and known.user_id == self.orm_spawner.user_id

    def _knows_address(self, pod: PodDict) -> bool:
        """True if the address of a running pod is known."""
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
                    await recovery.repair_stock_objects(self, pod)
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


def _tell(handler: web.RequestHandler, start: asyncio.Future[Any]) -> None:
    """Answers the caller of a start that was cancelled and not answered yet."""
    if start.cancelled() and not handler._finished:
        stopped = StartRefused(STOPPED, reason="stopped", status=500)  # as JupyterHub, with words
        handler.send_error(stopped.status_code, exc_info=(StartRefused, stopped, None))


def _answer(send_error: Callable[..., None], status: int = 500, **why: Any) -> None:
    """An error as the handler sends it; without any reason, tornado's answer when the Hub ends, with one."""
    if not why:
        restarts = StartRefused(RESTARTS, reason="restarted", status=503)
        status, why = restarts.status_code, {"exc_info": (StartRefused, restarts, None)}
    send_error(status, **why)
