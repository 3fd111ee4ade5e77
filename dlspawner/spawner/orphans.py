"""Pods that no server of the Hub owns, and their end.

There are three ways to one. The Hub was killed while its request for a pod was on its way, and the pod appeared when
the restarted Hub had seen that there is none. A stop failed because the API server was away; JupyterHub then forgets
the server all the same. The Hub's database was restored from a backup that is older than the pod.

Ended is a pod, with its grace period, that

1. is one of those that the watch follows and names its person as KubeSpawner's pods do,
2. was told to report to this Hub: the pods of another Hub in the same namespace have another address in
   JUPYTERHUB_API_URL,
3. is not ending already, and not kept for somebody to look at (``delete_stopped_pods`` off),
4. is the pod of no server that runs, starts, stops or is being looked after; JupyterHub has all of those in memory
   before it looks at the first,
5. has been all this for ``orphan_seconds`` without a break, counted by this process: whoever starts a Hub with the
   wrong database finds the warning in its log before any pod is ended.

The next start of the same server does not wait for any of this: it ends the pod of its name itself.

Refused: a label with an id of the Hub. It would change every manifest of a Hub without templates, and the address that
is in the pod already says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from traitlets import Integer
from traitlets.config import Configurable

from dlspawner.spawner import phrases, verdict
from dlspawner.spawner.pods import variable
from dlspawner.spawner.refusal import Refused

PodDict = Mapping[str, Any]

PERSON = "hub.jupyter.org/username"
ADDRESS = "JUPYTERHUB_API_URL"
_LONGEST_PAUSE = 60.0

# Namespace (or all of them) -> the task that looks after its pods, as KubeSpawner keeps its reflectors.
_tasks: dict[Any, asyncio.Task[None]] = {}


class OrphanTraits(Configurable):
    """The part of the spawner's configuration that is about pods without a server."""

    orphan_seconds = Integer(
        900,
        min=0,
        config=True,
        help="""
        Seconds after which a pod of this Hub that belongs to no server in its database is ended, with its grace period:
        it holds GPUs, and nobody can reach or stop it. They are counted from the moment at which this Hub process first
        saw it so, with a warning in the log. The default, a quarter of an hour, is time to notice that a Hub was
        started with the wrong database. 0 means never.
        """,
    )


@dataclass(slots=True)
class Orphans:
    """What one process knows of them; ``since``: uid -> when it was first seen without a server."""

    seconds: float
    since: dict[str, float] = field(default_factory=dict)

    def due(self, found: Mapping[str, PodDict], now: float) -> tuple[list[str], list[str]]:
        """Of the pods without a server, by key: those seen for the first time, and those whose time is over."""
        uids = {key: str(pod["metadata"]["uid"]) for key, pod in found.items()}
        new = [key for key, uid in uids.items() if uid not in self.since]
        self.since = {uid: self.since.get(uid, now) for uid in uids.values()}
        return new, [key for key, uid in uids.items() if now - self.since[uid] >= self.seconds]


def owned(users: Mapping[Any, Any]) -> set[str]:
    """Namespace/name of the pods that the Hub's servers have, or may be about to have."""
    spawners = [spawner for user in users.values() for spawner in user.spawners.values()]
    return {spawner.pod_key for spawner in spawners if spawner.server is not None or spawner.pending}


def without_server(pods: Mapping[str, PodDict], known: set[str], address: str, *, keep_ended: bool) -> Iterator[str]:
    """Keys of the pods that rules 1 to 4 are true of."""
    for key in pods:
        if key not in known:
            pod = pods[key]
            ended = isinstance(verdict.judge(pod), verdict.Ended)
            if (
                PERSON in (pod["metadata"].get("annotations") or {})
                and variable(pod, ADDRESS) == address
                and not pod["metadata"].get("deletionTimestamp")
                and not (ended and keep_ended)
            ):
                yield key


def look_after(spawner: Any, key: Any) -> None:
    """See to it that the pods which this spawner's watch follows are looked after, once per watch."""
    users = (getattr(spawner.user, "settings", None) or {}).get("users")
    if users is None or not spawner.orphan_seconds:
        return
    task = _tasks.get(key)
    if task is None or task.done():
        _tasks[key] = asyncio.create_task(_look_after(spawner, users), name=f"orphans of {key}")


async def _look_after(spawner: Any, users: Mapping[Any, Any]) -> None:
    orphans = Orphans(spawner.orphan_seconds)
    while True:
        await asyncio.sleep(min(_LONGEST_PAUSE, orphans.seconds / 4))
        try:
            await _look(spawner, users, orphans)
        except Exception:
            spawner.log.exception("pods without a server cannot be looked for, trying again")


async def _look(spawner: Any, users: Mapping[Any, Any], orphans: Orphans) -> None:
    pods = spawner.pod_reflector.pods
    address = str(spawner.get_env()[ADDRESS])
    keys = list(without_server(pods, owned(users), address, keep_ended=not spawner.delete_stopped_pods))
    new, due = orphans.due({key: pods[key] for key in keys}, asyncio.get_running_loop().time())
    for key in new:
        span = phrases.duration(orphans.seconds)
        spawner.log.warning("pod=%s belongs to no server of this Hub and is ended after %s", key, span)
    for key in due:
        namespace, _, name = key.partition("/")
        requests, pod = replace(spawner.pods, namespace=namespace, name=name), pods.get(key)
        with suppress(Refused):  # the log has it, and the next look tries again
            if pod is not None:
                await requests.delete(pod, requests.grace(pod))
                spawner.log.warning("pod=%s belonged to no server of this Hub and was asked to end", key)
