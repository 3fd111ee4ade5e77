"""Which whole GPU belongs to which container (pure).

A holding is a container of a pod; devices go to no other container until the pod has ended, so the kubelet's rule that
two containers never share a device holds across crashes as long as the holdings are written down (`checkpoint`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NAMESPACE = uuid.UUID("6c1f2b42-6f0e-4b57-9d2e-0a8a3b1f6f00")


class NotEnough(Exception):
    """The scheduler bound more than the node has: kubelet's UnexpectedAdmissionError."""


def inventory(node: str, resource: str, count: int) -> tuple[str, ...]:
    """Names like those of nvidia-smi, the same at every start."""
    return tuple(f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{resource}/{index}')}" for index in range(count))


def wanted(container: Mapping[str, Any], resources: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Returns the requested devices of each simulated resource; extended resources count by their limit."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: int(limits[name]) for name in resources if int(limits.get(name, 0))}


@dataclass(slots=True)
class Holdings:
    """The devices of one node and their holders: {pod uid: {container: {resource: devices}}}."""

    devices: Mapping[str, tuple[str, ...]]
    held: dict[str, dict[str, dict[str, list[str]]]] = field(default_factory=dict)

    def assign(self, pod: str, container: str, count: Mapping[str, int]) -> list[str]:
        """Returns the container's devices, else assigns the first free ones; raises `NotEnough` and then holds
        nothing.
        """
        mine = self.held.get(pod, {}).get(container)
        if mine is None or {name: len(ids) for name, ids in mine.items()} != dict(count):
            mine = {name: self._free(name, number, besides=(pod, container)) for name, number in count.items()}
            if mine:
                self.held.setdefault(pod, {})[container] = mine
        return [device for name in sorted(mine) for device in mine[name]]

    def release(self, pod: str) -> None:
        self.held.pop(pod, None)

    def _free(self, resource: str, number: int, besides: tuple[str, str]) -> list[str]:
        taken = {
            device
            for pod, containers in self.held.items()
            for container, resources in containers.items()
            if (pod, container) != besides
            for device in resources.get(resource, [])
        }
        free = [device for device in self.devices[resource] if device not in taken]
        if len(free) < number:
            raise NotEnough(f"requested number of devices unavailable for {resource}: {number}, available: {len(free)}")
        return free[:number]


def checkpoint(nodes: Mapping[str, Holdings]) -> str:
    return json.dumps({name: holdings.held for name, holdings in nodes.items()})


def restore(text: str, nodes: Mapping[str, Holdings]) -> None:
    """Take over what a checkpoint says about devices that still exist."""
    for name, held in json.loads(text or "{}").items():
        if name in nodes:
            nodes[name].held = held
