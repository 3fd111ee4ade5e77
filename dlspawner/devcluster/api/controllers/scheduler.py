"""A first-fit scheduler: of the nodes that can hold a pod the one that it prefers most gets it, or the first by name.

What nodes hold is kept by observing pods, so a pass costs only the pods that wait. A pod that fits nowhere waits for
the next change that could help it: a pod that ends or goes, a node that appears or changes, a change of the pod itself.
"""

from fractions import Fraction

from dlspawner.devcluster.api.controllers.base import BATCH, Controller
from dlspawner.devcluster.api.controllers.events import Recorder
from dlspawner.devcluster.api.controllers.scheduling import (
    NodeFacts,
    Usage,
    node_facts,
    obstacles,
    pod_requests,
    preference,
    verdict,
)
from dlspawner.devcluster.api.objects import defaults
from dlspawner.devcluster.api.objects.resources import NODES, PODS
from dlspawner.devcluster.api.registry import Binding, Registry, timestamp
from dlspawner.devcluster.api.store import Change, ChangeType, Key, Object, Version

NAME = "default-scheduler"
_ENDED = ("Succeeded", "Failed")


class Scheduler(Controller):
    watches = (NODES, PODS)

    def __init__(self, registry: Registry, recorder: Recorder) -> None:
        super().__init__(registry)
        self._recorder = recorder
        self._nodes: dict[str, NodeFacts] = {}
        self._usage: dict[str, Usage] = {}
        self._charged: dict[str, tuple[str, dict[str, Fraction]]] = {}  # pod uid -> node, requests
        self._queue: dict[Key, None] = {}  # to be looked at, oldest first
        self._waiting: dict[Key, None] = {}  # looked at and fitting nowhere

    def observe(self, change: Change) -> None:
        if change.version.resource is NODES:
            self._observe_node(change)
        else:
            self._observe_pod(change)

    def _observe_node(self, change: Change) -> None:
        name = change.version.name
        before = self._nodes.pop(name, None)
        if change.type is not ChangeType.DELETED:
            self._nodes[name] = node_facts(change.version.read())
        if self._nodes.get(name) != before:
            self._retry()

    def _observe_pod(self, change: Change) -> None:
        version = change.version
        fields = version.fields
        gone = change.type is ChangeType.DELETED or fields["status.phase"] in _ENDED
        if fields["spec.nodeName"]:
            self._queue.pop(version.key, None)
            self._waiting.pop(version.key, None)
            self._charge(version, gone=gone)
        elif gone:
            self._queue.pop(version.key, None)
            self._waiting.pop(version.key, None)
        elif fields["spec.schedulerName"] == NAME and self._concerns(change):
            self._waiting.pop(version.key, None)
            self._queue[version.key] = None

    @staticmethod
    def _concerns(change: Change) -> bool:
        """Is the change of an unbound pod one of its spec, or only our own note in its status?"""
        if change.previous is None:
            return True
        return bool(change.previous.read()["spec"] != change.version.read()["spec"])

    def _charge(self, version: Version, *, gone: bool) -> None:
        if gone:
            node, requests = self._charged.pop(version.uid, ("", {}))
            if node:
                self._usage[node].add(requests, -1)
                self._retry()
        elif version.uid not in self._charged:
            requests = pod_requests(version.read()["spec"])
            node = version.fields["spec.nodeName"]
            self._charged[version.uid] = node, requests
            self._usage.setdefault(node, Usage()).add(requests)

    def _retry(self) -> None:
        self._queue = self._waiting | self._queue
        self._waiting = {}

    def reconcile(self) -> float | None:
        for key in list(self._queue)[:BATCH]:
            del self._queue[key]
            version = self.store.get(PODS, *key)
            if version is not None and not version.fields["spec.nodeName"]:
                self._schedule(version)
        return 0 if self._queue else None

    def _schedule(self, version: Version) -> None:
        pod = version.read()
        spec = pod["spec"]
        if spec.get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            return
        requests = pod_requests(spec)
        reasons = []
        for name in sorted(self._nodes, key=lambda name: (-preference(spec, self._nodes[name]), name)):
            used = self._usage.setdefault(name, Usage()).amounts
            found = obstacles(spec, requests, self._nodes[name], used)
            if not found:
                self._bind(pod, name)
                return
            reasons.append(found)
        self._waiting[version.key] = None
        self._refuse(version, verdict(len(self._nodes), reasons))

    def _bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        self.registry.bind(metadata["namespace"], metadata["name"], Binding(node))
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self._recorder.record(pod, "Normal", "Scheduled", message, NAME)

    def _refuse(self, version: Version, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        conditions = version.read().get("status", {}).get("conditions") or []
        if any(condition.items() <= known.items() for known in conditions):
            return
        now = timestamp(self.registry.now())
        self.registry.edit(version, lambda pod: defaults.set_condition(pod, condition, now))
        self._recorder.record(version.read(), "Warning", "FailedScheduling", message, NAME)
