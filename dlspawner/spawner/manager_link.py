"""What a spawner and the Manager tell each other outside a start: what waits, why a job was stopped, and by whom.

A stop of which the Manager has not heard is kept in the Hub's database with the server's state, from the moment at
which it is asked for: this Hub may be killed before the Manager is back. The next start of the server tells it first,
whoever asks for it. If it was no person, it was for what was stopped, and is refused.

The question to the Manager, may the job of this final manifest start, and what its answer adds to that. Pure.

What is told of the pod is what it costs, never its environment. Who, for which team, how urgent, and whether on idle
GPUs, is what the pod's own labels say, because that is what will be counted when it is seen; a hook that changes them
is refused. The start's nonce goes with it, bound to the pod's name: the Manager believes no pod to be this job's that
does not have both.

The node that the job was admitted for becomes a preference of its pod: the scheduler knows only that one pod, would
spread what the Manager has packed, and has the last word. Refused: `nodeName` and a required node, which would keep a
pod from running where there is room as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyterhub import orm

from dlspawner.core import naming
from dlspawner.core.resources import strip_manifest
from dlspawner.core.template import Template
from dlspawner.settings import reload
from dlspawner.spawner import pages
from dlspawner.spawner.kube import pod_status
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_status import PodDict
from dlspawner.spawner.lifecycle import CancellableSpawner
from dlspawner.spawner.manager_client import ManagerClient, PendingJobStatus
from dlspawner.spawner.pod_builder import asked_for

if TYPE_CHECKING:
    from dlspawner import settings
    from dlspawner.spawner.pod_builder import LaunchPlan

STATE_UNTOLD = "dlspawner_untold"  # the job, "" for one that was not known yet


class ManagedSpawner(CancellableSpawner):
    """A spawner with a Manager beside it, where one is set up."""

    manager_url: str
    manager_token: str
    templates_dir: str
    cluster_file: str
    teams_file: str
    special_namespace: str
    _launch: LaunchPlan | None = None
    _job_id: str | None = None  # of the job whose start is saved
    _keeping: tuple[str, asyncio.Task[None]] | None = None  # whether the log of the pod with this uid is kept

    if TYPE_CHECKING:

        @property
        def offers_jobs(self) -> bool: ...
        def job(self) -> naming.PodIdentity | None: ...

    @property
    def _files(self) -> reload.CurrentConfig:
        return reload.current_config(self.templates_dir, self.cluster_file, self.teams_file)

    @property
    def settings(self) -> settings.Settings:
        """What administrators wrote, as it is now."""
        return self._files.now()

    @property
    def _manager(self) -> ManagerClient:
        return ManagerClient(self.manager_url, self.manager_token, self.log, until=self._deadline())

    @property
    def _has_manager(self) -> bool:
        """True if a Manager may stop jobs, without any limits as well, and gives the reason."""
        return bool(self.offers_jobs and self.manager_url and self.manager_token)

    @property
    def _has_quota(self) -> bool:
        """True if a Manager counts what jobs hold."""
        return self._has_manager and self._files.limited()

    @property
    def _may_wait(self) -> bool:
        """True if any job could wait: in the queue, or for an approval."""
        return self._has_quota or bool(self._has_manager and self.special_namespace)

    async def queue_status(self) -> Mapping[str, PendingJobStatus] | None:
        """Returns the queue status of this user's jobs by server; ``None`` without an answer in time."""
        return await self._manager.queue_status(self.user.name) if self._may_wait else {}

    async def queued(self) -> pages.QueuedView:
        """What is known of this server's place in the queue, for the Hub's pages about a server that does not run."""
        return pages.queued(self, await self.queue_status())

    async def stop(self, now: bool = False) -> None:
        await self._learn_why()
        await super().stop(now)

    async def _interrupted(self) -> None:
        """Its job is cancelled, or its start would be asked for again; whatever keeps the Manager from hearing it."""
        if self._may_wait:
            known = self._launch is not None and self._launch.job.id == self._job_id  # else it is a drawn one
            self._note_untold((self._job_id if known else None) or "")
            await self._report_stop()

    def get_state(self) -> dict[str, Any]:
        """Also of a stop that is untold, which only the database knows: several spawners may share this server's."""
        untold = {} if self._unreported_stop is None else {STATE_UNTOLD: self._unreported_stop}
        return {**super().get_state(), **untold}

    @property
    def _unreported_stop(self) -> str | None:
        """The job of a stop that the Manager may not have heard of."""
        kept = (self.orm_spawner.state or {}).get(STATE_UNTOLD) if self.orm_spawner is not None else None
        return kept if isinstance(kept, str) else None

    def _note_untold(self, job: str | None) -> None:
        session = self._hub_session
        if session is None:
            return  # the server was removed meanwhile
        kept = {name: value for name, value in (self.orm_spawner.state or {}).items() if name != STATE_UNTOLD}
        self.orm_spawner.state = kept if job is None else {**kept, STATE_UNTOLD: job}
        session.commit()

    async def _report_stop(self) -> None:
        """The Manager hears of the last stop, at once or when it is back."""
        manager = replace(self._manager, until=None)
        heard = partial(self._note_untold, None)
        await manager.start_interrupted(self.user.name, self.name or "", self._unreported_stop, heard)

    @property
    def _is_asked_by_service(self) -> bool:
        """Whether it is no person who asks for this start: the Manager, whose job has its turn, is a service."""
        return isinstance(getattr(self.handler, "current_user", None), orm.Service)

    async def delete_forever(self) -> None:
        """The server or its person is removed: what waits for it would make it again when its turn comes."""
        if self._may_wait:
            await replace(self._manager, until=None).start_interrupted(self.user.name, self.name or "", None)
        await super().delete_forever()

    async def _why_ended(self, pod: PodDict | None, judged: pod_status.Terminated) -> str:
        """What looks as if somebody had removed it may be a stop of the Manager's that a killed Hub had begun."""
        reason = await super()._why_ended(pod, judged)
        if reason != pod_status.REMOVED or self._job_id is None or not self._has_manager:
            return reason
        return await self._manager.stop_reason(self._job_id) or reason

    async def _before_deletion(self, pod: PodDict) -> None:
        """What a job has printed that ended by itself is gone with its pod, and may be all that tells why."""
        job = naming.read_job(pod["metadata"]) if self._has_manager else None
        if job is None or not pod_status.has_printed(pod):
            return
        which = str(pod["metadata"]["uid"])
        if self._keeping is None or self._keeping[0] != which:  # who stops and who polls ask once together
            keeping = asyncio.create_task(self._until_kept(job.id, which), name=f"keep the log of {self.pod_key}")
            self._keeping = which, keeping
        await asyncio.shield(self._keeping[1])

    async def _until_kept(self, job: str, pod: str) -> None:
        if not await replace(self._manager, until=None).log_kept(job, pod):
            self.log.warning("pod=%s is deleted although not all of its log is kept", self.pod_key)

    async def _learn_why(self) -> None:
        """If it is the Manager that has the job stopped, let the person read why."""
        job = self.job() if self._has_manager else None
        starting = self._spawn_future is not None and not self._spawn_future.done()
        if job is None or starting or self._ended:
            return
        sentence = await self._manager.stop_reason(job.id)
        if sentence is not None:
            self.log.info("pod=%s is stopped by the Manager: %s", self.pod_key, sentence)
            self._ended = sentence
            self._show_end(sentence)


