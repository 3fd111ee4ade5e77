"""The question to the Manager: may the job of this final manifest start? Pure.

What is told of the pod is what it costs, never its environment. Who, for which team, how urgent, and whether on idle
GPUs, is what the pod's own labels say, because that is what will be counted when it is seen; a hook that changes them
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.core import naming
from dlspawner.core.essentials import essentials
from dlspawner.spawner.refusal import Refused

CHANGED = "The job's labels were changed by a hook of this Hub, so it cannot be counted. Ask an administrator."


def question(manifest: dict[str, Any], job: naming.Job, namespace: str, request_seconds: float) -> Mapping[str, object]:
    """What the Manager is asked about the job that was launched as ``job``, whose pod would be in ``namespace``."""
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
        "request_milliseconds": int(1000 * request_seconds),
        "namespace": namespace,
        "pods": [essentials(manifest)],
    }


def _counted(job: naming.Job) -> tuple[object, ...]:
    """What decides who is charged, and whether; how many GPUs is the manifest's to say."""
    return job.id, job.user, job.server, job.team, job.template, job.preemptible, job.priority, job.requeue
