"""A server's pod as the shared watches show it, and the requests about it.

Who asks sees what the watch saw last, and is woken when that changes; a request is made only for what no watch can say.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, ClassVar

from dlspawner.backoff import delays
from dlspawner.spawner import orphans, verdict, waiting
from dlspawner.spawner.pods import PodRequests, token
from dlspawner.spawner.refusal import StartRefused
from dlspawner.spawner.requests import ApiError, Requests
from dlspawner.spawner.stock import StockRequests
from dlspawner.spawner.verdict import PodDict
from dlspawner.spawner.watch import EventWatch, PodWatch

STARTING = ContextVar("starting", default=False)  # in the task of a start, and in those that it makes


class WatchedSpawner(orphans.OrphanTraits, StockRequests):
    """A KubeSpawner that is told of its pod by a watch."""

    # KubeSpawner shares this dictionary between all its subclasses; ours holds reflectors of another class.
    reflectors: ClassVar[dict[Any, Any]] = {}

    _began = 0.0  # when the start began, by the event loop's clock

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
    def pods(self) -> PodRequests:
        """Requests about this server's pod."""
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
        """Whether it is the start that asks, and not something that it has begun for later."""
        future: asyncio.Future[str] | None = self._start_future
        return STARTING.get() and not (future is not None and future.done())

    def _until(self) -> float:
        """The moment at which the start has to say why it has failed, if it has."""
        return self._began + waiting.deadline_of(self.start_timeout)

    def _deadline(self) -> float | None:
        """That moment, when it is the start that asks."""
        return self._until() if self._in_start else None

    def _left(self) -> float:
        """Seconds until then."""
        return max(0.0, self._until() - asyncio.get_running_loop().time())

    def _first_list_seconds(self) -> float:
        return min(float(self.k8s_api_request_retry_timeout), self._left())

    def _gpu_resources(self) -> frozenset[str]:
        """Names of resources that are GPUs, for sentences about a lack of them."""
        return frozenset()

    def _grace_seconds(self) -> int | None:
        """Between asking a pod to end and ending it; ``None``: as the pod itself says."""
        return int(self.delete_grace_period)

    def _is_own(self, pod: PodDict) -> bool:
        """Whether a pod of our name was made by this very start: nobody else has the token that it carries."""
        return bool(self.api_token) and token(pod) == str(self.api_token)

    async def _start_reflector(self, kind: str, *arguments: Any, **more: Any) -> Any:
        """A start waits for the first list no longer than for anything else; who polls or stops has the time."""
        try:
            async with asyncio.timeout(self._first_list_seconds() if self._in_start else None):
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

    def is_pod_running(self, pod: Any) -> bool:
        # A pod without container statuses yet is KeyErrors away from an answer in the parent.
        return bool(pod and (pod.get("status") or {}).get("containerStatuses") and super().is_pod_running(pod))

    def _is_alive(self) -> bool:
        return verdict.evaluate(self.pod()) == verdict.ALIVE

    def _sees_pods(self) -> bool:
        """Whether the pods have been listed once."""
        loaded = self.pod_reflector.first_load_future if self.pod_reflector else None
        return loaded is not None and loaded.done() and not loaded.cancelled() and loaded.exception() is None

    async def _see_pods(self) -> None:
        """Return when the watch shows pods, however long that is forbidden: nobody may be stopped unseen."""
        for delay in delays():
            try:
                await self._start_watching_pods()
            except StartRefused:
                await asyncio.sleep(delay)
            else:
                return
