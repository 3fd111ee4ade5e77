"""DLSpawner: KubeSpawner with job templates.

Its three classes: `StartingSpawner` (the start, and the pod as the watch shows it), `LifecycleSpawner` (polls, stops,
restarts of the Hub) and here `DLSpawner`, the meeting of the spawner and the job. Its overrides are short and call pure
modules: `core.launch` (options, rendering, pod), `pod_builder` (from a request to a plan), `pages` and `forms` (what
users see), `owned_objects` (Secret and Services of a pod), `manager_link` (the admission request).

Rules:

* Without ``templates_dir`` every override leaves the work to its parent.
* A refusal creates nothing: it is decided before the namespace, the claim or the pod are touched.
* A stop of which the Manager has not been notified is kept in the Hub's database with the server's state, from the
  moment of the request: this Hub may be killed before the Manager is back. The next start of the server reports it
  first. If that start comes from the Manager, it was for the job that was stopped, and is refused.
* Nothing of a job with special permissions is created before it is approved, not even its home directory.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jupyterhub import orm
from kubespawner import KubeSpawner
from traitlets import default

from dlspawner.clients.manager import PendingJobStatus
from dlspawner.core import naming, text
from dlspawner.core.decisions import Reason
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch import pod_set, pod_status
from dlspawner.core.launch.pod_status import PodDict, StartStep
from dlspawner.core.template import NOTEBOOK_CONTAINER, Template
from dlspawner.core.unix_account import UnixIds
from dlspawner.errors import InvalidConfiguration
from dlspawner.settings import Settings, reload
from dlspawner.spawner import (
    configuration,
    engine_pods,
    manager_link,
    owned_objects,
    pages,
    people,
    pod_builder,
    reach,
    start_problems,
)
from dlspawner.spawner.kube.errors import StartQueued, StartRefused
from dlspawner.spawner.kube.pods import uid
from dlspawner.spawner.kube.requests import NO_PRIORITY_CLASS, GaveUp
from dlspawner.spawner.lifecycle import STOPPED, LifecycleSpawner
from dlspawner.spawner.manager_link import KEPT_BY_MANAGER, ManagerLink
from dlspawner.spawner.pod_builder import LaunchPlan, LaunchRequest, Owner
from dlspawner.spawner.traits import JobTraits

STATE_JOB, STATE_OPTIONS = "dlspawner_job", "dlspawner_options"
STATE_ACCOUNT = "dlspawner_account"
STATE_UNREPORTED_STOP = "dlspawner_untold"  # the job, "" for one that was not known yet

NO_SSH = "SSH is not set up on this Hub. Ask an administrator."
_WRONG = (400, 403)  # statuses of requests that are refused for their options, not for a missing answer

_REPORT_SECONDS = 1.0  # second before an admission expires, to report why a start that waits for an earlier pod fails


def _check(spawner: DLSpawner, given: object) -> None:
    with spawner.restoring_options():
        spawner.check_options(given)


async def _form(spawner: DLSpawner) -> str:
    return pages.form(spawner, await spawner._manager.free_gpus() if spawner._has_quota else {})


def _new_id() -> str:
    return naming.job_id(secrets.token_bytes(8))


class DLSpawner(pages.PageProperties, JobTraits, LifecycleSpawner):
    """A KubeSpawner that launches what job templates describe."""

    _new_job_id: str | None = None  # for the next one
    _percent = 0  # how far the progress page has come
    _accepted_options: dict[str, Any] | None = None  # the user options of the last start that was not refused
    _node_port: int | None = None  # of its web server, where jobs are reached by NodePort
    _launch: LaunchPlan | None = None
    _job_id: str | None = None  # of the job whose start is saved
    _log_wait: tuple[str, asyncio.Task[None]] | None = None  # whether the log of the pod with this uid is kept
    _special = False  # whether the job is in the second namespace
    _account: str | None = None  # of a renamed person, at the default server; the Manager tells it at each start
    _deferred_claim: Any = None  # that is made with the pod

    @property
    def offers_jobs(self) -> bool:
        return bool(self.templates_dir)

    @property
    def person(self) -> Owner:
        """The user of this server, with the teams that follow from the Hub's groups."""
        return self._person(self.settings)

    def _person(self, now: Settings) -> Owner:
        groups = tuple(group.name for group in getattr(self.user, "groups", ()))
        return Owner(self.user.name, now.teams.team_of(self.user.name, groups), self.account)

    @property
    def account(self) -> str:
        """The name whose uid and home directory this person has: the first one, see `people`."""
        return str(self.user.spawner._account or self.user.name)

    def _gpu_resources(self) -> frozenset[str]:
        return self.settings.cluster.gpu_resources if self.offers_jobs else super()._gpu_resources()

    def _grace_seconds(self) -> int | None:
        return None if self.offers_jobs else super()._grace_seconds()  # a template has its own

    def _is_own(self, pod: PodDict) -> bool:
        if self._launch is None:
            return super()._is_own(pod)
        job = naming.read_job(pod["metadata"])  # an earlier start may have been of the same job
        return job is not None and job.id == self._launch.job.id and super()._is_own(pod)

    def get_state(self) -> dict[str, Any]:
        own = {
            STATE_JOB: self._job_id,
            STATE_OPTIONS: self._accepted_options,
            pod_builder.STATE_SPECIAL: self._special,
            STATE_ACCOUNT: self._account,
        }
        state: dict[str, Any] = {**super().get_state(), **{name: value for name, value in own.items() if value}}
        if self._unreported_stop is not None:
            # Only the database knows it: several spawners may share this server's row.
            state[STATE_UNREPORTED_STOP] = self._unreported_stop
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._job_id, self._accepted_options = state.get(STATE_JOB), state.get(STATE_OPTIONS)
        self._special, self._account = bool(state.get(pod_builder.STATE_SPECIAL)), state.get(STATE_ACCOUNT)

    def clear_state(self) -> None:
        super().clear_state()
        self._set_namespace(special=False)
        self._job_id = None

    def start(self) -> Any:
        """The job's id is saved with the rest, unless it turns out that it has waited and has another one."""
        self._job_id = self._new_job_id = _new_id() if self.offers_jobs else None
        return super().start()

    def _forget_start(self) -> None:
        super()._forget_start()
        self._launch = None

    def _is_saved(self, pod: PodDict) -> bool:
        job = naming.read_job(pod["metadata"])
        return super()._is_saved(pod) if job is None or self._job_id is None else job.id == self._job_id

    def job(self) -> naming.PodIdentity | None:
        """The job that the pod is, when it is one of ours."""
        pod = self.pod()
        job = naming.read_job(pod["metadata"]) if pod else None
        return job if job and (job.user, job.server) == (self.user.name, self.name or "") else None

    async def manager_answers(self) -> bool:
        """True if the Manager's pages can be shown now."""
        return await self._manager.queue_status(self.user.name) is not None

    # The Manager

    @property
    def _files(self) -> reload.CurrentConfig:
        return reload.current_config(self.templates_dir, self.cluster_file, self.teams_file)

    @property
    def settings(self) -> Settings:
        try:
            return self._files.now()
        except InvalidConfiguration as wrong:  # of a Hub that has not read them when it started
            self.log.error("%s", wrong)  # noqa: TRY400 - a file with mistakes is no fault of ours
            raise StartRefused(
                f"{configuration.NOTHING_STARTS} (Its files have mistakes.)", reason="configuration", status=403
            ) from None

    @property
    def _manager(self) -> ManagerLink:
        return ManagerLink(self.manager_url, self.manager_token, self.log, until=self._deadline())

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
        """Returns the queue status of this server, for the Hub's pages about a server that does not run."""
        return pages.queued(self, await self.queue_status())

    async def stop(self, now: bool = False) -> None:
        await self._fetch_stop_reason()
        await super().stop(now)

    async def _interrupted(self) -> None:
        """Cancels the job, or the Manager would start it again; survives a Manager that is away."""
        if self._may_wait:
            known = self._launch is not None and self._launch.job.id == self._job_id  # else it is a drawn one
            self._store_unreported_stop((self._job_id if known else None) or "")
            await self._report_stop()

    @property
    def _unreported_stop(self) -> str | None:
        """The job of a stop that the Manager may not have heard of."""
        kept = (self.orm_spawner.state or {}).get(STATE_UNREPORTED_STOP) if self.orm_spawner is not None else None
        return kept if isinstance(kept, str) else None

    def _store_unreported_stop(self, job: str | None) -> None:
        session = self._hub_session
        if session is None:
            return  # the server was removed meanwhile
        kept = {name: value for name, value in (self.orm_spawner.state or {}).items() if name != STATE_UNREPORTED_STOP}
        self.orm_spawner.state = kept if job is None else {**kept, STATE_UNREPORTED_STOP: job}
        session.commit()

    async def _report_stop(self) -> None:
        """The Manager hears of the last stop, at once or when it is back."""
        manager = replace(self._manager, until=None)
        heard = partial(self._store_unreported_stop, None)
        await manager.start_interrupted(self.user.name, self.name or "", self._unreported_stop, heard)

    @property
    def _is_asked_by_service(self) -> bool:
        """True if a service asks for this start: the Manager, for a job whose turn has come."""
        return isinstance(getattr(self.handler, "current_user", None), orm.Service)

    async def cancel_pending(self) -> None:
        if self._may_wait:
            await replace(self._manager, until=None).start_interrupted(self.user.name, self.name or "", None)

    async def delete_forever(self) -> None:
        """The server or its person is removed: what waits for it would make it again when its turn comes."""
        await self.cancel_pending()
        if self._has_manager:
            self._use_account(await replace(self._manager, until=None).account(self.user.name))
        await super().delete_forever()

    async def person_is_renamed(self, old: str, new: str) -> None:
        if not self._has_manager:
            raise StartRefused(KEPT_BY_MANAGER, reason="account", status=409)
        await replace(self._manager, until=None).rename(old, new)

    async def person_is_removed(self) -> None:
        if self._has_manager:
            await replace(self._manager, until=None).remove(self.user.name)

    async def _why_ended(self, pod: PodDict | None, judged: pod_status.Terminated) -> str:
        """Returns the Manager's reason if it knows one: what is stored first stands. The last words are added here."""
        reason = await super()._why_ended(pod, judged)
        known = naming.read_job(pod["metadata"]) if pod else None
        job = known.id if known else self._job_id
        told = await self._manager.stop_reason(job) if job and self._has_manager else None
        return reason if told in {None, text.without_last_words(reason)} else str(told)

    async def _after_deletion(self, pod: PodDict) -> None:
        """Has the further pods of a job end now, and not when the cluster has collected what the first one owned."""
        await owned_objects.delete_further_pods(self.pods, pod)

    async def _before_deletion(self, pod: PodDict) -> None:
        """Tells the Manager why, and waits until the log of a job that ended by itself is kept, which may tell more."""
        job = naming.read_job(pod["metadata"]) if self._has_manager else None
        own = job is not None and job.id == self._job_id  # and not an earlier job's pod, which this start waits for
        if job is not None and own and self._ended:
            why = text.without_last_words(self._ended)
            await replace(self._manager, until=None).job_ended(job.id, job.user, why)
        if job is None or not pod_status.has_printed(pod):
            return
        which = str(pod["metadata"]["uid"])
        if self._log_wait is None or self._log_wait[0] != which:  # a stop and a poll share one question
            keeping = asyncio.create_task(self._wait_for_log(job.id, which), name=f"keep the log of {self.pod_key}")
            self._log_wait = which, keeping
        await asyncio.shield(self._log_wait[1])

    async def _wait_for_log(self, job: str, pod: str) -> None:
        if not await replace(self._manager, until=None).log_kept(job, pod):
            self.log.warning("pod=%s is deleted although not all of its log is kept", self.pod_key)

    async def _fetch_stop_reason(self) -> None:
        """Lets the person read why the Manager has the job stopped; of any other stop the Manager hears here."""
        job = self.job() if self._has_manager else None
        starting = self._spawn_future is not None and not self._spawn_future.done()
        if job is None or starting or self._ended:
            return
        sentence = await self._manager.stop_reason(job.id)
        if sentence is not None:
            self.log.info("pod=%s is stopped by the Manager: %s", self.pod_key, sentence)
            self._ended = sentence
            self._show_end_reason(sentence)
        else:
            await replace(self._manager, until=None).start_interrupted(job.user, job.server, job.id)

    # What people choose

    @default("options_form")
    def _options_form_default(self) -> Any:
        return _form if self.offers_jobs else super()._options_form_default()

    @default("options_from_form")
    def _options_from_form_default(self) -> Any:
        if not self.offers_jobs:
            return super()._options_from_form_default()
        return lambda submitted: pages.read_form(self, submitted)

    def options_from_query(self, query_options: dict[str, list[str]]) -> dict[str, Any]:
        """JupyterHub would start a job for ``GET /spawn?…``: a link on any page could run a command as its reader."""
        if not self.offers_jobs:
            return dict(super().options_from_query(query_options))
        raise StartRefused(
            "A link cannot start a job. Please look at the choices below and start it yourself.", reason="link"
        )

    @default("apply_user_options")
    def _apply_user_options_default(self) -> Any:
        """Checks the options before hooks run; without a value here the Hub warns of unhandled options."""
        if not self.offers_jobs:
            return None
        return _check

    def check_options(self, given: object) -> LaunchRequest:
        """The user options, checked; Refused says what is wrong with them."""
        now = self.settings
        return pod_builder.check_options(now, self._person(now), given, self.port)

    @contextmanager
    def restoring_options(self) -> Iterator[None]:
        """Within it a request for a start is accepted or refused by its options; a refused request leaves no options.

        The Hub stores options before they are checked, for the next start without any: that of a pending job.
        """
        try:
            yield
        except StartRefused as refused:
            if isinstance(refused, StartQueued):
                self._accepted_options = dict(self.user_options)
            elif self._accepted_options is not None and refused.status_code in _WRONG and self.orm_spawner is not None:
                self.orm_spawner.user_options = self._accepted_options
                self._commit()
            raise

    def _problems(self) -> list[str]:
        return super()._problems() + (configuration.job_problems(self) if self.offers_jobs else [])

    async def load_user_options(self) -> None:
        with self.restoring_options():
            await self._plan()

    async def _plan(self) -> None:
        self._launch, self._percent = None, 0
        if not self.offers_jobs:
            await super().load_user_options()
            return
        now = self.settings  # the files may change while it starts
        person = self._person(now)
        request = pod_builder.check_options(now, person, self.user_options, self.port)
        pod_builder.check_place(self, request.template, has_manager=self._has_manager)
        if not self.ssh_ca_public_key_file:
            self._without_ssh(request.template)
        waits, numbers = await self._prepare_with_manager(asks=self._has_quota or bool(request.template.special))
        drawn, self._new_job_id = self._new_job_id, None
        self._launch = pod_builder.make_plan(
            request,
            replace(person, account=self.account),
            self.name or "",
            identifier=waits or drawn or _new_id(),
            nonce=secrets.token_urlsafe(16),
            pod_name=self.pod_name,
            home_claim=self.pvc_name if self.storage_pvc_ensure else None,
            image=self.image or None,
            ssh=self.ssh_target,
            numbers=numbers,
            ssh_image=self.ssh_image,
            home_modes=self.storage_access_modes,
            strict_groups=self.strict_groups,
            classes=now.cluster.scheduling.classes,
            has_gateway=bool(self.ssh_ca_public_key_file),
            ephemeral_storage=self.ephemeral_storage,
        )
        self._job_id = self._launch.job.id
        if self._launch.host_key is not None:
            self._user_ca()
        # Last, so that KubeSpawner watches the namespace before its pods are read.
        self._set_namespace(special=bool(request.template.special))

    def _use_account(self, account: str) -> None:
        """Lets a renamed person keep what is on disk: the claim, and volumes with the name in them."""
        default_server, kept = self.user.spawner, account if account != self.user.name else None
        if default_server._account != kept:
            default_server._account = kept
            default_server.save_state()
        if kept is None:
            return
        known = {name: getattr(self, name) for name in ("name", "slug_scheme", "namespace", "_namespace_default")}
        named = SimpleNamespace(user=SimpleNamespace(name=account, id=self.user.id), **known)
        named._expand_user_properties = partial(KubeSpawner._expand_user_properties, named)
        named._expand_all = partial(KubeSpawner._expand_all, named)
        for trait in ("volumes", "volume_mounts"):
            setattr(self, trait, named._expand_all(getattr(self, trait)))
        if not self._pvc_exists:
            self.pvc_name: str = named._expand_user_properties(self.pvc_name_template)

    def _without_ssh(self, template: Template) -> None:
        """There is no gateway: the job goes without SSH, unless SSH is all that it has."""
        if template.ssh is None:
            return
        if template.command or template.work_container != NOTEBOOK_CONTAINER:
            self.log.warning("pod=%s has no SSH: DLSpawner.ssh_ca_public_key_file is not set", self.pod_key)
        else:
            self.log.warning("template=%s is for SSH: DLSpawner.ssh_ca_public_key_file is not set", template.name)
            raise StartRefused(NO_SSH, reason="ssh-ca", status=403)

    # The pod

    async def get_pod_manifest(self) -> Any:
        pod = await super().get_pod_manifest()
        if self._launch is None:
            return pod
        plain = dict(self.pods.plain(pod))
        return self.pods.model(pod_builder.build_pod(plain, self._launch, self._services_domain()))

    def _services_domain(self) -> str:
        """The DNS name of the namespace's Services; KubeSpawner's ``dns_name_template`` knows the cluster's domain."""
        return str(self.dns_name_template).format(name="", namespace=self.namespace).removeprefix(".")

    def get_env(self) -> dict[str, Any]:
        env: dict[str, Any] = super().get_env()
        if self._launch is not None and self.manager_url:
            env["DLSPAWNER_MANAGER_URL"] = self.manager_url
        return env

    def _final(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self._launch is None:
            return super()._final(manifest)
        pod_builder.check_permissions(self, manifest, self._launch.request.template, self.settings.cluster)
        kind = self._launch.request.choices.gpu_type  # which cluster.yaml may have no more
        return launch_pod.disable_gpus_by_default(
            manifest, self.settings.cluster.gpu_resources | (kind.resources if kind else set())
        )

    async def _create(self, manifest: dict[str, Any], until: float = math.inf) -> PodDict:
        """Creates the pod if the Manager has admitted it, and before the deadline of the admission."""
        pod = await self._create_admitted(manifest, until)
        self._accepted_options = dict(self.user_options) if self._launch is not None else None
        return pod

    async def _create_admitted(self, manifest: dict[str, Any], until: float) -> PodDict:
        if self._launch is None or not (self._has_quota or self._special):
            return await self._create_with_claim(manifest, until)
        job, template, seconds = self._launch.job, self._launch.request.template, self.k8s_api_request_timeout
        question = manager_link.admission_request(manifest, job, self.namespace, seconds, template)
        question = {**question, "options": dict(self.user_options)}  # it can be started again with them
        if email := await pod_builder.mail_address(self):
            question |= {"email": email}
        hosts = self.settings.cluster.host_ports
        if hosts is not None and any(wanted := pod_set.wanted_ports(manifest, template.ports)):
            question |= {"ports": [sum(one.count for one in own) for own in wanted]}
        with self.restoring_options():
            admitted = await self._manager.admission(job.id, question, self._waits)
        if admitted.pods_exist:
            return await engine_pods.take(self, job.id)
        try:
            async with asyncio.timeout_at(admitted.until):
                manifest = manager_link.on_nodes(manifest, admitted.nodes)
                manifest = pod_set.with_additions(manifest, admitted.additions)
                if hosts is not None and admitted.ports:
                    manifest = pod_set.with_ports(manifest, template.ports, admitted.ports, enforce=hosts.enforce)
                return await self._create_with_claim(manifest, min(until, admitted.until - _REPORT_SECONDS))
        except StartRefused as refused:
            if not refused.outcome_unknown:
                temporary = isinstance(refused, GaveUp)
                await self._manager.release_reservation(job.id, job.user, temporary=temporary, why=refused.message)
            raise

    async def _until_running(self, created: PodDict) -> None:
        running = super()._until_running(created)
        if engine_pods.is_placed_by_engine(created):
            await engine_pods.until_running(self, running, self._leave)
        else:
            await running

    async def _leave(self, pod: PodDict) -> None:
        """Ends the start and leaves its pods, if the Manager requests it again when they have nodes."""
        job = naming.read_job(pod["metadata"])
        sentence = await self._manager.leave_in_cluster(job.id, job.user) if job is not None else None
        if sentence is not None:
            self._left_in_cluster = self.will_resume = True
            raise self._waits((sentence,), Reason.ENGINE.value)

    async def _create_with_claim(self, manifest: dict[str, Any], until: float) -> PodDict:
        claim, self._deferred_claim = self._deferred_claim, None
        if claim is not None:
            await super()._make_create_pvc_request(claim, self.k8s_api_request_timeout)
        manifest = await self._without_missing_claims(manifest)
        try:
            return await super()._create(manifest, until)
        except StartRefused as refused:
            ours = self._launch.priority_class if self._launch else None
            if refused.reason != NO_PRIORITY_CLASS or manifest["spec"].get("priorityClassName") != ours:
                raise
            self.log.warning("pod=%s has no priority: cluster.yaml names the PriorityClass %s", self.pod_key, ours)
        spec = {name: value for name, value in manifest["spec"].items() if name != "priorityClassName"}
        return await super()._create({**manifest, "spec": spec}, until)

    async def _without_missing_claims(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest without claims of the team that do not exist; without an answer it is Kubernetes' to say."""
        claims = {one.claim for one in self._launch.context.team_mounts} if self._launch else set()
        missing = set()
        for claim in sorted(claims.intersection(launch_pod.claims(manifest).values())):
            with suppress(StartRefused):
                if not await self._check_pvc_exists(claim, self.namespace):
                    self.log.warning("pod=%s has no %s: there is no such claim", self.pod_key, claim)
                    missing.add(claim)
        return launch_pod.without_claims(manifest, missing)

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        """Delays the claim of a job with special permissions until it is approved."""
        if not self._special:
            return await super()._make_create_pvc_request(pvc, request_timeout)
        self._deferred_claim = pvc
        return True

    def _set_namespace(self, *, special: bool) -> None:
        """Sets the namespace of the next job. KubeSpawner would keep that of the last one, and that it has a claim."""
        if special or self._special:
            self._pvc_exists = False
        if special:
            self.namespace = self.special_namespace
        elif self._special:
            self.namespace = str(self.configured("namespace") or self._namespace_default())
        self._special = special

    def _waits(self, sentences: Sequence[str], reason: str) -> StartQueued:
        page = pages.wait_url(self, self.name or "")
        return StartQueued(*sentences, reason=reason, page=page, handler=self.handler)

    async def _prepare_with_manager(self, *, asks: bool) -> tuple[str | None, UnixIds | None]:
        """Returns the pending job of this server, and the user's ids; with one request where the Manager gives them."""
        uids, where = self.settings.cluster.accounts, (self.user.name, self.name or "")
        stopped = asks and self._unreported_stop is not None
        if stopped:
            await self._report_stop()
        numbers, job = await pod_builder.from_authenticator(self, uids), None
        if numbers is None and asks:
            job, account, numbers = await self._manager.prepare_start(*where, uids)
        elif numbers is None and self._has_manager:
            account, numbers = await self._manager.unix_account(self.user.name, uids)
        elif self._has_manager:
            account = await self._manager.account(self.user.name)
            job = await self._manager.pending_job(*where) if asks else None
        else:
            account = str(self.user.name)
        self._use_account(account)
        if stopped and self._is_asked_by_service:
            raise StartRefused(STOPPED, reason="stopped", status=403)
        return job, numbers

    async def _ensure_owned_objects(self, pod: PodDict) -> None:
        await super()._ensure_owned_objects(pod)
        job = naming.read_job(pod["metadata"]) if self.offers_jobs else None
        if job is None:
            return
        # ``None``: another process has made the pod, and only what is missing is to be made.
        launch = self._launch
        mine = launch if launch is not None and (launch.job.id, launch.job.nonce) == (job.id, job.nonce) else None
        template = mine.request.template if mine else self.settings.template(job.template)
        new, files = mine is not None, None
        if owned_objects.needs_secret(pod, new=new):
            files = owned_objects.SecretFiles(
                # After a restart of the Hub the private key is gone. If it is needed again, it was never used.
                host_key=(mine.host_key if mine else None) or owned_objects.make_host_key(),
                user_ca=self._user_ca(),
                page=pages.job_page(self, job),
            )
        # A template that is gone since the job's start leaves the usual endpoint.
        endpoint = (template.ssh if template else None) or owned_objects.USUAL_SSH
        gpus = self.settings.cluster.gpu_resources
        await owned_objects.ensure_job_objects(self.pods, pod, job, files, endpoint, gpu_resources=gpus, new=new)
        if self._by_node_port:
            self._node_port = await owned_objects.ensure_http_service(
                self.pods, pod, job, self._get_pod_port(pod), new=new
            )

    @property
    def _by_node_port(self) -> bool:
        return self.offers_jobs and self.http_service_type == "nodeport" and not self._has_stock_objects

    def _knows_address(self, pod: PodDict) -> bool:
        if not self._by_node_port or naming.read_job(pod["metadata"]) is None:
            return True
        return uid(pod) == self._complete_pod

    def _get_pod_url(self, pod: PodDict) -> str:
        if self._by_node_port and self._node_port and uid(pod) == self._complete_pod:
            return owned_objects.http_url(pod, self._node_port)
        return str(super()._get_pod_url(pod))

    def _user_ca(self) -> str:
        if not self.ssh_ca_public_key_file:
            return ""
        try:
            return Path(self.ssh_ca_public_key_file).read_text(encoding="utf-8")
        except OSError as problem:
            self.log.warning("ssh_ca_public_key_file=%r: %s", self.ssh_ca_public_key_file, problem.strerror)
            raise StartRefused(NO_SSH, reason="ssh-ca", status=403) from None

    # Waiting

    def _does_not_answer(self, url: str) -> None:
        """The Hub would wait as long again, and tell the person an address."""
        if self.offers_jobs:
            sentence = (
                f"The job runs, but nothing answers on its port {reach.port_of(url)}: "
                "start it again with a program that listens there, or ask an administrator."
            )
            self._record_failure(sentence, "no-answer")
            raise StartRefused(sentence, reason="no-answer")

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        if not self.offers_jobs:
            with suppress(StartRefused):  # why events cannot be seen is in the log
                async for event in super().progress():
                    yield event
            return
        with suppress(StartRefused):  # the start's own is what people read
            await self._start_watching_pods()
        last, usual, template = None, None, ""
        while True:
            if self._has_quota and self._launch is not None and not template:
                usual = await self._manager.usual_start(template := self._launch.job.template)
            event = self.step().event() | ({"usual": usual} if usual is not None else {})
            if event != last:
                yield event
                last = event
            if self._start_future is not None and self._start_future.done():
                return
            await self._changed_or_started()

    def step(self) -> StartStep:
        """Returns the present step of the start; the percentage never falls."""
        pull = self._waiting.pull if self._waiting is not None else None
        found = pod_status.start_step(self.pod(), datetime.now(UTC), self._note(), pull)
        self._percent = max(self._percent, found.percent)
        return replace(found, percent=self._percent)

    def _note(self) -> str | None:
        """Returns the obstacle of the start; after a restart of the Hub only the pod's own status tells it."""
        if self._waiting is not None and self._waiting.note:
            return self._waiting.note
        found = start_problems.of_pod(self.pod(), self.pods.gpus)
        return found.sentence if found else None

    async def _changed_or_started(self) -> None:
        if self.pod_reflector is None:  # the start has gone to the other namespace, which is not watched yet
            await asyncio.sleep(0.1)
            return
        change = asyncio.ensure_future(self.pod_reflector.changed(self.pod_key))
        waits = {change} if self._start_future is None else {change, self._start_future}
        try:
            await asyncio.wait(waits, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()


people.install()
