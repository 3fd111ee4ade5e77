"""What makes a pod wrong, and what of a pod may change. Pure; see `validation`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from dlspawner.devcluster import quantity
from dlspawner.devcluster.api.errors import Cause, denied, duplicate, missing, required, unsupported, wrong
from dlspawner.devcluster.api.objects.validation_text import dns_label, label_value, qualified_name

Object = dict[str, Any]
Causes = Iterator[Cause]

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_OVERCOMMITS = ("cpu", "memory", "ephemeral-storage")  # all others need requests equal to limits
_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(pod: Object) -> Causes:
    spec = pod.get("spec")
    if spec is None:
        yield required("spec.containers")
        return
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or []):
        yield from _volume(volume, f"spec.volumes[{index}]", volumes)
    if not spec.get("containers"):
        yield required("spec.containers")
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            yield from _container(container, f"spec.{group}[{index}]", names, volumes)
    yield from _rest(spec)


def _rest(spec: Object) -> Causes:
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        yield unsupported("spec.restartPolicy", spec.get("restartPolicy"), _RESTART_POLICIES)
    grace = spec.get("terminationGracePeriodSeconds")
    if not isinstance(grace, int) or grace < 0:
        yield wrong("spec.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and (not isinstance(deadline, int) or deadline < 1):
        yield wrong("spec.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
    for key, value in (spec.get("nodeSelector") or {}).items():
        if problem := qualified_name(key):
            yield wrong("spec.nodeSelector", key, problem)
        if problem := label_value(str(value)):
            yield wrong("spec.nodeSelector", value, problem)
    yield from _affinity(spec)
    for index, toleration in enumerate(spec.get("tolerations") or []):
        operator = toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists"):
            yield unsupported(f"spec.tolerations[{index}].operator", operator, ("Equal", "Exists"))
        if operator == "Exists" and toleration.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            yield wrong(f"spec.tolerations[{index}].operator", toleration["value"], why)


def _affinity(spec: Object) -> Causes:
    given, root = (spec.get("affinity") or {}).get("nodeAffinity") or {}, "spec.affinity.nodeAffinity"
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    for number, term in enumerate((given.get(field) or {}).get("nodeSelectorTerms") or []):
        yield from _term(term, f"{root}.{field}.nodeSelectorTerms[{number}]")
    field = "preferredDuringSchedulingIgnoredDuringExecution"
    for number, preferred in enumerate(given.get(field) or []):
        weight = preferred.get("weight") or 0
        if not 1 <= weight <= 100:
            yield wrong(f"{root}.{field}[{number}].weight", weight, "must be in the range 1-100")
        yield from _term(preferred.get("preference") or {}, f"{root}.{field}[{number}].preference")


def _term(term: Object, path: str) -> Causes:
    for group in ("matchExpressions", "matchFields"):
        for index, expression in enumerate(term.get(group) or []):
            yield from _expression(expression, f"{path}.{group}[{index}]")


def _expression(expression: Object, path: str) -> Causes:
    operator, values = expression["operator"], expression.get("values") or []
    if operator not in _OPERATORS:
        yield unsupported(f"{path}.operator", operator, _OPERATORS)
    elif operator in ("In", "NotIn") and not values:
        yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Gt", "Lt") and not (len(values) == 1 and re.fullmatch(r"-?[0-9]{1,18}", values[0])):
        yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")


def _volume(volume: Object, path: str, names: set[str]) -> Causes:
    name = volume.get("name")
    if not name:
        yield required(f"{path}.name")
        return
    if problem := dns_label(str(name)):
        yield wrong(f"{path}.name", name, problem)
    if name in names:
        yield duplicate(f"{path}.name", name)
    names.add(name)
    sources = [key for key, value in volume.items() if key != "name" and value is not None]
    if len(sources) > 1:
        yield denied(f"{path}.{sorted(sources)[-1]}", "may not specify more than 1 volume type")
    for kind, field in (("secret", "secretName"), ("configMap", "name"), ("persistentVolumeClaim", "claimName")):
        if isinstance(volume.get(kind), dict) and not volume[kind].get(field):
            yield required(f"{path}.{kind}.{field}")


def _container(container: Object, path: str, names: set[str], volumes: set[str]) -> Causes:
    name = container.get("name")
    if not name:
        yield required(f"{path}.name")
    elif problem := dns_label(str(name)):
        yield wrong(f"{path}.name", name, problem)
    elif name in names:
        yield duplicate(f"{path}.name", name)
    names.add(str(name))
    if not container.get("image"):
        yield required(f"{path}.image")
    if container.get("imagePullPolicy") not in _PULL_POLICIES:
        yield unsupported(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), _PULL_POLICIES)
    for index, variable in enumerate(container.get("env") or []):
        yield from _variable(variable, f"{path}.env[{index}]")
    yield from _ports(container.get("ports") or [], path)
    yield from _mounts(container.get("volumeMounts") or [], path, volumes)
    yield from _resources(container.get("resources") or {}, f"{path}.resources")


def _variable(variable: Object, path: str) -> Causes:
    name = variable.get("name")
    if not name:
        yield required(f"{path}.name")
    elif not re.fullmatch(r"[ -<>-~]+", str(name)):
        yield wrong(f"{path}.name", name, "environment variable names must be printable ASCII other than '='")
    if variable.get("value") and variable.get("valueFrom"):
        yield wrong(f"{path}.valueFrom", "", "may not be specified when `value` is not empty")


def _ports(ports: list[Object], path: str) -> Causes:
    names: set[str] = set()
    for index, port in enumerate(ports):
        number = port.get("containerPort")
        if not number:
            yield required(f"{path}.ports[{index}].containerPort")
        elif not isinstance(number, int) or not 1 <= number <= 65535:
            yield wrong(f"{path}.ports[{index}].containerPort", number, "must be between 1 and 65535, inclusive")
        name = port.get("name")
        if name and not re.fullmatch(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", str(name)):
            why = "must be no more than 15 lower case alphanumeric characters or '-', with at least one letter"
            yield wrong(f"{path}.ports[{index}].name", name, why)
        if name and name in names:
            yield duplicate(f"{path}.ports[{index}].name", name)
        names.add(str(name))


def _mounts(mounts: list[Object], path: str, volumes: set[str]) -> Causes:
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        field = f"{path}.volumeMounts[{index}]"
        if not mount.get("name"):
            yield required(f"{field}.name")
        elif mount["name"] not in volumes:
            yield missing(f"{field}.name", mount["name"])
        where = mount.get("mountPath")
        if not where:
            yield required(f"{field}.mountPath")
        elif where in paths:
            yield wrong(f"{field}.mountPath", where, "must be unique")
        paths.add(str(where))
        below = str(mount.get("subPath") or "")
        if below.startswith("/"):
            yield wrong(f"{field}.subPath", below, "must be a relative path")
        if ".." in below.split("/"):
            yield wrong(f"{field}.subPath", below, "must not contain '..'")


def _resources(resources: Mapping[str, Any], path: str) -> Causes:
    amounts: dict[str, dict[str, Fraction]] = {"limits": {}, "requests": {}}
    for group, parsed in amounts.items():
        for name, value in (resources.get(group) or {}).items():
            try:
                parsed[name] = quantity.parse(value)
            except ValueError as error:
                yield wrong(f"{path}.{group}[{name}]", value, str(error))
                continue
            yield from _amount(name, value, parsed[name], f"{path}.{group}[{name}]")
    limits, requests = amounts["limits"], amounts["requests"]
    for name, amount in requests.items():
        shown = resources["requests"][name]
        if "/" in name and name not in limits:
            yield required(f"{path}.limits", f"Limit must be set for non overcommitable resources: {name}")
        elif name in limits and name not in _OVERCOMMITS and amount != limits[name]:
            yield wrong(f"{path}.requests", shown, f"must be equal to {name} limit of {resources['limits'][name]}")
        elif name in limits and amount > limits[name]:
            why = f"must be less than or equal to {name} limit of {resources['limits'][name]}"
            yield wrong(f"{path}.requests", shown, why)


def _amount(name: str, value: object, amount: Fraction, path: str) -> Causes:
    if amount < 0:
        yield wrong(path, value, "must be greater than or equal to 0")
    if "/" in name:
        if problem := qualified_name(name):
            yield wrong(path, name, problem)
        if amount.denominator != 1:
            yield wrong(path, value, "must be an integer")
    elif name not in _OVERCOMMITS and not name.startswith("hugepages-"):
        yield wrong(path, name, "must be a standard resource type or fully qualified")


def check_pod_update(new: Object, old: Object) -> Causes:
    before, after = _fixed(old["spec"]), _fixed(new.get("spec") or {})
    if old["spec"].get("schedulingGates"):  # a gated pod may still be steered
        before.pop("nodeSelector", None)
        before.pop("affinity", None)
        after.pop("nodeSelector", None)
        after.pop("affinity", None)
    if before != after:
        yield denied("spec", _IMMUTABLE)
    tolerations = new["spec"].get("tolerations") or []
    if any(toleration not in tolerations for toleration in old["spec"].get("tolerations") or []):
        yield denied("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
    gates = {gate.get("name") for gate in old["spec"].get("schedulingGates") or []}
    for gate in new["spec"].get("schedulingGates") or []:
        if gate.get("name") not in gates:
            why = "only deletion is allowed, but found new scheduling gate"
            yield denied("spec.schedulingGates", f"{why} '{gate.get('name')}'")


def _fixed(spec: Mapping[str, Any]) -> Object:
    """The part of a pod's spec that stays as it was created."""
    changeable = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "initContainers")
    fixed = {key: value for key, value in spec.items() if key not in changeable}
    for group in ("containers", "initContainers"):
        fixed[group] = [
            {key: value for key, value in container.items() if key != "image"} for container in spec.get(group) or []
        ]
    return fixed
