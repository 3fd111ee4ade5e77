"""``cluster.yaml``: GPU types, resources of jobs without GPUs, permissions, storage, accounts, scheduling of GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from fractions import Fraction

from dlspawner.core import units
from dlspawner.core.config import (
    ClusterConfig,
    CpuJobs,
    CpuMemory,
    ExtendedResource,
    GpuType,
    HostPorts,
    SchedulerName,
    SpecialPermission,
    StorageConfig,
    Toleration,
)
from dlspawner.core.gpus import CLAIM, KAI_FRACTION, KAI_MEMORY
from dlspawner.core.units import GPU
from dlspawner.core.unix_account import LARGEST, NOBODY, UidRange
from dlspawner.settings.document import Entry, Section
from dlspawner.settings.policy_sections import (
    CPU_JOBS,
    read_cpu_jobs,
    read_culling,
    read_notifications,
    read_priorities,
    read_scheduler,
    read_scheduling,
)

NAME = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
NAME_HINT = "small letters, digits and dashes, at most 40"
RESOURCE = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

# The cluster without a file: no GPUs, and a modest share for each user.
DEFAULT = ClusterConfig((), CpuMemory(1000, 2 * 1024**3), CpuMemory(4000, 8 * 1024**3))

_KEYS = (
    *("gpu_types", "cpu_only", "special_permissions", "storage", "accounts", "defaults"),
    *("priorities", "scheduling", "idle", "host_ports", "extended_resources", "scheduler", "notifications"),
    "profiler_annotations",
)
_TYPE_KEYS = (
    *("title", "resource", "share", "cpu_per_gpu", "memory_per_gpu", "max_per_job", "node_selector", "tolerations"),
    *("sharing", "gpu_memory", "gpu_cores", "replicas", "scheduler_name", "claim_template", "gpus_per_node"),
)


# How large a part is, and how many of them nodes show of each GPU: what each way of sharing wants to know.
_PART_KEYS = {
    "hami": ("gpu_memory", "gpu_cores", "replicas"),
    "alnair": ("gpu_memory", "gpu_cores"),
    "kai": ("gpu_memory",),
}
_HAMI = {"nvidia.com/gpumem", "nvidia.com/gpucores"}
_CLAIM_TEMPLATE = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_RANGE = r"[0-9]{4,5}-[0-9]{4,5}"
_LAST_PORT = 65535
_ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")


class Sharing(Enum):
    """The software that shares GPUs between pods."""

    HAMI = "hami"
    ALNAIR = "alnair"
    KAI = "kai"


def read_cluster(root: Entry, templates: Collection[str], special_namespace: str | None = None) -> ClusterConfig:
    """Returns the cluster in the file, as far as it can be read; ``templates`` are the existing names.

    ``special_namespace`` is the namespace of jobs with special permissions; ``None`` if it is unknown.
    """
    file = root.section(_KEYS)
    default, largest, jobs = _cpu_only(file)
    kinds = tuple(_gpu_type(name, entry) for name, entry in file.children("gpu_types").items())
    priorities = read_priorities(file, NAME, NAME_HINT)
    scheduler = read_scheduler(file, priorities, [kind.name for kind in kinds])
    _check_types(kinds, file)
    if scheduler.name is SchedulerName.HIVED:
        for kind in kinds:
            if kind.share != 1 or kind.per_node:
                file.children("gpu_types")[kind.name].problem(
                    "HiveD gives whole GPUs by resource: no parts, no claims."
                )
    elif not scheduler.is_native and not scheduler.admits_before_pods:
        for kind in kinds:
            usual = "kai-scheduler" if scheduler.name is SchedulerName.KAI else ""
            own = kind.scheduler_name or ("hami-scheduler" if dict(kind.beside).keys() & _HAMI else "")
            if own not in {"", scheduler.scheduler_name or usual}:
                file.children("gpu_types")[kind.name].problem(
                    f"is given by {own}, and {scheduler.title} places all pods: it needs the scheduler native."
                )
    return ClusterConfig(
        gpu_types=kinds,
        cpu_only_default=default,
        cpu_only_max=largest,
        special=_special(file, special_namespace),
        storage=_storage(file),
        default_template=_default_template(file, templates),
        accounts=_accounts(file),
        priorities=priorities,
        scheduling=read_scheduling(file),
        cpu_jobs=jobs,
        culling=read_culling(file),
        host_ports=_host_ports(file),
        extended_resources=tuple(
            _extended(name, entry, kinds) for name, entry in file.children("extended_resources").items()
        ),
        scheduler=scheduler,
        notifications=read_notifications(file),
        profiler_annotations=file.boolean("profiler_annotations", False),
    )


def check_queues(root: Entry, teams: Collection[str]) -> None:
    """Finds teams in the file's `scheduler.queues` that the teams file does not have."""
    found: Entry | None = root
    for key in ("scheduler", "queues"):  # what is no mapping was a problem before
        found = found.value.get(key) if found is not None and isinstance(found.value, dict) else None
    for team, entry in found.value.items() if found is not None and isinstance(found.value, dict) else ():
        entry.expect(team, teams, "team")


