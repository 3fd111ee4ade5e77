"""Pods that an engine of the cluster places (`core.schedulers`), and starts that do not wait for it.

* If the pod has no node after some seconds, the start ends as that of a queued job, provided that the Manager agrees to
  request the start again when all pods of the job have nodes.
* Pods, Secret, Services, and the token in the pods stay (``Spawner.will_resume``), because the pods may run before the
  Hub starts the server again.
* The later start adopts the existing pods and their token, and creates none: if they are gone, the Manager requeues the
  job or ends it.
* A start that is refused before it has adopted the pods leaves them (`LifecycleSpawner.stop`).

Refused: a decision by the pod's state alone, without the Manager. Without a repeated start a pod would hold GPUs for a
server that does not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jupyterhub import orm
from jupyterhub.utils import url_escape_path, url_path_join

from dlspawner.core import naming
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import token

ENGINE_SECONDS = 5.0  # for which a start waits for an engine; JupyterHub answers a request after ten
GONE = "The job that waited in the cluster for this server is not there any more. Start it again."


def is_placed_by_engine(pod: PodDict) -> bool:
    return naming.ENGINE_ANNOTATION in (pod["metadata"].get("annotations") or {})


def waits(pod: PodDict) -> bool:
    """True if an engine has not placed the pod yet."""
    return is_placed_by_engine(pod) and not (pod.get("spec") or {}).get("nodeName")


async def take(spawner: Any, job: str) -> PodDict:
    """Adopts the first pod of a job that an earlier start has left in the cluster, and its token."""
    pod: PodDict | None = await spawner.pods.read()
    found = naming.read_job(pod["metadata"]) if pod is not None else None
    if pod is None or found is None or found.id != job or pod["metadata"].get("deletionTimestamp"):
        raise StartRefused(GONE, reason="gone", status=409)
    spawner.api_token = token(pod) or spawner.api_token
    return pod


async def until_running(spawner: Any, running: Awaitable[None], leave: Callable[[PodDict], Awaitable[None]]) -> None:
    """Waits for ``running``, and calls ``leave``, which may end the start, while an engine has not placed the pod."""
    _revoke_other_tokens(spawner)
    task = asyncio.ensure_future(running)
    try:
        while not (await asyncio.wait({task}, timeout=ENGINE_SECONDS))[0]:
            pod = spawner.pod()
            if pod is not None and waits(pod):
                await leave(pod)
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})


def _revoke_other_tokens(spawner: Any) -> None:
    """Revokes tokens of earlier starts of this server, which JupyterHub keeps if a start has left its pods."""
    session = spawner._hub_session
    own = orm.APIToken.find(session, spawner.api_token) if session is not None and spawner.api_token else None
    if own is None:  # after a restart of the Hub only the pod knows it
        return
    note = f"Server at {url_path_join(spawner.user.base_url, url_escape_path(spawner.name), '/')}"
    for one in session.query(orm.APIToken).filter_by(user_id=own.user_id, note=note):
        if one is not own:
            session.delete(one)
    session.commit()
