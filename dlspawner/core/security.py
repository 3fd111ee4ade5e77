"""Who a pod's containers run as, and what Kubernetes' Pod Security *restricted* wants every pod to say. Pure.

Two steps around the merge of a template, on plain camelCase pods; neither changes its argument:

* ``run_as`` before it: the numbers of the person on the pod itself, so that every container, init containers too, has
  them. What a template then says about a container, or about the pod, wins.
* ``restricted`` after it: whatever is left open gets the strict value. What a template or a hook wrote stays as it is;
  if that breaks the namespace's rules, Kubernetes refuses the pod and names the field.

Which groups a process has is decided by the container runtime. By itself it adds what the image's own ``/etc/group``
gives to the image's own name for the uid, so an image of somebody's making chooses them; only
``supplementalGroupsPolicy: Strict`` ends that, where the node can do it.
https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#supplementalgroupspolicy

https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.core.accounts import UnixGroup, UnixIds
from dlspawner.core.manifest import Manifest, merge_pod
from dlspawner.core.template import NOTEBOOK_CONTAINER

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_STRICT_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def unix_ids(spec: Mapping[str, Any], container: Mapping[str, Any]) -> UnixIds | None:
    """Who a container runs as, with all its groups; ``None`` when only its image knows."""
    context = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
    uid, own = context.get("runAsUser"), context.get("runAsGroup")
    if uid is None:
        return None
    gid = int(uid if own is None else own)
    more = [*(context.get("supplementalGroups") or ()), context.get("fsGroup")]
    gids = dict.fromkeys(int(one) for one in more if one is not None)
    return UnixIds(int(uid), gid, tuple(UnixGroup("", one) for one in gids if one != gid))


def run_as(pod: Manifest, who: UnixIds, *, fs_group: int | None = None) -> Manifest:
    """The pod as this person, with the volumes' files in their own group unless another one is said.

    ``fsGroupChangePolicy``: a volume that already belongs to the group is not walked through at every start.
    """
    spec = pod["spec"]
    known = spec.get("securityContext") or {}
    groups = [*(known.get("supplementalGroups") or ()), *(group.gid for group in who.groups if group.gid != who.gid)]
    context = {
        **known,
        "runAsUser": who.uid,
        "runAsGroup": who.gid,
        "fsGroup": who.gid if fs_group is None else fs_group,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    if groups:
        context["supplementalGroups"] = list(dict.fromkeys(groups))
    containers = [
        _without(one, "runAsUser", "runAsGroup") if one["name"] == NOTEBOOK_CONTAINER else one
        for one in spec["containers"]
    ]
    return {**pod, "spec": {**spec, "securityContext": context, "containers": containers}}


def _without(container: Manifest, *fields: str) -> Manifest:
    context = {key: value for key, value in (container.get("securityContext") or {}).items() if key not in fields}
    return {**container, "securityContext": context}


def restricted(pod: Manifest, *, strict_groups: bool = False) -> Manifest:
    """The pod with the strict value in every field of *restricted* that nobody has decided.

    ``strict_groups``: no group but the pod's own, whatever its images say.
    """
    spec = pod["spec"]
    groups = {"supplementalGroupsPolicy": "Strict"} if strict_groups else {}
    context = merge_pod({**_STRICT_POD, **groups}, spec.get("securityContext") or {})
    if context.get("runAsUser") == 0:
        context["runAsNonRoot"] = False  # a template with the special permission; the kubelet would start nothing
    strict: Manifest = {"automountServiceAccountToken": False, **spec, "securityContext": context}
    for kind in _CONTAINERS:
        if spec.get(kind):
            strict[kind] = [_restricted_container(one) for one in spec[kind]]
    return {**pod, "spec": strict}


def _restricted_container(container: Manifest) -> Manifest:
    said: dict[str, Any] = container.get("securityContext") or {}
    context = {"allowPrivilegeEscalation": False, **said}
    if said.get("runAsUser") == 0:
        context.setdefault("runAsNonRoot", False)
    if said.get("privileged"):
        # It has every capability, and Kubernetes takes no other answer about escalation.
        context["allowPrivilegeEscalation"] = True
    else:
        context["capabilities"] = {"drop": ["ALL"], **(said.get("capabilities") or {})}
    return {**container, "securityContext": context}
