"""The start of a server: what is done between KubeSpawner's own steps, and the pod as the shared watch shows it.

Rules:

* A start ends when the server accepts connections, or with the reason why it does not.
* State is saved before the pod is created. A pod of this very start is found again, never created twice.
* The watch answers every question that it can; nothing polls.
* No manifest and no Kubernetes error is logged or shown: both contain the server's token.
* KubeSpawner's own requests (claims, namespaces, Secret and Service of internal SSL and services_enabled, deletions)
  are sent like all others (`requests`): with retries, and without KubeSpawner's logging of whole manifests. Each method
  returns when its request is done, so KubeSpawner's own loops around them run once.

Refused: our own start instead of KubeSpawner's ``_start``. It would be easier to read, and would lose every feature
that KubeSpawner gains; the methods that ``_start`` calls are the interface.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, NoReturn

from aiohttp import ClientError
from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.client.rest import ApiException
from kubespawner import KubeSpawner
from kubespawner.objects import make_namespace
from sqlalchemy.orm import Session, object_session
from traitlets import Integer, validate

from dlspawner import request_log, tracing
from dlspawner.backoff import delays
from dlspawner.core.decisions import JOB_ENDED
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.no_proxy import reach_directly
from dlspawner.spawner import configuration, orphans, reach, start_problems
from dlspawner.spawner.kube.errors import QuietRefusals, StartRefused, limit_problem
from dlspawner.spawner.kube.pod_store import EventWatch, PodWatch
from dlspawner.spawner.kube.pods import PodRequests, token, uid
from dlspawner.spawner.kube.requests import ApiError, Requests, without_secrets

STATE_ENDED = "dlspawner_ended"
STATE_POD_EXPECTED = "dlspawner_begun"
STATE_STARTING = "dlspawner_starting"

STARTING = ContextVar("starting", default=False)  # in the task of a start, and in those that it makes


class StartingSpawner(KubeSpawner):
    """A KubeSpawner that receives its pod from a watch, starts no slower than its pod, and reports why it fails."""

    orphan_seconds = Integer(
        900,
        min=0,
        config=True,
        help="""
        Seconds after which the Hub deletes a pod of its own that belongs to no server in its database, with the pod's
        grace period: such a pod holds GPUs, and the Hub's pages cannot stop it. The time begins when this Hub process
        first sees the pod without a server, with a warning in the log. Default: 900, time to notice that a Hub was
        started with the wrong database. 0: never. With enable_user_namespaces no pod is deleted: the Hub then sees the
        pods of all namespaces, and another Hub of the cluster may have the same address.
        """,
    )

    # KubeSpawner shares this dictionary between all its subclasses; ours holds reflectors of another class.
    reflectors: ClassVar[dict[Any, Any]] = {}

    _began = 0.0  # when the start began, by the event loop's clock
    after_pod_created_hook: Any  # KubeSpawner's trait, wrapped while a start runs
    consecutive_failure_limit: int  # JupyterHub's trait
    _ended: str | None = None  # the reason of the last pod's end, for the user
    _waiting: start_problems.StartMonitor | None = None
    _complete_pod: str | None = None  # uid of the pod whose objects are complete
    _created: PodDict | None = None  # this start's pod, as the API server answered
    _no_pod_requested = False  # true if this start has not requested a pod, or its request certainly failed
    _pod_expected = False  # saved before the pod is requested, until a pod is seen
    _starting = False  # saved while a start is not known to be over
    _outcome_unknown = False  # true if a pod was requested without an answer
    _left_in_cluster = False  # true if the start has ended and its pods wait in the cluster

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        reach_directly(Configuration.get_default_copy().host)  # as KubeSpawner has just configured its client
        QuietRefusals.install(self.log)
        tracing.start("dlspawner-hub")
        self._limit_problem = limit_problem(self.consecutive_failure_limit)
        if self._limit_problem:
            self.consecutive_failure_limit = 0  # or the refusals below would be counted until the Hub exits

    def configured(self, name: str) -> Any:
        return configuration.configured(type(self), self.config, name)

    # Texts that cannot be expanded stay unchanged: pages and polls work, and each start is refused.

    @validate("dns_name_template")
    def _expandable(self, proposal: Any) -> str:
        """KubeSpawner's constructor expands it."""
        return configuration.expandable(proposal.value)

    def _expand_user_properties(self, template: str, slug_scheme: str | None = None) -> str:
        try:
            return str(super()._expand_user_properties(template, slug_scheme))
        except configuration.FAULTS:
            return template

    def format_string(self, s: str) -> str:
        try:
            return str(super().format_string(s))
        except configuration.FAULTS:
            return s

    async def load_user_options(self) -> None:
        await super().load_user_options()
        self._check_configuration()  # once more: a profile has values of its own

    def _problems(self) -> list[str]:
        """Returns the problems of the configuration that an administrator has to correct before a start."""
        return [self._limit_problem] if self._limit_problem else configuration.problems(self)

    def _check_configuration(self) -> None:
        problems = self._problems()
        if problems:
            said = f"{configuration.NOTHING_STARTS} ({'. '.join(problems)}.)"
            raise StartRefused(said, reason="configuration", status=403)

    # Requests of KubeSpawner's own

    async def _ensure_namespace(self) -> None:
        namespace = make_namespace(
            self.namespace,
            labels=self._expand_all(self.user_namespace_labels),
            annotations=self._expand_all(self.user_namespace_annotations),
        )
        with suppress(ApiError):  # it is there
            await self.requests.send("namespace", self.api.create_namespace, namespace, expected=(409,))

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        create = self.api.create_namespaced_persistent_volume_claim
        try:
            await self.requests.send("claim", create, self.namespace, pvc, expected=(403, 409))
        except ApiError as problem:
            # A quota is looked at before the name: 403 may be about a claim that is there.
            if problem.status == 403 and not await self._is_there(pvc.metadata.name):
                raise self.requests.refused("claim", problem) from None
        return True

    async def _is_there(self, claim: str) -> bool:
        """True if a claim exists; false without an answer."""
        with suppress(StartRefused):
            return await self._check_pvc_exists(claim, self.namespace)
        return False

    async def _check_pvc_exists(self, pvc_name: str, namespace: str) -> bool:
        read = self.api.read_namespaced_persistent_volume_claim
        try:
            await self.requests.send("look at a claim", read, pvc_name, namespace, expected=(404,))
        except ApiError:
            return False
        return True

    async def _ensure_not_exists(self, kind: str, name: str) -> bool:
        delete = getattr(self.api, f"delete_namespaced_{kind}")
        read = getattr(self.api, f"read_namespaced_{kind}")
        try:
            await self.requests.send(f"deletion of a {kind}", delete, name, self.namespace, expected=(404,))
            await self.requests.send(f"look at a {kind}", read, name, self.namespace, expected=(404,))
        except ApiError:
            return True
        return False  # it goes; the parent asks again

    async def _make_create_resource_request(self, kind: str, manifest: Any) -> bool:
        create = getattr(self.api, f"create_namespaced_{kind}")
        with suppress(ApiError):  # a name that is taken: an answer was lost, because the earlier one was deleted before
            await self.requests.send(kind, create, self.namespace, manifest, expected=(409,))
        # The Service is the last object before KubeSpawner looks for the running pod.
        if kind == "service" and self._created is not None and not self.after_pod_created_hook:
            await self._until_running(self._created)
        return True

    async def _make_delete_pvc_request(self, pvc_name: str, request_timeout: float) -> bool:
        delete = self.api.delete_namespaced_persistent_volume_claim
        with suppress(ApiError):  # it is gone
            await self.requests.send("deletion of a claim", delete, pvc_name, self.namespace, expected=(404,))
        return True

    # The pod, as the watch shows it

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    def pod(self) -> PodDict | None:
        reflector = self.pod_reflector
        found: PodDict | None = reflector.pods.get(self.pod_key) if reflector else None
        return found

    def _last_seen(self) -> PodDict | None:
        reflector = self.pod_reflector
        found: PodDict | None = reflector.gone.get(self.pod_key) if reflector else None
        return found

    @property
    def pods(self) -> PodRequests:
        return PodRequests(
            self.api,
            self.namespace,
            self.pod_name,
            self.pod_reflector,
            self.log,
            self.k8s_api_request_timeout,
            float(self.k8s_api_request_retry_timeout),
            self.start_timeout,
            self._gpu_resources(),
            self._grace_seconds(),
            self._deadline(),
        )

    @property
    def requests(self) -> Requests:
        return self.pods.requests

    @property
    def _in_start(self) -> bool:
        """True in the task of the start, and not in later tasks that it has begun."""
        future: asyncio.Future[str] | None = self._start_future
        return STARTING.get() and not (future is not None and future.done())

    def _until(self) -> float:
        """Returns the time at which a start ends with the reason of its failure."""
        return self._began + start_problems.deadline_of(self.start_timeout)

    def _deadline(self) -> float | None:
        """The start's deadline, in the task of the start."""
        return self._until() if self._in_start else None

    def _left(self) -> float:
        return max(0.0, self._until() - asyncio.get_running_loop().time())

    def _gpu_resources(self) -> frozenset[str]:
        """Returns the names of GPU resources, for sentences about missing GPUs."""
        return frozenset()

    def _grace_seconds(self) -> int | None:
        """Returns the grace period of deletions; ``None`` for that of each pod."""
        return int(self.delete_grace_period)

    def _is_own(self, pod: PodDict) -> bool:
        """True if this start has created the pod of our name, which then has the token of the start."""
        return bool(self.api_token) and token(pod) == str(self.api_token)

    async def _start_reflector(self, kind: str, *arguments: Any, **more: Any) -> Any:
        """Starts a watch. A start waits for its first list until its deadline; polls and stops wait longer."""
        try:
            seconds = min(float(self.k8s_api_request_retry_timeout), self._left())
            async with asyncio.timeout(seconds if self._in_start else None):
                try:
                    reflector = await super()._start_reflector(kind, *arguments, **more)
                except SystemExit:  # with user namespaces KubeSpawner would end the Hub; what is wrong is asked below
                    reflector = self.reflectors[self._get_reflector_key(kind)]
                await reflector.first_load_future  # the parent's is content with one that has failed
                return reflector
        except TimeoutError:
            raise self.requests.refused("first list", ApiError(None, "TimeoutError")) from None

    # ``replace`` is KubeSpawner's remedy for a watch that has stopped; ours does not, and others wait for it.

    async def _start_watching_pods(self, replace: bool = False) -> Any:
        reflector = await self._start_reflector(
            kind="pods",
            reflector_class=PodWatch,
            labels={"component": self.component_label},
            omit_namespace=self.enable_user_namespaces,
        )
        orphans.look_after(self, self._get_reflector_key("pods"))
        await reflector.turn()
        return reflector

    async def _start_watching_events(self, replace: bool = False) -> Any:
        return await self._start_reflector(
            kind="events",
            reflector_class=EventWatch,
            fields={"involvedObject.kind": "Pod"},
            omit_namespace=self.enable_user_namespaces,
        )

    @property
    def events(self) -> list[PodDict]:
        # The parent's reads the events of all pods, once a second and user.
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

    def _is_alive(self) -> bool:
        return pod_status.evaluate(self.pod()) == pod_status.ALIVE

    def _has_listed_pods(self) -> bool:
        """True if the pods have been listed once."""
        loaded = self.pod_reflector.first_load_future if self.pod_reflector else None
        return loaded is not None and loaded.done() and not loaded.cancelled() and loaded.exception() is None

    async def _wait_for_pods(self) -> None:
        """Returns after the first list of pods, however long it is forbidden: no pod is stopped unseen."""
        for delay in delays():
            try:
                await self._start_watching_pods()
            except StartRefused:
                await asyncio.sleep(delay)
            else:
                return

    # The start

    def get_state(self) -> dict[str, Any]:
        own = {STATE_ENDED: self._ended, STATE_POD_EXPECTED: self._pod_expected, STATE_STARTING: self._starting}
        return {**super().get_state(), **{name: value for name, value in own.items() if value}}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._ended = state.get(STATE_ENDED)
        self._pod_expected, self._starting = (bool(state.get(key)) for key in (STATE_POD_EXPECTED, STATE_STARTING))

    def clear_state(self) -> None:
        super().clear_state()
        self._pod_expected = self._starting = False

    def _forget_start(self) -> None:
        """Drops manifests and keys that are not needed when the server has ended."""
        self._created, self._waiting = None, None

    def _evaluate_gone(self) -> pod_status.Terminated:
        """Evaluates the end of a missing pod; a killed Hub may never have created it."""
        last = self._last_seen()
        return (
            pod_status.Terminated(1, pod_status.BEGUN)
            if last is None and self._pod_expected
            else pod_status.evaluate_gone(last)
        )

    def start(self) -> Any:
        """Saves the state and starts as KubeSpawner. JupyterHub commits it, which saves a commit later."""
        self._ended = None
        self._pod_expected = self._starting = True  # as for the request of the pod: nothing is left to save then
        if self.orm_spawner is not None:  # other tools construct a spawner without a row in the Hub's database
            self.orm_spawner.state = self.get_state()
        self._pod_expected = self._starting = False
        return super().start()

    async def _start(self) -> str:
        self._waiting, self._ended, self._created, self._no_pod_requested, self._outcome_unknown = (
            None,
            None,
            None,
            True,
            False,
        )
        self._left_in_cluster = False
        STARTING.set(True)
        request = request_log.accept(self.handler.request.headers.get(request_log.HEADER) if self.handler else None)
        self.log.info("pod=%s starts: request=%s", self.pod_key, request)
        self._began = asyncio.get_running_loop().time()
        self._check_configuration()
        # Hooks, requests to the Manager and KubeSpawner's own waits may each be in time, and late together.
        try:
            async with asyncio.timeout_at(self._began + start_problems.last_moment_of(self.start_timeout)):
                url: str = await super()._start()
            self._complete_pod = uid(self.pod())  # nothing of it is missing
        except (ApiException, ClientError, TimeoutError) as problem:
            if isinstance(problem, TimeoutError) and not self._left():
                self._fail_out_of_time()
            raise self.requests.refused("start", without_secrets(problem)) from None
        except StartRefused as refused:
            if not refused.waits:
                self._ended = self._ended or refused.message  # for pages that are opened after the start
                if self._created is not None and (page := self.log_page()):
                    refused.link_log(page)
            raise
        finally:
            self._unwrap_hook()
        if not await self._until_accepting(url, min(self.http_timeout, self._left())):
            self._does_not_answer(url)
        self._starting = False  # which the Hub saves now
        return url

    def log_page(self) -> str:
        """Returns the page with the log of this start's job; empty where there is none."""
        return ""

    def _does_not_answer(self, url: str) -> None:
        """A hook for a running pod whose server does not listen yet; the Hub then tries to connect itself."""

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Creates the pod and its objects, from the final manifest with the changes of all hooks."""
        self._pod_expected = self._starting = True
        self.save_state()
        self._no_pod_requested, self._outcome_unknown = False, True
        try:
            created = await self._create(self._final(dict(self.pods.plain(pod))))
        except StartRefused as refused:
            self._outcome_unknown, self._no_pod_requested = refused.outcome_unknown, not refused.outcome_unknown
            raise
        self._outcome_unknown = self._pod_expected = False
        self._created = created
        self.pod_reflector.learn(created)
        try:
            await self._ensure_owned_objects(created)
        except StartRefused as refused:
            self._ended = refused.message  # there is no second try while the Hub stops the pod
            raise
        if not self._has_stock_objects:
            self._complete_pod = uid(created)
        # If no other step precedes the run of the pod, this waits for the watch, so that KubeSpawner finds it running
        # at its first poll, and not at one of its increasingly rare later ones.
        hook = self.after_pod_created_hook
        if hook:
            self.after_pod_created_hook = partial(self._run_hook, hook)
        elif not self._has_stock_objects:
            await self._until_running(created)
        return True

    @property
    def _has_stock_objects(self) -> bool:
        """True if KubeSpawner itself makes a Service, perhaps a Secret, for each pod."""
        return bool(self.internal_ssl or self.services_enabled)

    def _final(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest

    async def _create(self, manifest: dict[str, Any], until: float = math.inf) -> PodDict:
        """Creates the pod of this manifest, or finds it again; StartRefused by ``until`` on the loop's clock."""
        return await self.pods.by(until).create(manifest, self._is_own)

    async def _run_hook(self, hook: Callable[[Any, Any], Any], spawner: Any, pod: PodDict) -> None:
        await maybe_future(hook(spawner, pod))
        await self._until_running(pod)

    def _unwrap_hook(self) -> None:
        hook = self.after_pod_created_hook
        if isinstance(hook, partial) and hook.func == self._run_hook:
            (self.after_pod_created_hook,) = hook.args

    def pod_has_uid(self, pod: Any) -> bool:
        # The parent waits ten seconds for one that has gone.
        last = self._last_seen()
        if pod is None and last is not None and uid(last) == uid(self._created):
            self._fail(StartRefused(pod_status.evaluate_gone(last).reason, reason="job-failed"))
        return bool(super().pod_has_uid(pod))

    def is_pod_running(self, pod: Any) -> bool:
        # The parent waits once more for a pod that we have seen running, and would for one that has ended since.
        seen = pod or self._last_seen()
        if self._created is not None and self._in_start and uid(seen) == uid(self._created):
            ended = pod_status.evaluate(pod) if pod else pod_status.evaluate_gone(seen)
            if isinstance(ended, pod_status.Terminated):
                self._fail(StartRefused(ended.reason, reason="job-failed", status=JOB_ENDED))
        # The parent raises KeyError for a pod that has no container statuses yet.
        return bool(pod and (pod.get("status") or {}).get("containerStatuses") and super().is_pod_running(pod))

    def _record_failure(self, sentence: str, reason: str) -> None:
        self._ended = sentence
        self.log.warning("pod=%s does not start: reason=%s %s", self.pod_key, reason, sentence)

    def _fail(self, refused: StartRefused) -> NoReturn:
        self._record_failure(refused.message, refused.reason)
        raise refused

    def _fail_out_of_time(self) -> NoReturn:
        pod = self.pod() if self._created is not None else None
        if self._waiting is not None and pod is not None:
            self._fail(self._waiting.given_up(pod))
        after = asyncio.get_running_loop().time() - self._began
        self._fail(StartRefused(start_problems.SLOW.given_up(after), reason="start-timeout"))

    async def _until_running(self, created: PodDict) -> None:
        seconds = start_problems.deadline_of(self.start_timeout)
        own = frozenset({self.secret_name} if self.internal_ssl else ())
        self._waiting = start_problems.StartMonitor(self.pods, self.is_pod_running, self._began, seconds, own)
        try:
            await self._waiting.until_running(created)
        except StartRefused as refused:
            self._fail(refused)

    def save_state(self) -> None:
        """Saves the state now; the Hub saves it only after ``start``, and may be killed before."""
        state = self.get_state()
        if self.orm_spawner is None or self.orm_spawner.state == state:
            return
        self.orm_spawner.state = state
        self._commit()

    @property
    def _hub_session(self) -> Session | None:
        """The session of the server's row in the Hub's database; ``None`` without a row, or if it was deleted."""
        return object_session(self.orm_spawner) if self.orm_spawner is not None else None

    def _commit(self) -> None:
        session = self._hub_session
        if session is not None:
            session.commit()

    async def _ensure_owned_objects(self, pod: PodDict) -> None:
        """A hook that creates the missing objects of the pod."""

    async def _until_accepting(self, url: str, seconds: float) -> bool:
        accepts = await reach.until_accepting(url, seconds, self._is_alive)
        ended = pod_status.evaluate(self.pod())
        if isinstance(ended, pod_status.Terminated):
            self._record_failure(ended.reason, "job-failed")
            raise StartRefused(ended.reason, reason="job-failed", status=JOB_ENDED)
        return accepts
