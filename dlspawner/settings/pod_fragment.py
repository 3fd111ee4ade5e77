"""The ``pod:`` of a template: checks that it is a mergeable PodSpec fragment, and within the permissions.

Kubernetes silently drops unknown fields, so names are checked here. What needs a special permission (root, privileges,
the host's network, paths or devices), which the template must name and ``cluster.yaml`` must switch on, is judged as in
the final manifest, by `core.launch.security`. Deep values are left to Kubernetes, which refuses them with a sentence of
its own.
"""

from __future__ import annotations

from collections.abc import Collection

from dlspawner.core.config import SpecialPermission
from dlspawner.core.launch import rendering
from dlspawner.core.launch.pod import VISIBLE_DEVICES
from dlspawner.core.launch.security import VOLUME_TYPES, disallowed, restricted
from dlspawner.core.template import MAIN_CONTAINER
from dlspawner.settings.document import Entry

_POD_FIELDS = """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks
    ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname imagePullSecrets initContainers
    nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims
    resources restartPolicy runtimeClassName schedulerName schedulingGates securityContext serviceAccountName
    setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
    topologySpreadConstraints volumes
"""
_CONTAINER_FIELDS = """
    args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy
    resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
    terminationMessagePolicy tty volumeDevices volumeMounts workingDir
"""
# The job's user and groups: no option may decide them, nor write a 0 that would need a permission.
_NUMBERS = frozenset({"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups", "runAsNonRoot"})
_POD_KEYS, _CONTAINER_KEYS = _POD_FIELDS.split(), _CONTAINER_FIELDS.split()

# The fields of a job that no option may set.
_OWN_PLACEHOLDERS = frozenset({"unix_name", "job", "pod_name"})
_VOLUME_TYPES = VOLUME_TYPES | {"hostPath"}

# Fields that the product sets for every pod, so that a template cannot undo them by accident.
_NOT_HERE = {
    "ephemeralContainers": "Kubernetes takes them only in running pods.",
    "terminationGracePeriodSeconds": "write grace_period_seconds beside pod: instead.",
}


def check_pod(pod: Entry, *, ssh: bool, image: bool, allowed: Collection[SpecialPermission]) -> None:
    """Reports problems of the fragment; ``allowed`` are the special permissions of the template."""
    known, spec = len(pod.problems.found), pod.section(_POD_KEYS)
    for key, why in _NOT_HERE.items():
        if key in spec.entries:
            spec.entries[key].problem(f"is not for a template: {why}")
    names: dict[str, int] = {}
    for kind in ("containers", "initContainers"):
        for container in spec.items(kind):
            _check_container(container, names)
    for volume in spec.items("volumes"):
        _check_name(volume, "volume")
        for kind in sorted(set(_keys(volume)) - _VOLUME_TYPES - {"name"}):
            volume.problem(f"{kind} is no volume that a job may have; make it a PersistentVolumeClaim and name that.")
        if "hostPath" in _keys(volume):
            _check_host_path(volume.entries()["hostPath"])
    main = next((one for one in spec.items("containers") if _name(one) == MAIN_CONTAINER), None)
    if main is not None:
        _check_main(main, ssh=ssh, image=image)
    for entry in pod.walk():
        key = entry.path.rpartition(".")[2]
        if _leaves_person_open(key, entry):
            entry.problem(f"{key} must be written out, without placeholders.")
    if len(pod.problems.found) == known:
        _check_permissions(pod, allowed)


def _check_permissions(pod: Entry, allowed: Collection[SpecialPermission]) -> None:
    try:
        found = disallowed(restricted({"spec": pod.plain()}), allowed)
    except (AttributeError, TypeError, ValueError):
        pod.problem("is no PodSpec: a list, a mapping or a text is where something else belongs.")
        return
    for use in found:
        pod.problem(
            f"{use.what} needs the special permission {use.special.value}: name it in the template's "
            "special_permissions and switch it on in the cluster's."
        )


def _check_container(container: Entry, names: dict[str, int]) -> None:
    section = container.section(_CONTAINER_KEYS)
    name = _check_name(container, "container")
    if name in names:
        container.problem(f"there is already a container “{name}” in line {names[name]}.")
    elif name:
        names[name] = container.line
    for variable in section.items("env"):
        if (called := _check_name(variable, "variable")) in VISIBLE_DEVICES:
            variable.problem(f"{called} is set last for every container, by the GPUs that it asks for.")
    for key in ("command", "args"):
        for part in section.items(key):
            if not isinstance(part.value, str):
                part.problem("must be text; write it in quotes.")


def _check_main(main: Entry, *, ssh: bool, image: bool) -> None:
    parts = main.entries()
    if ssh and "command" not in parts:
        main.problem("with an ssh endpoint the container main needs a command: sshd is started beside it.")
    if not image and "image" not in parts:
        main.problem("the container main needs an image, here or as the option image.")


def _check_name(entry: Entry, what: str) -> str:
    """Checks that there is a name, without chosen values in it: entries are merged by name."""
    name = _name(entry)
    if not name and isinstance(entry.value, dict):
        entry.problem(f"a {what} needs a name.")
    elif any(rendering.find_placeholders(name)):
        entry.problem(f"the name of a {what} must not have placeholders.")
    return name


def _keys(entry: Entry) -> Collection[str]:
    return entry.value if isinstance(entry.value, dict) else ()


def _name(entry: Entry) -> str:
    found = entry.value.get("name") if isinstance(entry.value, dict) else None
    return found.value if found is not None and isinstance(found.value, str) else ""


def _check_host_path(entry: Entry) -> None:
    """A path on the node may depend on the job's owner, but on no chosen value, nor on the server's name."""
    for part in entry.walk():
        for placeholder in rendering.find_placeholders(part.value) if isinstance(part.value, str) else ():
            if placeholder.name not in _OWN_PLACEHOLDERS:
                part.problem(f"{placeholder.text} would let people choose a path of the node: write the path out.")


def _leaves_person_open(key: str, entry: Entry) -> bool:
    if key == "supplementalGroupsPolicy":
        return any(rendering.find_placeholders(entry.plain()))
    return key in _NUMBERS and any(isinstance(one.value, str) for one in entry.walk())
