"""The cluster and its teams as values: the contents of ``cluster.yaml`` and ``teams.yaml``.

Amounts are integers: CPU in thousandths (``cpu_milli``), memory in bytes, GPUs as in the files; decisions count in
milli-GPUs (``units``). Nothing here knows a file format: ``dlspawner.settings`` reads and checks the files, all other
modules receive these values.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from urllib.parse import urlsplit

from dlspawner.core.units import GPU
from dlspawner.core.unix_account import UidRange

DEFAULT_TEAM = "default"


class SpecialPermission(Enum):
    """A right that an ordinary job never has; off for the whole cluster until enabled."""

    ROOT = "root"
    PRIVILEGED = "privileged"
    HOST_NETWORK = "host_network"
    HOST_PATHS = "host_paths"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """CPU and memory together: of one GPU's share, of a default or of a limit."""

    cpu_milli: int
    memory_bytes: int

    def times(self, factor: int) -> CpuMemory:
        return CpuMemory(self.cpu_milli * factor, self.memory_bytes * factor)


@dataclass(frozen=True, slots=True)
class Toleration:
    """A Kubernetes toleration; ``None`` where the key is left out."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    seconds: int | None = None

    def manifest(self) -> dict[str, str | int]:
        known = {
            "key": self.key,
            "operator": self.operator,
            "value": self.value,
            "effect": self.effect,
            "tolerationSeconds": self.seconds,
        }
        return {key: value for key, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GpuType:
    """A kind of GPU, or of a part of one. Jobs ask for units of it; a unit is ``share`` of a GPU.

    ``per_gpu`` comes with each unit, and ``max_per_job`` is a number of units. A unit is ``amount`` of ``resource``, by
    the name that pods ask for or by one of `core.gpus`. ``beside``: further limits of a container with units, however
    many. ``shown``: the resource by which nodes show these GPUs, and how much of it is one GPU, where that is not
    ``resource`` by its share. ``per_node``: the GPUs of each node that the selector chooses, where nodes show none.
    ``any_size``: a pod may ask for more or less than a unit, and is charged that; ``also``: further resources by which
    it may do so, with the amount of a unit.
    """

    name: str
    title: str
    resource: str
    per_gpu: CpuMemory
    max_per_job: int
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    share: Fraction = Fraction(1)
    amount: int = 1
    beside: tuple[tuple[str, int], ...] = ()
    shown: tuple[str, int] | None = None
    per_node: int | None = None
    scheduler_name: str = ""
    any_size: bool = False
    also: tuple[tuple[str, int], ...] = ()
    milli: int = field(init=False, repr=False, compare=False)  # that a unit counts as, rounded down: 142 for 1/7

    def __post_init__(self) -> None:
        object.__setattr__(self, "milli", int(GPU * self.share))

    @property
    def shows(self) -> str:
        """The resource by which nodes show these GPUs."""
        return self.shown[0] if self.shown else self.resource

    @property
    def asked_by(self) -> dict[str, int]:
        """The resources that ask for units, with the amount of one."""
        return {self.resource: self.amount, **dict(self.also)}

    @property
    def resources(self) -> set[str]:
        """The resources by which a container asks for units, and says how large they are."""
        return {*self.asked_by, *dict(self.beside)}

    def units(self, milli: int) -> int:
        """Returns how many units so many milli-GPUs are; a part of a unit counts as one."""
        return -(-milli // self.milli)

    def amount_of(self, milli: int) -> int:
        """Returns how much of the resource asks for so many milli-GPUs."""
        return milli * self.amount // self.milli if self.any_size else self.units(milli) * self.amount

    def milli_of(self, asked: Mapping[str, int]) -> int:
        """Returns the milli-GPUs that these amounts of resources ask for; a part of a unit costs one, if it has a size.

        Rounded up.
        """
        milli = 0
        for name, unit in self.asked_by.items():
            amount = asked.get(name, 0)
            milli += -(-amount * self.milli // unit) if self.any_size else -(-amount // unit) * self.milli
        return milli

    def capacity(self, amounts: Mapping[str, int]) -> int:
        """Returns the milli-GPUs of a node that shows these amounts of resources, and that may have such GPUs."""
        if self.per_node is not None:
            return GPU * self.per_node
        if self.shown is not None:
            return GPU * amounts.get(self.shown[0], 0) // self.shown[1]
        return amounts.get(self.resource, 0) // self.amount * self.milli


@dataclass(frozen=True, slots=True)
class ExtendedResource:
    """A countable resource of nodes beside GPUs, by Kubernetes' name (``rdma/hca``); ``title``: what people call it."""

    name: str
    title: str = ""
    max_per_job: int | None = None


