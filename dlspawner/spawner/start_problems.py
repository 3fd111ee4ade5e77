"""The obstacle of a start, from the pod's status, its events and its claims, and the wait until the pod runs.

A problem has a *cause*, a *step* that the user can take, and a *tolerance*: for how many seconds the same problem may
last before the start is given up.

========================================================================  =========
problem                                                                   tolerance
========================================================================  =========
image: no such name, not in its registry, not given out to the cluster    at once
image: registry does not answer, or asks to slow down, or node is full    waits
container: root where that is forbidden, no such program, server crashes  at once
container: Secret, ConfigMap or claim that does not exist                 15 s
init container or sidecar ends again and again                            waits
container or its sandbox cannot be made, volume cannot be mounted         waits
no node: too full, of another kind, reserved, closed, storage elsewhere   waits
claim not bound: no StorageClass, a failing provisioner                   waits
========================================================================  =========

*At once* is for problems that last until a user changes something. *15 s* is for objects that may be created a moment
after the pod. *Waits* is for problems that may pass by themselves, or that an administrator can solve: the progress
page shows them as soon as Kubernetes reports them, and they are the reason when ``start_timeout`` is over.

Messages of Kubernetes contain addresses, paths and sometimes credentials. They are read for facts, and logged.

`StartMonitor` waits for the pod. The watch wakes it when the pod changes. Some causes never change the pod: a volume
that cannot be mounted, a claim without storage, an image that is being pulled. If a pod makes no progress for a moment,
and then less and less often, the monitor reads the pod itself, because a watch may be silent unnoticed (a connection
that a firewall has dropped), and one list of the pod's events, or of those of its claims. A healthy start needs none of
these requests.

Refused: KubeSpawner's reflector of events (``events_enabled``). It keeps every event of the namespace in the Hub's
memory to use those of one pod, and a busy namespace has more events than pods.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from dlspawner import tracing
from dlspawner.core import naming, pod_events, text
from dlspawner.core.decisions import JOB_ENDED
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod_status import ImagePull, PodDict, moment_of, stands_on, start_failure
from dlspawner.core.text import ASK
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import PodRequests, uid
from dlspawner.spawner.kube.requests import ApiError

AT_ONCE, MISSING_SECONDS = 0.0, 15.0

_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"})
_MAKES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MISSING = re.compile(r"\b(secret|configmap|persistentvolumeclaim) \"([^\"]+)\" not found", re.IGNORECASE)
_MISSING_KEY = re.compile(r"(non-existent (?:secret|config) key|couldn't find key)", re.IGNORECASE)
_KINDS = {"secret": "Secret", "configmap": "ConfigMap", "persistentvolumeclaim": "claim"}
_VOLUME = re.compile(r"for volume \"([^\"]+)\"")


@dataclass(frozen=True, slots=True)
class StartProblem:
    """An obstacle of a start; ``detail`` is Kubernetes' text, for the log; ``tolerance`` None: until the deadline."""

    cause: str
    step: str
    tolerance: float | None = None
    detail: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.cause}: {self.step}."

    def given_up(self, seconds: float) -> str:
        """The sentence when the start is given up after so long."""
        return f"{self.cause}, and the job was given up after {text.duration(seconds)}: {self.step}."


# For a start without a problem that Kubernetes reports.
SLOW = StartProblem("The start takes too long", f"try again, or {ASK}")