def _special(file: Section, namespace: str | None) -> frozenset[SpecialPermission]:
    """Returns the permissions switched on; they need a namespace of their own, the ordinary one refuses such pods."""
    found = frozenset(entry.one_of(SpecialPermission) for entry in file.items("special_permissions"))
    entry = file.get("special_permissions")
    if found and entry is not None and namespace == "":
        entry.problem(
            "there is no namespace for jobs with special permissions: set DLSpawner.special_namespace, or switch "
            "none on."
        )
    return found


def _check_types(kinds: tuple[GpuType, ...], file: Section) -> None:
    """Two types with one resource must be on different nodes: the type of a pod's GPU would be unknown otherwise."""
    for index, kind in enumerate(kinds):
        for other in kinds[:index]:
            if kind.shows == other.shows and not _are_apart(kind, other):
                file.children("gpu_types")[kind.name].problem(
                    f"its nodes show {kind.shows} as those of {other.name}, and a node could be of both: "
                    "give each a node_selector that names the same label with a value of its own."
                )


def _are_apart(one: GpuType, other: GpuType) -> bool:
    """True if no node can have the labels of both."""
    labels = dict(other.node_selector)
    return any(labels.get(key, value) != value for key, value in one.node_selector)


def _default_template(file: Section, templates: Collection[str]) -> str | None:
    section = file.section("defaults", ("template",))
    found = section.get("template") if section else None
    if found is None:
        return None
    name = found.text()
    if name:
        found.expect(name, sorted(templates), "template")
    return name


def _gpu_type(name: str, entry: Entry) -> GpuType:
    section = entry.section(_TYPE_KEYS)
    entry.named(name, NAME, NAME_HINT)
    cpu, memory = section.need("cpu_per_gpu"), section.need("memory_per_gpu")
    return replace(
        _asked_by(section),
        name=name,
        title=section.text("title", name),
        per_gpu=CpuMemory(
            units.cpu_milli(cpu.quantity()) if cpu else 1,
            units.memory_bytes(memory.quantity()) if memory else 1,
        ),
        node_selector=tuple((key, value.text()) for key, value in section.children("node_selector").items()),
        tolerations=tuple(_toleration(one) for one in section.items("tolerations")),
        scheduler_name=section.text("scheduler_name", "kai-scheduler" if section.text("sharing") == "kai" else ""),
    )


