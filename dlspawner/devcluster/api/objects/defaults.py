"""What the server fills in when a client leaves it out, as far as clients rely on it. Pure; changes its argument.

Only what is well-formed is touched: `validation` speaks about the rest afterwards.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dlspawner.devcluster import quantity
from dlspawner.devcluster.api.objects.resources import (
    CLAIMS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
    SERVICES,
    VOLUMES,
    Resource,
)

Object = dict[str, Any]

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FILE_MODE = 0o644
_MODED_VOLUMES = ("configMap", "downwardAPI", "projected", "secret")


def apply(resource: Resource, manifest: Object) -> None:
    """For a new object."""
    _fill(resource, manifest)
    if initial := _INITIAL_STATUS.get(resource):
        initial(manifest)


def apply_update(resource: Resource, manifest: Object, old: Object) -> None:
    """For a changed object; what the server decided once stays decided."""
    if resource is SERVICES and isinstance(manifest.get("spec"), dict):
        _keep_allocations(manifest["spec"], old.get("spec", {}))
    _fill(resource, manifest)


def _fill(resource: Resource, manifest: Object) -> None:
    if fill := _FILLERS.get(resource):
        fill(manifest)


def set_condition(manifest: Object, condition: Mapping[str, str], now: str) -> None:
    """Adds or changes one status condition (type, status, reason, message); its time moves only with the status."""
    conditions = manifest.setdefault("status", {}).setdefault("conditions", [])
    old = next((known for known in conditions if known.get("type") == condition["type"]), None)
    stayed = old is not None and old.get("status") == condition["status"]
    probed = "lastHeartbeatTime" if old and "lastHeartbeatTime" in old else "lastProbeTime"
    new = {
        **condition,
        probed: now if probed == "lastHeartbeatTime" else None,
        "lastTransitionTime": (old or {}).get("lastTransitionTime", now) if stayed else now,
    }
    if old is None:
        conditions.append(new)
    else:
        conditions[conditions.index(old)] = new


# Pods


def _pod(pod: Object) -> None:
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    for field, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
        ("securityContext", {}),
    ):
        _default(spec, field, value)
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in containers(spec):
        _container(container)
        for port in _objects(container.get("ports")) if spec.get("hostNetwork") else ():
            _default(port, "hostPort", port.get("containerPort"))
    for volume in _objects(spec.get("volumes")):
        _volume(volume)


def containers(spec: Mapping[str, Any]) -> list[Object]:
    """Init containers and containers, as far as they are objects."""
    return [*_objects(spec.get("initContainers")), *_objects(spec.get("containers"))]


def _container(container: Object) -> None:
    _default(container, "resources", {})
    _default(container, "terminationMessagePath", "/dev/termination-log")
    _default(container, "terminationMessagePolicy", "File")
    image = str(container.get("image") or "")
    tag = image.rpartition("/")[2].partition(":")[2]
    pulls = "Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent"
    _default(container, "imagePullPolicy", pulls)
    for port in _objects(container.get("ports")):
        _default(port, "protocol", "TCP")
    for variable in _objects(container.get("env")):
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if isinstance(reference, dict):
            _default(reference, "apiVersion", "v1")
    for name in _PROBES:
        if isinstance(container.get(name), dict):
            _probe(container[name])
    resources = container["resources"]
    if isinstance(resources, dict) and isinstance(resources.get("limits"), dict):
        resources["requests"] = resources["limits"] | (resources.get("requests") or {})


def _probe(probe: Object) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(field):
            probe[field] = value
    if isinstance(probe.get("httpGet"), dict):
        _default(probe["httpGet"], "path", "/")
        _default(probe["httpGet"], "scheme", "HTTP")


def _volume(volume: Object) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for kind in _MODED_VOLUMES:
        if isinstance(volume.get(kind), dict):
            _default(volume[kind], "defaultMode", _FILE_MODE)
    if isinstance(volume.get("hostPath"), dict):
        _default(volume["hostPath"], "type", "")


def _pod_status(pod: Object) -> None:
    spec = pod.get("spec")
    if isinstance(spec, dict):
        pod["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}
        if spec.get("schedulingGates"):
            pod["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": None,
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]


def quality_of_service(spec: Mapping[str, Any]) -> str:
    """Guaranteed: cpu and memory limited and requested alike everywhere; BestEffort: neither named anywhere."""
    guaranteed, named = True, False
    for container in containers(spec):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for what in ("cpu", "memory"):
            named = named or what in requests or what in limits
            if what not in limits or not _same(requests.get(what, limits[what]), limits[what]):
                guaranteed = False
    if not named:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _same(one: object, other: object) -> bool:
    try:
        return quantity.parse(one) == quantity.parse(other)
    except ValueError:
        return False


# Everything else


def _service(service: Object) -> None:
    spec = service.get("spec")
    if not isinstance(spec, dict):
        return
    _default(spec, "type", "ClusterIP")
    _default(spec, "sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        _default(spec, "internalTrafficPolicy", "Cluster")
        _default(spec, "ipFamilyPolicy", "SingleStack")
        _default(spec, "ipFamilies", ["IPv4"])
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _default(spec, "externalTrafficPolicy", "Cluster")
    for port in _objects(spec.get("ports")):
        _default(port, "protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port")


def _keep_allocations(spec: Object, old: Mapping[str, Any]) -> None:
    """An update that leaves out what was allocated gets it back: address always, node ports by port number."""
    if spec.get("type", "ClusterIP") != "ExternalName" and not spec.get("clusterIP") and old.get("clusterIP"):
        spec["clusterIP"], spec["clusterIPs"] = old["clusterIP"], old.get("clusterIPs", [old["clusterIP"]])
    before = {(port.get("protocol", "TCP"), port.get("port")): port.get("nodePort") for port in old.get("ports") or []}
    with_ports = spec.get("type") in ("NodePort", "LoadBalancer")
    for port in _objects(spec.get("ports")):
        if not with_ports:
            port.pop("nodePort", None)
        elif not port.get("nodePort") and before.get((port.get("protocol", "TCP"), port.get("port"))):
            port["nodePort"] = before[port.get("protocol", "TCP"), port.get("port")]


def _secret(secret: Object) -> None:
    _default(secret, "type", "Opaque")
    plain = secret.pop("stringData", None)
    if isinstance(plain, dict):
        coded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
        secret["data"] = (secret.get("data") or {}) | coded


def _claim(claim: Object) -> None:
    if isinstance(claim.get("spec"), dict):
        _default(claim["spec"], "volumeMode", "Filesystem")


def _volume_object(volume: Object) -> None:
    if isinstance(volume.get("spec"), dict):
        _default(volume["spec"], "persistentVolumeReclaimPolicy", "Retain")
        _default(volume["spec"], "volumeMode", "Filesystem")


def _namespace(namespace: Object) -> None:
    namespace.setdefault("spec", {})
    if not namespace["metadata"].get("deletionTimestamp"):
        namespace["spec"]["finalizers"] = ["kubernetes"]
    labels = namespace["metadata"].setdefault("labels", {})
    if isinstance(labels, dict) and namespace["metadata"].get("name"):
        labels["kubernetes.io/metadata.name"] = namespace["metadata"]["name"]


def _node(node: Object) -> None:
    node.setdefault("spec", {})


def _event(event: Object) -> None:
    _default(event, "reportingComponent", (event.get("source") or {}).get("component", ""))
    _default(event, "reportingInstance", "")


def _priority_class(priority_class: Object) -> None:
    _default(priority_class, "preemptionPolicy", "PreemptLowerPriority")


def _phase(phase: str) -> Callable[[Object], None]:
    def initial(manifest: Object) -> None:
        manifest["status"] = {"phase": phase}

    return initial


def _empty_status(manifest: Object) -> None:
    manifest["status"] = {"loadBalancer": {}}


def _default(target: Object, field: str, value: Any) -> None:
    if target.get(field) is None:
        target[field] = value


def _objects(items: object) -> Iterable[Object]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


_FILLERS: Mapping[Resource, Callable[[Object], None]] = {
    CLAIMS: _claim,
    EVENTS: _event,
    NAMESPACES: _namespace,
    NODES: _node,
    PODS: _pod,
    PRIORITY_CLASSES: _priority_class,
    SECRETS: _secret,
    SERVICES: _service,
    VOLUMES: _volume_object,
}
_INITIAL_STATUS: Mapping[Resource, Callable[[Object], None]] = {
    CLAIMS: _phase("Pending"),
    NAMESPACES: _phase("Active"),
    PODS: _pod_status,
    SERVICES: _empty_status,
    VOLUMES: _phase("Available"),
}
