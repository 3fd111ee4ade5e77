"""Which special permissions a final manifest makes use of."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.core.config import SpecialPermission, format_permissions
from dlspawner.core.launch import security
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.launch.security import disallowed, permission_uses
from dlspawner.core.units import Manifest
from dlspawner.core.unix_account import UnixIds

ROOT, PRIVILEGED, NETWORK = SpecialPermission.ROOT, SpecialPermission.PRIVILEGED, SpecialPermission.HOST_NETWORK
PATHS, DEVICES = SpecialPermission.HOST_PATHS, SpecialPermission.DEVICES
PLAIN: Manifest = {
    "metadata": {"name": "jupyter-alice"},
    "spec": {
        "containers": [{"name": "notebook", "ports": [{"containerPort": 8888}]}],
        "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "home-alice"}}, {"name": "tmp"}],
    },
}


def ordinary() -> Manifest:
    """A pod as it is made of any template."""
    return security.restricted(security.run_as(PLAIN, UnixIds(5012, 5012, ())))


def spec(**fields: object) -> Manifest:
    return {"spec": fields}


def of(name: str = "notebook", **fields: object) -> Manifest:
    return spec(containers=[{"name": name, **fields}])


def context(**fields: object) -> Manifest:
    return of(securityContext=fields)


def whole(**fields: object) -> Manifest:
    """A context of the whole pod."""
    return spec(securityContext=fields)


def inside(special: SpecialPermission, what: str) -> set[tuple[SpecialPermission, str]]:
    """A use by the container."""
    return {(special, f"container notebook: {what}")}


USES: dict[str, tuple[Manifest, set[tuple[SpecialPermission, str]]]] = {
    "an ordinary job needs nothing": ({}, set()),
    "uid 0 of the pod is root": (whole(runAsUser=0), {(ROOT, "runAsUser 0")}),
    "uid 0 of a container is root": (context(runAsUser=0), inside(ROOT, "runAsUser 0")),
    "the group of root is root": (whole(runAsGroup=0), {(ROOT, "runAsGroup 0")}),
    "volumes of the group of root are root": (whole(fsGroup=0), {(ROOT, "fsGroup 0")}),
    "the group of root among others is root": (whole(supplementalGroups=[7, 0]), {(ROOT, "supplementalGroups with 0")}),
    "an image that may say root is root": (context(runAsNonRoot=False), inside(ROOT, "runAsNonRoot is not true")),
    "escalation is root": (context(allowPrivilegeEscalation=True), inside(ROOT, "allowPrivilegeEscalation")),
    "capabilities that are kept are root": (
        context(capabilities={"drop": []}),
        inside(ROOT, "keeping capabilities (drop without ALL)"),
    ),
    "a usual capability is root": (context(capabilities={"add": ["CHOWN"]}), inside(ROOT, "capability CHOWN")),
    "low ports need no permission": (context(capabilities={"add": ["NET_BIND_SERVICE"]}), set()),
    "an unusual capability is privileged": (
        context(capabilities={"add": ["SYS_ADMIN"]}),
        inside(PRIVILEGED, "capability SYS_ADMIN"),
    ),
    "privileged is privileged, and nothing beside": (
        context(privileged=True, allowPrivilegeEscalation=True, capabilities={"drop": []}),
        inside(PRIVILEGED, "privileged"),
    ),
    "no seccomp is privileged": (
        context(seccompProfile={"type": "Unconfined"}),
        inside(PRIVILEGED, "seccompProfile is not RuntimeDefault"),
    ),
    "no AppArmor is privileged": (
        context(appArmorProfile={"type": "Unconfined"}),
        inside(PRIVILEGED, "appArmorProfile Unconfined"),
    ),
    "no AppArmor by annotation is privileged": (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/notebook": "unconfined"}}},
        {(PRIVILEGED, "container.apparmor.security.beta.kubernetes.io/notebook unconfined")},
    ),
    "another SELinux type is privileged": (whole(seLinuxOptions={"type": "spc_t"}), {(PRIVILEGED, "seLinuxOptions")}),
    "all of /proc is privileged": (context(procMount="Unmasked"), inside(PRIVILEGED, "procMount Unmasked")),
    "a setting of the kernel is privileged": (
        whole(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
        {(PRIVILEGED, "sysctl kernel.msgmax")},
    ),
    "a setting of the pod's own network needs no permission": (
        whole(sysctls=[{"name": "net.ipv4.tcp_rmem", "value": "1"}]),
        set(),
    ),
    "the host's network": (spec(hostNetwork=True), {(NETWORK, "hostNetwork")}),
    "the host's processes": (spec(hostPID=True), {(NETWORK, "hostPID")}),
    "the host's IPC": (spec(hostIPC=True), {(NETWORK, "hostIPC")}),
    "a port of the host": (of(ports=[{"containerPort": 8888, "hostPort": 80}]), inside(NETWORK, "hostPort")),
    "a probe of another host": (
        of(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}),
        inside(NETWORK, "a probe of another host"),
    ),
    "a hook that asks another host": (
        of(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}),
        inside(NETWORK, "a probe of another host"),
    ),
    "a path of the host": (
        spec(volumes=[{"name": "data", "hostPath": {"path": "/"}}]),
        {(PATHS, "volume data (hostPath)")},
    ),
    "a volume that only administrators make claims of": (
        spec(volumes=[{"name": "filer", "nfs": {"server": "filer", "path": "/"}}]),
        {(PATHS, "volume filer (nfs)")},
    ),
    "a block device": (of(volumeDevices=[{"name": "d", "devicePath": "/dev/x"}]), inside(DEVICES, "volumeDevices")),
    "a resource claim": (spec(resourceClaims=[{"name": "nic"}]), {(DEVICES, "resourceClaims")}),
    "an init container is looked at as well": (
        spec(initContainers=[{"name": "i", "securityContext": {"privileged": True}}]),
        {(PRIVILEGED, "container i: privileged")},
    ),
}


@pytest.mark.parametrize(("change", "wanted"), USES.values(), ids=USES)
def test_permissions_that_a_pod_uses(change: Manifest, wanted: set[tuple[SpecialPermission, str]]) -> None:
    assert {(use.special, use.what) for use in permission_uses(merge_pod(ordinary(), change))} == wanted


def test_removed_restriction_is_a_use_of_a_permission() -> None:
    pod = ordinary()
    pod["spec"].pop("securityContext")
    del pod["spec"]["containers"][0]["securityContext"]
    assert {use.special for use in permission_uses(pod)} == {ROOT, PRIVILEGED}


def test_pod_and_container_are_both_checked() -> None:
    looser = merge_pod(ordinary(), context(runAsNonRoot=False, seccompProfile={"type": "Unconfined"}))
    assert {use.special for use in permission_uses(looser)} == {ROOT, PRIVILEGED}
    stricter = merge_pod(ordinary(), spec(securityContext={"runAsUser": 0}))
    stricter = merge_pod(stricter, context(runAsUser=1000))
    assert {use.special for use in permission_uses(stricter)} == {ROOT}


def test_allowed_permissions_are_not_disallowed() -> None:
    pod = merge_pod(ordinary(), spec(hostNetwork=True, securityContext={"runAsUser": 0}))
    assert [use.special for use in disallowed(pod, {ROOT})] == [NETWORK]
    assert disallowed(pod, {ROOT, NETWORK}) == ()


@pytest.mark.parametrize(
    ("permissions", "words"),
    [
        ((), ""),
        ((PATHS, ROOT), "root, host paths"),
        (tuple(SpecialPermission), "root, privileged containers, the host's network, host paths, devices"),
    ],
)
def test_permissions_in_words(permissions: tuple[SpecialPermission, ...], words: Any) -> None:
    assert format_permissions(permissions) == words
