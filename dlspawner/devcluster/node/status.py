"""A pod's status as the kubelet writes it (pure).

From what is known about the containers follow phase, conditions and the rest; only `Run` values and the conditions
written before go in, with the present as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Json = dict[str, Any]
CREATING, INITIALIZING = "ContainerCreating", "PodInitializing"  # why a container does not run yet
NEVER = "1970-01-01T00:00:00Z"


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def terminated(code: int, *, started: str, finished: str, reason: str = "", message: str = "", id: str = "") -> Json:  # noqa: PLR0913  (the API's fields)
    state = {
        "exitCode": code,
        "reason": reason or ("Completed" if code == 0 else "Error"),
        "startedAt": started,
        "finishedAt": finished,
    }
    if message:
        state["message"] = message
    if id:
        state["containerID"] = id
    return {"terminated": state}


@dataclass(slots=True)
class Run:
    """The known state of one container. The pod's tasks change it; this module only reads it."""

    name: str
    image: str
    state: Json
    last_state: Json = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    id: str = ""
    final: bool = False  # it will not be started again

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        code = self.state.get("terminated", {}).get("exitCode")
        return None if code is None else int(code)

    def status(self) -> Json:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"node://{self.image}" if self.id else "",
            "containerID": self.id,
            "state": self.state,
            "lastState": self.last_state,
            "restartCount": self.restarts,
            "ready": self.ready,
            "started": self.started,
        }


def previous(  # noqa: PLR0913 - a container by name and image, and where it begins
    status: Mapping[str, Any], name: str, image: str, now: str, why: str = CREATING, *, policy: str = "Always"
) -> Run:
    """The run as an earlier life of the node left it in the API; ``why`` is what a container waits for until it runs.

    A container that was running then died with the node: it counts as restarted, or has failed where the pod's policy
    is to start nothing again, as after a reboot of a real node.
    """
    entries = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    entry = next((entry for entry in entries if entry["name"] == name), None)
    if entry is None:
        return Run(name, image, waiting(why))
    run = Run(
        name,
        image,
        entry.get("state") or waiting(why),
        entry.get("lastState") or {},
        int(entry.get("restartCount", 0)),
        id=entry.get("containerID", ""),
    )
    if run.running:
        died = terminated(
            137, started=run.state["running"]["startedAt"], finished=now, message="the node was stopped", id=run.id
        )
        run.final = not restarts_again(policy, 137)
        if run.final:
            run.state = died
        else:
            run.state, run.last_state = waiting(why), died
            run.restarts += 1
    return run


def phase(spec: Mapping[str, Any], init: Sequence[Run], main: Sequence[Run]) -> str:
    """Pending until every init container is through, then what the containers make of it."""
    if any(run.final and run.exit_code not in {0, None} for run in init):
        return "Failed"
    if main and all(run.final for run in main):
        return "Succeeded" if all(run.exit_code == 0 for run in main) else "Failed"
    if not initialized(spec, init):
        return "Pending"
    if any(run.id or run.final for run in main):
        return "Running"
    return "Pending"


def initialized(spec: Mapping[str, Any], init: Sequence[Run]) -> bool:
    """True if every init container has completed, or has started where it is a sidecar."""
    sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    return all(run.started if run.name in sidecars else run.exit_code == 0 for run in init)


def conditions(
    spec: Mapping[str, Any], init: Sequence[Run], main: Sequence[Run], before: Sequence[Mapping[str, Any]], now: str
) -> list[Json]:
    """All conditions; the transition time moves only when the status does. Foreign conditions are kept."""
    done = phase(spec, init, main) == "Succeeded"
    unready = [run.name for run in main if not run.ready]
    why: Json = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(unready)}]"}
    if done:
        why = {"reason": "PodCompleted"}
    sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    incomplete = [run.name for run in init if not (run.started if run.name in sidecars else run.exit_code == 0)]
    not_initialized: Json = {
        "reason": "ContainersNotInitialized",
        "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
    }
    anything = any(run.id for run in [*init, *main])
    wanted: list[tuple[str, bool, Json]] = [
        ("PodReadyToStartContainers", anything and not all(run.final for run in main), {}),
        ("Initialized", not incomplete, not_initialized if incomplete else {}),
        ("Ready", not unready, why if unready else {}),
        ("ContainersReady", not unready, why if unready else {}),
        ("PodScheduled", True, {}),
    ]
    old = {condition["type"]: condition for condition in before}
    result = [_condition(kind, true, reason, old.get(kind), now) for kind, true, reason in wanted]
    ours = {kind for kind, _, _ in wanted}
    return result + [dict(condition) for kind, condition in old.items() if kind not in ours]


def pod_status(  # noqa: PLR0913  (everything a status is made of, by name)
    *,
    spec: Mapping[str, Any],
    init: Sequence[Run],
    main: Sequence[Run],
    before: Mapping[str, Any],
    pod_ip: str,
    host_ip: str,
    started: str,
    now: str,
) -> Json:
    """The whole status."""
    status: Json = {
        "phase": phase(spec, init, main),
        "conditions": conditions(spec, init, main, before.get("conditions") or [], now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": started,
        "qosClass": before.get("qosClass", "BestEffort"),  # the API server knows it from the start
        "containerStatuses": [run.status() for run in main],
    }
    if init:
        status["initContainerStatuses"] = [run.status() for run in init]
    if pod_ip:
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    return status


def restarts_again(policy: str, code: int) -> bool:
    """True if a container that ended with this code is started again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _condition(kind: str, true: bool, why: Json, old: Mapping[str, Any] | None, now: str) -> Json:
    status = "True" if true else "False"
    changed = old is None or old.get("status") != status
    since = now if changed or old is None else old.get("lastTransitionTime", now)
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since} | why
