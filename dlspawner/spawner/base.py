"""BaseSpawner: KubeSpawner with its traps closed, and nothing added that a person could choose.

It knows no templates, teams or Manager, and sends the manifests that KubeSpawner makes. What differs is what happens
around them: README.md beside this file lists it. Rules:

* The pod is the record of its server. State in the Hub's database is saved before the pod is asked for, and whatever
  else is needed after a restart of the Hub is read from the pod.
* A request is idempotent: a pod that this very start has made is found again, never killed and never made twice.
* A pod that has ended is deleted, with its grace period, before the Hub hears of it.
* What can be learned from the watch is not asked, and nothing waits by looking again and again.
* No manifest and no Kubernetes error is logged or shown: both hold the server's token.

Refused: a start of our own instead of KubeSpawner's ``_start``. It would be easier to read, and would lose every
feature that KubeSpawner gains; the methods that it calls are the interface.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from aiohttp import ClientError
from jupyterhub.utils import maybe_future
from kubernetes_asyncio import client
from kubernetes_asyncio.client.rest import ApiException
from sqlalchemy.orm import object_session

from dlspawner.backoff import delays
from dlspawner.spawner import orphans, reach, restart, verdict, waiting
from dlspawner.spawner.pods import Pods, token, uid
from dlspawner.spawner.refusal import QuietRefusals, Refused, limit_problem
from dlspawner.spawner.requests import NO_END, NotNow, Problem, Requests, told
from dlspawner.spawner.stock import StockRequests
from dlspawner.spawner.watch import EventWatch, PodWatch

PodDict = Mapping[str, Any]

_STARTING = ContextVar("starting", default=False)  # in the task of a start, and in those that it makes

STATE_ENDED = "dlspawner_ended"

# Between the end of a pod's grace period and its disappearance: the node's report, and the watch.
_STOP_SECONDS = 30


class BaseSpawner(orphans.OrphanTraits, StockRequests):
    """A KubeSpawner that tells the truth, survives restarts and bad days, and is ready when the pod is."""

    # KubeSpawner shares this dictionary between all its subclasses; ours holds reflectors of another class.
    reflectors: ClassVar[dict[Any, Any]] = {}

    after_pod_created_hook: Any  # KubeSpawner's trait, wrapped while a start runs
    consecutive_failure_limit: int  # JupyterHub's trait
    _ended: str | None = None  # why the last pod ended, for the person
    _waiting: waiting.Waiting | None = None
    _mended_pod: str | None = None  # uid of the pod whose Secret and Service of KubeSpawner's are known to exist
    _unasked = False  # whether this start has not asked for a pod, or surely got none
    _unsure = False  # whether it has asked, and nobody knows what came of it
    _began = 0.0  # when the start began, by the event loop's clock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        QuietRefusals.install(self.log)
        self._limit_problem = limit_problem(self.consecutive_failure_limit)
        if self._limit_problem:
            self.consecutive_failure_limit = 0  # or the refusals below would be counted until the Hub exits

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    def pod(self) -> PodDict | None:
        """The pod as the watch last saw it."""
        reflector = self.pod_reflector
        found: PodDict | None = reflector.pods.get(self.pod_key) if reflector else None
        return found

    def _last_seen(self) -> PodDict | None:
        """What the watch last saw of the pod that is gone."""
        reflector = self.pod_reflector
        found: PodDict | None = reflector.gone.get(self.pod_key) if reflector else None
        return found

    @property
    def pods(self) -> Pods:
        """Requests about this server's pod."""
        return Pods(
            self.api,
            self.namespace,
            self.pod_name,
            self.pod_reflector,
            self.log,
            self.k8s_api_request_timeout,
            self._retry_seconds(),
            self.start_timeout,
            self._gpu_resources(),
            self._grace_seconds(),
        )

    @property
    def requests(self) -> Requests:
        return self.pods.requests

    def _retry_seconds(self) -> float:
        """How long a request is tried: a start's not beyond the moment when it still can say why it has failed."""
        seconds = float(self.k8s_api_request_retry_timeout)
        if not _STARTING.get():
            return seconds
        left = self._began + waiting.deadline_of(self.start_timeout) - asyncio.get_running_loop().time()
        return min(seconds, max(left, 0.0))

    def _gpu_resources(self) -> frozenset[str]:
        """Names of resources that are GPUs, for sentences about a lack of them."""
        return frozenset()

    def _grace_seconds(self) -> int | None:
        """Between asking a pod to end and ending it; ``None``: as the pod itself says."""
        return int(self.delete_grace_period)

    def _is_own(self, pod: PodDict) -> bool:
        """Whether a pod of our name was made by this very start: nobody else has the token that it carries."""
        return bool(self.api_token) and token(pod) == str(self.api_token)

    async def _start_reflector(self, *arguments: Any, **more: Any) -> Any:
        """A start waits for the first list no longer than for anything else; who polls or stops has the time."""
        try:
            async with asyncio.timeout(self.k8s_api_request_retry_timeout if _STARTING.get() else None):
                reflector = await super()._start_reflector(*arguments, **more)
                await reflector.first_load_future  # the parent's is content with one that has failed
                return reflector
        except TimeoutError:
            raise self.requests.refused("first list", Problem(None, "TimeoutError")) from None

    async def _start_watching_pods(self, replace: bool = False) -> Any:
        reflector = await self._start_reflector(
            kind="pods",
            reflector_class=PodWatch,
            labels={"component": self.component_label},
            omit_namespace=self.enable_user_namespaces,
            replace=replace,
        )
        orphans.look_after(self, self._get_reflector_key("pods"))
        return reflector

    async def _start_watching_events(self, replace: bool = False) -> Any:
        return await self._start_reflector(
            kind="events",
            reflector_class=EventWatch,
            fields={"involvedObject.kind": "Pod"},
            omit_namespace=self.enable_user_namespaces,
            replace=replace,
        )

    @property
    def events(self) -> list[PodDict]:
        # The parent's asks for those of all pods, once a second and person.
        reflector = self.event_reflector
        told: list[PodDict] = reflector.of(self.pod_key) if reflector else []
        earlier = [at for at, event in enumerate(told, 1) if event["metadata"]["uid"] == self._last_event]
        return told[earlier[-1] :] if earlier else told

    def _get_pod_port(self, pod: PodDict) -> int:
        # The parent's stumbles over a container that has no ports.
        for container in pod["spec"]["containers"]:
            for port in container.get("ports") or ():
                if port.get("name") == "notebook-port":
                    return int(port["containerPort"])
        return int(self.port)

    # Starting

    async def _start(self) -> str:
        self._waiting, self._ended, self._unasked, self._unsure = None, None, True, False
        _STARTING.set(True)
        self._began = asyncio.get_running_loop().time()
        if self._limit_problem:
            said = "This Hub starts nothing until an administrator has changed its configuration."
            line = f"{said} {self._limit_problem}."
            raise Refused(f"{said} ({self._limit_problem}.)", reason="failure-limit", status=403, log=line)
        try:
            url: str = await super()._start()
            self._mended_pod = uid(self.pod())  # nothing of it is missing
        except (ApiException, ClientError, TimeoutError) as problem:
            raise self.requests.refused("start", told(problem)) from None
        except Refused as refused:
            if not refused.waits:
                self._ended = self._ended or refused.message  # for who comes when the start is over
            raise
        finally:
            self._unwrap_hook()
        left = self._began + waiting.deadline_of(self.start_timeout) - asyncio.get_running_loop().time()
        if not await self._until_accepting(url, min(self.http_timeout, max(0.0, left))):
            self._does_not_answer(url)
        return url

    def _does_not_answer(self, url: str) -> None:
        """Nobody listens yet at the address of a pod that runs: the Hub looks for itself, perhaps by another way."""

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Create the pod and what belongs to it. The last place that sees the manifest, hooks and all."""
        self.save_state()
        self._unasked, self._unsure = False, True
        try:
            created = await self._create(self._final(dict(self.pods.plain(pod))))
        except Refused as refused:
            self._unsure = isinstance(refused, NotNow) and refused.unsure
            self._unasked = not self._unsure
            raise
        self._unsure = False
        self.pod_reflector.learn(created)
        try:
            await self._ensure_children(created)
        except Refused as refused:
            self._ended = refused.message  # nobody tries again while the Hub stops the pod
            raise
        # When nothing is left to do before the pod may run, the watch is waited for right here, so that KubeSpawner
        # finds the pod running at its first look instead of at one of its increasingly rare ones.
        hook = self.after_pod_created_hook
        if hook:
            self.after_pod_created_hook = partial(self._run_hook, hook)
        elif not (self.internal_ssl or self.services_enabled):
            await self._until_running(created)
        return True

    def _final(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest as it is sent."""
        return manifest

    async def _create(self, manifest: dict[str, Any]) -> PodDict:
        """The pod of this manifest, made now or found again."""
        return await self.pods.create(manifest, self._is_own)

    async def _run_hook(self, hook: Callable[[Any, Any], Any], spawner: Any, pod: PodDict) -> None:
        await maybe_future(hook(spawner, pod))
        await self._until_running(pod)

    def _unwrap_hook(self) -> None:
        hook = self.after_pod_created_hook
        if isinstance(hook, partial) and hook.func == self._run_hook:
            (self.after_pod_created_hook,) = hook.args

    async def _make_create_resource_request(self, kind: str, manifest: Any) -> bool:
        made = bool(await super()._make_create_resource_request(kind, manifest))
        pod = self.pod()
        if made and kind == "service" and pod is not None and not self.after_pod_created_hook:
            await self._until_running(pod)
        return made

    def _fails(self, sentence: str, reason: str) -> None:
        self._ended = sentence
        self.log.warning("pod=%s does not start: reason=%s %s", self.pod_key, reason, sentence)

    async def _until_running(self, created: PodDict) -> None:
        seconds = waiting.deadline_of(self.start_timeout)
        self._waiting = waiting.Waiting(self.pods, self.is_pod_running, self._began, seconds)
        try:
            await self._waiting.until_running(created)
        except Refused as refused:
            self._fails(refused.message, refused.reason)
            raise

    def save_state(self) -> None:
        """The Hub does it when ``start`` has returned; one that is killed before finds the pod by what this says."""
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()

    async def _ensure_children(self, pod: PodDict) -> None:
        """Make what belongs to the pod and is missing; does nothing the second time."""

    async def _mend_children(self, pod: PodDict) -> bool:
        """The same for a pod that a killed Hub left behind, and whether nothing is missing now.

        Never fails, because a poll that fails stops the job.
        """
        try:
            await self._ensure_children(pod)
            if uid(pod) != self._mended_pod:
                await restart.mend(self, pod)
                self._mended_pod = uid(pod)
        except (Refused, TimeoutError) as problem:
            self.log.warning("pod=%s lacks its Secret or Service, trying again later: %s", self.pod_key, problem)
        except Exception as problem:  # noqa: BLE001 - files of the Hub, answers that are none: all the same to a job
            # Where it happened, and not what: a message may quote a manifest.
            at = traceback.extract_tb(problem.__traceback__)[-1]
            self.log.warning(
                "pod=%s lacks its Secret or Service, trying again later: %s in %s of %s",
                *(self.pod_key, type(problem).__name__, at.name, at.filename),
            )
        else:
            return True
        return False

    def is_pod_running(self, pod: Any) -> bool:
        # A pod without container statuses yet is KeyErrors away from an answer in the parent.
        return bool(pod and (pod.get("status") or {}).get("containerStatuses") and super().is_pod_running(pod))

    def _is_alive(self) -> bool:
        return verdict.judge(self.pod()) == verdict.ALIVE

    # Is it alive, and where

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._ended:
            state[STATE_ENDED] = self._ended
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        ended = state.get(STATE_ENDED)
        self._ended = ended if isinstance(ended, str) else None

    async def poll(self) -> int | None:
        if self._unasked and not self._sees_pods():
            return verdict.judge_gone(None).exit_code  # a start that could not begin: there is nothing to wait for
        try:
            await self._start_watching_pods()
        except Refused:
            return None  # who sees nothing knows of no end
        pod = self.pod()
        if pod is None and self._unsure:
            return None  # so that the Hub asks us to stop it
        judged = verdict.judge(pod) if pod else verdict.judge_gone(self._last_seen())
        if isinstance(judged, verdict.Ended):
            return await self._has_ended(pod, judged)
        if pod is not None and not self._start_pending and not self._ended:
            await self._mend_children(pod)
        # Alive: the parent keeps the Hub's idea of the pod's address up to date.
        if pod is not None and self.is_pod_running(pod) and self._knows_address(pod):
            await super().poll()
        return None

    def _sees_pods(self) -> bool:
        """Whether the pods have been listed once."""
        loaded = self.pod_reflector.first_load_future if self.pod_reflector else None
        return loaded is not None and loaded.done() and not loaded.cancelled() and loaded.exception() is None

    async def _has_ended(self, pod: PodDict | None, judged: verdict.Ended) -> int | None:
        """Remember why and let the pod go; ``None`` as long as the Hub must not hear of it yet."""
        if self._undoes_start(pod) and not await self._undone():
            return None
        # What the person stopped, or never started, needs no explanation; and the first one is the true one.
        if not (self._ended or self._stop_pending or self._start_pending):
            self._ended = await self.pods.why_ended(pod, judged) if pod else judged.reason
            self.log.info("pod=%s ended: exit_code=%s %s", self.pod_key, judged.exit_code, self._ended)
            if not self._ended.startswith(verdict.FINISHED):
                self._show_end(self._ended)
        if pod is not None and not pod["metadata"].get("deletionTimestamp") and self._is_to_go(pod):
            try:
                await self.pods.delete(pod, self.pods.grace(pod))
            except (Refused, TimeoutError) as problem:
                self.log.warning("pod=%s cannot be deleted now, the next poll tries again: %s", self.pod_key, problem)
                return None
        return judged.exit_code

    def _is_to_go(self, pod: PodDict) -> bool:
        """Whether the pod of an end is deleted: one that its node starts again would run for nobody."""
        return bool(self.delete_stopped_pods) or not verdict.stays_ended(pod)

    def _show_end(self, reason: str) -> None:
        """Let JupyterHub's own pages say why the server has ended.

        They keep and show why a *start* has failed, of a spawner whose last start has an exception; there is no place
        for an end. The next start makes a new spawner.
        """
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.set_exception(Refused(reason, reason="ended", status=424))
        ended.exception()  # asyncio complains of one that nobody has looked at
        self._spawn_future = ended

    def _undoes_start(self, pod: PodDict | None) -> bool:
        """Whether a start has failed and the Hub waits for the pod to go: then it must not hear that the pod has ended.

        JupyterHub (6.1) asks when ``slow_spawn_timeout`` is over, would take the failure from a future that is not done
        yet, and show "Internal Server Error" for the sentence that it is about to get.
        """
        deleting = pod is not None and bool(pod["metadata"].get("deletionTimestamp"))
        starting = self._spawn_future
        return deleting and self._stop_pending and starting is not None and not starting.done()

    async def _undone(self) -> bool:
        """Wait until that has come to its end, so that whoever asks can be told why; the start's own task goes on."""
        starting: asyncio.Future[Any] = self._spawn_future
        if asyncio.current_task() is not starting:
            await asyncio.wait({starting}, timeout=self.start_timeout)
        return starting.done()

    def _knows_address(self, pod: PodDict) -> bool:
        """Whether the way to a running pod can be told yet."""
        return True

    async def get_url(self) -> str:
        """Where the server is, asked after a restart of the Hub; a start that was on its way goes on."""
        known: str = await super().get_url()
        pod = self.pod()
        if pod is not None and self.is_pod_running(pod) and self._is_saved(pod):
            if not self._knows_address(pod):
                await self._mend_children(pod)
            if self._knows_address(pod) and await reach.accepts_soon(self._get_pod_url(pod)):
                return f"{self._get_pod_url(pod)}{self.server.base_url}"
        restart.resume(self)
        return known

    async def start_again(self) -> str:
        """The rest of a start that a restart of the Hub has interrupted."""
        await self._see_pods()
        self._waiting, self._began = None, asyncio.get_running_loop().time()
        pod = self.pod()
        if pod is None:
            reason = verdict.judge_gone(self._last_seen()).reason
            self._fails(reason, "job-failed")
            raise Refused(reason, reason="job-failed")
        if not self._is_saved(pod):
            said = "The Hub was restarted before it had made the job, and found an earlier one: start the job again."
            self._fails(said, "restarted")
            raise Refused(said, reason="restarted")
        mending = asyncio.create_task(self._mend_in_the_end(pod), name=f"what {self.pod_key} lacks")
        try:
            await self._until_running(pod)
            if not self._knows_address(pod):
                left = self._began + waiting.deadline_of(self.start_timeout) - asyncio.get_running_loop().time()
                await asyncio.wait({mending}, timeout=max(0.0, left))
        finally:
            mending.cancel()  # a poll goes on with it
        if self._is_alive() and not self._knows_address(pod):
            said = "The job runs, but no way to it could be made: start it again, or ask an administrator."
            self._fails(said, "start-timeout")
            raise Refused(said, reason="start-timeout")
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
        """Whether a pod of our name can be the one whose start was saved."""
        return True

    async def _see_pods(self) -> None:
        """Return when the watch shows pods, however long that is forbidden: nobody may be stopped unseen."""
        for delay in delays():
            try:
                await self._start_watching_pods()
            except Refused:
                await asyncio.sleep(delay)
            else:
                return

    async def _until_accepting(self, url: str, seconds: float) -> bool:
        accepts = await reach.until_accepting(url, seconds, self._is_alive)
        ended = verdict.judge(self.pod())
        if isinstance(ended, verdict.Ended):
            self._fails(ended.reason, "job-failed")
            raise Refused(ended.reason, reason="job-failed")
        return accepts

    async def stop(self, now: bool = False) -> None:
        """End the pod with its grace period, and return when it is gone."""
        # The Hub forgets a server whose stop has failed: nothing ends a stop but an answer of the API server.
        with suppress(Refused):
            await self._start_watching_pods()
        pod = self.pod()
        if pod is None:
            options, seconds = client.V1DeleteOptions(), 0 if now else self.delete_grace_period
            await self._make_delete_pod_request(self.pod_name, options, seconds, self.k8s_api_request_timeout)
            self._unsure = False
            return
        seconds = self.pods.grace(pod, now=now)
        pods = replace(self.pods, pod_seconds=max(self.start_timeout, seconds + _STOP_SECONDS))
        await pods.delete(pod, seconds, NO_END)
        if not await pods.gone(pod):
            self.log.warning(
                "pod=%s stays until its node answers or is removed: %s", self.pod_key, verdict.silence(pod)
            )
