"""Nodes by their Ready condition: a node that is not ready is tainted; one that stops reporting is Unknown after 40 s.

A node reports by renewing its Lease in kube-node-lease or by its Ready heartbeat. When it last did is measured by this
server's clock from what it saw, so a restart of the server makes no node late. Pods of a deleted node are
deleted (the real pod garbage collector's work); pods on a silent node stay: they may still run.
"""

import time
from collections.abc import Callable

from dlspawner.devcluster.api.controllers.base import Controller
from dlspawner.devcluster.api.objects import defaults
from dlspawner.devcluster.api.objects.resources import LEASES, NODES, PODS
from dlspawner.devcluster.api.registry import DeleteOptions, Registry, timestamp
from dlspawner.devcluster.api.store import Change, ChangeType, Object, Version

LEASE_NAMESPACE = "kube-node-lease"
GRACE_SECONDS = 40.0
TICK_SECONDS = 5.0
_PREFIX = "node.kubernetes.io/"
_TAINTS = {  # by the status of the Ready condition; a node without one is not ready yet
    "True": (),
    "False": (("not-ready", "NoSchedule"), ("not-ready", "NoExecute")),
    "": (("not-ready", "NoSchedule"),),
    "Unknown": (("unreachable", "NoSchedule"), ("unreachable", "NoExecute")),
}


class NodeLifecycle(Controller):
    watches = (LEASES, NODES)

    def __init__(self, registry: Registry, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(registry)
        self._monotonic = monotonic
        self._seen: dict[str, float] = {}
        self._missing: dict[str, float] = {}  # nodes that pods name and that do not exist
        self._changed: set[str] = set()
        self._sweep = 0.0  # when to look at everything again

    def observe(self, change: Change) -> None:
        version = change.version
        if change.type is ChangeType.DELETED:
            if version.resource is NODES:
                self._seen.pop(version.name, None)
        elif version.resource is NODES or version.namespace == LEASE_NAMESPACE:
            self._changed.add(version.name)
            before = change.previous.read() if change.previous else None
            if before is None or _pulse(before) != _pulse(version.read()):
                self._seen[version.name] = self._monotonic()

    def reconcile(self) -> float | None:
        now = self._monotonic()
        changed, self._changed = self._changed, set()
        names = sorted(changed)
        if now >= self._sweep:
            self._sweep = now + TICK_SECONDS
            names = [node.name for node in self.store.objects(NODES)]
            self._collect_orphans(now)
        for name in names:
            node = self.store.get(NODES, "", name)
            if node is not None:
                self._judge(node, now)
        return max(self._sweep - now, 0.01)

    def _judge(self, node: Version, now: float) -> None:
        silent = now - self._seen.get(node.name, now) > GRACE_SECONDS
        if silent and _ready(node.read()) != "Unknown":
            self._lose(node)
        else:
            self.registry.edit(node, self._taint)

    def _taint(self, node: Object) -> None:
        """Makes this controller's taints what the Ready condition asks for; others' stay."""
        before = node["spec"].get("taints") or []
        ours = {f"{_PREFIX}{name}" for name in ("not-ready", "unreachable")}
        wanted = [(f"{_PREFIX}{name}", effect) for name, effect in _TAINTS[_ready(node)]]
        kept = [t for t in before if t.get("key") not in ours or (t["key"], t.get("effect")) in wanted]
        held = {(taint.get("key"), taint.get("effect")) for taint in kept}
        now = timestamp(self.registry.now())
        kept += [
            {"key": key, "effect": effect, "timeAdded": now} for key, effect in wanted if (key, effect) not in held
        ]
        if kept != before:
            node["spec"]["taints"] = kept

    def _lose(self, node: Version) -> None:
        now = timestamp(self.registry.now())
        unknown = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}

        def lose(manifest: Object) -> None:
            for condition in manifest.setdefault("status", {}).setdefault("conditions", []):
                condition.update(unknown | {"status": "Unknown", "lastTransitionTime": now})
            defaults.set_condition(manifest, unknown | {"type": "Ready", "status": "Unknown"}, now)
            self._taint(manifest)

        def unready(manifest: Object) -> None:
            defaults.set_condition(manifest, {"type": "Ready", "status": "False"}, now)

        self.registry.edit(node, lose)
        for pod in self.store.objects(PODS):
            if pod.fields["spec.nodeName"] == node.name and _ready(pod.read()) == "True":
                self.registry.edit(pod, unready)

    def _collect_orphans(self, now: float) -> None:
        named = {pod.fields["spec.nodeName"] for pod in self.store.values(PODS)} - {""}
        missing = {name for name in named if self.store.get(NODES, "", name) is None}
        self._missing = {name: self._missing.get(name, now) for name in missing}
        gone = {name for name, since in self._missing.items() if now - since > GRACE_SECONDS}
        for pod in self.store.objects(PODS) if gone else []:
            if pod.fields["spec.nodeName"] in gone:
                self.registry.delete(PODS, *pod.key, DeleteOptions(grace=0))


def _pulse(manifest: Object) -> object:
    """The fields that a living node keeps changing."""
    if manifest["kind"] == "Lease":
        return manifest.get("spec", {}).get("renewTime")
    conditions = manifest.get("status", {}).get("conditions") or []
    return [condition.get("lastHeartbeatTime") for condition in conditions if condition["type"] == "Ready"]


def _ready(manifest: Object) -> str:
    conditions = manifest.get("status", {}).get("conditions") or []
    status = next((str(condition["status"]) for condition in conditions if condition["type"] == "Ready"), "")
    return status if status in _TAINTS else ""