@dataclass(frozen=True, slots=True)
class HostPorts:
    """The ports for jobs on the host's network, with the last one; ``enforce``: programs on other ports are ended."""

    first: int
    last: int
    enforce: bool = False

    @property
    def numbers(self) -> range:
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The claim that holds a person's home directory."""

    home_size: str = "10Gi"
    storage_class: str | None = None
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """A named level; the higher one comes first."""

    name: str
    level: int


PRIORITIES = (PriorityLevel("prod", 100), PriorityLevel("test", 10))  # of a cluster that names none


@dataclass(frozen=True, slots=True)
class PriorityClasses:
    """Kubernetes' PriorityClasses of jobs; ``None`` leaves a pod without one."""

    guaranteed: str | None = None
    preemptible: str | None = None

    def of(self, *, preemptible: bool) -> str | None:
        return self.preemptible if preemptible else self.guaranteed


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """The rules of the queue and of preemption.

    ``notice`` is between telling a victim and stopping it; ``min_run`` is how long a preemptible job runs before its
    notice begins; ``max_backfill_wait`` is how long a job may be passed by those behind it; ``half_life`` is after how
    long half of what a team has used is forgotten.
    """

    notice: timedelta = timedelta(minutes=5)
    min_run: timedelta = timedelta(minutes=10)
    max_backfill_wait: timedelta = timedelta(minutes=30)
    half_life: timedelta = timedelta(days=7)
    classes: PriorityClasses = field(default_factory=PriorityClasses)


class SchedulerName(Enum):
    """The counter of quotas and orderer of jobs: this product, or an engine of the cluster (`core.schedulers`)."""

    NATIVE = "native"
    KUEUE = "kueue"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    KUBE_BATCH = "kube-batch"
    KAI = "kai"
    HIVED = "hived"
    GANG = "gang"


_TITLES = {
    SchedulerName.KUBE_BATCH: "kube-batch",
    SchedulerName.KAI: "KAI",
    SchedulerName.HIVED: "HiveD",
    SchedulerName.GANG: "Kubernetes",
}


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The engine underneath, with its names of ours.

    ``queues``: the engine's queue of a team, where that is not the team's name; ``priority_classes``: the engine's
    class of a priority level, by the level's name.
    """

    name: SchedulerName = SchedulerName.NATIVE
    queues: tuple[tuple[str, str], ...] = ()
    priority_classes: tuple[tuple[str, str], ...] = ()
    scheduler_name: str = ""  # in the pods; empty for the engine's own default
    cell_types: tuple[tuple[str, str], ...] = ()  # HiveD's leaf cell type of a GPU type, where that is not its name

    @property
    def is_native(self) -> bool:
        return self.name is SchedulerName.NATIVE

    @property
    def admits_before_pods(self) -> bool:
        """True if jobs wait in the engine before their pods exist; otherwise the pods themselves wait."""
        return self.name is SchedulerName.KUEUE

    @property
    def title(self) -> str:
        """The engine's name in sentences."""
        return _TITLES.get(self.name, self.name.value.capitalize())

    def queue(self, team: str) -> str:
        return dict(self.queues).get(team, team)


@dataclass(frozen=True, slots=True)
class CpuJobs:
    """Limits of jobs without GPUs, per user and per team; ``None`` for any number.

    ``allow_on_gpu_nodes``: they may also use the CPU and memory that come with GPUs, so that those may lie idle.
    """

    per_user: int | None = None
    per_team: int | None = None
    allow_on_gpu_nodes: bool = False


@dataclass(frozen=True, slots=True)
class Culling:
    """The times after which unused jobs are stopped, for teams and templates without their own; ``None`` for never.

    ``silent_ssh``: how long an open SSH session without a byte protects. ``keep_alive``: how long after their last real
    use people may keep jobs by the button. ``gpu_busy``: percent from which a GPU is used. ``metrics_age``: what is
    older, or has a larger gap, is not known. ``dry_run``: report the jobs that would be stopped, stop none, warn no
    user; so it is until an administrator has read what would be.
    """

    window: timedelta | None = None
    preemptible_window: timedelta | None = None
    lifetime: timedelta | None = None
    silent_ssh: timedelta = timedelta(hours=1)
    keep_alive: timedelta = timedelta(hours=24)
    gpu_busy: float = 5.0
    metrics_age: timedelta = timedelta(minutes=5)
    dry_run: bool = True


# Messages outside the pages go to addresses that people type, so nowhere that an administrator has not named.
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,188}[A-Za-z0-9])?")
_PORTS = {"https": 443, "http": 80}


class MailSecurity(Enum):
    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MailServer:
    """``user``: whose password the Manager has in its environment; empty: no login."""

    host: str
    sender: str
    port: int = 587
    security: MailSecurity = MailSecurity.STARTTLS
    user: str = ""


