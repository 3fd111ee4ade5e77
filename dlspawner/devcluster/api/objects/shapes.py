"""Of which JSON type a field is, as far as this server looks into it. Pure.

The real API server decodes into typed structures and answers 400 when a type does not fit; everything behind it may
rely on that. Here the same promise is a table: an object is a dictionary of the fields that are read (others are
free), `[x]` a list of x, `{ANY: x}` a map of strings to x. A field that is null is not there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from dlspawner.devcluster.api.objects.resources import (
    CLAIMS,
    CONFIG_MAPS,
    ENDPOINTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLUMES,
    Resource,
)

Shape = Any  # a type, a one-element list, or a dictionary of shapes

ANY = "*"
INT_OR_STRING = (int, str)
QUANTITY = (int, float, str)
GIVEN = "given"  # a string that must be there
TIME = "time"  # RFC 3339

_TEXTS = {ANY: str}
_AMOUNTS = {ANY: QUANTITY}
_CONDITIONS = [{"type": GIVEN, "status": GIVEN, "reason": str, "message": str, "lastTransitionTime": TIME}]
_METADATA = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "labels": _TEXTS,
    "annotations": _TEXTS,
    "finalizers": [str],
    "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str}],
}
_PROBE = {"httpGet": {"path": str, "port": INT_OR_STRING}, "periodSeconds": int, "exec": {"command": [str]}}
_CONTAINER = {
    "name": str,
    "image": str,
    "imagePullPolicy": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "ports": [{"name": str, "containerPort": int, "protocol": str}],
    "volumeMounts": [{"name": str, "mountPath": str, "subPath": str, "readOnly": bool}],
    "resources": {"limits": _AMOUNTS, "requests": _AMOUNTS},
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
}
_TERM = {
    ANY: [{"key": GIVEN, "operator": GIVEN, "values": [str]}],  # matchExpressions, matchFields
}
_STATE = {"waiting": {"reason": str}, "running": {}, "terminated": {"reason": str, "exitCode": int, "finishedAt": TIME}}
_CONTAINER_STATUSES = [{"name": GIVEN, "ready": bool, "restartCount": int, "state": _STATE, "lastState": _STATE}]
_POD = {
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [
            {
                "name": str,
                "secret": {"secretName": str},
                "configMap": {"name": str},
                "persistentVolumeClaim": {"claimName": str},
                "emptyDir": {},
                "hostPath": {"path": str, "type": str},
                "projected": {},
                "downwardAPI": {},
            }
        ],
        "nodeSelector": _TEXTS,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": int, "preference": _TERM}],
            }
        },
        "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
        "schedulingGates": [{"name": str}],
        "readinessGates": [{"conditionType": GIVEN}],
        "imagePullSecrets": [{"name": str}],
        "overhead": _AMOUNTS,
        "restartPolicy": str,
        "schedulerName": str,
        "serviceAccountName": str,
        "serviceAccount": str,
        "priorityClassName": str,
        "nodeName": str,
        "terminationGracePeriodSeconds": int,
        "activeDeadlineSeconds": int,
    },
    "status": {
        "phase": str,
        "reason": str,
        "podIP": str,
        "conditions": _CONDITIONS,
        "containerStatuses": _CONTAINER_STATUSES,
        "initContainerStatuses": _CONTAINER_STATUSES,
    },
}
_NODE = {
    "spec": {"taints": [{"key": str, "value": str, "effect": str}], "unschedulable": bool},
    "status": {
        "allocatable": _AMOUNTS,
        "capacity": _AMOUNTS,
        "conditions": _CONDITIONS,
        "addresses": [{"type": GIVEN, "address": GIVEN}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": int}},
        "nodeInfo": _TEXTS,
    },
}
_SERVICE = {
    "spec": {
        "type": str,
        "clusterIP": str,
        "selector": _TEXTS,
        "externalIPs": [str],
        "ports": [{"name": str, "port": int, "targetPort": INT_OR_STRING, "nodePort": int, "protocol": str}],
    }
}
_ENDPOINTS = {
    "subsets": [
        {
            "addresses": [{"ip": GIVEN}],
            "notReadyAddresses": [{"ip": GIVEN}],
            "ports": [{"name": str, "port": int, "protocol": str}],
        }
    ]
}
_CLAIM = {
    "spec": {"accessModes": [str], "volumeName": str, "resources": {"requests": _AMOUNTS}, "storageClassName": str},
    "status": {"phase": str, "capacity": _AMOUNTS, "accessModes": [str]},
}
_VOLUME = {
    "spec": {
        "accessModes": [str],
        "capacity": _AMOUNTS,
        "claimRef": {"namespace": str, "name": str, "uid": str},
        "persistentVolumeReclaimPolicy": str,
    },
    "status": {"phase": str},
}
_EVENT = {
    "involvedObject": {"kind": str, "name": str, "namespace": str, "fieldPath": str},
    "source": {"component": str, "host": str},
    "series": {"count": int, "lastObservedTime": TIME},
    "firstTimestamp": TIME,
    "lastTimestamp": TIME,
    "eventTime": TIME,
    "count": int,
    "reason": str,
    "message": str,
    "type": str,
    "reportingComponent": str,
}
_SHAPES: Mapping[Resource, Shape] = {
    CLAIMS: _CLAIM,
    CONFIG_MAPS: {"data": _TEXTS, "binaryData": _TEXTS, "immutable": bool},
    ENDPOINTS: _ENDPOINTS,
    EVENTS: _EVENT,
    LEASES: {"spec": {"holderIdentity": str, "renewTime": TIME}},
    NAMESPACES: {"spec": {"finalizers": [str]}, "status": {"phase": str}},
    NETWORK_POLICIES: {"spec": {"policyTypes": [str]}},
    NODES: _NODE,
    PODS: _POD,
    PRIORITY_CLASSES: {"value": int, "globalDefault": bool, "preemptionPolicy": str},
    SECRETS: {"data": _TEXTS, "stringData": _TEXTS, "type": str, "immutable": bool},
    SERVICE_ACCOUNTS: {"secrets": [{"name": str}], "imagePullSecrets": [{"name": str}]},
    SERVICES: _SERVICE,
    VOLUMES: _VOLUME,
}
_NAMES = {str: "a string", int: "a whole number", bool: "true or false", float: "a number"}


def malformed(resource: Resource, manifest: Any) -> str | None:
    """Returns a sentence on the first field with a wrong JSON type; None if all checked fields fit."""
    shape = {"metadata": _METADATA, "spec": {}, "status": {}} | _SHAPES[resource]
    return next(_misfits(manifest, shape, ""), None)


def without_nulls(value: Any) -> Any:
    """A copy in which every field is gone that was null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _misfits(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if isinstance(shape, dict):
        if isinstance(value, dict):
            yield from _object_misfits(value, shape, path)
        else:
            yield f"{path or 'the body'} must be an object"
    elif isinstance(shape, list):
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _misfits(item, shape[0], f"{path}[{index}]")
        else:
            yield f"{path} must be a list"
    elif shape == TIME:
        if not _is_time(value):
            yield f'{path}: parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse it'
    else:
        kinds = shape if isinstance(shape, tuple) else (str if shape == GIVEN else shape,)
        if not _fits(value, kinds):
            yield f"{path} must be {' or '.join(_NAMES[kind] for kind in kinds)}"


def _object_misfits(value: Mapping[str, Any], shape: Mapping[str, Shape], path: str) -> Iterator[str]:
    for key, below in shape.items():
        if below == GIVEN and key not in value:
            yield f"{path}.{key} must be given"
    for key, item in value.items():
        below = shape.get(key, shape.get(ANY))
        if below is not None:
            yield from _misfits(item, below, f"{path}.{key}" if path else key)


def _is_time(value: Any) -> bool:
    try:
        return dt.datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds  # True is an int to Python only
    return isinstance(value, kinds)
