"""Pods with a job's label that no reservation covers: charged until they are gone, and deleted.

The Hub deletes the pods of servers that it does not know (``DLSpawner.orphan_seconds``): it compares the pods with its
servers in memory, from the first spawn or poll on. The Manager deletes only what the Hub cannot recognise: a pod that
holds GPUs without an admission. Exactly the pod that was observed is deleted, with its own grace period.

Refused: to delete here also the pods of servers that the Hub does not list. The pods of a Hub without its database stay
charged, and are deleted by that Hub after its first spawn; a Hub that never comes back leaves no Manager either.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dlspawner.clients.hub import HubClient, HubError, has_scope
from dlspawner.clients.kubernetes import PODS, Conflict, KubernetesClient, ObjectNotFound
from dlspawner.core.job import JobState
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX
from dlspawner.manager.state.job_store import JobStore, withdraw
from dlspawner.manager.state.notify import post_to_admins

NEEDED = ("delete:servers", "list:users", "read:servers", "read:users:name", "servers")  # as the Hub expands them
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class UnmanagedPods:
    """A controller that deletes them; ``went`` is called with the uid of a pod that turns out to be gone."""

    store: JobStore
    cluster: KubernetesClient
    namespaces: JobNamespaces
    went: Callable[[str], Awaitable[None]]

    def due(self) -> list[str]:
        return [
            job
            for job, record in self.store.records.items()
            if job.startswith(EXTERNAL_POD_PREFIX) and record.job.state is not JobState.STOPPING
        ]

    async def reconcile(self, job: str) -> None:
        record = self.store.records.get(job)
        for pod in record.seen if record is not None else ():
            log.warning("job=%s pod=%s is deleted: nothing is reserved for it", job, pod.name)
            try:
                await self.cluster.delete(PODS, pod.name, self.namespaces.from_key(pod.namespace), uid=pod.uid)
            except ObjectNotFound:
                await self.went(pod.uid)
            except Conflict:
                continue  # another pod has this name: the watch reports it


async def check_scopes(store: JobStore, hub: HubClient) -> None:
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
        await store.transact(lambda transaction: post_to_admins(transaction, NoticeKind.HUB_FORBIDS, text, cause=text))
    elif store.notices.pending(("", NoticeKind.HUB_FORBIDS)):
        await store.transact(lambda transaction: withdraw(transaction, "", NoticeKind.HUB_FORBIDS))
