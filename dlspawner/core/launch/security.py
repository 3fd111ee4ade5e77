"""The user of a pod's containers, and the fields that Kubernetes' Pod Security *restricted* requires. Pure.

Two steps around the merge of a template, on plain camelCase pods; neither changes its argument:

* ``run_as`` before it: the numbers of the person on the pod itself, so that every container, init containers too, has
  them. What a template then says about a container, or about the pod, wins.
* ``restricted`` after it: every open field gets the strict value. Values of a template or a hook stay as they are;
  if that breaks the namespace's rules, Kubernetes refuses the pod and names the field.

Which groups a process has is decided by the container runtime. By itself it adds what the image's own ``/etc/group``
gives to the image's own name for the uid, so a foreign image chooses them; only
``supplementalGroupsPolicy: Strict`` ends that, where the node can do it.
https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#supplementalgroupspolicy

`permission_uses` finds the special permissions that a final manifest uses. A template asks for special permissions by
name, the cluster's file switches them on, and a Hub admin approves each job; but a form, a hook or KubeSpawner's
configuration could add others to the pod. So the manifest is checked as by Pod Security's admission before it is sent:
everything that *restricted* refuses is a use of a permission, also by a field that is left out. Stricter than
*restricted* are the checks of root's groups and of devices.

* ``root``: uid 0 or a group of root's, perhaps by ``sudo``; the capabilities that container runtimes give by default
  (those of *baseline*).
* ``privileged``: every other capability, no seccomp, the kernel's settings, ``privileged`` itself, which includes
  everything that a container's rights can be, but for its user.
* ``host_network``: the node's network, processes or IPC, its ports, probes of other hosts.
* ``host_paths``: paths of the node, and volumes of types that only an administrator may make claims of.
* ``devices``: block devices and resource claims.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlspawner.core.config import SpecialPermission
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.template import NOTEBOOK_CONTAINER
from dlspawner.core.units import Manifest
from dlspawner.core.unix_account import UnixGroup, UnixIds

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_STRICT_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def unix_ids(spec: Mapping[str, Any], container: Mapping[str, Any]) -> UnixIds | None:
    """Returns a container's user id and all its groups; ``None`` if only its image knows."""
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
    """Returns the pod with the strict value in every open field of *restricted*.

    ``strict_groups``: no group but the pod's own, against its images.
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


_VOLUMES = "configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret"
_BASELINE = """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT
"""
_SYSCTLS = """
    kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports
    net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_syncookies net.ipv4.tcp_keepalive_time
    net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_rmem
    net.ipv4.tcp_wmem
