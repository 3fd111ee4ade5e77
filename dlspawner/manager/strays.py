"""Pods that must not be: those that nothing covers, and those that `owners` has found.

They are charged until they are gone. Exactly the pod that was seen is deleted, with its own grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dlspawner.cluster import PODS, Cluster, ClusterError, Conflict, NotFound, Unavailable
from dlspawner.core.jobs import State
from dlspawner.hubapi import HubApi, HubError
from dlspawner.manager.book import Book
from dlspawner.manager.namespaces import Namespaces
from dlspawner.manager.records import OF_POD, Record
from dlspawner.manager.store import StoreUnavailable

log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Strays:
    """Stops them; ``went`` is told of a pod that turned out to be gone."""

    book: Book
    cluster: Cluster
    hub: HubApi
    namespaces: Namespaces
    went: Callable[[str], Awaitable[None]]

    async def stop_uncovered(self) -> None:
        while True:
            for record in tuple(self.book.records.values()):
                if record.job.id.startswith(OF_POD) and record.job.state is not State.STOPPING:
                    await trying(f"stop of pod={record.pod_name}", self.stop(record, "uncovered"))
            await asyncio.sleep(1)

    async def stop(self, record: Record, why: str) -> None:
        """Delete exactly this pod; it is charged until it is gone."""
        log.warning("job=%s pod=%s is stopped: %s", record.job.id, record.pod_name, why)
        for pod in record.seen:
            try:
                await self.cluster.delete(PODS, pod.name, self.namespaces.full(pod.namespace), uid=pod.uid)
            except NotFound:
                await self.went(pod.uid)
            except Conflict:
                continue  # a namesake: the watch tells

    async def has_owner(self, name: str, server: str) -> bool:
        """Whether the Hub has this server; where it cannot tell, it has."""
        try:
            user = await self.hub.user(name)
        except HubError:
            return True
        found = user.servers.get(server) if user is not None else None
        return found is not None and not found.stopped


async def trying(what: str, work: Any) -> None:
    """What fails because something is away is tried again at the next round."""
    try:
        await work
    except (ClusterError, StoreUnavailable) as problem:
        level = logging.WARNING if isinstance(problem, Unavailable) else logging.ERROR
        log.log(level, "%s has to wait: %s", what, problem)
