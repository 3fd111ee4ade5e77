"""A start: what is done between KubeSpawner's own steps, so that it is over when the server answers, or says why not.

* State is saved before the pod is asked for. A pod that this very start has made is found again, never made twice.
* What can be learned from the watch is not asked, and nothing waits by looking again and again.
* No manifest and no Kubernetes error is logged or shown: both hold the server's token.

Refused: a start of our own instead of KubeSpawner's ``_start``. It would be easier to read, and would lose every
feature that KubeSpawner gains; the methods that it calls are the interface.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from aiohttp import ClientError
from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client.rest import ApiException
from sqlalchemy.orm import object_session

from dlspawner.core.decisions import JOB_ENDED
from dlspawner.spawner import reach, trouble, verdict, waiting
from dlspawner.spawner.pods import uid
from dlspawner.spawner.refusal import QuietRefusals, StartRefused, limit_problem
from dlspawner.spawner.requests import without_secrets
from dlspawner.spawner.verdict import PodDict
from dlspawner.spawner.watched import STARTING, WatchedSpawner

STATE_ENDED = "dlspawner_ended"
STATE_BEGUN = "dlspawner_begun"
STATE_STARTING = "dlspawner_starting"


class StartingSpawner(WatchedSpawner):
    """A KubeSpawner whose start is as quick as its pod, and truthful."""

    after_pod_created_hook: Any  # KubeSpawner's trait, wrapped while a start runs
    consecutive_failure_limit: int  # JupyterHub's trait
    _ended: str | None = None  # why the last pod ended, for the person
    _waiting: waiting.StartMonitor | None = None
    _complete_pod: str | None = None  # uid of the pod of which nothing is missing
    _created: PodDict | None = None  # this start's pod, as it was answered
    _unasked = False  # whether this start has not asked for a pod, or surely got none
    _begun = False  # whether it was saved that a pod is about to be asked for, and none was seen since
    _starting = False  # whether a start was saved that is not known to be over
    _unsure = False  # whether it has asked, and nobody knows what came of it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        QuietRefusals.install(self.log)
        self._limit_problem = limit_problem(self.consecutive_failure_limit)
        if self._limit_problem:
            self.consecutive_failure_limit = 0  # or the refusals below would be counted until the Hub exits

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._ended:
            state[STATE_ENDED] = self._ended
        if self._begun:
            state[STATE_BEGUN] = True
        if self._starting:
            state[STATE_STARTING] = True
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        ended = state.get(STATE_ENDED)
        self._ended = ended if isinstance(ended, str) else None
        self._begun, self._starting = (state.get(key) is True for key in (STATE_BEGUN, STATE_STARTING))

    def clear_state(self) -> None:
        super().clear_state()
        self._begun = self._starting = False

    def _forget_start(self) -> None:
        """Let go of manifests and keys that nobody needs when the server has ended."""
        self._created, self._waiting = None, None

    def _judge_gone(self) -> verdict.Terminated:
        """How a pod that is not there has ended; it may be that a killed Hub never made it."""
        last = self._last_seen()
        return verdict.Terminated(1, verdict.BEGUN) if last is None and self._begun else verdict.evaluate_gone(last)

    def start(self) -> Any:
        """As KubeSpawner's. JupyterHub commits what the call itself changes, which spares the start a commit."""
        self._ended = None
        self._begun = self._starting = True  # as when its pod is asked for: nothing is left to save then
        self.orm_spawner.state = self.get_state()
        self._begun = self._starting = False
        return super().start()

    async def _start(self) -> str:
        self._waiting, self._ended, self._created, self._unasked, self._unsure = None, None, None, True, False
        STARTING.set(True)
        self._began = asyncio.get_running_loop().time()
        if self._limit_problem:
            said = "This Hub starts nothing until an administrator has changed its configuration."
            line = f"{said} {self._limit_problem}."
            raise StartRefused(f"{said} ({self._limit_problem}.)", reason="failure-limit", status=403, log=line)
        # Hooks, the Manager's answers and KubeSpawner's own waits: each may be in time, and all together late.
        try:
            async with asyncio.timeout_at(self._began + waiting.last_moment_of(self.start_timeout)):
                url: str = await super()._start()
            self._complete_pod = uid(self.pod())  # nothing of it is missing
        except (ApiException, ClientError, TimeoutError) as problem:
            if isinstance(problem, TimeoutError) and not self._left():
                self._out_of_time()
            raise self.requests.refused("start", without_secrets(problem)) from None
        except StartRefused as refused:
            if not refused.waits:
                self._ended = self._ended or refused.message  # for who comes when the start is over
            raise
        finally:
            self._unwrap_hook()
        if not await self._until_accepting(url, min(self.http_timeout, self._left())):
            self._does_not_answer(url)
        self._starting = False  # which the Hub saves now
        return url

    def _does_not_answer(self, url: str) -> None:
        """Nobody listens yet at the address of a pod that runs: the Hub looks for itself, perhaps by another way."""

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Create the pod and what belongs to it. The last place that sees the manifest, hooks and all."""
        self._begun = self._starting = True
        self.save_state()
        self._unasked, self._unsure = False, True
        try:
            created = await self._create(self._final(dict(self.pods.plain(pod))))
        except StartRefused as refused:
            self._unsure, self._unasked = refused.unsure, not refused.unsure
            raise
        self._unsure = self._begun = False
        self._created = created
        self.pod_reflector.learn(created)
        try:
            await self._ensure_children(created)
        except StartRefused as refused:
            self._ended = refused.message  # nobody tries again while the Hub stops the pod
            raise
        if not self._has_stock_children:
            self._complete_pod = uid(created)
        # When nothing is left to do before the pod may run, the watch is waited for right here, so that KubeSpawner
        # finds the pod running at its first look instead of at one of its increasingly rare ones.
        hook = self.after_pod_created_hook
        if hook:
            self.after_pod_created_hook = partial(self._run_hook, hook)
        elif not self._has_stock_children:
            await self._until_running(created)
        return True

    @property
    def _has_stock_children(self) -> bool:
        """Whether KubeSpawner itself makes a Service, perhaps a Secret, for each pod."""
        return bool(self.internal_ssl or self.services_enabled)

    def _final(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest as it is sent."""
        return manifest

    async def _create(self, manifest: dict[str, Any], until: float = math.inf) -> PodDict:
        """The pod of this manifest, made now or found again; by ``until``, of the loop's clock, it says why not."""
        return await self.pods.by(until).create(manifest, self._is_own)

    async def _run_hook(self, hook: Callable[[Any, Any], Any], spawner: Any, pod: PodDict) -> None:
        await maybe_future(hook(spawner, pod))
        await self._until_running(pod)

    def _unwrap_hook(self) -> None:
        hook = self.after_pod_created_hook
        if isinstance(hook, partial) and hook.func == self._run_hook:
            (self.after_pod_created_hook,) = hook.args

    async def _make_create_resource_request(self, kind: str, manifest: Any) -> bool:
        made = bool(await super()._make_create_resource_request(kind, manifest))
        if made and kind == "service" and self._created is not None and not self.after_pod_created_hook:
            await self._until_running(self._created)
        return made

    def pod_has_uid(self, pod: Any) -> bool:
        # The parent waits ten seconds for one that has gone.
        last = self._last_seen()
        if pod is None and last is not None and uid(last) == uid(self._created):
            self._gives_up(StartRefused(verdict.evaluate_gone(last).reason, reason="job-failed"))
        return bool(super().pod_has_uid(pod))

    def is_pod_running(self, pod: Any) -> bool:
        # The parent waits once more for a pod that we have seen running, and would for one that has ended since.
        seen = pod or self._last_seen()
        if self._created is not None and self._in_start and uid(seen) == uid(self._created):
            ended = verdict.evaluate(pod) if pod else verdict.evaluate_gone(seen)
            if isinstance(ended, verdict.Terminated):
                self._gives_up(StartRefused(ended.reason, reason="job-failed", status=JOB_ENDED))
        return super().is_pod_running(pod)

    def _fails(self, sentence: str, reason: str) -> None:
        self._ended = sentence
        self.log.warning("pod=%s does not start: reason=%s %s", self.pod_key, reason, sentence)

    def _gives_up(self, refused: StartRefused) -> NoReturn:
        self._fails(refused.message, refused.reason)
        raise refused

    def _out_of_time(self) -> NoReturn:
        pod = self.pod() if self._created is not None else None
        if self._waiting is not None and pod is not None:
            self._gives_up(self._waiting.given_up(pod))
        after = asyncio.get_running_loop().time() - self._began
        self._gives_up(StartRefused(trouble.SLOW.given_up(after), reason="start-timeout"))

    async def _until_running(self, created: PodDict) -> None:
        seconds = waiting.deadline_of(self.start_timeout)
        own = frozenset({self.secret_name} if self.internal_ssl else ())
        self._waiting = waiting.StartMonitor(self.pods, self.is_pod_running, self._began, seconds, own)
        try:
            await self._waiting.until_running(created)
        except StartRefused as refused:
            self._gives_up(refused)

    def save_state(self) -> None:
        """The Hub does it when ``start`` has returned; one that is killed before finds the pod by what this says."""
        state = self.get_state()
        if self.orm_spawner.state == state:
            return
        self.orm_spawner.state = state
        self._commit()

    def _commit(self) -> None:
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()

    async def _ensure_children(self, pod: PodDict) -> None:
        """Make what belongs to the pod and is missing; does nothing the second time."""

    async def _until_accepting(self, url: str, seconds: float) -> bool:
        accepts = await reach.until_accepting(url, seconds, self._is_alive)
        ended = verdict.evaluate(self.pod())
        if isinstance(ended, verdict.Terminated):
            self._fails(ended.reason, "job-failed")
            raise StartRefused(ended.reason, reason="job-failed", status=JOB_ENDED)
        return accepts
