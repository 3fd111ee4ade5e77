"""One spawn of one table row by one spawner class, as the Hub does it, and everything that can be seen of it."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jupyterhub import orm
from jupyterhub.objects import Hub, Server
from jupyterhub.user import User
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import kube_config
from kubespawner import KubeSpawner, clients
from traitlets.config import Config

from dlspawner.spawner import DLSpawner
from tests.component.spawner.superset.cluster import TOLD, Cluster, Request, running

BOTH = (KubeSpawner, DLSpawner)
SECONDS = 120  # a machine may be busy
AT_ONCE = 16

# No deadline of a spawner is the subject here; the cluster has no node for its scheduler, the kubelet binds.
USUAL = {
    "http_timeout": 1,  # names of Services are nobody's here
    "scheduler_name": "the-kubelet",
    "k8s_api_request_timeout": 60,
    "k8s_api_request_retry_timeout": SECONDS,
    "start_timeout": SECONDS,
}


@dataclass(frozen=True)
class Row:
    """A configuration, and where it shows: paths into what was recorded, and the values there."""

    shows: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)  # c.KubeSpawner
    spawner: Mapping[str, Any] = field(default_factory=dict)  # c.Spawner
    user: str = "alice"
    server: str = ""
    groups: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)  # from the Hub's database, of an earlier start
    claims: tuple[str, ...] = ()  # that are there before the start
    internal_ssl: bool = False
    progress: bool = False
    changes_nothing: bool = False  # the values are those of the default

    def shown(self, run: Run) -> dict[str, bool]:
        """Whether each value is there; a text may be a part of what is there."""
        found = {path: run.at(path) for path in self.shows}
        return {
            path: bool(found[path] == value or (isinstance(found[path], str) and str(value) in found[path]))
            for path, value in self.shows.items()
        }


@dataclass
class Run:
    """What was seen; plain values only, with the pod's uid replaced by a word."""

    error: str = ""
    manifests: dict[str, Any] = field(default_factory=dict)
    sent: list[tuple[Any, ...]] = field(default_factory=list)
    asked: set[tuple[str, str]] = field(default_factory=set)  # every verb and resource
    names: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    polls: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    form: Any = None
    from_form: Any = None

    def at(self, path: str) -> Any:
        """``pod spec containers 0 image``: the value there, or None."""
        first, *words = path.split()
        here = self.manifests.get(first) if first in self.manifests else getattr(self, first, None)
        for word in words:
            try:
                here = here[int(word)] if isinstance(here, list | tuple) else here[word]
            except (KeyError, IndexError, TypeError):
                return None
        return here


def record(rows: Mapping[str, Row], directory: Path) -> dict[type, dict[str, Run]]:
    """Every row by both classes, each on a cluster of its own."""
    certificates = _certificates(directory)
    return {cls: asyncio.run(_record_all(cls, rows, directory / cls.__name__, certificates)) for cls in BOTH}


async def _record_all(
    cls: type[KubeSpawner], rows: Mapping[str, Row], directory: Path, certificates: dict[str, str]
) -> dict[str, Run]:
    usual = Configuration.get_default_copy()
    async with running(directory / "cluster") as cluster:
        clients.load_config.cache_clear()
        with patch.object(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig)):  # $KUBECONFIG, once
            turn = asyncio.Semaphore(AT_ONCE)

            async def one(number: int, row: Row) -> Run:
                async with turn:
                    return await _Spawn(cls, row, f"row-{number}", cluster, certificates).record()

            try:
                async with asyncio.TaskGroup() as tasks:
                    runs = [tasks.create_task(one(number, row)) for number, row in enumerate(rows.values())]
            finally:
                await cls._stop_all_reflectors()
                clients.load_config.cache_clear()
                Configuration.set_default(usual)
    return dict(zip(rows, (run.result() for run in runs), strict=True))


def _certificates(directory: Path) -> dict[str, str]:
    paths = {}
    for name in ("keyfile", "certfile", "cafile"):
        path = directory / name
        path.write_text(f"{name} of alice\n")
        paths[name] = str(path)
    return paths


