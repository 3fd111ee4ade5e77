"""Spawners without a Hub: a person, a server, settings as values, and KubeSpawner's own stand-ins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration

from dlspawner.core.config import ClusterConfig, CpuMemory, GpuType, Team, TeamMount, TeamsConfig
from dlspawner.core.template import (
    Endpoint,
    EndpointProtocol,
    EndpointService,
    Mounts,
    Option,
    OptionChoice,
    OptionKind,
    Template,
)
from dlspawner.settings import Settings
from dlspawner.spawner import DLSpawner

GIB = 1024**3
SSH = Endpoint("ssh", 2222, EndpointProtocol.SSH, EndpointService.NODEPORT)

A100 = GpuType("a100", "A100 80 GB", "nvidia.com/gpu", CpuMemory(4000, 16 * GIB), 8, (("gpu", "a100"),))
V100 = GpuType("v100", "V100 32 GB", "nvidia.com/gpu", CpuMemory(2000, 8 * GIB), 4)
CLUSTER = ClusterConfig((A100, V100), CpuMemory(1000, 2 * GIB), CpuMemory(4000, 8 * GIB))
VISION = Team("vision", "Vision", members=("alice",), mounts=(TeamMount("vision-data", "/data/vision", True),))
TEAMS = TeamsConfig((VISION, Team("default")), blocked=frozenset({"mallory"}))

OPTIONS = (
    Option("gpus", OptionKind.INTEGER, "GPUs", "How many GPUs the job holds."),
    Option("gpu_type", OptionKind.CHOICE, "GPU type"),
    Option("cpu", OptionKind.QUANTITY, "CPUs"),
    Option("memory", OptionKind.QUANTITY, "Memory"),
    Option("team", OptionKind.CHOICE, "Team", "Whose quota the job is charged to."),
    Option("log_dir", OptionKind.PATH, "Log directory", default="logs"),
)
NOTEBOOK = Template(
    "ipython",
    "Notebook <b>",
    "JupyterLab in your home directory.",
    options=OPTIONS,
    command=("jupyterhub-singleuser",),
    endpoints=(SSH,),
)
BATCH = Template(
    "custom",
    "Custom",
    "An image and a command.",
    options=(
        Option("image", OptionKind.IMAGE, "Image"),
        Option("command", OptionKind.STRING, "Command", multiline=True),
        Option("mode", OptionKind.CHOICE, "Mode", choices=(OptionChoice("fast", "Fast"), OptionChoice("slow", "Slow"))),
        Option("debug", OptionKind.BOOLEAN, "Debug", default=False),
    ),
    endpoints=(SSH,),
    pod={"containers": [{"name": "main", "command": ["sh", "-c", "${command}"]}]},
)
BOARD = Template(
    "tensorboard",
    "TensorBoard",
    options=(Option("log_dir", OptionKind.PATH, "Log directory", default="logs"),),
    command=("tensorboard", "--logdir=${log_dir}"),
    mounts=Mounts(job_directory=False),
)
SETTINGS = Settings((NOTEBOOK, BATCH, BOARD), CLUSTER, TEAMS)


class Answered:
    """A response of KubeSpawner's client, its body unread."""

    def __init__(self, body: object, status: int = 200, **headers: str) -> None:
        self.status, self.headers = status, {key.replace("_", "-"): value for key, value in headers.items()}
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def read(self) -> bytes:
        return self._body

    def release(self) -> None:
        """There is no connection."""


class Client:
    """The target of requests: the models' own (de)serialisation is real, a request is a mistake."""

    def __init__(self) -> None:
        self.api_client = ApiClient.__new__(ApiClient)  # its __init__ opens a session
        self.api_client.configuration = Configuration()


def person(name: str = "alice", *groups: str) -> Any:
    return SimpleNamespace(
        name=name,
        id=1,
        url=f"/user/{name}/",
        groups=[SimpleNamespace(name=group) for group in groups],
        spawners={},
        spawner=SimpleNamespace(_account=None, save_state=lambda: None),
        orm_user=SimpleNamespace(orm_spawners={}),
        encrypted_auth_state=None,
        get_auth_state=_no_auth_state,
    )


@dataclass(frozen=True)
class Unchanged:
    """Files that never change."""

    settings: Settings

    def now(self) -> Settings:
        return self.settings

    def limited(self) -> bool:
        return self.settings.teams.has_limits(self.settings.cluster)


async def _no_auth_state() -> None:
    """As of a Hub that keeps none."""


def make_spawner(
    monkeypatch: pytest.MonkeyPatch,
    name: str = "alice",
    server: str = "",
    *,
    settings: Settings | None = SETTINGS,
    cls: type[Any] = DLSpawner,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """A spawner as the Hub makes it, without Hub and cluster; ``settings=None``: no templates are configured."""
    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **_: None)
    monkeypatch.setattr("kubespawner.spawner.shared_client", lambda _: Client())
    chosen: dict[str, Any] = {"namespace": "jobs", "image": "example.org/jobs:1", **(config or {})}
    if settings is not None:
        chosen["templates_dir"] = "/templates"
        files = Unchanged(settings)
        monkeypatch.setattr("dlspawner.settings.reload.current_config", lambda *_: files)
    hub = SimpleNamespace(
        public_host="", url="http://hub/", base_url="/hub/", api_url="http://hub/hub/api", server=None
    )
    orm_spawner = SimpleNamespace(name=server, user_options=None, state=None, server=None)
    return cls(user=person(name), hub=hub, orm_spawner=orm_spawner, api_token="secret-token", **chosen)
