"""Requests to Kubernetes about one server's pod; this module translates the errors of the client.

Rules:

* An existing pod is identified by its uid: a request about an earlier pod never hits a later one of the same name.
* Creation is idempotent: a pod with the token of this start was created by a request whose answer was lost.
* The pod of an earlier job keeps its grace period; no pod is killed to free its name.
* The user gets the API server's answer as one sentence, the operator as one line. Manifests, headers and tracebacks,
  which contain the job's token, are neither logged nor shown.

The client is KubeSpawner's (kubernetes_asyncio). The functions return plain dictionaries and raise ``StartRefused``, or
`requests.ApiError` for reads that are not repeated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

from kubespawner.clients import shared_client

from dlspawner.backoff import delays
from dlspawner.core import naming
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_store import PodWatch
from dlspawner.spawner.kube.requests import ApiError, GaveUp, Requests

STILL_THERE = (
    "An earlier job of this server is on a node that does not answer: start the job under another name, or ask an "
    "administrator to remove the old one."
)

STILL_THERE_WITH_HOME = (
    "An earlier job of this server is on a node that does not answer, and so is your home directory: ask an "
    "administrator to remove the node."
)

STILL_ENDING = (
    "An earlier job of this server is still ending: this one can start when that has ended. An administrator can "
    "remove it."
)

# Seconds between two reads of a pod that should be deleted and does not change: its node may be silent.
_STUCK_SECONDS = 5


@dataclass(frozen=True, slots=True)
class PodRequests:
    """One server's pod: its name, and the deadlines for requests (one try, all tries) and for its deletion.

    ``until`` is the deadline of a start on the event loop's clock, early enough to report why the start failed.
    """

    api: Any
    namespace: str
    name: str
    watch: PodWatch
    log: Any
    request_seconds: float
    retry_seconds: float
    pod_seconds: float
    gpus: frozenset[str] = frozenset()
    grace_seconds: int | None = None  # for every pod; without it, what each was made with
    until: float | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def requests(self) -> Requests:
        return Requests(self.key, self.log, self.request_seconds, self.left(self.retry_seconds), self.gpus)

    def left(self, seconds: float) -> float:
        """Returns these seconds, or fewer if ``until`` comes before."""
        return seconds if self.until is None else min(seconds, max(0.0, self.until - _now()))

    def by(self, moment: float) -> PodRequests:
        """The same with this deadline, if it is earlier than ``until``."""
        return replace(self, until=moment if self.until is None else min(self.until, moment))

    async def create(self, manifest: PodDict, is_own: Callable[[PodDict], bool]) -> PodDict:
        """Returns the pod of this start, created now or found again; ``is_own`` rejects pods of earlier starts."""
        create = self.api.create_namespaced_pod
        for delay in delays(most=_STUCK_SECONDS):
            try:
                created = await self.requests.send("pod", create, self.namespace, manifest, expected=(409,))
            except ApiError:
                found = await self._own_or_wait(is_own)
                if found is not None:
                    self.log.info("pod=%s found again%s", self.key, _told(found))
                    return found
            else:
                self.log.info("pod=%s created%s", self.key, _told(created))
                return created
            if not self.left(delay):  # a pod that the watch does not follow takes the name again and again
                raise self._still_ending()
            await asyncio.sleep(self.left(delay))
        raise AssertionError("delays never end")

    @property
    def networking(self) -> Any:
        """The client of NetworkPolicies."""
        return shared_client("NetworkingV1Api")

    async def read(self, trying: float | None = None) -> PodDict | None:
        """Reads the pod from the API server, for ``trying`` seconds at most; ``None`` if there is none."""
        read = self.api.read_namespaced_pod
        try:
            return await self.requests.send(
                "look at a pod", read, self.name, self.namespace, expected=(404,), seconds=trying
            )
        except ApiError:
            return None

    async def _own_or_wait(self, is_own: Callable[[PodDict], bool]) -> PodDict | None:
        """Returns the existing pod if it belongs to this start; ``None`` once the pod of an earlier start is gone."""
        try:
            found = await self.read()
        except StartRefused as refused:
            refused.outcome_unknown = True  # the pod that has the name may be this start's own
            raise
        if found is None or is_own(found):
            return found
        self.watch.learn(found)  # so that it is seen to go
        if not found["metadata"].get("deletionTimestamp"):
            self.log.info("pod=%s is an earlier job's and is asked to end", self.key)
            await self.delete(found, self.grace(found))
        try:
            gone = await self.gone(found)
        except TimeoutError:
            raise self._still_ending() from None
        if not gone:
            self.log.warning("pod=%s is an earlier job's and its node does not answer", self.key)
            sentence = STILL_THERE_WITH_HOME if launch_pod.needs_home_node(found) else STILL_THERE
            raise StartRefused(sentence, reason="node-silent", status=409)
        return None

    def _still_ending(self) -> StartRefused:
        self.log.warning("pod=%s is an earlier job's and is still ending", self.key)
        return GaveUp(STILL_ENDING, reason="still-ending", status=409)

    def grace(self, pod: PodDict, *, now: bool = False) -> int:
        """Returns the grace period of this pod in seconds; ``now``: the shortest that is allowed.

        Zero removes the pod object although its programs may run on, for days if the node does not answer: it is for
        pods that have ended or have not begun.
        """
        own = int((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 0)
        seconds = 0 if now else own if self.grace_seconds is None else self.grace_seconds
        return seconds if pod_status.is_over(pod) else max(1, seconds)

    async def gone(self, pod: PodDict) -> bool:
        """Returns True when the watch no longer has this pod, False if it stays because its node does not answer.

        TimeoutError: the pod stays for another reason.
        """

        def settled(now: PodDict | None) -> bool:
            return uid(now) != uid(pod) or _is_stuck(now)

        async with asyncio.timeout(self.left(self.pod_seconds)):
            for times in count(1):
                try:
                    return uid(await self.watch.until(self.key, settled, _STUCK_SECONDS)) != uid(pod)
                except TimeoutError:  # nothing has changed, but the clock has
                    if times.bit_count() == 1:  # 1, 2, 4 …: rarer and rarer
                        with suppress(ApiError):
                            if await self.look() is None:
                                self.watch.forget(pod)
        raise AssertionError("counting never ends")

    async def look(self) -> PodDict | None:
        """Reads the pod once and passes it to the watch, whose connection a firewall may have dropped silently."""
        found = await self._once(self.api.read_namespaced_pod, self.name)
        if found is not None:
            self.watch.learn(found)
        return found

    async def claim(self, name: str) -> PodDict | None:
        return await self._once(self.api.read_namespaced_persistent_volume_claim, name)

    async def _once(self, read: Callable[..., Any], name: str) -> PodDict | None:
        """The object, or ``None`` if it does not exist; ApiError without an answer."""
        try:
            return await self.requests.once(read, name, self.namespace)
        except ApiError as problem:
            if problem.status == 404:
                return None
            raise

    async def events(self, kind: str, name: str, of: str | None = None) -> list[PodDict]:
        """Returns the Kubernetes events of one object, of exactly this uid where one is given; a request per call."""
        selector = f"involvedObject.kind={kind},involvedObject.name={name}" + (
            f",involvedObject.uid={of}" if of else ""
        )
        ask = self.api.list_namespaced_event
        found = await self.requests.once(ask, self.namespace, field_selector=selector, limit=100)
        return list(found.get("items") or ())

    async def why_ended(self, pod: PodDict, judged: pod_status.Terminated) -> str:
        """Returns the reason of an end, from the pod or from its events. Never fails."""
        if pod_status.may_be_eviction(judged):
            try:
                return pod_status.evicted(await self.events("Pod", self.name, uid(pod))) or judged.reason
            except ApiError as problem:
                self.log.warning("pod=%s its events cannot be read: %s", self.key, problem)
        return judged.reason

    async def delete(self, pod: PodDict, seconds: int, trying: float | None = None) -> None:
        """Requests the deletion of exactly this pod, repeated for ``trying`` seconds (``None``: as usual)."""
        options = {"preconditions": {"uid": uid(pod)}}
        try:
            await self.requests.send(
                "deletion of a pod",
                self.api.delete_namespaced_pod,
                self.name,
                self.namespace,
                body=options,
                grace_period_seconds=seconds,
                expected=(404, 409),  # gone, or another pod by now
                seconds=trying,
            )
        except ApiError:
            return

    async def annotate(self, pod: PodDict, annotations: Mapping[str, str]) -> None:
        """Annotates exactly this pod: Kubernetes refuses a patch with another uid."""
        change = {"metadata": {"uid": uid(pod), "annotations": annotations}}
        await self.requests.send(
            "annotation of a pod", self.api.patch_namespaced_pod, self.name, self.namespace, change
        )

    def plain(self, model: Any) -> PodDict:
        """Returns an object of the client as a camelCase dictionary."""
        tree: PodDict = self.api.api_client.sanitize_for_serialization(model)
        return tree

    def model(self, pod: PodDict) -> Any:
        """Returns the dictionary as a V1Pod, which ``modify_pod_hook`` expects."""
        return self.api.api_client.deserialize(SimpleNamespace(data=json.dumps(pod)), "V1Pod")


def uid(pod: PodDict | None) -> str | None:
    return pod["metadata"]["uid"] if pod else None


def token(pod: PodDict) -> str | None:
    """The Hub's token that the pod's server was started with; every start has its own."""
    return variable(pod, "JUPYTERHUB_API_TOKEN")


def variable(pod: PodDict, name: str) -> str | None:
    """The value of an environment variable of the first container that has it; ``None`` where it is empty."""
    for container in pod["spec"]["containers"]:
        for one in container.get("env") or ():
            if one["name"] == name:
                return str(one.get("value") or "") or None
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_stuck(pod: PodDict | None) -> bool:
    """True if the grace period of a deleted pod is over and its node does not report its end."""
    ends = pod["metadata"].get("deletionTimestamp") if pod else None
    if pod is None or ends is None or not pod_status.is_silent(pod):
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(ends)).total_seconds() > 0


def _told(pod: PodDict) -> str:
    job = naming.read_job(pod["metadata"])
    return f" job={job.id} template={job.template}" if job else ""
