"""Deletes orphans: pods without a server in the Hub.

They come about in three ways. The Hub was killed during the request for a pod, which appeared after the restarted Hub
had listed the pods. A stop failed because the API server was away; JupyterHub then forgets the server nevertheless. The
Hub's database was restored from a backup that is older than the pod.

A pod is deleted, with its grace period, if it

1. is followed by the watch, and has KubeSpawner's annotation of its user,
2. reports to this Hub: the pods of another Hub in the same namespace have another address in JUPYTERHUB_API_URL,
3. is not being deleted already, and is not an ended pod that is kept (``delete_stopped_pods`` off),
4. belongs to no server that runs, starts, stops or is being checked; JupyterHub has all of them in memory before it
   checks the first,
5. waits for no engine of the cluster: the Manager ends such jobs,
6. has met all these conditions for ``orphan_seconds`` without a break, counted by this process: the log of a Hub that
   was started with the wrong database has a warning before any pod is deleted.

Not with ``enable_user_namespaces``: the watch spans the cluster, and the usual address of Hubs (http://hub:8081/hub/api)
is unique within a namespace only.

The next start of the same server does not wait for this: it deletes the pod of its name itself.

Refused: a label with an id of the Hub. It would change every manifest of a Hub without templates, and the address that
is in the pod already says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dlspawner.core import text
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner import engine_pods
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import PodRequests, variable
from dlspawner.spawner.kube.reflector import SLICE_SECONDS

Thing = TypeVar("Thing")

PERSON = "hub.jupyter.org/username"
ADDRESS = "JUPYTERHUB_API_URL"
_LONGEST_PAUSE = 60.0

# Namespace (or all of them) -> its watch and the task that looks after its pods, as KubeSpawner keeps its reflectors.
_tasks: dict[Any, tuple[Any, asyncio.Task[None]]] = {}


@dataclass(slots=True)
class Orphans:
    """The orphans that this process knows; ``since``: by uid, the time of the first check without a server."""

    seconds: float
    since: dict[str, float] = field(default_factory=dict)

    def due(self, found: Mapping[str, PodDict], now: float) -> tuple[list[str], list[str]]:
        """Returns the pods without a server, by key: those seen for the first time, and those past their time."""
        uids = {key: str(pod["metadata"]["uid"]) for key, pod in found.items()}
        new = [key for key, uid in uids.items() if uid not in self.since]
        self.since = {uid: self.since.get(uid, now) for uid in uids.values()}
        return new, [key for key, uid in uids.items() if now - self.since[uid] >= self.seconds]


async def owned_pods(users: Mapping[Any, Any]) -> set[str]:
    """Returns namespace/name of the pods of the Hub's running, starting and stopping servers."""
    found = set[str]()
    async for spawner in _in_turns(
        [spawner for user in list(users.values()) for spawner in list(user.spawners.values())]
    ):
        if spawner.server is not None or spawner.pending:
            found.add(spawner.pod_key)
    return found


async def _in_turns(things: Iterable[Thing]) -> AsyncIterator[Thing]:
    """Yields one after the other, and lets other tasks run when the slice of time is used up."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for thing in things:
        yield thing
        if loop.time() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = loop.time()


def without_server(
    pods: Mapping[str, PodDict], known: Collection[str], address: str, *, keep_ended: bool
) -> Iterator[str]:
    """Yields the keys of the pods that meet the conditions 1 to 5."""
    for key in pods:
        if key not in known:
            pod = pods[key]
            ended = isinstance(pod_status.evaluate(pod), pod_status.Terminated)
            if (
                PERSON in (pod["metadata"].get("annotations") or {})
                and variable(pod, ADDRESS) == address
                and not pod["metadata"].get("deletionTimestamp")
                and not (ended and keep_ended)
                and not engine_pods.waits(pod)
            ):
                yield key


@dataclass(frozen=True, slots=True)
class OrphanCheck:
    """The values that a check needs; not a spawner, which would be kept for ever."""

    pods: PodRequests
    users: Mapping[Any, Any]
    address: str
    keep_ended: bool
    orphans: Orphans


def look_after(spawner: Any, key: Any) -> None:
    """Starts the checks of the pods that this spawner's watch follows, once per watch."""
    users = (getattr(spawner.user, "settings", None) or {}).get("users")
    seconds = spawner.configured("orphan_seconds")
    if users is None or not seconds or spawner.enable_user_namespaces:
        return
    watch, task = _tasks.get(key, (None, None))
    if task is not None and not task.done():
        if watch is spawner.pod_reflector:
            return
        task.cancel()
    try:
        address = str(spawner.get_env()[ADDRESS])
    except Exception:  # an administrator's own code may be in it
        spawner.log.exception("pods without a server cannot be looked for, trying again")
        return
    looking = OrphanCheck(
        # No deadline, and the grace period that each pod was made with.
        replace(spawner.pods, until=None, grace_seconds=None),
        users,
        address,
        not spawner.configured("delete_stopped_pods"),
        Orphans(seconds),
    )
    _tasks[key] = looking.pods.watch, asyncio.create_task(_look_after(looking), name=f"orphans of {key}")


async def _look_after(looking: OrphanCheck) -> None:
    while True:
        await asyncio.sleep(min(_LONGEST_PAUSE, looking.orphans.seconds / 4))
        try:
            await _look(looking)
        except Exception:  # a task's root: the next look is made all the same
            looking.pods.log.exception("pods without a server cannot be looked for, trying again")


async def _look(looking: OrphanCheck) -> None:
    pods, orphans, log = looking.pods.watch.pods, looking.orphans, looking.pods.log
    found = await _found(looking, pods)
    new, due = orphans.due(found, asyncio.get_running_loop().time())
    for key in new:
        span = text.duration(orphans.seconds)
        log.warning("pod=%s belongs to no server of this Hub and is ended after %s", key, span)
    for key in due:
        namespace, _, name = key.partition("/")
        requests, pod = replace(looking.pods, namespace=namespace, name=name), pods.get(key)
        with suppress(StartRefused):  # the log has it, and the next look tries again
            if pod is not None:
                await requests.delete(pod, requests.grace(pod))
                log.warning("pod=%s belonged to no server of this Hub and was asked to end", key)


async def _found(looking: OrphanCheck, pods: Mapping[str, PodDict]) -> dict[str, PodDict]:
    """The pods without a server."""
    known, found = await owned_pods(looking.users), dict[str, PodDict]()
    async for key in _in_turns(list(pods)):
        part = {key: pod} if key not in known and (pod := pods.get(key)) is not None else {}
        found |= {key: part[key] for key in without_server(part, (), looking.address, keep_ended=looking.keep_ended)}
    if found:  # a server may have begun meanwhile
        known = await owned_pods(looking.users)
    return {key: pod for key, pod in found.items() if key not in known}
