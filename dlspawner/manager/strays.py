"""Pods that must not be: those that nothing covers, and those that `owners` has found.

They are charged until they are gone. Exactly the pod that was seen is deleted, with its own grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dlspawner.cluster import PODS, Conflict, KubernetesClient, KubernetesError, KubernetesUnavailable, ObjectNotFound
from dlspawner.core.jobs import JobState
from dlspawner.hubapi import HubClient, HubError
from dlspawner.manager.book import JobStore
from dlspawner.manager.namespaces import JobNamespaces
from dlspawner.manager.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.manager.store import DatabaseUnavailable

log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class UnmanagedPods:
    """Stops them; ``went`` is told of a pod that turned out to be gone."""

    book: JobStore
    cluster: KubernetesClient
    hub: HubClient
    namespaces: JobNamespaces
    went: Callable[[str], Awaitable[None]]

    async def stop_uncovered(self) -> None:
        while True:
            for record in tuple(self.book.records.values()):
                if record.job.id.startswith(EXTERNAL_POD_PREFIX) and record.job.state is not JobState.STOPPING:
                    await retry_later(f"stop of pod={record.pod_name}", self.stop(record, "uncovered"))
            await asyncio.sleep(1)

    async def stop(self, record: JobRecord, why: str) -> None:
        """Delete exactly this pod; it is charged until it is gone."""
        log.warning("job=%s pod=%s is stopped: %s", record.job.id, record.pod_name, why)
        for pod in record.seen:
            try:
                await self.cluster.delete(PODS, pod.name, self.namespaces.from_key(pod.namespace), uid=pod.uid)
            except ObjectNotFound:
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


async def retry_later(what: str, work: Any) -> None:
    """What fails because something is away is tried again at the next round."""
    try:
        await work
    except (KubernetesError, DatabaseUnavailable) as problem:
        level = logging.WARNING if isinstance(problem, KubernetesUnavailable) else logging.ERROR
        log.log(level, "%s has to wait: %s", what, problem)
