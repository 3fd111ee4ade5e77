"""Endpoints of Services with a selector, from the addresses of their pods.

Unlike the real controller's, addresses may be loopback ones: here all of them are.
"""

from collections.abc import Mapping
from typing import Any

from dlspawner.devcluster.api.controllers.base import BATCH, Controller
from dlspawner.devcluster.api.objects.resources import ENDPOINTS, NAMESPACES, PODS, SERVICES, Target
from dlspawner.devcluster.api.registry import DeleteOptions, Registry
from dlspawner.devcluster.api.store import Change, ChangeType, Key, Object, Version

_Label = tuple[str, str, str]  # namespace, key, value


class EndpointsController(Controller):
    """A pod's change looks only at services that share a label with it, a service only at pods that do."""

    watches = (PODS, SERVICES)

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._by_label: dict[_Label, dict[Key, None]] = {}
        self._pods: dict[_Label, dict[Key, None]] = {}
        self._dirty: dict[Key, None] = {}

    def observe(self, change: Change) -> None:
        if change.version.resource is SERVICES:
            if change.previous is not None and (label := _index_label(change.previous)):
                self._by_label.get(label, {}).pop(change.previous.key, None)
            if change.type is not ChangeType.DELETED and (label := _index_label(change.version)):
                self._by_label.setdefault(label, {})[change.version.key] = None
            self._dirty[change.version.key] = None
            return
        for version in (change.previous, change.version):
            present = version is change.version and change.type is not ChangeType.DELETED
            for label in _labels(version) if version is not None else ():
                self._dirty |= self._by_label.get(label, {})
                if present:
                    self._pods.setdefault(label, {})[change.version.key] = None
                elif label in self._pods:
                    self._pods[label].pop(change.version.key, None)
                    if not self._pods[label]:
                        del self._pods[label]

    def reconcile(self) -> float | None:
        for key in list(self._dirty)[:BATCH]:
            del self._dirty[key]
            self._sync(key)
        return 0 if self._dirty else None

    def _sync(self, key: Key) -> None:
        service = self.store.get(SERVICES, *key)
        current = self.store.get(ENDPOINTS, *key)
        if service is None:
            if current is not None:
                self.registry.delete(ENDPOINTS, *key, DeleteOptions())
            return
        manifest = service.read()
        namespace = self.store.get(NAMESPACES, "", key[0])
        if not manifest["spec"].get("selector") or namespace is None:
            return
        wanted = {
            "metadata": {"name": service.name, "labels": manifest["metadata"].get("labels") or {}},
            "subsets": self._subsets(service, manifest),
        }
        if current is None:
            if namespace.fields["status.phase"] != "Terminating":
                self.registry.create(ENDPOINTS, key[0], wanted)
        elif current.read().get("subsets") != wanted["subsets"]:
            self.registry.update(Target(ENDPOINTS, *key), wanted)

    def _subsets(self, service: Version, manifest: Object) -> list[Object]:
        selector = manifest["spec"]["selector"].items()
        subsets: dict[tuple[tuple[str, int, str], ...], Object] = {}
        label = _index_label(service)
        keys = sorted(self._pods.get(label, {})) if label else []
        for version in filter(None, (self.store.get(PODS, *key) for key in keys)):
            if selector <= version.labels.items() and version.fields["status.podIP"]:
                pod = version.read()
                ports = _ports(manifest["spec"], pod)
                if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or not ports:
                    continue
                subset = subsets.setdefault(ports, {})
                ready = _is_ready(pod) or manifest["spec"].get("publishNotReadyAddresses")
                subset.setdefault("addresses" if ready else "notReadyAddresses", []).append(_address(pod))
        return [subset | {"ports": [_port(*port) for port in ports]} for ports, subset in sorted(subsets.items())]


def _labels(version: Version) -> list[_Label]:
    return [(version.namespace, key, value) for key, value in version.labels.items()]


def _index_label(service: Version) -> _Label | None:
    selector: Mapping[str, str] = service.read()["spec"].get("selector") or {}
    # The value that is likeliest to be rare: ids are longer than words.
    key = max(selector, key=lambda name: (len(selector[name]), name), default=None)
    return None if key is None else (service.namespace, key, selector[key])


def _is_ready(pod: Object) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _ports(spec: Mapping[str, Any], pod: Object) -> tuple[tuple[str, int, str], ...]:
    found = []
    for port in spec.get("ports") or []:
        number = _resolved(port.get("targetPort", port["port"]), port.get("protocol", "TCP"), pod)
        if number is not None:
            found.append((port.get("name", ""), number, port.get("protocol", "TCP")))
    return tuple(found)


def _resolved(target: int | str, protocol: str, pod: Object) -> int | None:
    """A target port as a number; a name is looked up in the pod's containers."""
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == target and port.get("protocol", "TCP") == protocol:
                return int(port["containerPort"])
    return None


def _port(name: str, number: int, protocol: str) -> Object:
    return ({"name": name} if name else {}) | {"port": number, "protocol": protocol}


def _address(pod: Object) -> Object:
    metadata = pod["metadata"]
    reference = {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
    return {"ip": pod["status"]["podIP"], "nodeName": pod["spec"].get("nodeName"), "targetRef": reference}
