"""Pods that are no jobs, and what they hold of their nodes: system pods, DaemonSets, other people's work. PURE.

They are nobody's quota, but a job that is sent to where they leave no room would hold its GPUs and not start.
"""

from __future__ import annotations

from dlspawner.core.charge import foreign_usage
from dlspawner.core.manifest import Manifest
from dlspawner.core.nodes import ForeignUsage


class ForeignPods:
    """By node; ``put`` and ``remove`` name the nodes on which something has changed."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}  # by uid of a pod
        self._held: dict[str, dict[str, ForeignUsage]] = {}  # by node and uid

    def put(self, uid: str, node: str | None, pod: Manifest) -> set[str]:
        """A pod as it is now."""
        held = foreign_usage([pod])
        if node is None or held == ForeignUsage():
            return self.remove(uid)
        old, here = self._nodes.get(uid), self._held.setdefault(node, {})
        if old == node and here.get(uid) == held:
            return set()
        if old is not None and old != node:
            self.remove(uid)
        here[uid], self._nodes[uid] = held, node
        return {node} | ({old} if old else set())

    def remove(self, uid: str) -> set[str]:
        """A pod that is gone, or holds nothing any more."""
        node = self._nodes.pop(uid, None)
        if node is None:
            return set()
        del self._held[node][uid]
        return {node}

    def usage_on(self, node: str) -> ForeignUsage:
        """What they hold of a node together."""
        gpus: dict[str, int] = {}
        cpu = memory = 0
        for one in self._held.get(node, {}).values():
            cpu, memory = cpu + one.cpu_milli, memory + one.memory_bytes
            for resource, milli in one.gpus:
                gpus[resource] = gpus.get(resource, 0) + milli
        return ForeignUsage(tuple(sorted(gpus.items())), cpu, memory)
