"""The admission request: may the job of this final manifest start, and what the answer adds to the manifest. Pure.

The request contains the pod's resources, never its environment. User, team, priority and preemptibility are read from
the pod's own labels, because the Manager will count by them when it sees the pod; a hook that changes them is refused.
The start's nonce, bound to the pod's name, is part of the request: the Manager accepts a pod as this job's only with
both.

The node that the job was admitted for becomes a preference of its pod: the scheduler knows only that one pod, would
spread what the Manager has packed, and has the last word. Refused: `nodeName` and a required node, which would keep a
pod from running where there is room as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.core import naming
from dlspawner.core.resources import strip_manifest
from dlspawner.core.template import Template
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.pod_builder import asked_for

CHANGED = "The job's labels were changed by a hook of this Hub, so it cannot be counted. Ask an administrator."

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST_WEIGHT = 100  # that there is


def admission_request(
    manifest: dict[str, Any],
    job: naming.PodIdentity,
    namespace: str,
    request_seconds: float,
    template: Template | None = None,
) -> Mapping[str, object]:
    """Returns the admission request of the job that was launched as ``job``, whose pod would be in ``namespace``.

    For a template that asks for special permissions it contains the permissions to approve.
    """
    told = naming.read_job(manifest["metadata"])
    if told is None or _counted(told) != _counted(job):
        raise StartRefused(CHANGED, reason="labels", status=403)
    return {
        "user": told.user,
        "server": told.server,
        "team": told.team,
        "template": told.template,
        "preemptible": told.preemptible,
        "priority": told.priority,
        "requeue": told.requeue,
        "nonce": naming.sign(told.nonce, f"{namespace}/{manifest['metadata']['name']}"),
        "request_milliseconds": int(1000 * request_seconds),
        "namespace": namespace,
        "pods": [strip_manifest(manifest)],
        **(_to_approve(manifest, template) if template is not None and template.special else {}),
    }


def with_preferred_node(manifest: dict[str, Any], node: str | None) -> dict[str, Any]:
    """The manifest with one more preferred term, for this node, after those that it has; without a node, as it is."""
    if node is None:
        return manifest
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"weight": _MOST_WEIGHT, "preference": {"matchFields": [named]}}
    spec = manifest["spec"]
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    nodes = {**nodes, _PREFERRED: [*(nodes.get(_PREFERRED) or ()), term]}
    return {**manifest, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}}


def _to_approve(manifest: dict[str, Any], template: Template) -> dict[str, object]:
    """The permissions, and the image that gets them: of the container that runs what the person came for."""
    work = next(one for one in manifest["spec"]["containers"] if one["name"] == template.work_container)
    return {"special": asked_for(manifest, template), "image": str(work.get("image", ""))}


def _counted(job: naming.PodIdentity) -> tuple[object, ...]:
    """Returns the fields that decide which team is charged; the manifest has the number of GPUs."""
    who = (job.id, job.nonce, job.user, job.server, job.team, job.template)
    return *who, job.preemptible, job.priority, job.requeue
