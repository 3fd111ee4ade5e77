"""What `kubectl get` prints: a `Table` per kind. Pure.

Columns of priority 1 show with `-o wide`. Cells follow Kubernetes' own printers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlspawner.devcluster.api.objects.resources import (
    CLAIMS,
    CONFIG_MAPS,
    ENDPOINTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLUMES,
    Resource,
)
from dlspawner.devcluster.api.store import Version

Object = dict[str, Any]
Cells = Callable[[Object, dt.datetime], list[Any]]

_NONE, _UNKNOWN = "<none>", "<unknown>"
_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Column names (wide ones after `|`) and the function that fills them (all but the name, when `named`)."""

    columns: str
    cells: Cells

    @property
    def named(self) -> bool:
        return self.columns.startswith("Name,")

    def definitions(self) -> list[Object]:
        usual, _, wide = self.columns.partition("|")
        names = [(name.strip(), 0) for name in usual.split(",")] + [(n.strip(), 1) for n in wide.split(",") if n]
        return [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": priority,
            }
            for name, priority in names
        ]


def table(
    resource: Resource, versions: Sequence[Version], metadata: Object, now: dt.datetime, include: str = "Metadata"
) -> Object:
    layout = _LAYOUTS.get(resource, _PLAIN)
    rows = [_row(layout, version.read(), now, include) for version in versions]
    header = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return header | {"columnDefinitions": layout.definitions(), "rows": rows}


def _row(layout: Layout, manifest: Object, now: dt.datetime, include: str) -> Object:
    cells = layout.cells(manifest, now)
    row: Object = {"cells": [manifest["metadata"]["name"], *cells] if layout.named else cells}
    if include == "Object":
        row["object"] = manifest
    elif include != "None":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": manifest["metadata"],
        }
    return row


def duration(seconds: float) -> str:
    """Kubernetes' short human durations: 59s, 5m30s, 8h12m, 3d4h, 120d."""
    whole = int(seconds)
    if whole < 0:
        return "<invalid>" if whole < -1 else "0s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    forms = (
        (120, f"{whole}s"),
        (600, _pair(minutes, "m", whole % 60, "s")),
        (3 * 3600, f"{minutes}m"),
        (8 * 3600, _pair(hours, "h", minutes % 60, "m")),
        (48 * 3600, f"{hours}h"),
        (8 * 86400, _pair(days, "d", hours % 24, "h")),
        (730 * 86400, f"{days}d"),
    )
    return next((text for limit, text in forms if whole < limit), _pair(days // 365, "y", days % 365, "d"))


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def since(text: str | None, now: dt.datetime) -> str:
    return duration((now - dt.datetime.fromisoformat(text)).total_seconds()) if text else _UNKNOWN


def _age(manifest: Object, now: dt.datetime) -> str:
    return since(manifest["metadata"].get("creationTimestamp"), now)


def _only_age(manifest: Object, now: dt.datetime) -> list[Any]:
    return [_age(manifest, now)]


# Pods


def _pod(pod: Object, now: dt.datetime) -> list[Any]:
    spec, status = pod["spec"], pod.get("status", {})
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for entry in statuses if entry.get("ready"))
    gates = [gate["conditionType"] for gate in spec.get("readinessGates") or []]
    held = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"}
    return [
        f"{ready}/{len(spec.get('containers') or [])}",
        pod_reason(pod),
        _restarts(statuses, now),
        _age(pod, now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        f"{len(held.intersection(gates))}/{len(gates)}" if gates else _NONE,
    ]


def _restarts(statuses: Sequence[Object], now: dt.datetime) -> str:
    count = sum(entry.get("restartCount", 0) for entry in statuses)
    ends = [(entry.get("lastState") or {}).get("terminated", {}).get("finishedAt") for entry in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({since(last, now)} ago)" if count and last else str(count)


def pod_reason(pod: Object) -> str:
    """The STATUS column: the phase, unless a container or a deletion says more."""
    status = pod.get("status", {})
    reason = status.get("reason") or status.get("phase") or "Unknown"
    conditions = status.get("conditions") or []
    if any(c["type"] == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in conditions):
        reason = "SchedulingGated"
    waiting = _initializing(pod)
    reason = waiting or _containers_reason(status, reason)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _initializing(pod: Object) -> str:
    total = len(pod["spec"].get("initContainers") or [])
    for index, entry in enumerate(pod.get("status", {}).get("initContainerStatuses") or []):
        state = entry.get("state") or {}
        ended = state.get("terminated")
        if ended:
            if ended.get("exitCode") == 0:
                continue
            return f"Init:{ended.get('reason') or _exit(ended)}"
        waiting = (state.get("waiting") or {}).get("reason", "")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{total}"
    return ""


def _containers_reason(status: Object, reason: str) -> str:
    running = False
    for entry in reversed(status.get("containerStatuses") or []):
        state = entry.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated"):
            reason = state["terminated"].get("reason") or _exit(state["terminated"])
        elif entry.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
        return "Running" if ready else "NotReady"
    return str(reason)


def _exit(ended: Object) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


# The others


def _node(node: Object, now: dt.datetime) -> list[Any]:
    status, labels = node.get("status", {}), node["metadata"].get("labels") or {}
    ready = next((c["status"] for c in status.get("conditions") or [] if c["type"] == "Ready"), "Unknown")
    words = (
        ["Ready" if ready == "True" else "NotReady"] if ready != "Unknown" or status.get("conditions") else ["Unknown"]
    )
    if node.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))
    info = status.get("nodeInfo", {})
    addresses = {address["type"]: address["address"] for address in status.get("addresses") or []}
    return [
        ",".join(words),
        ",".join(roles) or _NONE,
        _age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage") or _UNKNOWN,
        info.get("kernelVersion") or _UNKNOWN,
        info.get("containerRuntimeVersion") or _UNKNOWN,
    ]


def _service(service: Object, now: dt.datetime) -> list[Any]:
    spec = service["spec"]
    ports = [
        f"{port['port']}:{port['nodePort']}/{port['protocol']}"
        if port.get("nodePort")
        else f"{port['port']}/{port['protocol']}"
        for port in spec.get("ports") or []
    ]
    external = spec.get("externalName") if spec["type"] == "ExternalName" else ",".join(spec.get("externalIPs") or [])
    selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items()))
    return [
        spec["type"],
        spec.get("clusterIP") or _NONE,
        external or ("<pending>" if spec["type"] == "LoadBalancer" else _NONE),
        ",".join(ports) or _NONE,
        _age(service, now),
        selector or _NONE,
    ]


