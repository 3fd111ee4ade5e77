"""Pods whose server the Hub does not have: nobody can reach or stop them, and they hold somebody's quota.

The Hub itself ends such pods (`DLSpawner.orphan_seconds`) by what it has in memory, as soon as it watches pods, which a
Hub that has no server at all does not. So the Manager looks as well where there are limits. To stop a job that somebody
works with is the worst that this program can do: what is stopped here has missed every one of these, for
``orphan_seconds`` without a break.

* The Hub's list of everybody's servers does not have it, at every look; in the end neither has its answer about this
  person. A look that fails begins the time anew.
* The Hub leaves out what a token may not see, and does not say so. It says that ours may see everything (`scopes`).
* The job itself tells nothing of its kernels, which the Hub would let it do only with the token of a server that it
  has, and the gateway nothing of SSH.

Without one of the scopes that the Manager needs nobody is stopped here, and administrators are told.

Pods that must not be: those that nothing covers, and those that `owners` has found.

They are charged until they are gone. Exactly the pod that was seen is deleted, with its own grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
from dlspawner.manager.model.activity import ActivityRecord
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.manager.state.job_store import JobStore, withdraw
from dlspawner.manager.state.notify import post_to_admins

NEEDED = ("delete:servers", "list:users", "read:servers", "read:users:name", "servers")  # as the Hub expands them
log = logging.getLogger("dlspawner.manager")


def still_alone(
    since: Mapping[str, datetime], missed: Mapping[str, datetime | None], now: datetime
) -> dict[str, datetime]:
    """Since when each of the jobs that are ``missed`` now is without a server or a sign, which is told with it."""
    known = {job: since.get(job, now) for job in missed}
    return {job: now if (sign := missed[job]) is not None and sign > at else at for job, at in known.items()}


@dataclass(slots=True)
class OrphanReaper:
    """The looks of one acting Manager; `run` never ends by itself. ``facts`` are what is known of a job's use."""

    book: JobStore
    hub: HubClient
    strays: UnmanagedPods
    facts: Callable[[str], ActivityRecord]
    now: Callable[[], datetime]
    look_seconds: float
    orphan_seconds: float
    _since: dict[str, datetime] = field(default_factory=dict)

    async def run(self) -> None:
        await retry_later("a look at what the Hub allows", self._allowed())
        while True:
            await asyncio.sleep(self.look_seconds)
            await retry_later("a look for owners", self.reap())

    async def reap(self) -> None:
        before, self._since = self._since, {}
        world = self.book.cluster_state
        missed: list[JobRecord] = []
        if await self._allowed() and self.orphan_seconds and world.teams.has_limits(world.cluster):
            missed = await self._missed()
        now = self.now()
        since = still_alone(before, {one.job.id: self._sign(one.job.id, now) for one in missed}, now)
        for record in missed:
            job = record.job
            if job.id not in before:
                line = "job=%s pod=%s user=%s server=%s the Hub has no such server; it is stopped after %d s"
                log.warning(line, job.id, record.pod_name, job.user, job.server, self.orphan_seconds)
            elif now - since[job.id] >= timedelta(seconds=self.orphan_seconds):
                await retry_later(f"stop of pod={record.pod_name}", self._stop(record))
        self._since = since

    async def _stop(self, record: JobRecord) -> None:
        if not await self.strays.has_owner(record.job.user, record.job.server):
            await self.strays.stop(record, "the Hub has no such server")

    async def _missed(self) -> list[JobRecord]:
        """The jobs with a pod that the Hub does not list; none when it cannot tell."""
        try:
            users = await self.hub.active_users()
            listed = {(user.name, name) for user in users for name in user.servers}
        except HubError as problem:
            log.warning("owners of jobs are not looked for: %s", problem)
            return []
        return [one for one in self._running() if (one.job.user, one.job.server) not in listed]

    def _running(self) -> Iterable[JobRecord]:
        for record in tuple(self.book.records.values()):
            leaves = record.job.state is JobState.STOPPING  # if it was we who decided that, `stopping` looks after it
            if record.pod_uid and not leaves and not record.job.id.startswith(EXTERNAL_POD_PREFIX):
                yield record

    def _sign(self, job: str, now: datetime) -> datetime | None:
        """When somebody last told that the job is there."""
        facts = self.facts(job)
        times = (facts.kernel_report, facts.ssh, now if facts.ssh_open else None)
        return max((at for at in times if at is not None), default=None)

    async def _allowed(self) -> bool:
        """Whether our token may do all that it needs; administrators are told what it may not."""
        try:
            scopes = await self.hub.scopes()
        except HubError as problem:
            log.warning("what the Hub allows is not known: %s", problem)
            return False
        lacks = [one for one in NEEDED if not has_scope(scopes, one)]
        if lacks:
            text = (
                f"The Manager may not see and stop everybody's servers: its token lacks {', '.join(lacks)}. "
                "Give its service the role “jobs” as hub_config/jupyterhub_config.py has it."
            )
            await self.book.transact(lambda turn: post_to_admins(turn, NoticeKind.HUB_FORBIDS, text, cause=text))
        elif self.book.notices.pending(("", NoticeKind.HUB_FORBIDS)):
            await self.book.transact(lambda turn: withdraw(turn, "", NoticeKind.HUB_FORBIDS))
        return not lacks


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
