"""The question to the Manager, may the job of this final manifest start, and what its answer adds to that. Pure.

What is told of the pod is what it costs, never its environment. Who, for which team, how urgent, and whether on idle
GPUs, is what the pod's own labels say, because that is what will be counted when it is seen; a hook that changes them
is refused. The start's nonce goes with it, bound to the pod's name: the Manager believes no pod to be this job's that
does not have both.

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
from dlspawner.spawner.refusal import StartRefused
from dlspawner.spawner.special import asked_for

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
    """What the Manager is asked about the job that was launched as ``job``, whose pod would be in ``namespace``.

    With a template that asks for special permissions, what somebody has to approve is told as well.
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
    """What decides who is charged, and whether; how many GPUs is the manifest's to say."""
    who = (job.id, job.nonce, job.user, job.server, job.team, job.template)
    return *who, job.preemptible, job.priority, job.requeue