def _endpoints(endpoints: Object, now: dt.datetime) -> list[Any]:
    found = [
        f"{address['ip']}:{port.get('port', '')}"
        for subset in endpoints.get("subsets") or []
        for port in subset.get("ports") or []
        for address in subset.get("addresses") or []
    ]
    shown = ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "")
    return [shown or _NONE, _age(endpoints, now)]


def _modes(spec: Object) -> str:
    return ",".join(_ACCESS_MODES.get(mode, mode) for mode in spec.get("accessModes") or [])


def _claim(claim: Object, now: dt.datetime) -> list[Any]:
    spec, status = claim["spec"], claim.get("status", {})
    bound = bool(spec.get("volumeName"))
    phase = "Terminating" if claim["metadata"].get("deletionTimestamp") else status.get("phase", "Pending")
    return [
        phase,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status) if bound else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or "<unset>",
        _age(claim, now),
        spec.get("volumeMode") or "<unset>",
    ]


def _volume(volume: Object, now: dt.datetime) -> list[Any]:
    spec, status = volume["spec"], volume.get("status", {})
    claim = spec.get("claimRef") or {}
    phase = "Terminating" if volume["metadata"].get("deletionTimestamp") else status.get("phase", "Pending")
    return [
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec),
        spec.get("persistentVolumeReclaimPolicy", ""),
        phase,
        f"{claim.get('namespace', '')}/{claim['name']}" if claim.get("name") else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or "<unset>",
        status.get("reason", ""),
        _age(volume, now),
        spec.get("volumeMode") or "<unset>",
    ]


def _event(event: Object, now: dt.datetime) -> list[Any]:
    involved, source = event.get("involvedObject") or {}, event.get("source") or {}
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    origin = source.get("component") or event.get("reportingComponent") or ""
    return [
        since(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        str(event.get("message", "")).strip(),
        involved.get("fieldPath", ""),
        ", ".join(part for part in (origin, source.get("host") or event.get("reportingInstance")) if part),
        since(first, now),
        series.get("count") or event.get("count") or 1,
        event["metadata"]["name"],
    ]


def _namespace(namespace: Object, now: dt.datetime) -> list[Any]:
    return [namespace.get("status", {}).get("phase", ""), _age(namespace, now)]


def _secret(secret: Object, now: dt.datetime) -> list[Any]:
    return [secret.get("type", ""), len(secret.get("data") or {}), _age(secret, now)]


def _config_map(config_map: Object, now: dt.datetime) -> list[Any]:
    entries = len(config_map.get("data") or {}) + len(config_map.get("binaryData") or {})
    return [entries, _age(config_map, now)]


def _service_account(account: Object, now: dt.datetime) -> list[Any]:
    return [len(account.get("secrets") or []), _age(account, now)]


def _lease(lease: Object, now: dt.datetime) -> list[Any]:
    return [lease.get("spec", {}).get("holderIdentity", ""), _age(lease, now)]


def _priority_class(priority_class: Object, now: dt.datetime) -> list[Any]:
    return [
        priority_class["value"],
        str(bool(priority_class.get("globalDefault"))).lower(),
        _age(priority_class, now),
        priority_class.get("preemptionPolicy", ""),
    ]


_PLAIN = Layout("Name,Age", _only_age)
_LAYOUTS: Mapping[Resource, Layout] = {
    CLAIMS: Layout(
        "Name,Status,Volume,Capacity,Access Modes,StorageClass,VolumeAttributesClass,Age|VolumeMode", _claim
    ),
    CONFIG_MAPS: Layout("Name,Data,Age", _config_map),
    ENDPOINTS: Layout("Name,Endpoints,Age", _endpoints),
    EVENTS: Layout("Last Seen,Type,Reason,Object,Message|Subobject,Source,First Seen,Count,Name", _event),
    LEASES: Layout("Name,Holder,Age", _lease),
    NAMESPACES: Layout("Name,Status,Age", _namespace),
    NODES: Layout(
        "Name,Status,Roles,Age,Version|Internal-IP,External-IP,OS-Image,Kernel-Version,Container-Runtime", _node
    ),
    PODS: Layout("Name,Ready,Status,Restarts,Age|IP,Node,Nominated Node,Readiness Gates", _pod),
    PRIORITY_CLASSES: Layout("Name,Value,Global-Default,Age,PreemptionPolicy", _priority_class),
    SECRETS: Layout("Name,Type,Data,Age", _secret),
    SERVICE_ACCOUNTS: Layout("Name,Secrets,Age", _service_account),
    SERVICES: Layout("Name,Type,Cluster-IP,External-IP,Port(s),Age|Selector", _service),
    VOLUMES: Layout(
        "Name,Capacity,Access Modes,Reclaim Policy,Status,Claim,StorageClass,VolumeAttributesClass,Reason,Age"
        "|VolumeMode",
        _volume,
    ),
}
