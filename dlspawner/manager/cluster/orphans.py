"""Pods with a job's label that no reservation covers: charged until they are gone, and deleted.

The Hub deletes the pods of servers that it does not know (``DLSpawner.orphan_seconds``): it compares the pods with its
servers in memory, from the first spawn or poll on. The Manager deletes only what the Hub cannot recognise: a pod that
holds GPUs without an admission. Exactly the pod that was observed is deleted, with its own grace period.

Refused: to delete here also the pods of servers that the Hub does not list. The pods of a Hub without its database stay
charged, and are deleted by that Hub after its first spawn; a Hub that never comes back leaves no Manager either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dlspawner.clients.hub import HubClient, HubError, has_scope
from dlspawner.clients.kubernetes import (
    PODS,
    Conflict,
    KubernetesClient,
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
)
from dlspawner.core.job import JobState
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.manager.state.job_store import JobStore, withdraw
from dlspawner.manager.state.notify import post_to_admins

NEEDED = ("delete:servers", "list:users", "read:servers", "read:users:name", "servers")  # as the Hub expands them
_SCOPES_EVERY_SECONDS = 60.0
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class UnmanagedPods:
    """Deletes them; ``went`` is called with the uid of a pod that turns out to be gone."""

    book: JobStore
    cluster: KubernetesClient
    namespaces: JobNamespaces
    went: Callable[[str], Awaitable[None]]

    async def run(self) -> None:
        """Never ends by itself."""
        while True:
            for record in tuple(self.book.records.values()):
                if record.job.id.startswith(EXTERNAL_POD_PREFIX) and record.job.state is not JobState.STOPPING:
                    await retry_later(f"deletion of pod={record.pod_name}", self._delete(record))
            await asyncio.sleep(1)

    async def _delete(self, record: JobRecord) -> None:
        for pod in record.seen:
            log.warning("job=%s pod=%s is deleted: nothing is reserved for it", record.job.id, pod.name)
            try:
                await self.cluster.delete(PODS, pod.name, self.namespaces.from_key(pod.namespace), uid=pod.uid)
            except ObjectNotFound:
                await self.went(pod.uid)
            except Conflict:
                continue  # another pod has this name: the watch reports it


async def watch_scopes(book: JobStore, hub: HubClient) -> None:
    """Notifies administrators while the Manager's token lacks a scope that it needs; never ends by itself."""
    while True:
        await retry_later("a check of the Manager's scopes", check_scopes(book, hub))
        await asyncio.sleep(_SCOPES_EVERY_SECONDS)


async def check_scopes(book: JobStore, hub: HubClient) -> None:
    """Posts the notice of missing scopes, or withdraws it."""
    try:
        scopes = await hub.scopes()
    except HubError as problem:
        log.warning("the scopes of the Manager's token are not known: %s", problem)
        return
    lacks = [one for one in NEEDED if not has_scope(scopes, one)]
    if lacks:
        text = (
            f"The Manager may not see and stop everybody's servers: its token lacks {', '.join(lacks)}. "
            "Give its service the role “jobs” as hub_config/jupyterhub_config.py has it."
        )
        await book.transact(lambda turn: post_to_admins(turn, NoticeKind.HUB_FORBIDS, text, cause=text))
    elif book.notices.pending(("", NoticeKind.HUB_FORBIDS)):
        await book.transact(lambda turn: withdraw(turn, "", NoticeKind.HUB_FORBIDS))


async def retry_later(what: str, work: Any) -> None:
    """Awaits ``work``; a failure of a service is logged, and the next round tries again."""
    try:
        await work
    except (KubernetesError, DatabaseUnavailable) as problem:
        level = logging.WARNING if isinstance(problem, KubernetesUnavailable) else logging.ERROR
        log.log(level, "%s has to wait: %s", what, problem)
