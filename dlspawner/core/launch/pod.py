"""Pod manifests as plain camelCase dictionaries: merging, hidden GPUs, the user's own image, shared home directories.

Merging follows Kubernetes' strategic merge where that matters: containers, volumes and environment by name, ports by
number and protocol, mounts by path. Mappings merge leaf by leaf and any other list is replaced, except tolerations and
pull secrets, which only ever add up. Nothing is changed in place, and merging the same fragment twice changes nothing.

Refused: deleting by ``null``, which makes the result depend on the order of merges.

A pod with the user's own, unprepared image in its work container ``main`` gets additions:

* An init container copies the bundle of the image ``ssh`` (sshd, its libraries, a busybox) to an emptyDir, and ``main``
  sees it read-only at ``/dl``. Nothing is taken from the image and nothing is added to it.
* ``main`` holds a lock on a file of another emptyDir as long as its first process lives; the login proxy waits for that
  lock and ends. The kernel releases it at any end of the process, SIGKILL included, without a question to Kubernetes.

Without a configured ``ssh`` image the image must have an sshd, as this machine has on the embedded cluster.

A *ReadWriteOnce* home directory is attached to one node at a time: a second pod on another node would wait in vain,
with an event that no user understands. Pods with such a claim therefore have an affinity to each other. A pod satisfies
its own term, so the first one may go to any node; an ended pod no longer counts.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dlspawner.core import naming, units
from dlspawner.core.gpus import kai_container
from dlspawner.core.units import Manifest

_NVIDIA = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
# Runtimes of other vendors that hand out devices by a variable. What only hides some of the devices that are there
# (CUDA_, HIP_, ROCR_VISIBLE_DEVICES, ONEAPI_DEVICE_SELECTOR) shows no container a GPU. Intel's GPUs (gpu.intel.com) and
# Google's TPUs (google.com) come by their device plugins only, and claimed devices (DRA) by CDI, beside any “void”.
_OTHERS = {
    "amd.com": {"name": "AMD_VISIBLE_DEVICES", "value": "none"},
    "habana.ai": {"name": "HABANA_VISIBLE_DEVICES", "value": "none"},  # “void” is all of them: habana-container-runtime
    "huawei.com": {"name": "ASCEND_VISIBLE_DEVICES", "value": "void"},
}
VISIBLE_DEVICES = frozenset(one["name"] for one in (_NVIDIA, *_OTHERS.values()))

_CLAIM = "persistentVolumeClaim"
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_REFERENCE = re.compile(r"\$\(([^)]+)\)")


def merge_pod(pod: Manifest, fragment: Manifest) -> Manifest:
    """A new pod: ``fragment`` merged over ``pod``; both are camelCase manifests, or both a ``spec``."""
    merged: Manifest = _merge("", pod, fragment)
    for container in _containers(merged):
        if "env" in container:
            container["env"] = _ordered(container["env"])
    return merged


def disable_gpus_by_default(pod: Manifest, gpu_resources: Collection[str]) -> Manifest:
    """Returns a new pod in which only containers that ask for a vendor's GPU can see one.

    The last step before a pod is created. ``NVIDIA_VISIBLE_DEVICES`` is ``void`` where none of NVIDIA's, or of an
    unknown vendor's, is asked for, against the form, the template, a hook, ``envFrom`` and the image, and left to the
    device plugin where one is; so are the variables of the other vendors.
    """
    hidden: Manifest = copy.deepcopy(pod)
    parts = kai_container(hidden)  # whose part of a GPU no limit asks for
    for container in _containers(hidden):
        asked = {name.split("/")[0] for name in _asked(container, gpu_resources)}
        asked |= {"nvidia.com"} if container.get("name") == parts else set()
        hiding = [_NVIDIA] if asked <= _OTHERS.keys() else []
        hiding += [one for vendor, one in _OTHERS.items() if vendor not in asked]
        kept = [one for one in container.get("env") or [] if one.get("name") not in VISIBLE_DEVICES]
        container["env"] = [*copy.deepcopy(hiding), *kept]
    return hidden


def claims(pod: Manifest) -> dict[str, str]:
    """The claims of the pod's volumes, by the volumes' names."""
    volumes = pod["spec"].get("volumes") or ()
    return {one["name"]: one[_CLAIM]["claimName"] for one in volumes if one.get(_CLAIM)}


def without_claims(pod: Manifest, missing: Collection[str]) -> Manifest:
    """Returns a new pod without the volumes of these claims, and without their mounts."""
    gone = {volume for volume, claim in claims(pod).items() if claim in missing}
    without = copy.deepcopy(pod)
    for holder, key in ((without["spec"], "volumes"), *((one, "volumeMounts") for one in _containers(without))):
        if key in holder:
            holder[key] = [one for one in holder[key] if one["name"] not in gone]
    return without


def _containers(pod: Manifest) -> list[Manifest]:
    spec = pod.get("spec", pod)
    return [container for name in _CONTAINER_LISTS for container in spec.get(name) or []]


def _asked(container: Manifest, gpu_resources: Collection[str]) -> list[str]:
    resources = container.get("resources") or {}
    amounts = [
        (name, (resources.get(kind) or {}).get(name)) for kind in ("limits", "requests") for name in gpu_resources
    ]
    # Neither "0.0" nor what is no number is a GPU.
    return [name for name, amount in amounts if units.parse_quantity(str(amount))]


def _merge(key: str, old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        merged = {name: _merge(name, value, new[name]) if name in new else value for name, value in old.items()}
        merged |= {name: value for name, value in new.items() if name not in old}
        return copy.deepcopy(merged)
    if isinstance(old, list) and isinstance(new, list):
        if key in _SAME and all(isinstance(one, Mapping) for one in (*old, *new)):
            return _merge_list(old, new, _SAME[key])
        if key in _UNIONS:
            return copy.deepcopy([*old, *(one for one in new if one not in old)])
    return copy.deepcopy(new)


def _merge_list(old: list[Any], new: list[Any], same: Callable[[Any, Any], bool]) -> list[Any]:
    merged = list(old)
    for one in new:
        index = next((index for index, other in enumerate(merged) if same(other, one)), None)
        if index is None:
            merged.append(copy.deepcopy(one))
        elif "value" in one or "valueFrom" in one:
            merged[index] = copy.deepcopy(one)  # value and valueFrom exclude each other
        else:
            merged[index] = _merge("", merged[index], one)
    return merged


def _same_name(one: Manifest, other: Manifest) -> bool:
    return "name" in one and one["name"] == other.get("name")


def _same_port(one: Manifest, other: Manifest) -> bool:
    if _same_name(one, other):
        return True
    ports = [(port.get("containerPort"), port.get("protocol", "TCP")) for port in (one, other)]
    return ports[0] == ports[1]


def _same_path(one: Manifest, other: Manifest) -> bool:
    return "mountPath" in one and one["mountPath"] == other.get("mountPath")


_SAME: dict[str, Callable[[Manifest, Manifest], bool]] = {
    "containers": _same_name,
    "initContainers": _same_name,
    "ephemeralContainers": _same_name,
    "volumes": _same_name,
    "env": _same_name,
    "ports": _same_port,
    "volumeMounts": _same_path,
}
_UNIONS = frozenset({"tolerations", "imagePullSecrets"})


def _ordered(env: list[Any]) -> list[Any]:
    """Every variable after those that its ``$(NAME)`` refers to, or Kubernetes would not expand it; else as it was."""
    by_name = {one.get("name"): one for one in env if isinstance(one, Mapping)}
    placed: dict[int, Any] = {}

    def place(one: Any, asking: frozenset[str]) -> None:
        if id(one) in placed:
            return
        text = one.get("value") if isinstance(one, Mapping) else None
        for name in _REFERENCE.findall(text) if isinstance(text, str) else []:
            if name in by_name and name not in asking:
                place(by_name[name], asking | {name})
        placed.setdefault(id(one), one)

    for one in env:
        place(one, frozenset())
    return list(placed.values())


BUNDLE = "/dl"
BUNDLE_VOLUME = "dlspawner-ssh"
LOGIN_SHELL = f"{BUNDLE}/bin/shell"
ALIVE = "/run/dlspawner"
ALIVE_VOLUME = "dlspawner-alive"

_USUAL_SHELL, _BUNDLED_SHELL = ("/bin/sh",), (f"{BUNDLE}/bin/busybox", "sh")
_COPY_TO = "/copy"
_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}


def init_container(image: str) -> Manifest:
    """The container that brings the bundle of the image ``ssh``."""
    return {
        "name": BUNDLE_VOLUME,
        "image": image,
        "args": [_COPY_TO],
        "securityContext": {"readOnlyRootFilesystem": True},
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        "volumeMounts": [{"name": BUNDLE_VOLUME, "mountPath": _COPY_TO}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def shell(bundled: bool) -> tuple[str, ...]:
    """Returns the shell for the job's ``start`` in ``main``."""
    return _BUNDLED_SHELL if bundled else _USUAL_SHELL


