"""The question to the Manager: may the job of this final manifest start? Pure.

What is told of the pod is what it costs, never its environment. Who, for which team, how urgent, and whether on idle
GPUs, is what the pod's own labels say, because that is what will be counted when it is seen; a hook that changes them
is refused. The start's nonce goes with it, bound to the pod's name: the Manager believes no pod to be this job's that
does not have both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.core import naming
from dlspawner.core.essentials import essentials
from dlspawner.core.template import Template
from dlspawner.spawner.refusal import Refused
from dlspawner.spawner.special import asked_for

CHANGED = "The job's labels were changed by a hook of this Hub, so it cannot be counted. Ask an administrator."


def question(
    manifest: dict[str, Any],
    job: naming.Job,
    namespace: str,
    request_seconds: float,
    template: Template | None = None,
) -> Mapping[str, object]:
    """What the Manager is asked about the job that was launched as ``job``, whose pod would be in ``namespace``.

    With a template that asks for special permissions, what somebody has to approve is told as well.
    """
    told = naming.read_job(manifest["metadata"])
    if told is None or _counted(told) != _counted(job):
        raise Refused(CHANGED, reason="labels", status=403)
    return {
        "user": told.user,
        "server": told.server,
        "team": told.team,
        "template": told.template,
        "preemptible": told.preemptible,
        "priority": told.priority,
        "requeue": told.requeue,
        "nonce": naming.bound(told.nonce, f"{namespace}/{manifest['metadata']['name']}"),
        "request_milliseconds": int(1000 * request_seconds),
        "namespace": namespace,
        "pods": [essentials(manifest)],
        **(_to_approve(manifest, template) if template is not None and template.special else {}),
    }


def _to_approve(manifest: dict[str, Any], template: Template) -> dict[str, object]:
    """The permissions, and the image that gets them: of the container that runs what the person came for."""
    work = next(one for one in manifest["spec"]["containers"] if one["name"] == template.work_container)
    return {"special": asked_for(manifest, template), "image": str(work.get("image", ""))}


def _counted(job: naming.Job) -> tuple[object, ...]:
    """What decides who is charged, and whether; how many GPUs is the manifest's to say."""
    who = (job.id, job.nonce, job.user, job.server, job.team, job.template)
    return *who, job.preemptible, job.priority, job.requeue