@dataclass
class _Spawn:
    cls: type[KubeSpawner]
    row: Row
    namespace: str
    cluster: Cluster
    certificates: dict[str, str]

    async def record(self) -> Run:
        run = Run()
        async with asyncio.timeout(2 * SECONDS):
            await self.cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
            for name in self.row.claims:
                await self.cluster.ask(
                    "POST", f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims", claim(name)
                )
            spawner = self.make()
            try:
                async with asyncio.timeout(SECONDS):
                    await self.spawn(spawner, run)
            except Exception as problem:  # noqa: BLE001 - that both fail alike is what is compared
                run.error = f"{type(problem).__name__}: {problem}"
            await self.end_watches(spawner)
            run.names = {name: getattr(spawner, name) for name in NAMES}
            requests = self.cluster.of(spawner.namespace)
            run.sent = [self.plain(request, run) for request in requests if request.writes]
            run.asked = {(_verb(request), request.resource) for request in requests}
        return _without_chance(run)

    def make(self) -> Any:
        """The spawner as the Hub makes it, with everything that is random fixed."""
        row = self.row
        db = orm.new_session_factory("sqlite:///:memory:")()
        person = orm.User(name=row.user, groups=[orm.Group(name=name) for name in row.groups])
        state = {name: value.replace("ROW", self.namespace) for name, value in row.state.items()}
        db.add(person)
        db.add(orm.Spawner(name=row.server, state=state, user=person))
        db.commit()
        here = {"namespace": self.namespace, "k8s_api_ssl_ca_cert": self.cluster.authority, **USUAL}
        config = Config({"KubeSpawner": {**here, **copy.deepcopy(dict(row.config))}})
        config.Spawner = Config(copy.deepcopy(dict(row.spawner)))
        settings = {
            "config": config,
            "hub": Hub(ip="10.0.0.9", port=8081, base_url="/hub/", public_host=""),
            "internal_ssl": row.internal_ssl,
            "internal_trust_bundles": {"hub-ca": self.certificates["cafile"]},
            "internal_certs_location": "/nowhere",
        }
        user = User(person, settings, db)
        spawner = user._new_spawner(row.server, spawner_class=self.cls)
        base = f"/user/{row.user}/{row.server}/" if row.server else f"/user/{row.user}/"
        address = orm.Server(base_url=base)
        db.add(address)
        db.commit()
        spawner.server = Server(orm_server=address)
        return spawner

    async def spawn(self, spawner: Any, run: Run) -> None:
        """The order of JupyterHub's User.spawn, then a poll, a stop, and the end of the user."""
        row = self.row
        run.states["loaded"] = spawner.get_state()
        form = spawner.options_form
        run.form = await form(spawner) if callable(form) else form
        run.from_form = spawner.options_from_form({"profile": ["b"], "profile-option-b--size": ["big"], "other": ["1"]})
        spawner.user_options = dict(row.options)
        spawner.clear_state()
        run.states["cleared"] = spawner.get_state()
        spawner.api_token = "the-token-of-this-start"
        spawner.oauth_client_id = "jupyterhub-user-alice"
        await spawner.apply_group_overrides()
        await spawner._run_apply_user_options(spawner.user_options)
        await asyncio.ensure_future(_awaited(spawner.run_pre_spawn_hook()))
        if row.internal_ssl:
            spawner.cert_paths = await spawner.move_certs(dict(self.certificates))
        await self.start(spawner, run)
        run.states["started"] = spawner.get_state()
        run.env = spawner.get_env()
        run.events = [(event["reason"], event["message"]) for event in spawner.events]
        await self.read_manifests(spawner, run)
        spawner.server.port = 8888
        run.polls.append(await spawner.poll())
        run.names["address"] = spawner.server.url
        spawner._stop_pending = True
        await spawner.stop()
        run.polls.append(await spawner.poll())
        spawner.clear_state()
        spawner._stop_pending = False
        run.states["stopped"] = spawner.get_state()
        await spawner.delete_forever()

    async def start(self, spawner: Any, run: Run) -> None:
        spawner._start_pending = True
        starting = asyncio.ensure_future(spawner.start())
        telling = asyncio.ensure_future(_all(spawner.progress())) if self.row.progress else None
        wanted = len(TOLD) if spawner.events_enabled else 0
        try:
            while not starting.done():
                if len(spawner.events) == wanted:
                    self.cluster.may_run[spawner.namespace].set()
                await asyncio.sleep(0.01)
            run.url = await starting
        finally:
            spawner._start_pending = False
            starting.cancel()
            if telling is not None:
                run.progress = await telling

    async def end_watches(self, spawner: Any) -> None:
        for kind in ("pods", "events"):
            if not spawner.enable_user_namespaces and (kind, spawner.namespace) in self.cls.reflectors:
                await self.cls.reflectors.pop((kind, spawner.namespace)).stop()

    async def read_manifests(self, spawner: Any, run: Run) -> None:
        plain = spawner.api.api_client.sanitize_for_serialization
        owner = {"apiVersion": "v1", "kind": "Pod", "name": spawner.pod_name, "uid": "1"}
        run.manifests["claim"] = plain(spawner.get_pvc_manifest())
        run.manifests["service"] = plain(spawner.get_service_manifest(owner, 8888))
        run.manifests["made"] = plain(await spawner.get_pod_manifest())
        if self.row.internal_ssl:
            run.manifests["secret"] = plain(spawner.get_secret_manifest(owner))

    def plain(self, request: Request, run: Run) -> tuple[Any, ...]:
        if request.method == "POST":
            run.manifests[{"pods": "pod"}.get(request.resource, f"sent-{request.resource}")] = json.loads(request.body)
        return request.method, request.path, request.query, request.body.decode()


NAMES = ("pod_name", "namespace", "dns_name", "pvc_name", "secret_name", "working_dir", "port", "ssl_alt_names")


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


def _verb(request: Request) -> str:
    watches = ("watch", "True") in request.query or ("watch", "true") in request.query
    named = len(request.path.split("/")) > 6
    reads = "watch" if watches else "get" if named else "list"
    return {"GET": reads, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]


async def _all(steps: Any) -> list[Any]:
    return [step async for step in steps]


async def _awaited(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) or asyncio.isfuture(value) else value


_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_THE_SERVER = ("resourceVersion", "creationTimestamp", "managedFields")


def without_chance(value: Any) -> Any:
    """The value with what differs between any two spawns replaced by a word."""
    if isinstance(value, str):
        return _UID.sub("UID", value)
    if isinstance(value, Mapping):
        return {key: "CHANCE" if key in _OF_THE_SERVER else without_chance(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(without_chance, value))
    return value


def _without_chance(run: Run) -> Run:
    return Run(**{name: value if name == "asked" else without_chance(value) for name, value in vars(run).items()})