def of_pod(pod: PodDict | None, gpus: Collection[str] = ()) -> StartProblem | None:
    """Returns the problem in the pod's own status; ``None`` while it may just be slow."""
    status: PodDict = (pod or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _unscheduled(str(condition.get("reason") or ""), str(condition.get("message") or ""), gpus)
    found: list[StartProblem] = []
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting: PodDict = (container.get("state") or {}).get("waiting") or {}
        reason, detail = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        image, name = str(container.get("image") or ""), str(container.get("name") or "")
        if reason == "CrashLoopBackOff":
            trouble: StartProblem | None = _crashes(container, AT_ONCE if pod and name in stands_on(pod) else None)
        else:
            trouble = _image(reason, detail, image) or _making(reason, detail, image, name)
        if trouble is not None:
            found.append(trouble)
    # A problem with a limited tolerance comes before one that may pass by itself.
    return next((trouble for trouble in found if trouble.tolerance is not None), found[0] if found else None)


def of_events(events: Iterable[PodDict], own: Collection[str] = ()) -> StartProblem | None:
    """Returns the problem in the latest event of a pod on a node; ``own``: Secrets that the spawner will make."""
    latest = max(events, key=_order, default=None)
    if latest is None or latest.get("type") != "Warning":
        return None
    reason, said = str(latest.get("reason") or ""), str(latest.get("message") or "")
    volume = _VOLUME.search(said)
    if reason in ("FailedMount", "FailedAttachVolume"):
        if "Multi-Attach" in said:
            cause, step = "The job's storage is in use on another node", f"stop the job that uses it there, or {ASK}"
            return StartProblem(cause, step, None, said)
        missing = _missing(said)
        if missing is not None:
            found = _MISSING.search(said)
            return None if found and found[2] in own else missing
        name = f" {volume[1]}" if volume else ""
        return StartProblem(
            f"The volume{name} cannot be mounted on the job's node", f"try again later, or {ASK}", None, said
        )
    if reason == "FailedCreatePodSandBox":
        return StartProblem("The job's node cannot set up its network", f"try again later, or {ASK}", None, said)
    return None


def of_claim(name: str, claim: PodDict | None, events: Iterable[PodDict]) -> StartProblem | None:
    """Returns the problem of a claim of an unscheduled pod; ``claim`` None: it does not exist."""
    if claim is None:
        return _no_such("claim", name, "")
    phase = (claim.get("status") or {}).get("phase")
    if phase == "Bound":
        return None
    if phase == "Lost":
        return StartProblem(f"The volume behind the claim {name} is lost", ASK, AT_ONCE)
    latest = max(events, key=_order, default={})
    said = str(latest.get("message") or "")
    wanted = (claim.get("spec") or {}).get("storageClassName")
    if "no storage class is set" in said:
        why = "the cluster has no default StorageClass"
    elif "storageclass" in said and "not found" in said:
        why = f"there is no StorageClass {wanted}" if wanted else "its StorageClass does not exist"
    elif latest.get("type") == "Warning":
        why = "the cluster's storage reports an error"
    else:
        return StartProblem(f"The storage {name} is not ready yet", f"try again later, or {ASK}", None, said)
    return StartProblem(f"The storage {name} cannot be made because {why}", ASK, None, said)


def of_nothing(pod: PodDict | None, pull: ImagePull | None = None) -> StartProblem:
    """Returns the problem of a start that ran out of time without any other problem."""
    if pull is not None:
        cause = f"The image {pull.image} takes too long to pull"
        return StartProblem(cause, f"start the job again, what was loaded is kept, or {ASK}")
    if pod is not None and not (pod.get("spec") or {}).get("nodeName"):
        scheduler = str((pod.get("spec") or {}).get("schedulerName") or "")
        which = f" {scheduler}" if scheduler not in ("", "default-scheduler") else ""
        return StartProblem(f"The cluster's scheduler{which} has not looked at the job", ASK)
    if pod is not None and (pod.get("status") or {}).get("phase") == "Running":
        return StartProblem("The job's containers run but do not become ready", f"look at what they print, or {ASK}")
    return StartProblem(
        "The job's image or storage takes too long", f"start it again, what was loaded is kept, or {ASK}"
    )


def pulled_image(events: Iterable[PodDict]) -> ImagePull | None:
    """Returns the image that the pod's node is pulling."""
    latest: PodDict = max(events, key=_order, default={})
    found = re.search(r"Pulling image \"([^\"]+)\"", str(latest.get("message") or ""))
    since = moment_of(f"{_when(latest)}+00:00") if found else None
    return ImagePull(found[1], since) if found and since else None


def waits_for_claims(trouble: StartProblem | None) -> bool:
    return trouble is not None and "persistentvolumeclaim" in trouble.detail.lower()


def _unscheduled(reason: str, message: str, gpus: Collection[str]) -> StartProblem | None:
    if reason == "SchedulingGated":
        return StartProblem("The cluster's queue has not admitted the job yet", f"wait, or {ASK}", None, message)
    missing = _missing(message)
    if missing is not None:
        return missing
    shortage = pod_events.explain_unschedulable(message, gpus)
    if shortage is not None:
        return StartProblem(shortage.cause, shortage.step, None, message)
    return (
        StartProblem(f"The cluster finds no place for the job (“{text.quoted(message)}”)", ASK, None, message)
        if message
        else None
    )


def _image(reason: str, detail: str, image: str) -> StartProblem | None:
    if reason == "InvalidImageName":
        return StartProblem(f"“{text.quoted(image)}” is not the name of an image", "correct it", AT_ONCE, detail)
    if reason == "ErrImageNeverPull":
        step = f"choose another image, or {ASK}"
        return StartProblem(f"The image {image} is not on the node and may not be pulled", step, AT_ONCE, detail)
    return _pull(image, detail) if reason in _PULLS else None


def _making(reason: str, detail: str, image: str, name: str) -> StartProblem | None:
    if reason not in _MAKES:
        return None
    missing = _missing(detail)
    if missing is not None:
        return missing
    if "runAsNonRoot" in detail or "non-root" in detail:
        step = f"choose an image with an ordinary user, or {ASK}"
        return StartProblem(f"The image {image} runs as root, which is not allowed here", step, AT_ONCE, detail)
    program = start_failure(detail)
    if program is not None:
        return StartProblem(*program, AT_ONCE, detail)
    patience = MISSING_SECONDS if reason == "CreateContainerConfigError" else None
    return StartProblem(f"The job's container {name} cannot be made", ASK, patience, detail)


# Patterns of a registry's refusal in the messages of containerd, CRI-O and Docker -> cause, step, tolerance.
_REFUSALS: tuple[tuple[str, str, str, float | None], ...] = (
    (
        "no match for platform|no matching manifest",
        "is not made for this cluster's processors",
        "choose another",
        AT_ONCE,
    ),
    (
        r"unauthori[sz]ed|authorization failed|access denied|denied:|insufficient_scope|40[13] |authentication req",
        "is not given to this cluster by its registry",
        "check its name, or ask an administrator for access to it",
        AT_ONCE,
    ),
    (
        "429|toomanyrequests|rate limit",
        "is held back by its registry, which asks to slow down",
        f"try later, or {ASK}",
        None,
    ),
    ("no space left", "does not fit on the node's disk", f"choose a smaller one, or {ASK}", None),
    (
        "not found|notfound|manifest unknown|name unknown|does not exist",
        "does not exist in its registry",
        "check its name and tag",
        AT_ONCE,
    ),
    (
        r"dial tcp|no such host|connection re|timeout|deadline exceeded|x509|tls|5\d\d |EOF|misbehaving",
        "cannot be fetched because its registry does not answer the cluster",
        f"check the registry's name, try later, or {ASK}",
        None,
    ),
)


def _pull(image: str, detail: str) -> StartProblem:
    said = detail.replace(image, "")  # an image may be called anything
    for words, what, step, patience in _REFUSALS:
        if re.search(words, said, re.IGNORECASE):
            return StartProblem(f"The image {image} {what}", step, patience, detail)
    return StartProblem(f"The image {image} cannot be pulled", f"check its name and tag, or {ASK}", None, detail)


def _crashes(container: PodDict, patience: float | None) -> StartProblem:
    ended: PodDict = (container.get("lastState") or {}).get("terminated") or {}
    code = f" with {text.ended_by(int(ended['exitCode']))}" if "exitCode" in ended else ""
    detail = str(ended.get("message") or "")
    return StartProblem(
        f"The job's container {container.get('name')} ends again and again{code}", ASK, patience, detail
    )


def _missing(said: str) -> StartProblem | None:
    found = _MISSING.search(said)
    if found is not None:
        return _no_such(_KINDS[found[1].lower()], found[2], said)
    if _MISSING_KEY.search(said):
        cause = "A Secret or ConfigMap that the job's template names lacks a key"
        return StartProblem(cause, f"choose another template, or {ASK}", MISSING_SECONDS, said)
    return None


def _no_such(kind: str, name: str, said: str) -> StartProblem:
    step = f"choose another template, or {ASK}"
    return StartProblem(
        f"The job needs the {kind} {name}, which does not exist in the cluster", step, MISSING_SECONDS, said
    )


# The order of events of the same second, the precision of most events.
_ORDER = (
    "Scheduled",
    "FailedAttachVolume",
    "FailedMount",
    "SuccessfulAttachVolume",
    "FailedCreatePodSandBox",
    "Pulling",
)


def _order(event: PodDict) -> tuple[str, int]:
    reason = event.get("reason")
    return _when(event), _ORDER.index(reason) if reason in _ORDER else len(_ORDER)


def _when(event: PodDict) -> str:
    """Returns the time of an event, to the second as in the older fields; RFC 3339 in UTC sorts as text."""
    series: PodDict = event.get("series") or {}
    moments: Iterator[object] = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
    ).__iter__()
    return next((str(moment)[:19] for moment in moments if moment), "")


