"""The Hub's side of a start's conversation with the Manager: deadlines, sentences for users, and the admission request.

A start without the Manager's answer ends in ``StartRefused``: deny by default. Running jobs are not affected.

The admission request contains the pod's resources, never its environment. User, team, priority and preemptibility are
read from the pod's own labels, because the Manager will count by them when it sees the pod; a hook that changes them is
refused. The start's nonce, bound to the pod's name, is part of the request: the Manager accepts a pod as this job's
only with both.

The node that the job was admitted for becomes a preference of its pod: the scheduler knows only that one pod, would
spread what the Manager has packed, and has the last word. Refused: `nodeName` and a required node, which would keep a
pod from running where there is room as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dlspawner.clients.manager import (
    ADMISSION_SECONDS,
    SECONDS,
    Admission,
    ManagerClient,
    ManagerRejected,
    ManagerUnavailable,
    PendingJobStatus,
)
from dlspawner.core import naming
from dlspawner.core.launch import pod_set
from dlspawner.core.launch.security import permission_uses
from dlspawner.core.link import derive_hub_token
from dlspawner.core.resources import strip_manifest
from dlspawner.core.template import Template
from dlspawner.core.unix_account import UidRange, UnixIds
from dlspawner.spawner.kube.errors import StartRefused

STOP_SECONDS = 3.0  # for which a stopped start waits until the Manager has heard of it
_REPORTS: dict[tuple[str, str, str], asyncio.Task[None]] = {}  # of interrupted starts, by user, server and job
T = TypeVar("T")

UNDECIDED = (
    "The part of this Hub that decides about GPUs does not answer, so no job can be started now. Running jobs go on. "
    "Try again soon."
)
NO_FILES = (
    "This Hub shares out GPUs, and the part of it that decides was not told how, so no job can be started. "
    "Ask an administrator."
)
KEPT_BY_MANAGER = (
    "A renamed person would lose the home directory to the next person of the old name: without a Manager, which keeps "
    "the two together, remove the person and add the new one."
)
SILENT = "The part of this Hub that keeps accounts does not answer. Running jobs go on. Try again soon."
TAKEN = "Your name was another person's before, and the files of that name are theirs. Ask an administrator."
BROKEN = "The Hub cannot tell your account in jobs. Ask an administrator."
FULL = "There is no account number left for you. Ask an administrator."
CHANGED = "The job's labels were changed by a hook of this Hub, so it cannot be counted. Ask an administrator."


def good_files(url: str, service_token: str, log: logging.Logger) -> Mapping[str, str]:
    """Returns the texts of the administrators' files in their last good version; none if it is unknown.

    In a thread: the Hub reads its configuration in its event loop.
    """
    client = ManagerClient(url, derive_hub_token(service_token), log, repeats=False)
    with ThreadPoolExecutor(1) as aside:
        try:
            return aside.submit(asyncio.run, client.good_files()).result()
        except (ManagerUnavailable, ManagerRejected) as no:
            log.error("the last good version of the files, which the Manager has, is unknown: %s", no)  # noqa: TRY400
            return {}


@dataclass(frozen=True, slots=True)
class ManagerLink:
    """The Manager at ``url``, asked as the Hub, with refusals for users."""

    url: str
    service_token: str = field(repr=False)
    log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    seconds: float = SECONDS
    until: float | None = None  # on the event loop's clock: the deadline of the start

    @property
    def _client(self) -> ManagerClient:
        return ManagerClient(self.url, derive_hub_token(self.service_token), self.log, self.seconds, self.until)

    async def account(self, user: str) -> str:
        """The name whose uid and home directory this user has."""
        return await self._about(user, self._client.account(user))

    async def unix_account(self, user: str, uids: UidRange) -> tuple[str, UnixIds]:
        """The account that this user has for ever: its name, uid and gid."""
        return await self._about(user, self._client.unix_account(user, uids))

    async def rename(self, user: str, new: str) -> None:
        """The user's account, keys and history belong to the ``new`` name from now on."""
        await self._about(user, self._client.rename(user, new))

    async def remove(self, user: str) -> None:
        """The user is about to be removed: another person of that name gets none of the keys."""
        await self._about(user, self._client.remove(user))

    async def _about(self, user: str, answer: Awaitable[T]) -> T:
        try:
            return await self._answered(answer, SILENT)
        except ManagerRejected as no:
            raise self._no_account(user, no) from None

    async def prepare_start(self, user: str, server: str, uids: UidRange) -> tuple[str | None, str, UnixIds]:
        """Returns the id of the pending job of this server, which this start then continues, the user's account, and
        its ids.
        """
        await self._until_heard(user, server)
        try:
            return await self._answered(self._client.prepare_start(user, server, uids), UNDECIDED)
        except ManagerRejected as no:
            if no.status == 501:
                raise self._undecided(no, f"user={user} the Manager answered {no.status} to a start") from None
            raise self._no_account(user, no) from None

    async def pending_job(self, user: str, server: str) -> str | None:
        """The id of the job that waits for this server: a start of it is that job's."""
        await self._until_heard(user, server)
        try:
            return await self._answered(self._client.pending_job(user, server), UNDECIDED)
        except ManagerRejected as no:
            raise self._undecided(no, f"user={user} the Manager answered {no.status} to what waits") from None

    async def queue_status(self, user: str) -> Mapping[str, PendingJobStatus] | None:
        """Returns the queue status of this user's jobs by server; ``None`` without an answer in time."""
        return await self._or_none(self._client.queue_status(user))

    async def usual_start(self, template: str) -> float | None:
        """Returns the usual seconds of a start of this template; ``None`` without an answer in time."""
        return await self._or_none(self._client.usual_start(template))

    async def free_gpus(self) -> Mapping[str, tuple[float, float]]:
        """Returns the free GPUs of each type, in all and on one node; empty without an answer in time."""
        return await self._or_none(self._client.free_gpus()) or {}

    async def admission(
        self, job: str, question: Mapping[str, object], waits: Callable[[Sequence[str], str], StartRefused]
    ) -> Admission:
        """Returns the admission of this job; StartRefused if it waits or is refused.

        ``waits`` makes the exception of a job that is in the queue now, of sentences and a reason.
        """
        try:
            found = await self._answered(self._client.admission(job, question), UNDECIDED)
        except ManagerRejected as no:
            raise self._undecided(no, f"job={job} the Manager answered {no.status} to the admission") from None
        if found.decision == "admit":
            return found
        self.log.info("job=%s is not admitted: decision=%s reason=%s", job, found.decision, found.reason)
        if found.decision == "wait":
            raise waits(found.sentences, found.reason)
        raise StartRefused(*found.sentences, reason=found.reason, status=403)

    async def release_reservation(self, job: str, user: str, *, temporary: bool, why: str) -> None:
        """Reports that no pod of this job will be created, with ``why`` for its user.

        ``temporary``: a later start may succeed. Never fails: a reservation that is not released expires.
        """
        await self._or_none(self._client.release_reservation(job, user, temporary=temporary, why=why))

    async def leave_in_cluster(self, job: str, user: str) -> str | None:
        """Lets the pods of this job wait in the cluster; returns why they wait, or None if it is too early."""
        return await self._or_none(self._client.leave_in_cluster(job, user))

    async def job_ended(self, job: str, user: str, why: str) -> None:
        """Reports that the pod of this job is about to be deleted, with ``why`` for its user. Never fails."""
        await self._or_none(self._client.job_ended(job, user, why))

    async def start_interrupted(
        self, user: str, server: str, job: str | None, heard: Callable[[], None] = lambda: None
    ) -> None:
        """Reports that the Hub stops this server, or its start, as this ``job`` if it was known by then.

        Never fails, and returns after a moment: a Manager that is away is told when it is back, as long as this Hub
        lives, and ``heard`` is called then. It would start again what was stopped. For a user who is removed with many
        servers one moment is waited, and not one for each: a Manager that did not hear of the first server is away.
        """
        key = (user, server, job or "")
        waited = any(other != key and other[0] == user for other in _REPORTS)
        if key not in _REPORTS:
            _REPORTS[key] = asyncio.create_task(self._report(*key, heard), name=f"stop of {user}/{server}")
            _REPORTS[key].add_done_callback(lambda _: _REPORTS.pop(key))
        await asyncio.wait({_REPORTS[key]}, timeout=0 if waited else STOP_SECONDS)

    async def _report(self, user: str, server: str, job: str, heard: Callable[[], None]) -> None:
        await replace(self, until=None)._client.start_interrupted(user, server, job)
        heard()

    async def _until_heard(self, user: str, server: str) -> None:
        """Waits until every earlier stop of this server is reported: this start must not count as the stopped job."""
        reports = [task for (*where, _), task in _REPORTS.items() if where == [user, server]]
        if reports and (await asyncio.wait(reports, timeout=self._client.seconds_left(ADMISSION_SECONDS)))[1]:
            raise self._refused(UNDECIDED, f"user={user} server={server!r} its last stop is still to be told")

    async def stop_reason(self, job: str) -> str | None:
        """The sentence on why the Manager has this job stopped; ``None`` when it has not, or does not answer."""
        return await self._or_none(self._client.stop_reason(job))

    async def log_kept(self, job: str, pod: str) -> bool:
        """True once the logs of what has ended of this pod (its uid) are kept; ``False`` after some seconds."""
        return bool(await self._or_none(self._client.log_kept(job, pod)))

    async def _answered(self, answer: Awaitable[T], silent: str) -> T:
        """The answer; refused with the sentence ``silent`` without one."""
        try:
            return await answer
        except ManagerUnavailable as problem:
            raise self._refused(silent, str(problem)) from None

    async def _or_none(self, answer: Awaitable[T]) -> T | None:
        """The answer, or ``None`` without a usable one."""
        try:
            return await self._answered(answer, SILENT)
        except (ManagerRejected, StartRefused):
            return None

    def _no_account(self, user: str, no: ManagerRejected) -> StartRefused:
        if no.status == 409 and no.answer:
            return StartRefused(str(no.answer.get("detail")), reason="account", status=409)
        if no.status == 423:
            return self._refused(TAKEN, f"user={user} has a renamed person's first name: rename to another and back")
        if no.status == 507:
            return self._refused(FULL, f"user={user} every uid of accounts: in the cluster file is taken")
        return self._refused(BROKEN, f"user={user} the Manager answered {no.status} to the account")

    def _undecided(self, no: ManagerRejected, line: str) -> StartRefused:
        if no.status == 501:
            return self._refused(NO_FILES, f"{line}: it has no cluster_file, teams_file and templates_dir")
        said = (no.answer or {}).get("detail")
        if 400 <= no.status < 500:
            why = said or f"it answered {no.status}."
            return self._refused(f"The Manager refused this start: {why} Ask an administrator.", f"{line}: {said}")
        return self._refused(UNDECIDED, line)

    def _refused(self, sentence: str, line: str) -> StartRefused:
        self.log.error("manager=%s %s", self.url, line)
        return StartRefused(sentence, reason="manager", status=429 if sentence in {SILENT, UNDECIDED} else 403)