@dataclass(frozen=True, slots=True)
class Notifications:
    """``hosts``: reached by https, at addresses of the internet; ``private_hosts``: anywhere, also by http.

    A pattern is a host, ``*.`` and a domain, or ``*``, with a port where it is not the scheme's. ``mail_domains``: of
    addresses that people may type; the address from the authenticator needs none.
    """

    mail: MailServer | None = None
    mail_domains: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()

    @property
    def takes_urls(self) -> bool:
        return bool(self.hosts or self.private_hosts)

    def may_be_private(self, url: str) -> bool:
        """True if this address may be inside the organisation's network."""
        return _matches(url, self.private_hosts)

    def url_problem(self, url: str) -> str | None:
        """Returns why nothing is sent to this address; ``None`` if it is allowed."""
        try:
            parts, port = urlsplit(url), urlsplit(url).port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in _PORTS or not parts.hostname or not url.isprintable() or " " in url or port == 0:
            return "An address begins with https://, followed by a host."
        if parts.username is not None or parts.password is not None:
            return "An address has no user name and password in it."
        if self.may_be_private(url):
            return None
        if not _matches(url, self.hosts):
            allowed = ", ".join((*self.hosts, *self.private_hosts))
            return f"{parts.netloc} is not among the hosts that the administrators allow: {allowed or 'none'}."
        if parts.scheme != "https":
            return f"{parts.netloc} needs https."
        return None if is_public(parts.hostname) else f"{parts.hostname} is an address of a private network."

    def mail_problem(self, address: str, told: str) -> str | None:
        """Returns why this address gets no mail; ``told``: the one that the authenticator knows."""
        if _MAIL.fullmatch(address) is None:
            return "This is no e-mail address."
        if address == told or address.rpartition("@")[2].lower() in self.mail_domains:
            return None
        domains = ", ".join(f"@{one}" for one in self.mail_domains)
        mine = (
            f"the address of your login, {told}" if told else "the address of your login, known after your next start"
        )
        return f"Mail goes to {' or '.join(filter(None, (mine, domains)))}."


def is_public(host: str) -> bool:
    """False for an address of a private network; names are for the resolver to judge."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_global and not address.is_multicast


def _matches(url: str, patterns: Iterable[str]) -> bool:
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    for pattern in patterns:
        name, _, wanted = pattern.partition(":")
        fits = name in {"*", host} or (name.startswith("*.") and host.endswith(name[1:]))
        if fits and port == (int(wanted) if wanted else _PORTS.get(parts.scheme)):
            return True
    return False


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """``cluster.yaml``: GPU types in the order the form shows them, and what a job without GPUs gets and may get."""

    gpu_types: tuple[GpuType, ...]
    cpu_only_default: CpuMemory
    cpu_only_max: CpuMemory
    special: frozenset[SpecialPermission] = frozenset()
    storage: StorageConfig = field(default_factory=StorageConfig)
    default_template: str | None = None
    accounts: UidRange = field(default_factory=UidRange)
    priorities: tuple[PriorityLevel, ...] = PRIORITIES  # highest first
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    cpu_jobs: CpuJobs = field(default_factory=CpuJobs)
    culling: Culling = field(default_factory=Culling)
    host_ports: HostPorts | None = None  # for jobs on the host's network; None: none are assigned
    extended_resources: tuple[ExtendedResource, ...] = ()
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    notifications: Notifications = field(default_factory=Notifications)
    profiler_annotations: bool = False  # what pods have used at most, for schedulers that read Alnair's annotations

    def gpu_type(self, name: str) -> GpuType | None:
        return next((kind for kind in self.gpu_types if kind.name == name), None)

    def units(self, gpu_type: str | None, milli: int) -> int:
        """Returns the units of so many milli-GPUs of a type; whole GPUs of a type that is gone."""
        kind = self.gpu_type(gpu_type or "")
        return kind.units(milli) if kind else -(-milli // GPU)

    @property
    def gpu_resources(self) -> frozenset[str]:
        """Every resource name that asks for a GPU or says how much of one, for ``disable_gpus_by_default``."""
        return frozenset(name for kind in self.gpu_types for name in kind.resources)

    def resource_title(self, name: str) -> str:
        """An extended resource as people read it: “InfiniBand adapters (rdma/hca)”, or its name alone."""
        title = next((one.title for one in self.extended_resources if one.name == name), "")
        return f"{title} ({name})" if title else name

    def allowed_priorities(self, team: Team) -> tuple[PriorityLevel, ...]:
        """The levels of a team's jobs, highest first; all of the cluster's for a team that names none."""
        return tuple(one for one in self.priorities if not team.priorities or one.name in team.priorities)

    def priority(self, team: Team, name: str | None) -> PriorityLevel | None:
        """The level that a job asks for by name, or its team's default; ``None`` for one that the team may not use."""
        if not name:
            return self.default_priority(team)
        return next((one for one in self.allowed_priorities(team) if one.name == name), None)

    def priority_name(self, level: int) -> str:
        """The name of a level; "" of one that the file has no more."""
        return next((one.name for one in self.priorities if one.level == level), "")

    def default_priority(self, team: Team) -> PriorityLevel:
        """The level of a job that asks for none: the lowest one of its team."""
        return min(self.allowed_priorities(team), key=lambda one: one.level, default=PriorityLevel("", 0))


