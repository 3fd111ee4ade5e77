"""What the simulated nodes look like: the default, and the file that may replace it (pure).

The file (YAML or JSON)::

    nodes:
    - name: gpu-1
      cpu: 32
      memory: 128Gi
      gpus: {nvidia.com/gpu: 8}
      labels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}
      taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from dlspawner.devcluster import quantity

_KNOWN = {"name", "cpu", "memory", "pods", "gpus", "labels", "taints"}


class InvalidDescription(Exception):
    """A sentence about the file."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One simulated node."""

    name: str
    cpu: str = "8"
    memory: str = "32Gi"
    pods: int = 250
    gpus: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()

    @property
    def capacity(self) -> dict[str, str]:
        gpus = {name: str(count) for name, count in self.gpus.items()}
        return {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), "ephemeral-storage": "100Gi"} | gpus


_A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
_V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}
DEFAULT = (
    NodeDescription("gpu-1", cpu="32", memory="128Gi", gpus={"nvidia.com/gpu": 8}, labels=_A100),
    NodeDescription("gpu-2", cpu="32", memory="128Gi", gpus={"nvidia.com/gpu": 8}, labels=_A100),
    NodeDescription("gpu-3", cpu="16", memory="64Gi", gpus={"nvidia.com/gpu": 4}, labels=_V100),
    NodeDescription("cpu-1", cpu="16", memory="64Gi"),
)


def parse(text: str) -> tuple[NodeDescription, ...]:
    """Read a description; the first thing wrong with it is a sentence."""
    try:
        document = yaml.safe_load(text)
        entries = document["nodes"]
        nodes = tuple(_node(entry) for entry in entries)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidDescription(f"not a list of nodes under `nodes:`: {error}") from error
    if not nodes or len({node.name for node in nodes}) != len(nodes):
        raise InvalidDescription("there must be at least one node, and no name twice")
    return nodes


def _node(entry: Mapping[str, Any]) -> NodeDescription:
    if unknown := entry.keys() - _KNOWN:
        raise InvalidDescription(f"unknown words in a node: {', '.join(sorted(unknown))}")
    values = dict(entry)
    for name in ("cpu", "memory"):
        if name in values:
            quantity.parse(values[name])
            values[name] = str(values[name])
    values["gpus"] = {str(name): int(count) for name, count in (values.get("gpus") or {}).items()}
    values["labels"] = {str(key): str(value) for key, value in (values.get("labels") or {}).items()}
    values["taints"] = tuple(values.get("taints") or ())
    return NodeDescription(**values)