def _asked_by(section: Section) -> GpuType:
    """Returns the type as far as pods and nodes tell it: by a resource of its own, a claim, or what shares GPUs."""
    sharing, share, claim = section.get("sharing"), _share(section), section.get("claim_template")
    kind = GpuType("", "", "", CpuMemory(0, 0), section.integer("max_per_job", 8, 1, 1024), share=share)
    for key in [key for key in ("resource", "claim_template", "sharing") if section.get(key)][1:]:
        section.entries[key].problem("pods ask for a GPU in one way: by resource, claim_template or sharing.")
    kind = replace(kind, per_node=section.maybe_integer("gpus_per_node", 1, 1024))
    if kind.per_node and not section.children("node_selector"):
        section.entries["gpus_per_node"].problem("needs a node_selector, or every node would have them.")
    known = _PART_KEYS.get(section.text("sharing"), ())
    for key in sorted({*_PART_KEYS["hami"]}.difference(known)):
        if section.get(key):
            ways = [name for name, keys in _PART_KEYS.items() if key in keys]
            section.entries[key].problem(f"is for types with sharing: {' or '.join(ways)}.")
    if claim is not None:
        section.need("gpus_per_node")
        return replace(kind, resource=f"{CLAIM}/{claim.text(_CLAIM_TEMPLATE, 'the name of a ResourceClaimTemplate')}")
    if sharing is None:
        return replace(kind, resource=section.need_text("resource", RESOURCE, "a resource such as nvidia.com/gpu"))
    section.need("share")
    memory, cores = section.get("gpu_memory"), section.maybe_integer("gpu_cores", 1, 100)
    mib = math.ceil(memory.quantity() / 2**20) if memory else None
    replicas = section.integer("replicas", 10, 1, 1024)
    match sharing.one_of(Sharing):
        case Sharing.HAMI:
            if (memory, cores) == (None, None):
                section.entry.problem("a part of a GPU by HAMi needs gpu_memory, gpu_cores or both.")
            if share * replicas < 1:
                sentence = (
                    f"nodes show {replicas} of each GPU, which are fewer than its parts: give replicas as HAMi has it."
                )
                section.entry.problem(sentence)
            said = (("nvidia.com/gpumem", mib), ("nvidia.com/gpucores", cores))
            beside = tuple((name, amount) for name, amount in said if amount is not None)
            return replace(kind, resource="nvidia.com/gpu", beside=beside, shown=("nvidia.com/gpu", replicas))
        case Sharing.ALNAIR:
            if mib is None or cores is None:
                section.entry.problem("a part of a GPU by Alnair needs gpu_memory and gpu_cores.")
            beside, shown = (("alnair/vgpu-memory", math.ceil((mib or 0) / 1024)),), ("alnair/vgpu-compute", 100)
            return replace(_one(section, kind), resource=shown[0], amount=cores or 1, beside=beside, shown=shown)
        case Sharing.KAI:
            sizes = {KAI_MEMORY: mib, KAI_FRACTION: kind.milli}
            (resource, amount), *also = [(name, size) for name, size in sizes.items() if size]
            kind = replace(kind, any_size=True, shown=("nvidia.com/gpu", 1))
            return replace(kind, resource=resource, amount=amount, also=tuple(also))


def _one(section: Section, kind: GpuType) -> GpuType:
    """A job has one part by this, on one GPU."""
    if section.integer("max_per_job", 1, 1, 1024) != 1:
        section.entries["max_per_job"].problem("a job has one part of a GPU of this kind: make types of larger parts.")
    return replace(kind, max_per_job=1)


def _share(section: Section) -> Fraction:
    found = section.get("share")
    share = found.gpus(0, 1) if found else Fraction(1)
    if found is not None and share * GPU < 1:
        found.problem("is less than a thousandth of a GPU, which would cost nothing.")
        return Fraction(1)
    return share


def _toleration(entry: Entry) -> Toleration:
    section = entry.section(("key", "operator", "value", "effect", "tolerationSeconds"))
    return Toleration(
        key=section.text("key") or None,
        operator=section.text("operator", "Equal", "Equal|Exists", "Equal or Exists"),
        value=section.text("value") or None,
        effect=section.text("effect", "", "|".join(_EFFECTS), f"one of {', '.join(_EFFECTS)}") or None,
        seconds=section.maybe_integer("tolerationSeconds", 0, 10**6),
    )


