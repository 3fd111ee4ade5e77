"""DLSpawner: KubeSpawner with job templates.

It owns the meeting of KubeSpawner and the job: thin overrides here, judgement in the modules beside it (``launch`` what
is asked for, ``verdict`` whether a pod lives, ``trouble`` why it does not start, ``progress`` what it is doing,
``waiting`` for it to run, ``forms`` and ``pages`` what people see, ``children`` the objects that belong to a pod,
``account`` whose files they are, ``watch`` how a change is noticed).

Rules:

* Without ``templates_dir`` it is KubeSpawner: every override begins by leaving the work to its parent.
* A refusal creates nothing; it is decided before the namespace, the claim or the pod are touched.
* The pod is the record of its job. State in the Hub's database is saved as soon as the pod exists, and whatever else a
  job needs after a restart of the Hub is read from the pod.
* A pod that has ended is deleted, with its grace period, before the Hub hears of it.
* No manifest and no Kubernetes error is logged or shown: both hold the job's token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from aiohttp import ClientError
from kubernetes_asyncio.client.rest import ApiException
from kubespawner import KubeSpawner
from sqlalchemy.orm import object_session
from traitlets import default

from dlspawner import settings
from dlspawner.core import naming, rendering
from dlspawner.spawner import account, children, exposure, launch, pages, progress, reach, trouble, verdict, waiting
from dlspawner.spawner.launch import Launch, Person, Wish
from dlspawner.spawner.pods import Pods, grace, uid
from dlspawner.spawner.refusal import QuietRefusals, Refused
from dlspawner.spawner.traits import JobTraits
from dlspawner.spawner.watch import PodWatch

PodDict = Mapping[str, Any]


@cache
def _settings(templates_dir: str, cluster_file: str, teams_file: str) -> settings.Settings:
    """Read once per process and shared by the spawners of all users."""
    return settings.load(Path(templates_dir) / "jobs", Path(cluster_file), Path(teams_file))


class DLSpawner(JobTraits, account.AccountTraits, exposure.ExposureTraits, KubeSpawner):
    """A KubeSpawner that launches what job templates describe."""

    # KubeSpawner shares this dictionary between all its subclasses; ours holds reflectors of another class.
    reflectors: ClassVar[dict[Any, Any]] = {}

    _launch: Launch | None = None
    _ended: str | None = None
    _waiting: waiting.Waiting | None = None
    _began = 0.0  # when the start began, by the event loop's clock
    _complete_pod: str | None = None  # uid of the pod whose children are known to exist
    _node_port: int | None = None  # of that pod's web server, where jobs are reached by NodePort

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.offers_jobs:
            QuietRefusals.install(self.log)

    @property
    def offers_jobs(self) -> bool:
        return bool(self.templates_dir)

    @property
    def settings(self) -> settings.Settings:
        return _settings(self.templates_dir, self.cluster_file, self.teams_file)

    @property
    def person(self) -> Person:
        """Whose server this is, with the teams that the Hub's groups make."""
        groups = tuple(group.name for group in getattr(self.user, "groups", ()))
        return Person(self.user.name, self.settings.teams.of(self.user.name, groups))

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    def pod(self) -> PodDict | None:
        """The pod as the watch last saw it."""
        reflector = self.pod_reflector
        found: PodDict | None = reflector.pods.get(self.pod_key) if reflector else None
        return found

    def _last_seen(self) -> PodDict | None:
        """What the watch last saw of the pod that is gone."""
        reflector = self.pod_reflector
        found: PodDict | None = reflector.gone.get(self.pod_key) if reflector else None
        return found

    @property
    def pods(self) -> Pods:
        """Requests about this server's pod."""
        return Pods(
            self.api,
            self.namespace,
            self.pod_name,
            self.pod_reflector,
            self.log,
            self.k8s_api_request_timeout,
            self.k8s_api_request_retry_timeout,
            self.start_timeout,
            self.settings.cluster.gpu_resources if self.offers_jobs else frozenset(),
        )

    def job(self) -> naming.Job | None:
        """The job that the pod is, when it is one of ours."""
        pod = self.pod()
        job = naming.read_job(pod["metadata"]) if pod else None
        return job if job and (job.user, job.server) == (self.user.name, self.name or "") else None

    @property
    def ssh_target(self) -> tuple[str, int] | None:
        """The gateway's host and port as people type them."""
        if not self.ssh_address:
            return None
        host, separator, port = self.ssh_address.rpartition(":")
        return (host.strip("[]"), int(port)) if separator and port.isdecimal() else (self.ssh_address, 22)

    @property
    def keys_url(self) -> str | None:
        return pages.keys_url(self)

    def job_views(self) -> list[pages.JobView]:
        """All servers of this person, for the home page."""
        return pages.job_views(self)

    # What people choose

    @default("options_form")
    def _options_form_default(self) -> Any:
        return pages.form if self.offers_jobs else super()._options_form_default()

    @default("options_from_form")
    def _options_from_form_default(self) -> Any:
        if not self.offers_jobs:
            return super()._options_from_form_default()
        return lambda submitted: pages.read_form(self, submitted)

    def options_from_query(self, query_options: dict[str, list[str]]) -> dict[str, Any]:
        """JupyterHub would start a job for ``GET /spawn?…``: a link on any page could run a command as its reader."""
        if not self.offers_jobs:
            return dict(super().options_from_query(query_options))
        raise Refused(
            "A link cannot start a job. Please look at the choices below and start it yourself.", reason="link"
        )

    @default("apply_user_options")
    def _apply_user_options_default(self) -> Any:
        """Checked before hooks run; the Hub would also warn of options that nobody takes."""
        return (lambda spawner, given: spawner.check_options(given) and None) if self.offers_jobs else {}

    def check_options(self, given: object) -> Wish:
        """The user options, checked; Refused says what is wrong with them."""
        return launch.check(self.settings, self.person, given, self.port)

    async def load_user_options(self) -> None:
        await super().load_user_options()
        self._launch = None
        if not self.offers_jobs:
            return
        wish = self.check_options(self.user_options)
        self._launch = launch.plan(
            wish,
            self.person,
            self.name or "",
            entropy=secrets.token_bytes(8),
            pod_name=self.pod_name,
            home_claim=self.pvc_name if self.storage_pvc_ensure else None,
            image=self.image or None,
            ssh=self.ssh_target,
            numbers=await account.numbers(self, self.settings.cluster.accounts),
            ssh_image=self.ssh_image,
            home_modes=self.storage_access_modes,
            strict_groups=self.strict_groups,
        )
        # What cannot be made is refused here, before anything is created.
        launch.fragment(self._launch)
        if self._launch.host_key is not None:
            self._user_ca()
        self._ended = None

    # The pod

    async def get_pod_manifest(self) -> Any:
        pod = await super().get_pod_manifest()
        if self._launch is None:
            return pod
        plain = dict(self.pods.plain(pod))
        return self.pods.model(launch.pod(plain, self._launch))

    def get_env(self) -> dict[str, Any]:
        env: dict[str, Any] = super().get_env()
        if self._launch is not None and self.manager_url:
            env["DLSPAWNER_MANAGER_URL"] = self.manager_url
        return env

    def _get_pod_port(self, pod: PodDict) -> int:
        if not self.offers_jobs:
            return int(super()._get_pod_port(pod))
        # The parent's stumbles over a container that has no ports.
        for container in pod["spec"]["containers"]:
            for port in container.get("ports") or ():
                if port.get("name") == "notebook-port":
                    return int(port["containerPort"])
        return int(self.port)

    async def _start_watching_pods(self, replace: bool = False) -> Any:
        if not self.offers_jobs:
            return await super()._start_watching_pods(replace)
        return await self._start_reflector(
            kind="pods",
            reflector_class=PodWatch,
            labels={"component": self.component_label},
            omit_namespace=self.enable_user_namespaces,
            replace=replace,
        )

    async def _start(self) -> str:
        self._waiting, self._began = None, asyncio.get_running_loop().time()
        url: str = await super()._start()
        if self._launch is not None:
            await reach.until_accepting(url, self.http_timeout, self._is_alive)
            ended = verdict.judge(self.pod())
            if isinstance(ended, verdict.Ended):
                self._fails(ended.reason, "job-failed")
                raise Refused(ended.reason, reason="job-failed")
        return url

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Create the pod and what belongs to it. The last place that sees the manifest, hooks and all."""
        if self._launch is None:
            return bool(await super()._make_create_pod_request(pod, request_timeout))
        manifest = rendering.hide_gpus(dict(self.pods.plain(pod)), self.settings.cluster.gpu_resources)
        created = await self.pods.create(manifest, self._launch.job)
        self._save_state()
        try:
            await self._ensure_children(created)
        except Refused as refused:
            self._ended = refused.message  # nobody tries again while the Hub stops the pod
            raise
        if not (self.internal_ssl or self.services_enabled or self.after_pod_created_hook):
            # Nothing is left to do before the pod may run: wait for the watch here, so that KubeSpawner finds it
            # running at its first look instead of at one of its increasingly rare ones.
            await self._until_running(created)
        return True

    def _fails(self, sentence: str, reason: str) -> None:
        self._ended = sentence
        self.log.warning("pod=%s does not start: reason=%s %s", self.pod_key, reason, sentence)

    async def _until_running(self, created: PodDict) -> None:
        seconds = waiting.deadline_of(self.start_timeout)
        self._waiting = waiting.Waiting(self.pods, self.is_pod_running, self._began, seconds)
        try:
            await self._waiting.until_running(created)
        except Refused as refused:
            self._fails(refused.message, refused.reason)
            raise

    def _save_state(self) -> None:
        """The Hub saves it only when ``start`` has returned, and forgets a pending pod when it is restarted before."""
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        try:
            return bool(await super()._make_create_pvc_request(pvc, request_timeout))
        except (ApiException, ClientError) as problem:
            if self._launch is None:
                raise
            raise self.pods.refused("home volume", problem) from None

    async def _ensure_children(self, pod: PodDict) -> None:
        """Make what belongs to the pod and is missing; does nothing the second time."""
        job = naming.read_job(pod["metadata"])
        if job is None or uid(pod) == self._complete_pod:
            return
        template = self.settings.template(job.template)
        mine = self._launch if self._launch is not None and self._launch.job.id == job.id else None
        files = children.Files(
            # After a restart of the Hub nobody has the private key. If it is needed again, it was never used.
            host_key=(mine.host_key if mine else None) or children.make_host_key(),
            user_ca=self._user_ca() if children.wants_secret(pod) else "",
            page=pages.job_page(self, job),
        )
        # A template that is gone since the job's start leaves the usual endpoint.
        endpoint = (template.ssh if template else None) or children.USUAL_SSH
        await children.ensure(self.pods, pod, job, files, endpoint)
        if self._by_node_port:
            self._node_port = await exposure.ensure(self.pods, pod, job, self._get_pod_port(pod))
        self._complete_pod = uid(pod)

    @property
    def _by_node_port(self) -> bool:
        return self.http_expose == "nodeport" and not (self.internal_ssl or self.services_enabled)

    def _knows_address(self, pod: PodDict) -> bool:
        return not self._by_node_port or uid(pod) == self._complete_pod

    def _get_pod_url(self, pod: PodDict) -> str:
        if self.offers_jobs and self._by_node_port and self._node_port and self._knows_address(pod):
            return exposure.url(pod, self._node_port)
        return str(super()._get_pod_url(pod))

    async def _mend_children(self, pod: PodDict) -> None:
        """The same for a pod that a killed Hub left behind; never fails, because a poll that fails stops the job."""
        try:
            await self._ensure_children(pod)
        except (Refused, TimeoutError) as problem:
            self.log.warning("pod=%s lacks its Secret or Service, trying again later: %s", self.pod_key, problem)

    def _user_ca(self) -> str:
        try:
            return Path(self.ssh_ca_public_key_file).read_text(encoding="utf-8")
        except OSError as problem:
            line = f"ssh_ca_public_key_file={self.ssh_ca_public_key_file!r}: {problem.strerror}"
            said = "SSH is not set up on this Hub. Ask an administrator."
            self.log.warning(line)
            raise Refused(said, reason="ssh-ca", status=403, log=line) from None

    # Waiting

    def is_pod_running(self, pod: Any) -> bool:
        if not self.offers_jobs:
            return bool(super().is_pod_running(pod))
        # A pod without container statuses yet is KeyErrors away from an answer in the parent.
        return bool(pod and (pod.get("status") or {}).get("containerStatuses") and super().is_pod_running(pod))

    def _is_alive(self) -> bool:
        return verdict.judge(self.pod()) == verdict.ALIVE

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        if not self.offers_jobs:
            async for event in super().progress():
                yield event
            return
        await self._start_watching_pods()
        last = None
        while True:
            step = progress.step(self.pod(), self._note())
            if step != last:
                yield step.event()
                last = step
            if self._start_future is not None and self._start_future.done():
                return
            await self._changed_or_started()

    def _note(self) -> str | None:
        """What holds the start up; after a restart of the Hub only what the pod itself says."""
        if self._waiting is not None and self._waiting.note:
            return self._waiting.note
        found = trouble.of_pod(self.pod(), self.pods.gpus)
        return found.sentence if found else None

    async def _changed_or_started(self) -> None:
        change = asyncio.ensure_future(self.pod_reflector.changed(self.pod_key))
        waits = {change} if self._start_future is None else {change, self._start_future}
        try:
            await asyncio.wait(waits, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    # Is it alive, and stopping

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._ended:
            state[pages.STATE_ENDED] = self._ended
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        ended = state.get(pages.STATE_ENDED)
        self._ended = ended if isinstance(ended, str) else None

    async def poll(self) -> int | None:
        status: int | None
        if not self.offers_jobs:
            status = await super().poll()
            return status
        await self._start_watching_pods()
        pod = self.pod()
        judged = verdict.judge(pod) if pod else verdict.judge_gone(self._last_seen())
        if isinstance(judged, verdict.Ended):
            if self._undoes_start(pod) and not await self._undone():
                return None
            # What the person stopped, or never started, needs no explanation; and the first one is the true one.
            if not (self._ended or self._stop_pending or self._start_pending):
                self._ended = await self.pods.why_ended(pod, judged) if pod else judged.reason
                self.log.info("pod=%s ended: exit_code=%s %s", self.pod_key, judged.exit_code, self._ended)
            if pod is not None and not pod["metadata"].get("deletionTimestamp"):
                try:
                    await self.pods.delete(pod, grace(pod))
                except (Refused, TimeoutError) as problem:
                    self.log.warning(
                        "pod=%s cannot be deleted now, the next poll tries again: %s", self.pod_key, problem
                    )
                    return None
            return judged.exit_code
        if pod is not None and not self._start_pending and not self._ended:
            await self._mend_children(pod)
        # Alive: the parent keeps the Hub's idea of the pod's address up to date.
        if pod is not None and self.is_pod_running(pod) and self._knows_address(pod):
            await super().poll()
        return None

    def _undoes_start(self, pod: PodDict | None) -> bool:
        """Whether a start has failed and the Hub waits for the pod to go: then it must not hear that the pod has ended.

        JupyterHub (6.1) asks when ``slow_spawn_timeout`` is over, would take the failure from a future that is not done
        yet, and show "Internal Server Error" for the sentence that it is about to get.
        """
        deleting = pod is not None and bool(pod["metadata"].get("deletionTimestamp"))
        starting = self._spawn_future
        return deleting and self._stop_pending and starting is not None and not starting.done()

    async def _undone(self) -> bool:
        """Wait until that has come to its end, so that whoever asks can be told why; the start's own task goes on."""
        starting: asyncio.Future[Any] = self._spawn_future
        if asyncio.current_task() is not starting:
            await asyncio.wait({starting}, timeout=self.start_timeout)
        return starting.done()

    async def get_url(self) -> str:
        """Where the server is, asked after a restart of the Hub: waits for a pod that is still on its way."""
        known: str = await super().get_url()
        if not self.offers_jobs:
            return known
        try:
            pod = await self.pod_reflector.until(
                self.pod_key, lambda pod: self.is_pod_running(pod) or _failure(pod) is not None, self.start_timeout
            )
        except TimeoutError:
            return known  # the Hub finds out that nobody answers there, and stops it
        if pod is None or _failure(pod) is not None:
            return known
        if self._by_node_port:
            await self._mend_children(pod)
        return f"{self._get_pod_url(pod)}{self.server.base_url}" if self._knows_address(pod) else known

    async def stop(self, now: bool = False) -> None:
        """End the pod with its template's grace period, and return when it is gone."""
        await self._start_watching_pods()
        pod = self.pod() if self.offers_jobs else None
        if pod is None:
            await super().stop(now)
            return
        await self.pods.delete(pod, 0 if now else grace(pod))
        if not await self.pods.gone(pod):
            self.log.warning(
                "pod=%s stays until its node answers or is removed: %s", self.pod_key, verdict.silence(pod)
            )


def _failure(pod: PodDict | None) -> str | None:
    """Why a starting pod will not run."""
    judged = verdict.judge(pod)
    if isinstance(judged, verdict.Ended):
        return judged.reason
    found = trouble.of_pod(pod)
    return found.sentence if found and found.patience == trouble.AT_ONCE else None
