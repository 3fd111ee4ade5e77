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

# The failed start, in the task that cleans up after it, and in tasks of the hooks that it calls.
_CLEANS_UP_AFTER: ContextVar[asyncio.Future[Any] | None] = ContextVar("cleans up after", default=None)


STOPPED = "The server was stopped before it had started."
RESTARTS = "The Hub is being restarted. A start whose job is made already goes on by itself: look at it in a moment."


class LifecycleSpawner(StartingSpawner):
    """A KubeSpawner with reasons for every end, grace periods for every pod, and starts that survive a restart."""

    _failed_start: asyncio.Future[Any] | None = None  # the failed start, while the Hub cleans up after it
    _start_in_progress = False  # true from the first hook of a start until it is over or has failed

    def clear_state(self) -> None:
        """Called by JupyterHub first in every start, and last in every stop."""
        super().clear_state()
        self._start_in_progress = not self._stop_pending
        if self._start_in_progress and self._spawn_future is not None and self.handler is not None:
            self._spawn_future.add_done_callback(partial(_tell, self.handler))
            self.handler.send_error = partial(_answer, self.handler.send_error)

    async def cancel_pending(self) -> None:
        """A hook that cancels the pending job of a server that does not run."""

    async def person_is_renamed(self, old: str, new: str) -> None:
        """A hook, called before the Hub renames the user, and with swapped names if the renaming fails."""

    async def person_is_removed(self) -> None:
        """A hook, called after the user's servers have stopped and before the Hub removes the user."""

    async def _start(self) -> str:
        headers = self.handler.request.headers if self.handler else {}
        with tracing.span("start", {"dlspawner.user": self.user.name, "dlspawner.server": self.name or ""}, headers):
            url = await super()._start()
        self._start_in_progress = False
        return url

    async def poll(self) -> int | None:
        if self._start_in_progress and self._stop_pending and self._is_start_over():
            self._start_in_progress = False
            await self._interrupted()
        if self._stop_pending and asyncio.current_task() is self._spawn_future:
            self._failed_start = self._spawn_future
            _CLEANS_UP_AFTER.set(self._spawn_future)
        if self._no_pod_requested and not self._has_listed_pods():
            if self._is_cleaning_up() and not await self._wait_for_cleanup(None):
                return None
            # A start that could not begin: there is nothing to wait for.
            return pod_status.evaluate_gone(None).exit_code
        try:
            await self._start_watching_pods()
        except StartRefused:
            return None  # without a list of pods no end is known
        pod = self.pod()
        if pod is None and self._outcome_unknown:
            return None  # so that the Hub asks us to stop it
        if pod is not None and self._pod_expected:
            self._pod_expected = False
            if not self._start_pending:
                self.save_state()
        judged = pod_status.evaluate(pod) if pod else self._evaluate_gone()
        if isinstance(judged, pod_status.Terminated):
            return await self._handle_end(pod, judged)
        if pod is not None and not (self._start_pending or self._stop_pending or self._ended):
            await self._repair_owned_objects(pod)
        if pod is not None and self.is_pod_running(pod) and self._knows_address(pod):
            self._follow_address(pod)
        return None

    def _follow_address(self, pod: PodDict) -> None:
        """Updates the address of the server in the Hub's database, as the parent's poll does."""
        now, known = str(self._get_pod_url(pod)), self.server.url if self.server else ""
        host, port = urlsplit(now).hostname, reach.port_of(now)
        if known and (host, port) != (urlsplit(known).hostname, reach.port_of(known)):
            self.log.warning("pod=%s has another address now: %s:%s", self.pod_key, host, port)
            self.server.ip, self.server.port = host, port
            self._commit()

    async def _handle_end(self, pod: PodDict | None, judged: pod_status.Terminated) -> int | None:
        """Stores the reason and deletes the pod; returns the exit code, ``None`` to report nothing yet."""
        undone = self._is_cleaning_up()
        if undone and not await self._wait_for_cleanup(pod):
            return None
        # A stop by the user needs no reason, a failed start has its own, and the first reason stays.
        if not (undone or self._ended or self._stop_pending or self._start_pending):
            self._ended = await self._why_ended(pod, judged)
            self.log.info("pod=%s ended: exit_code=%s %s", self.pod_key, judged.exit_code, self._ended)
            if not self._ended.startswith(pod_status.FINISHED):
                self._show_end_reason(self._ended)
        if pod is not None and not pod["metadata"].get("deletionTimestamp") and self._must_be_deleted(pod):
            await self._before_deletion(pod)
            try:
                await self.pods.delete(pod, self.pods.grace(pod))
                await self._after_deletion(pod)
            except (StartRefused, TimeoutError) as problem:
                self.log.warning("pod=%s cannot be deleted now, the next poll tries again: %s", self.pod_key, problem)
                return None
        return judged.exit_code

    async def _why_ended(self, pod: PodDict | None, judged: pod_status.Terminated) -> str:
        """Returns the reason of the end, as a sentence for the user."""
        return await self.pods.why_ended(pod, judged) if pod else judged.reason

    async def _before_deletion(self, pod: PodDict) -> None:
        """A hook before a pod is deleted; never fails, and takes seconds at most."""

    async def _after_deletion(self, pod: PodDict) -> None:
        """A hook after the deletion of a pod was requested; never fails."""

    def _must_be_deleted(self, pod: PodDict) -> bool:
        """True if the pod of an ended job must be deleted: a pod that its node restarts would have no server."""
        return bool(self.delete_stopped_pods) or not pod_status.stays_ended(pod)

    def _show_end_reason(self, reason: str) -> None:
        """Lets JupyterHub's own pages show why the server has ended.

        They show the exception of the last *start* of a spawner, and have no place for the reason of an end. This
        spawner is kept, without the values of its start, until the next start makes a new one.
        """
        self._forget_start()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.set_exception(StartRefused(reason, reason="ended", status=424))
        ended.exception()  # asyncio warns of an exception that was never retrieved
        self._spawn_future = ended

    def _is_cleaning_up(self) -> bool:
        """True if a start has failed and the Hub cleans up after it; polls must not report the end yet.

        After ``slow_spawn_timeout`` JupyterHub (6.1) polls, would read the failure from a future that is not done yet,
        and show "Internal Server Error" instead of the sentence.
        """
        failed = self._failed_start
        return bool(self._stop_pending) and failed is not None and failed is self._spawn_future and not failed.done()

    async def _wait_for_cleanup(self, pod: PodDict | None) -> bool:
        """Waits until the Hub has cleaned up after the failed start; True if the end can be reported.

        In the task that cleans up it returns at once: False while a requested pod is being deleted.
        """
        failed: asyncio.Future[Any] = self._spawn_future
        if _CLEANS_UP_AFTER.get() is failed:
            return pod is None or self._no_pod_requested or not pod["metadata"].get("deletionTimestamp")
        await asyncio.wait({failed}, timeout=self.start_timeout)
        return failed.done()

    async def stop(self, now: bool = False) -> None:
        """Deletes the pod with its grace period, and returns when it is gone.

        Does nothing inside a start: KubeSpawner stops a pod whose Service, Secret or hook has failed, and the reason
        would be lost if the start's time is over before the pod is gone. The Hub (5.5 to 6.1) stops the pod of a failed
        start; a Hub that is killed before finds the pod again by its saved state. Does nothing either after a start
        that has left its pods to an engine.
        """
        if self._in_start or self._left_in_cluster:
            return
        # The Hub forgets a server whose stop has failed: a stop is repeated until the API server answers.
        with suppress(StartRefused):
            await self._start_watching_pods()
        pod = self.pod() or await self._read_pod()
        if pod is not None and self._no_pod_requested and engine_pods.is_placed_by_engine(pod):
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
        self._outcome_unknown = False

    async def _read_pod(self) -> PodDict | None:
        """Reads the pod, which may exist although the watch, behind or without a connection, does not show it."""
        found = await self.pods.read(NO_END)
        if found is not None and self._has_listed_pods():
            self.pod_reflector.learn(found)  # so that it is seen to go
        return found

    # A stop during a start

    def _is_start_over(self) -> bool:
        """True if no start is in progress, nor the clean-up after a failed one."""
        start: Any = self._spawn_future
        return start is None or start.done()

    async def _interrupted(self) -> None:
        """A hook for a stop during a start, before the pod, if there is one, is deleted."""

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
            await self._repair_owned_objects(pod)
        try:
            return f"{self._get_pod_url(pod)}{self.server.base_url}" if self._knows_address(pod) else None
        except Exception as problem:  # noqa: BLE001 - an administrator's hook, which no poll has tried yet
            self.log.warning("pod=%s its address cannot be told: %s", self.pod_key, type(problem).__name__)
            return None

    def _tls(self) -> SSLContext | None:
        """Returns the TLS context with which JupyterHub connects to servers."""
        if not self.internal_ssl:
            return None
        files = (self.user.settings.get(f"internal_ssl_{name}") for name in ("key", "cert", "ca"))
        made: SSLContext | None = make_ssl_context(*files)
        return made

    async def start_again(self) -> str:
        """Continues a start that a restart of the Hub has interrupted."""
        await self._wait_for_pods()
        self._waiting, self._began = None, asyncio.get_running_loop().time()
        pod = self.pod()
        if pod is None:
            reason = self._evaluate_gone().reason
            self._record_failure(reason, "job-failed")
            raise StartRefused(reason, reason="job-failed")
        if not self._is_saved(pod):
            said = "The Hub was restarted before it had made the job, and found an earlier one: start the job again."
            self._record_failure(said, "restarted")
            raise StartRefused(said, reason="restarted")
        repair = asyncio.create_task(self._repair_until_complete(pod), name=f"repair of {self.pod_key}")
        try:
            await self._until_running(pod)
            if not self._knows_address(pod):
                await asyncio.wait({repair}, timeout=self._left())
        finally:
            repair.cancel()  # a later poll repairs the rest
        if self._is_alive() and not self._knows_address(pod):
            said = "The job runs, but no way to it could be made: start it again, or ask an administrator."
            self._record_failure(said, "start-timeout")
            raise StartRefused(said, reason="start-timeout")
        url = str(self._get_pod_url(self.pod() or pod))
        # A server that was up before may be out of reach for longer than one that starts: Hub and network come up too.
        await self._until_accepting(url, self.start_timeout)
        return url

    async def _repair_until_complete(self, pod: PodDict) -> None:
        """Creates missing objects during a start: there are no polls then, and the pod may wait for them."""
        wait = delays()
        while not await self._repair_owned_objects(pod) and self._is_alive():  # noqa: ASYNC110 - pauses between tries
            await asyncio.sleep(next(wait))

    def _is_saved(self, pod: PodDict) -> bool:
        """True if the pod of our name can belong to the saved start.

        Each start has its own token in the Hub's database before its pod is requested, and a stop deletes the token.
        """
        given = token(pod)
        session = self._hub_session if given else None
        if given is None or session is None:
            return True  # the token is in another place
        known = APIToken.find(session, given)
        return known is not None and known.user_id == self.orm_spawner.user_id

    def _knows_address(self, pod: PodDict) -> bool:
        """True if the address of a running pod is known."""
        return True

    async def _repair_owned_objects(self, pod: PodDict) -> bool:
        """Creates the objects of a pod that a killed Hub has not created; True if they are complete.

        Never fails, because a poll that fails stops the job.
        """
        if uid(pod) == self._complete_pod:
            return True
        try:
            async with owned_objects.repair_slot(self.k8s_api_request_retry_timeout):
                await self._ensure_owned_objects(pod)
                if self._has_stock_objects:
                    await recovery.repair_stock_objects(self, pod)
                self._complete_pod = uid(pod)
        except (StartRefused, TimeoutError) as problem:
            self.log.warning("pod=%s may lack its Secret or Service, trying again later: %s", self.pod_key, problem)
        except Exception as problem:  # noqa: BLE001 - unreadable files of the Hub, invalid answers: the job runs on
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
    """Sends an error as the handler does; without a reason, as tornado when the Hub ends, with that of a restart."""
    if not why:
        restarts = StartRefused(RESTARTS, reason="restarted", status=503)
        status, why = restarts.status_code, {"exc_info": (StartRefused, restarts, None)}
    send_error(status, **why)
