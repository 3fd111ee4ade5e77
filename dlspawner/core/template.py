"""A job template as a value: its teams, its options, and its pod.

``templates/README.md`` describes the YAML form, key by key; ``dlspawner.settings`` reads it. Everything here is already
checked: names are known, defaults are in range, every placeholder has a meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from typing import Any

from dlspawner.core import units
from dlspawner.core.config import CpuMemory, SpecialPermission

# KubeSpawner hard-codes the first; the second is the person's own container where the first is only the login proxy.
NOTEBOOK_CONTAINER = "notebook"
MAIN_CONTAINER = "main"

DEFAULT_HOME, DEFAULT_NOTEBOOK_DIR = "/home/${unix_name}", "${home}"
MOST_PODS = 256  # of one role: each pod has all others' names in its environment (core.launch.pod_set)

Value = bool | int | float | str


class OptionKind(Enum):
    """The type of an option; ``quantity`` is Kubernetes' (``500m``, ``16Gi``)."""

    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    STRING = "string"
    CHOICE = "choice"
    QUANTITY = "quantity"
    PATH = "path"
    IMAGE = "image"


class EndpointProtocol(Enum):
    HTTP = "http"
    SSH = "ssh"
    TCP = "tcp"


class EndpointService(Enum):
    """The reach of an endpoint: only the cluster (and ``ssh -L``), or a Service of type NodePort as well."""

    CLUSTER = "cluster"
    NODEPORT = "nodeport"


class TeamDataAccess(Enum):
    NONE = "none"
    READ_ONLY = "read-only"
    READ_WRITE = "read-write"


class ActivitySource(Enum):
    GPU = "gpu"
    KERNEL = "kernel"
    HTTP = "http"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """One thing that may be picked, and how the form calls it."""

    value: str
    title: str


@dataclass(frozen=True, slots=True)
class Option:
    """Something the user chooses. ``minimum`` and ``maximum`` are numbers, for quantities in the base unit."""

    name: str
    kind: OptionKind
    title: str = ""
    help: str = ""
    default: Value | None = None
    minimum: int | float | Fraction | None = None
    maximum: int | float | Fraction | None = None
    choices: tuple[OptionChoice, ...] = ()
    pattern: str | None = None
    multiline: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A way into the job: a port of its container, and its reach."""

    name: str
    port: int
    protocol: EndpointProtocol
    expose: EndpointService = EndpointService.CLUSTER


@dataclass(frozen=True, slots=True)
class Mounts:
    """Which storage the job sees; ``team_data`` never grants more than ``teams.yaml`` does."""

    home: TeamDataAccess = TeamDataAccess.READ_WRITE
    team_data: TeamDataAccess = TeamDataAccess.READ_WRITE
    job_directory: bool = True


class PodFailurePolicy(Enum):
    """When one pod of several fails: the job is stopped, the pod's program restarted, or the others go on."""

    STOP = "stop"
    RESTART = "restart"
    CONTINUE = "continue"


class PodStart(Enum):
    """When the pods of a job of several start: all of them at once, or the least number and the others later."""

    TOGETHER = "together"
    INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True)
class PodRole:
    """So many pods of the same kind. The first role of a job is one pod, the notebook's; ``count`` may be an option.

    ``least``: with so many of them a job starts, ``None`` for all.

    Of further roles: ``gpus`` of each pod, ``None`` for as many as the job's option; CPU and memory, ``None`` for what
    comes with so many GPUs; ``command``, empty for a pod that only waits for logins.
    """

    name: str
    count: int | str = 1
    gpus: int | None = None
    cpu: Fraction | None = None
    memory: Fraction | None = None
    command: tuple[str, ...] = ()
    least: int | None = None


@dataclass(frozen=True, slots=True)
class JobPorts:
    """So many ports of the host, by a name, for each pod of a job on the host's network."""

    name: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When a job of this template counts as idle; ``None`` leaves it to the team and the cluster.

    ``http_alone``: HTTP counts for no longer than that after the last other use; ``None`` for as long as there is any.
    ``dry_run``: whether its idle jobs are only reported.
    """

    window: timedelta | None = None
    preemptible_window: timedelta | None = None
    lifetime: timedelta | None = None
    http_alone: timedelta | None = None
    dry_run: bool | None = None
    counts: tuple[ActivitySource, ...] = (
        ActivitySource.GPU,
        ActivitySource.KERNEL,
        ActivitySource.HTTP,
        ActivitySource.SSH,
    )


@dataclass(frozen=True, slots=True)
class Template:
    """One file under ``templates/jobs``. ``command``, paths and pod parts still hold their ``${placeholders}``."""

    name: str
    title: str
    description: str = ""
    icon: str = ""  # the path of an SVG picture of 16 by 16
    order: int = 0  # in the form, among those that are not the default
    who: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    command: tuple[str, ...] = ()
    home: str = DEFAULT_HOME
    notebook_dir: str = DEFAULT_NOTEBOOK_DIR
    endpoints: tuple[Endpoint, ...] = ()
    mounts: Mounts = Mounts()
    roles: tuple[PodRole, ...] = ()  # of a job of several pods
    on_pod_failure: PodFailurePolicy = PodFailurePolicy.STOP
    ports: tuple[JobPorts, ...] = ()  # of the host, beside those of its sshd and notebook
    grace_period: timedelta = timedelta(seconds=30)
    idle: IdlePolicy = IdlePolicy()
    # Whether an SSH login starts a job that does not run; None leaves it to the person.
    start_on_connect: bool | None = None
    special: frozenset[SpecialPermission] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    # A Kubernetes PodSpec fragment as it was parsed. Never changed: rendering builds a new tree.
    pod: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def tells_kernels(self) -> bool:
        """True if its jobs report busy kernels: `start.sh` has them do so where it starts the notebook server."""
        program = self.command[0].rpartition("/")[2] if self.command else ""
        itself = self.ssh is not None and self.work_container == NOTEBOOK_CONTAINER
        return itself and program in {"jupyterhub-singleuser", "jupyter", "jupyter-lab"}

    @property
    def ssh(self) -> Endpoint | None:
        """The endpoint that is a real sshd, if the template offers one."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol is EndpointProtocol.SSH), None)

    @property
    def work_container(self) -> str:
        """The container that runs what the person came for: it gets GPUs, CPU, memory, endpoints and sshd."""
        named = [container.get("name") for container in self.pod.get("containers", [])]
        return MAIN_CONTAINER if MAIN_CONTAINER in named else NOTEBOOK_CONTAINER

    @property
    def companions(self) -> CpuMemory:
        """Returns the limits of the containers beside the work container, where the template has plain amounts."""
        sidecars = [one for one in self.pod.get("initContainers", []) if one.get("restartPolicy") == "Always"]
        others = [one for one in self.pod.get("containers", []) if one.get("name") != self.work_container]
        cpu, memory = (
            sum((_most(one, what) for one in (*others, *sidecars)), Fraction(0)) for what in ("cpu", "memory")
        )
        return CpuMemory(units.cpu_milli(cpu), units.memory_bytes(memory))

    def option(self, name: str) -> Option | None:
        return next((option for option in self.options if option.name == name), None)


def _most(container: dict[str, Any], name: str) -> Fraction:
    """The larger of a container's limit and request; nothing for what only a launch knows, or no amount."""
    resources = container.get("resources") or {}
    written = [(resources.get(kind) or {}).get(name) for kind in ("limits", "requests")]
    return max(units.parse_quantity(str(value)) or Fraction(0) for value in written)