def admission_request(
    manifest: dict[str, Any],
    job: naming.PodIdentity,
    namespace: str,
    request_seconds: float,
    template: Template | None = None,
) -> Mapping[str, object]:
    """Returns the admission request of the job that was launched as ``job``, whose pod would be in ``namespace``.

    For a template that asks for special permissions it contains the permissions to approve.
    """
    told = naming.read_job(manifest["metadata"])
    if told is None or _counted(told) != _counted(job):
        raise StartRefused(CHANGED, reason="labels", status=403)
    return {
        "user": told.user,
        "server": told.server,
        "team": told.team,
        "template": told.template,
        "preemptible": told.preemptible,
        "priority": told.priority,
        "requeue": told.requeue,
        "nonce": naming.sign(told.nonce, f"{namespace}/{manifest['metadata']['name']}"),
        "request_milliseconds": int(1000 * request_seconds),
        "namespace": namespace,
        "pods": [strip_manifest(pod) for pod in pod_set.at_start(manifest)],
        **(_to_approve(manifest, template) if template is not None and template.special else {}),
    }


def on_nodes(manifest: dict[str, Any], nodes: tuple[str | None, ...]) -> dict[str, Any]:
    """The first pod's manifest with the nodes that its job was admitted for; it tells them to the further ones."""
    pods = pod_set.read_pod_set(manifest["metadata"])
    if pods is not None:
        annotations = {naming.PODS_ANNOTATION: pods.on_nodes(nodes).annotation()}
        metadata = manifest["metadata"]
        manifest = {**manifest, "metadata": {**metadata, "annotations": {**metadata["annotations"], **annotations}}}
    return pod_set.with_preferred_node(manifest, next(iter(nodes), None))


def _to_approve(manifest: dict[str, Any], template: Template) -> dict[str, object]:
    """Returns the permissions that the manifest uses, else those of the template, and the image that gets them."""
    used = {use.special for use in permission_uses(manifest)}
    work = next(one for one in manifest["spec"]["containers"] if one["name"] == template.work_container)
    return {"special": sorted(one.value for one in used or template.special), "image": str(work.get("image", ""))}


def _counted(job: naming.PodIdentity) -> tuple[object, ...]:
    """Returns the fields that decide which team is charged; the manifest has the number of GPUs."""
    who = (job.id, job.nonce, job.user, job.server, job.team, job.template)
    return *who, job.preemptible, job.priority, job.requeue