CHANGED = "The job's labels were changed by a hook of this Hub, so it cannot be counted. Ask an administrator."

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST_WEIGHT = 100  # that there is


def admission_request(
    manifest: dict[str, Any],
    job: naming.PodIdentity,
    namespace: str,
    request_seconds: float,
    template: Template | None = None,
) -> Mapping[str, object]:
    """What the Manager is asked about the job that was launched as ``job``, whose pod would be in ``namespace``.

    With a template that asks for special permissions, what somebody has to approve is told as well.
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
        "pods": [strip_manifest(manifest)],
        **(_to_approve(manifest, template) if template is not None and template.special else {}),
    }


def with_preferred_node(manifest: dict[str, Any], node: str | None) -> dict[str, Any]:
    """The manifest with one more preferred term, for this node, after those that it has; without a node, as it is."""
    if node is None:
        return manifest
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"weight": _MOST_WEIGHT, "preference": {"matchFields": [named]}}
    spec = manifest["spec"]
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    nodes = {**nodes, _PREFERRED: [*(nodes.get(_PREFERRED) or ()), term]}
    return {**manifest, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}}


def _to_approve(manifest: dict[str, Any], template: Template) -> dict[str, object]:
    """The permissions, and the image that gets them: of the container that runs what the person came for."""
    work = next(one for one in manifest["spec"]["containers"] if one["name"] == template.work_container)
    return {"special": asked_for(manifest, template), "image": str(work.get("image", ""))}


def _counted(job: naming.PodIdentity) -> tuple[object, ...]:
    """What decides who is charged, and whether; how many GPUs is the manifest's to say."""
    who = (job.id, job.nonce, job.user, job.server, job.team, job.template)
    return *who, job.preemptible, job.priority, job.requeue
