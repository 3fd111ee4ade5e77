"""What a starting job is doing, in words for the person who waits. Pure: a pod in, a step out.

Percentages are milestones, not measurements; the Hub adds the last one when the server answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PodDict = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """How far it is, from 0 to 100, and the sentence for it."""

    percent: int
    message: str

    def event(self) -> dict[str, Any]:
        """As the Hub's progress page wants it."""
        return {"progress": self.percent, "message": self.message}


def step(pod: PodDict | None, note: str | None = None) -> Step:
    """Where the pod is between being asked for and answering; ``note`` says what holds it up, or what it waits for."""
    if pod is None:
        return Step(5, note or "Preparing storage and asking the cluster for a place.")
    status: PodDict = pod.get("status") or {}
    node = (pod.get("spec") or {}).get("nodeName")
    if not node:
        return Step(10, note or "Waiting for a node.")
    containers = status.get("containerStatuses") or ()
    running = [container for container in containers if (container.get("state") or {}).get("running")]
    if containers and all(container.get("ready") for container in containers):
        return Step(80, f"The job runs on {node}. Waiting for its first answer.")
    if note:
        return Step(40, note)
    if running:
        return Step(60, f"The job has started on {node} and is getting ready.")
    return Step(30, f"The job has a place on {node}. Preparing storage and image.")
