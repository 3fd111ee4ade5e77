"""Why a starting pod does not run yet: what its status, its events and its claims say, in one sentence. Pure.

A trouble has a *cause* and a *step*, what the person can do about it, and a *patience*: how many seconds the same
trouble may last before the start is given up.

========================================================================  =========
trouble                                                                   patience
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

*At once* is for what stays wrong until a person changes something. *15 s* is for objects that may be made a moment
after the pod. *Waits* is for what may pass by itself, or when an administrator acts: the person reads it on the
progress page as soon as Kubernetes knows it, and it is the reason that is given when ``start_timeout`` is over.

What Kubernetes writes holds addresses, paths and sometimes credentials. It is read for facts and goes to the log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dlspawner.core import pod_events, text
from dlspawner.core.text import ASK
from dlspawner.spawner.progress import ImagePull, moment_of
from dlspawner.spawner.verdict import PodDict, stands_on, start_failure

AT_ONCE, MISSING_SECONDS = 0.0, 15.0

_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"})
_MAKES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MISSING = re.compile(r"\b(secret|configmap|persistentvolumeclaim) \"([^\"]+)\" not found", re.IGNORECASE)
_MISSING_KEY = re.compile(r"(non-existent (?:secret|config) key|couldn't find key)", re.IGNORECASE)
_KINDS = {"secret": "Secret", "configmap": "ConfigMap", "persistentvolumeclaim": "claim"}
_VOLUME = re.compile(r"for volume \"([^\"]+)\"")


@dataclass(frozen=True, slots=True)
class StartProblem:
    """What holds a start up; ``detail`` is what Kubernetes says, for the log; ``patience`` None: until the deadline."""

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

    def is_same(self, other: StartProblem | None) -> bool:
        return other is not None and other.cause == self.cause


# Of a start that nothing holds up that Kubernetes could know.
SLOW = StartProblem("The start takes too long", f"try again, or {ASK}")


def of_pod(pod: PodDict | None, gpus: Collection[str] = ()) -> StartProblem | None:
    """What the pod's own status says; ``None`` while it may just be slow."""
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
    # What may pass by itself hides nothing that will not.
    return next((trouble for trouble in found if trouble.tolerance is not None), found[0] if found else None)


def of_events(events: Iterable[PodDict], own: Collection[str] = ()) -> StartProblem | None:
    """What the latest event of a pod on a node says; ``own``: Secrets that the spawner itself is about to make."""
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
    """Why a claim of an unscheduled pod has no volume; ``claim`` None: it does not exist."""
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
    """What to say when the time is over and nobody has complained."""
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
    """The image that a pod's node is fetching."""
    latest: PodDict = max(events, key=_order, default={})
    found = re.search(r"Pulling image \"([^\"]+)\"", str(latest.get("message") or ""))
    since = moment_of(f"{_when(latest)}+00:00") if found else None
    return ImagePull(found[1], since) if found and since else None


def claim_names(pod: PodDict) -> Sequence[str]:
    """The names of the claims that a pod mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")]


def waits_for_claims(trouble: StartProblem | None) -> bool:
    return trouble is not None and "persistentvolumeclaim" in trouble.detail.lower()


def _unscheduled(reason: str, message: str, gpus: Collection[str]) -> StartProblem | None:
    if reason == "SchedulingGated":
        return StartProblem("The cluster's queue has not admitted the job yet", f"wait, or {ASK}", None, message)
    missing = _missing(message)
    if missing is not None:
        return missing
    if "persistentvolumeclaim" in message.lower():
        return StartProblem("The job's storage is not ready yet", f"try again later, or {ASK}", None, message)
    shortage = pod_events.explain_unschedulable(message, gpus)
    if shortage is not None:
        return StartProblem(shortage.cause, shortage.step, None, message)
    return StartProblem("The cluster finds no place for the job", ASK, None, message) if message else None


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


# What a registry's refusal looks like in the words of containerd, CRI-O and Docker -> cause, step, patience.
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
    ended: Mapping[str, object] = (container.get("lastState") or {}).get("terminated") or {}
    code = f" with exit code {ended['exitCode']}" if "exitCode" in ended else ""
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


# Of one second, which is as exactly as most events are told: what comes before what.
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
    """When an event was last seen; RFC 3339 in UTC sorts as text to the second, which is what the old fields have."""
    series: PodDict = event.get("series") or {}
    moments: Iterator[object] = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
    ).__iter__()
    return next((str(moment)[:19] for moment in moments if moment), "")