@dataclass(frozen=True, slots=True)
class TeamMount:
    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class TeamQuota:
    gpu_type: str
    gpus: int | Fraction


@dataclass(frozen=True, slots=True)
class UserCaps:
    """Milli-GPUs that one member may hold: above ``soft`` only what is approved, above ``hard`` nothing."""

    soft: int | None = None
    hard: int | None = None


@dataclass(frozen=True, slots=True)
class IdleWindows:
    """The times a job may be idle before it is stopped; ``None`` leaves it to the next level."""

    guaranteed: timedelta | None = None
    preemptible: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Team:
    """The owner of a quota; a group of the same name in the Hub. ``members`` is only for Hubs without groups."""

    name: str
    title: str = ""
    admins: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    quota: tuple[TeamQuota, ...] = ()
    extended_quota: tuple[tuple[str, int], ...] = ()  # by resource; of others as much as there is
    borrow_limit: int | None = None  # milli-GPUs
    user_caps: UserCaps = UserCaps()
    priorities: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    mounts: tuple[TeamMount, ...] = ()
    idle: IdleWindows = IdleWindows()
    gid: int | None = None  # of the unix group that the team's data belongs to
    preempt_within_team: bool = (
        False  # a job of higher priority may stop a guaranteed one of lower priority of this team
    )

    def entitled(self, gpu_type: str | None) -> int:
        """The team's quota of a GPU type in milli-GPUs; 0 for what the file does not name."""
        return int(GPU * sum(quota.gpus for quota in self.quota if quota.gpu_type == gpu_type))

    def may_use(self, template: str) -> bool:
        """An empty list of templates allows all of them."""
        return not self.templates or template in self.templates


@dataclass(frozen=True, slots=True)
class TeamsConfig:
    """``teams.yaml``: the teams in their order, and the blocked users.

    ``templates``: the teams that may use each by its own word, none for all of them; ``borrowing``: those of them that
    offer preemptible jobs. ``None`` if they were not read.
    """

    teams: tuple[Team, ...] = ()
    blocked: frozenset[str] = frozenset()
    templates: Mapping[str, Collection[str]] | None = None
    borrowing: frozenset[str] | None = None

    def team_of(self, user: str, groups: tuple[str, ...] | list[str]) -> tuple[Team, ...]:
        """Returns the teams of a user by Hub group or listed member, in the file's order; else ``default``."""
        found = tuple(team for team in self.teams if team.name in groups or user in (*team.members, *team.admins))
        return found or (self.named(DEFAULT_TEAM) or Team(DEFAULT_TEAM),)

    @property
    def has_quota(self) -> bool:
        """True if teams have quotas; without quotas every user may use all GPUs, within the caps."""
        return any(team.quota for team in self.teams)

    def has_limits(self, cluster: ClusterConfig) -> bool:
        """True if anything is counted: the Hub then asks before it makes a pod."""
        jobs = cluster.cpu_jobs
        return (
            self.has_quota
            or not cluster.scheduler.is_native
            or (jobs.per_user, jobs.per_team) != (None, None)
            or any(team.borrow_limit is not None or team.user_caps != UserCaps() for team in self.teams)
            or any(team.extended_quota for team in self.teams)
            or any(one.max_per_job is not None for one in cluster.extended_resources)
        )

    def named(self, name: str) -> Team | None:
        return next((team for team in self.teams if team.name == name), None)

    @property
    def titles(self) -> dict[str, str]:
        return {team.name: team.title or team.name for team in self.teams}

    def paying_team(self, name: str) -> Team | None:
        """Returns the team that pays for a job; ``default``, which needs no entry, for a user without a team."""
        return self.named(name) or (Team(DEFAULT_TEAM) if name == DEFAULT_TEAM else None)


_WORDS = {
    SpecialPermission.ROOT: "root",
    SpecialPermission.PRIVILEGED: "privileged containers",
    SpecialPermission.HOST_NETWORK: "the host's network",
    SpecialPermission.HOST_PATHS: "host paths",
    SpecialPermission.DEVICES: "devices",
}


def format_permissions(permissions: Iterable[SpecialPermission]) -> str:
    """Permissions as people read them: “root, host paths”."""
    known = set(permissions)
    return ", ".join(word for special, word in _WORDS.items() if special in known)