"""
# Where a volume of another type is wanted (nfs, cephfs …), an administrator makes a claim of it.
VOLUME_TYPES = frozenset(_VOLUMES.split())
# What Pod Security *baseline* lets a container add, because container runtimes give it anyway.
_BASELINE_CAPABILITIES = frozenset(_BASELINE.split())
_RESTRICTED_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_IDS = ("runAsUser", "runAsGroup", "fsGroup")
_CONFINED = frozenset({"RuntimeDefault", "Localhost"})
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SAFE_SYSCTLS = frozenset(_SYSCTLS.split())


@dataclass(frozen=True, slots=True)
class PermissionUse:
    """One thing in a pod that needs a special permission; ``what`` is where and what, for people."""

    special: SpecialPermission
    what: str


def permission_uses(pod: Manifest) -> tuple[PermissionUse, ...]:
    """Everything in a final manifest that needs a special permission, in the order of the manifest."""
    spec: Mapping[str, Any] = pod["spec"]
    found = [*_of_pod(spec), *_of_annotations(pod.get("metadata") or {})]
    for kind in _CONTAINERS:
        for container in spec.get(kind) or ():
            where = f"container {container.get('name')}"
            found += [PermissionUse(special, f"{where}: {what}") for special, what in _of_container(container, spec)]
    return tuple(dict.fromkeys(found))


def disallowed(pod: Manifest, allowed: Iterable[SpecialPermission]) -> tuple[PermissionUse, ...]:
    known = frozenset(allowed)
    return tuple(use for use in permission_uses(pod) if use.special not in known)


def _of_pod(spec: Mapping[str, Any]) -> Iterator[PermissionUse]:
    yield from (PermissionUse(SpecialPermission.HOST_NETWORK, key) for key in _HOST if spec.get(key))
    context = spec.get("securityContext") or {}
    yield from (PermissionUse(special, what) for special, what in _of_context(context))
    if 0 in (context.get("supplementalGroups") or ()):
        yield PermissionUse(SpecialPermission.ROOT, "supplementalGroups with 0")
    sysctls = {str(one.get("name")) for one in context.get("sysctls") or ()} - _SAFE_SYSCTLS
    yield from (PermissionUse(SpecialPermission.PRIVILEGED, f"sysctl {name}") for name in sorted(sysctls))
    for volume in spec.get("volumes") or ():
        kinds = sorted(kind for kind, value in volume.items() if kind != "name" and value is not None)
        others = [kind for kind in kinds if kind not in VOLUME_TYPES]
        yield from (
            PermissionUse(SpecialPermission.HOST_PATHS, f"volume {volume.get('name')} ({kind})") for kind in others
        )
    if spec.get("resourceClaims"):
        yield PermissionUse(SpecialPermission.DEVICES, "resourceClaims")


def _of_annotations(metadata: Mapping[str, Any]) -> Iterator[PermissionUse]:
    for key, value in (metadata.get("annotations") or {}).items():
        if key.startswith(_APPARMOR) and value == "unconfined":
            yield PermissionUse(SpecialPermission.PRIVILEGED, f"{key} unconfined")


def _of_context(context: Mapping[str, Any]) -> Iterator[tuple[SpecialPermission, str]]:
    """Yields the special permissions that a security context, of a pod or a container, uses."""
    yield from ((SpecialPermission.ROOT, f"{key} 0") for key in _IDS if context.get(key) == 0)
    if context.get("seLinuxOptions"):
        yield SpecialPermission.PRIVILEGED, "seLinuxOptions"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield SpecialPermission.PRIVILEGED, "hostProcess"
    if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
        yield SpecialPermission.PRIVILEGED, "appArmorProfile Unconfined"


def _of_container(container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[SpecialPermission, str]]:
    own: Mapping[str, Any] = container.get("securityContext") or {}
    context = {**(spec.get("securityContext") or {}), **{key: one for key, one in own.items() if one is not None}}
    yield from _of_context(own)
    if context.get("runAsNonRoot") is not True and context.get("runAsUser") != 0:
        yield SpecialPermission.ROOT, "runAsNonRoot is not true"
    if own.get("privileged"):
        yield SpecialPermission.PRIVILEGED, "privileged"
    else:
        yield from _of_rights(own, context)
    if own.get("procMount") not in (None, "Default"):
        yield SpecialPermission.PRIVILEGED, f"procMount {own['procMount']}"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield SpecialPermission.HOST_NETWORK, "hostPort"
    if any(_names_host(container.get(key)) for key in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")):
        yield SpecialPermission.HOST_NETWORK, "a probe of another host"
    if container.get("volumeDevices"):
        yield SpecialPermission.DEVICES, "volumeDevices"


def _of_rights(own: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[tuple[SpecialPermission, str]]:
    """Returns the permissions beyond *restricted* of a container that is not privileged."""
    if own.get("allowPrivilegeEscalation") is not False:
        yield SpecialPermission.ROOT, "allowPrivilegeEscalation"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield SpecialPermission.ROOT, "keeping capabilities (drop without ALL)"
    for name in capabilities.get("add") or ():
        if name not in _RESTRICTED_CAPABILITIES:
            yield of_capability(name), f"capability {name}"
    if (context.get("seccompProfile") or {}).get("type") not in _CONFINED:
        yield SpecialPermission.PRIVILEGED, "seccompProfile is not RuntimeDefault"


def of_capability(name: object) -> SpecialPermission:
    """The permission that adding this capability needs."""
    return SpecialPermission.ROOT if name in _BASELINE_CAPABILITIES else SpecialPermission.PRIVILEGED


def _names_host(probe: object) -> bool:
    """True if a probe or hook of any kind goes to a host that it names."""
    if not isinstance(probe, Mapping):
        return False
    return bool(probe.get("host")) or any(_names_host(part) for part in probe.values())