# JupyterHub ends a start after start_timeout without a reason: the spawner ends it earlier by these seconds.
_EARLIER_SECONDS = 5.0
_LAST_LOOK_SECONDS = 1.0


def look_pauses() -> Iterator[float]:
    """Seconds without progress before each closer look."""
    return chain((1.5, 2, 4, 8, 15), repeat(30))


def deadline_of(start_timeout: float) -> float:
    """Returns the seconds after which a start is ended."""
    return start_timeout - min(_EARLIER_SECONDS, start_timeout / 10)


def last_moment_of(start_timeout: float) -> float:
    """Returns the seconds for all steps together, so that a late step fails before JupyterHub's own timeout."""
    return start_timeout - (start_timeout - deadline_of(start_timeout)) / 4


@dataclass(slots=True)
class StartMonitor:
    """One start. ``note`` names the obstacle, ``pull`` the image; the watch wakes the pages that show them."""

    pods: PodRequests
    runs: Callable[[PodDict | None], bool]
    since: float  # of the event loop's clock, as all moments here
    seconds: float
    own: frozenset[str] = frozenset()  # Secrets that the start makes after the pod
    note: str | None = None
    pull: ImagePull | None = None
    _trouble: StartProblem | None = None
    _troubled_since: float = 0.0

    async def until_running(self, created: PodDict) -> None:
        """Returns when the pod runs; StartRefused with the reason if it cannot."""
        tracing.event("pod: created")
        seen, pod, closer = False, None, None
        ahead = look_pauses()
        look_at = self._look_at(next(ahead))
        while True:
            latest = self._latest(created)
            seen = seen or uid(self._gone) == uid(created)
            if latest is not None and _version(latest) != _version(pod):
                # The watch may be behind the creation; once it has seen the pod, none is a pod that was removed.
                pod, seen, closer = latest, True, None
                ahead = look_pauses()
                look_at = self._look_at(next(ahead))
            if seen:
                tracing.pod_seen(latest or {})
                self._judge(latest, created)
                self._consider(of_pod(latest, self.pods.gpus), closer)
                if self.runs(latest):
                    return
            self._give_up_in_time(latest)
            if await self._changed(look_at):
                continue
            if _now() >= look_at:
                closer = await self._look(pod, closer)
                look_at = self._look_at(next(ahead))

    def _look_at(self, pause: float) -> float:
        """Returns the time of the next closer look; the last one is shortly before the deadline."""
        last = self.since + self.seconds - min(_LAST_LOOK_SECONDS, self.seconds / 4)
        return min(_now() + pause, last) if _now() < last else _now() + pause

    def _latest(self, created: PodDict) -> PodDict | None:
        latest: PodDict | None = self.pods.watch.pods.get(self.pods.key)
        return latest if uid(latest) == uid(created) else None

    @property
    def _gone(self) -> PodDict | None:
        """Returns the last state of the pod of our name that went last."""
        found: PodDict | None = self.pods.watch.gone.get(self.pods.key)
        return found

    def _judge(self, pod: PodDict | None, created: PodDict) -> None:
        last = self._gone
        judged = (
            pod_status.evaluate(pod) if pod else pod_status.evaluate_gone(last if uid(last) == uid(created) else None)
        )
        if isinstance(judged, pod_status.Terminated):
            raise StartRefused(judged.reason, reason="job-failed", status=JOB_ENDED)

    def _consider(self, told: StartProblem | None, closer: StartProblem | ImagePull | None) -> None:
        """Updates the note from the problem in the pod's status and from the last closer look."""
        found = closer if isinstance(closer, StartProblem) else told
        if found is None or self._trouble is None or found.cause != self._trouble.cause:
            self._troubled_since = _now()
            if found is not None:
                self.pods.log.info(
                    "pod=%s is held up: %s (%s)", self.pods.key, found.cause, text.quoted(found.detail, 500)
                )
        self._trouble = found
        note, pull = found.sentence if found else None, closer if isinstance(closer, ImagePull) else None
        if (note, pull) != (self.note, self.pull):
            self.note, self.pull = note, pull
            if pull is not None:
                tracing.event("pod: pulls an image")
            elif found is not None:
                tracing.event("pod: held up")
            self.pods.watch.wake(self.pods.key)

    def _give_up_in_time(self, pod: PodDict | None) -> None:
        now, found = _now(), self._trouble
        if found is not None and found.tolerance is not None and now >= self._troubled_since + found.tolerance:
            raise StartRefused(found.sentence, reason="job-failed")
        if now >= self.since + self.seconds:
            raise self.given_up(pod)

    def given_up(self, pod: PodDict | None) -> StartRefused:
        """Returns the refusal of a start whose time is over."""
        found = self._trouble or of_nothing(pod, self.pull)
        return StartRefused(found.given_up(_now() - self.since), reason="start-timeout")

    async def _changed(self, look_at: float) -> bool:
        """Waits for a change of the pod, until the next look or deadline at most; True if it changed."""
        until = min(look_at, self.since + self.seconds)
        if self._trouble is not None and self._trouble.tolerance is not None:
            until = min(until, self._troubled_since + self._trouble.tolerance)
        try:
            async with asyncio.timeout_at(until):
                await self.pods.watch.changed(self.pods.key)
        except TimeoutError:
            return False
        return True

    async def _look(
        self, pod: PodDict | None, known: StartProblem | ImagePull | None
    ) -> StartProblem | ImagePull | None:
        """Reads problems beyond the pod's own status: from its events and claims, and the image that is being pulled.

        Never fails, and ends in time: otherwise the known problem stays.
        """
        try:
            async with asyncio.timeout_at(self.since + self.seconds):
                return await self._asked(pod, known)
        except (ApiError, TimeoutError) as problem:
            said = "no time is left" if isinstance(problem, TimeoutError) else str(problem)
            self.pods.log.warning("pod=%s cannot see why it waits: %s", self.pods.key, said)
        return known

    async def _asked(
        self, pod: PodDict | None, known: StartProblem | ImagePull | None
    ) -> StartProblem | ImagePull | None:
        news = await self.pods.look()
        # The end of a pull changes the pod: until then there is nothing more to learn.
        if pod is None or _version(news) not in (None, _version(pod)) or isinstance(known, ImagePull):
            return known
        if (pod.get("spec") or {}).get("nodeName"):
            events = await self.pods.events("Pod", pod["metadata"]["name"], uid(pod))
            own = self.own | {naming.ssh_object(self.pods.name)}
            return of_events(events, own) or pulled_image(events)
        return await self._claims(pod) if waits_for_claims(of_pod(pod)) else None

    async def _claims(self, pod: PodDict) -> StartProblem | None:
        for name in launch_pod.claims(dict(pod)).values():
            claim = await self.pods.claim(name)
            events: list[Any] = await self.pods.events("PersistentVolumeClaim", name, uid(claim)) if claim else []
            found = of_claim(name, claim, events)
            if found is not None:
                return found
        return None


def _version(pod: PodDict | None) -> str | None:
    """Two lists give the same pod as two objects."""
    return pod["metadata"].get("resourceVersion", "") if pod else None


def _now() -> float:
    return asyncio.get_running_loop().time()