def _cpu_only(file: Section) -> tuple[CpuMemory, CpuMemory, CpuJobs]:
    section = file.section("cpu_only", ("cpu", "memory", *CPU_JOBS))
    if section is None:
        return DEFAULT.cpu_only_default, DEFAULT.cpu_only_max, DEFAULT.cpu_jobs
    milli, most_milli = _default_and_max(section, "cpu")
    memory, most_memory = _default_and_max(section, "memory")
    return CpuMemory(milli, memory), CpuMemory(most_milli, most_memory), read_cpu_jobs(section)


def _default_and_max(parent: Section, name: str) -> tuple[int, int]:
    to_int = units.cpu_milli if name == "cpu" else units.memory_bytes
    given = (
        (DEFAULT.cpu_only_default.cpu_milli, DEFAULT.cpu_only_max.cpu_milli)
        if name == "cpu"
        else (DEFAULT.cpu_only_default.memory_bytes, DEFAULT.cpu_only_max.memory_bytes)
    )
    section = parent.section(name, ("default", "max"))
    if section is None:
        return given
    default, largest = section.get("default"), section.get("max")
    amount = to_int(default.quantity()) if default else given[0]
    most = to_int(largest.quantity()) if largest else max(given[1], amount)
    if amount > most:
        section.entry.problem("the default is more than max.")
    return amount, most


def _storage(file: Section) -> StorageConfig:
    section = file.section("storage", ("home_size", "storage_class", "access_modes"))
    if section is None:
        return StorageConfig()
    size = section.get("home_size")
    if size is not None:
        size.quantity()
    modes = section.texts("access_modes", "|".join(_ACCESS_MODES), f"one of {', '.join(_ACCESS_MODES)}")
    return StorageConfig(
        home_size=str(size.value) if size else StorageConfig().home_size,
        storage_class=section.text("storage_class") or None,
        access_modes=modes or StorageConfig().access_modes,
    )


def _accounts(file: Section) -> UidRange:
    section = file.section("accounts", ("first_uid", "last_uid"))
    if section is None:
        return UidRange()
    first = section.integer("first_uid", UidRange().first, 1000, LARGEST)
    uids = UidRange(first, section.integer("last_uid", max(UidRange().last, first), 1000, LARGEST))
    if uids.first > uids.last:
        section.entry.problem("first_uid is more than last_uid.")
    nobody = [number for number in sorted(NOBODY) if number in uids]
    if nobody:
        section.entry.problem(f"{nobody[0]} is in this range and means nobody; end below or begin above it.")
    return uids


def _host_ports(file: Section) -> HostPorts | None:
    section = file.section("host_ports", ("range", "enforce"))
    found = section.need("range") if section else None
    if section is None or found is None:
        return None
    text = found.text(_RANGE, "two ports with a dash in between, such as 20000-24000")
    if not re.fullmatch(_RANGE, text):
        return None
    first, last = map(int, text.split("-"))
    ports = HostPorts(first, last, section.boolean("enforce", default=False))
    if not 1024 <= ports.first <= ports.last <= _LAST_PORT:
        found.problem(f"must be from 1024 on and to {_LAST_PORT} at most, the smaller port first.")
    return ports


def _extended(name: str, entry: Entry, kinds: tuple[GpuType, ...]) -> ExtendedResource:
    entry.named(name, RESOURCE, "a resource such as rdma/hca")
    if any(kind.resource == name for kind in kinds):
        entry.problem("it is the resource of a GPU type, which counts it already.")
    section = entry.section(("title", "max_per_job"))
    return ExtendedResource(name, section.text("title"), section.maybe_integer("max_per_job", 1, 1_000_000))
