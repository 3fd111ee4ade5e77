"""A Hub that stops starts at a chosen point and holds them there, so that a test kills it at exactly that moment.

It is loaded by the Hub's own configuration. The name of a server says at which point its start is held: a file of that
name in the given folder tells that it got there. Nothing is held once the folder's file `free` exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

from jupyterhub.proxy import Proxy

from dlspawner.spawner import DLSpawner, owned_objects
from dlspawner.spawner.kube.pods import PodRequests
from dlspawner.spawner.lifecycle import LifecycleSpawner

FREE = "free"
# Points at which a start, or a stop, is held; in their order.
BEFORE_CLAIM = "before-claim"
BEFORE_POD = "before-pod"
ON_ITS_WAY = "on-its-way"  # the request for the pod has left, its answer will not be seen
LATE = "late"  # the same; the pod appears when the Hub is back
REPLACED = "replaced"  # before the request for the pod; an earlier job's pod of the same name appears
ANSWERED = "answered"  # the pod exists, and the Hub has not yet done anything with the answer
BEFORE_SECRET = "before-secret"
BEFORE_SERVICE = "before-service"
FURTHER_POD = "further-pod"  # of a job of several; one of them exists
RUNNING = "running"
STARTED = "started"  # start() has returned
COMMITTED = "committed"  # the Hub has saved the address, but not the state: here it kills itself
BEFORE_ROUTE = "before-route"
BEFORE_DELETION = "before-deletion"
AFTER_DELETION = "after-deletion"  # the pod is gone and the Hub has not saved it


class Holder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def at(self, point: str, server: str, note: str = "") -> None:
        """Block for ever when this server is held at this point."""
        if server != point or (self.folder / FREE).exists():
            return
        (self.folder / point).write_text(note)
        await asyncio.Event().wait()

    def around(
        self, owner: Any, name: str, server: Callable[..., str], *, before: str = "", after: str = "", note: Any = None
    ) -> None:
        """Hold calls of an async function before and after what it does."""
        original: Callable[..., Awaitable[Any]] = getattr(owner, name)

        @wraps(original)
        async def held(*given: Any, **named: Any) -> Any:
            await self.at(before, server(*given), note(*given) if note else "")
            answer = await original(*given, **named)
            await self.at(after, server(*given))
            return answer

        setattr(owner, name, held)


def _of(spawner: Any, *_: Any) -> str:
    return str(spawner.name)


def _of_pods(pods: PodRequests, *_: Any) -> str:
    return pods.name.partition("--")[2]


def _of_service(_: PodRequests, manifest: Any) -> str:
    return str(manifest["metadata"]["name"]).partition("--")[2].removesuffix("-ssh")


def _of_second_pod(_: PodRequests, kind: str, manifest: Any) -> str:
    name = str(manifest["metadata"]["name"])
    further = kind == "pod" and name.endswith("----worker-1")
    return name.partition("--")[2].removesuffix("----worker-1") if further else "-"


def install(folder: Path) -> None:
    """Hold the starts of this process."""
    holder = Holder(folder)
    holder.around(DLSpawner, "_make_create_pvc_request", _of, before=BEFORE_CLAIM)
    for point in (BEFORE_POD, ON_ITS_WAY, LATE, REPLACED):
        holder.around(PodRequests, "create", _of_pods, before=point, note=lambda _, manifest, __: json.dumps(manifest))
    holder.around(PodRequests, "create", _of_pods, after=ANSWERED)
    holder.around(DLSpawner, "_ensure_owned_objects", _of, before=BEFORE_SECRET)
    holder.around(owned_objects, "ensure_service", _of_service, before=BEFORE_SERVICE)
    holder.around(owned_objects, "ensure_object", _of_second_pod, before=FURTHER_POD)
    holder.around(LifecycleSpawner, "_make_create_resource_request", _of, before=BEFORE_SERVICE)
    holder.around(LifecycleSpawner, "_until_running", _of, after=RUNNING)
    holder.around(LifecycleSpawner, "_start", _of, after=STARTED)
    holder.around(Proxy, "add_user", lambda _, __, server="": server, before=BEFORE_ROUTE)
    holder.around(DLSpawner, "stop", _of, before=BEFORE_DELETION, after=AFTER_DELETION)
    poll = DLSpawner.start_polling

    def start_polling(spawner: Any) -> None:
        if spawner.name == COMMITTED and not (folder / FREE).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        poll(spawner)

    DLSpawner.start_polling = start_polling