def volumes(bundled: bool) -> list[Manifest]:
    names = [ALIVE_VOLUME, *([BUNDLE_VOLUME] if bundled else [])]
    return [{"name": name, "emptyDir": {}} for name in names]


def main_mounts(bundled: bool) -> list[Manifest]:
    alive = {"name": ALIVE_VOLUME, "mountPath": ALIVE}
    return [alive, {"name": BUNDLE_VOLUME, "mountPath": BUNDLE, "readOnly": True}] if bundled else [alive]


def proxy_mounts() -> list[Manifest]:
    return [{"name": ALIVE_VOLUME, "mountPath": ALIVE, "readOnly": True}]


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MANY_NODES = "ReadWriteMany"


def needs_home_node(pod: Mapping[str, Any] | None) -> bool:
    """True if every job with the pod's home directory has to be on its node, so that none starts without that node."""
    affinity = (((pod or {}).get("spec") or {}).get("affinity") or {}).get("podAffinity") or {}
    selectors = ((term.get("labelSelector") or {}).get("matchLabels") or {} for term in affinity.get(_REQUIRED) or ())
    return any(naming.HOME_LABEL in labels for labels in selectors)


def with_home_affinity(pod: Manifest, claim: str, access_modes: Collection[str]) -> Manifest:
    """The pod with a label that names the claim it lives on and, if that is on one node at a time, affinity to it."""
    spec, metadata = pod["spec"], pod["metadata"]
    claims = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in spec.get("volumes") or ()]
    if claim not in claims:
        return pod
    label = {naming.HOME_LABEL: naming.slug(claim)}
    labelled = {**pod, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **label}}}
    if MANY_NODES in access_modes:
        return labelled
    affinity = spec.get("affinity") or {}
    together = affinity.get("podAffinity") or {}
    term = {"labelSelector": {"matchLabels": label}, "topologyKey": "kubernetes.io/hostname"}
    together = {**together, _REQUIRED: [*(together.get(_REQUIRED) or ()), term]}
    return {**labelled, "spec": {**spec, "affinity": {**affinity, "podAffinity": together}}}
