"""The parts of ``cluster.yaml`` about the sharing of GPUs: priorities, scheduling, idle jobs; and notifications."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from dlspawner.core.config import (
    PRIORITIES,
    CpuJobs,
    Culling,
    MailSecurity,
    MailServer,
    Notifications,
    PriorityClasses,
    PriorityLevel,
    SchedulerConfig,
    SchedulerName,
    SchedulingConfig,
)
from dlspawner.core.text import listed
from dlspawner.settings.document import Section

_HOUR = 3600
_YEAR = 366 * 24 * _HOUR
_MOST_JOBS = 1_000_000
_HIGHEST = 1000

CPU_JOBS = ("jobs_per_user", "jobs_per_team", "allow_on_gpu_nodes")
_SCHEDULING = (
    *("notice_seconds", "min_run_seconds", "max_backfill_wait_seconds", "usage_half_life_seconds"),
    "priority_classes",
)
_CELL = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_OBJECT = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
# The keys of `scheduler` for each engine, beside its name.
_ENGINE_KEYS: dict[SchedulerName, tuple[str, ...]] = {
    SchedulerName.NATIVE: (),
    SchedulerName.KUEUE: ("queues", "priority_classes"),
    SchedulerName.VOLCANO: ("queues", "priority_classes", "scheduler_name"),
    SchedulerName.COSCHEDULING: ("priority_classes", "scheduler_name"),
    SchedulerName.KUBE_BATCH: ("queues", "priority_classes", "scheduler_name"),
    SchedulerName.KAI: ("queues", "priority_classes", "scheduler_name"),
    SchedulerName.HIVED: ("queues", "priority_classes", "scheduler_name", "cell_types"),
    SchedulerName.GANG: ("priority_classes", "scheduler_name"),
}
_SCHEDULER = ("name", *dict.fromkeys(key for keys in _ENGINE_KEYS.values() for key in keys))
_IDLE = (
    *("window_seconds", "preemptible_window_seconds", "lifetime_seconds", "silent_ssh_seconds", "keep_alive_seconds"),
    *("gpu_busy_percent", "metrics_age_seconds", "dry_run"),
)


def read_priorities(file: Section, name: str, hint: str) -> tuple[PriorityLevel, ...]:
    """Returns the named levels, highest first; the built-in ones if the file names none."""
    if file.get("priorities") is None:
        return PRIORITIES
    levels: dict[int, str] = {}
    found = []
    for called, entry in file.children("priorities").items():
        entry.named(called, name, hint)
        level = entry.integer(0, _HIGHEST)
        if levels.setdefault(level, called) != called:
            entry.problem(f"{levels[level]} has the level {level} already.")
        found.append(PriorityLevel(called, level))
    return tuple(sorted(found, key=lambda one: -one.level))


def read_cpu_jobs(cpu_only: Section) -> CpuJobs:
    return CpuJobs(
        cpu_only.maybe_integer("jobs_per_user", 0, _MOST_JOBS),
        cpu_only.maybe_integer("jobs_per_team", 0, _MOST_JOBS),
        allow_on_gpu_nodes=cpu_only.boolean("allow_on_gpu_nodes", False),
    )


def read_scheduling(file: Section) -> SchedulingConfig:
    section, usual = file.section("scheduling", _SCHEDULING), SchedulingConfig()
    if section is None:
        return usual
    return SchedulingConfig(
        notice=_seconds(section, "notice_seconds", usual.notice, 0, 24 * _HOUR),
        min_run=_seconds(section, "min_run_seconds", usual.min_run, 0, _YEAR),
        max_backfill_wait=_seconds(section, "max_backfill_wait_seconds", usual.max_backfill_wait, 0, _YEAR),
        half_life=_seconds(section, "usage_half_life_seconds", usual.half_life, _HOUR, _YEAR),
        classes=_classes(section),
    )


def read_scheduler(file: Section, priorities: Collection[PriorityLevel], gpu_types: Collection[str]) -> SchedulerConfig:
    """Returns the engine underneath, and its names for teams and priority levels."""
    found = file.get("scheduler")
    if found is None:
        return SchedulerConfig()
    if not isinstance(found.value, dict):
        found.problem("must be a mapping, such as {name: kueue}.")
        return SchedulerConfig()
    section = found.section(_SCHEDULER)
    if section.need("name") is None:
        return SchedulerConfig()
    name = section.one_of("name", SchedulerName.NATIVE)
    for key in section.entries.keys() - {"name", *_ENGINE_KEYS[name]}:
        if key in _SCHEDULER:  # else it is a problem already
            takes = listed(_ENGINE_KEYS[name]) or "its name alone"
            section.entries[key].problem(f"the scheduler {name.value} takes {takes}, no {key}.")
    classes, levels = section.children("priority_classes"), [one.name for one in priorities]
    for level, entry in classes.items():
        entry.expect(level, levels, "priority")
    for team, entry in section.children("queues").items():
        if name is SchedulerName.KUEUE and entry.value == "default":
            entry.problem(
                f"Kueue takes every pod beside a queue called default for one of that queue: rename {team}'s."
            )
    cells, scheduler = section.children("cell_types"), section.get("scheduler_name")
    for kind, entry in cells.items():
        entry.expect(kind, gpu_types, "GPU type")
    if name is SchedulerName.HIVED and read_scheduling(file).classes == PriorityClasses():
        # Victims are Kubernetes' to preempt, by its priorities.
        found.problem(
            "HiveD takes cells back from preemptible jobs only if guaranteed ones have a higher PriorityClass: set "
            "scheduling.priority_classes."
        )
    hint, object_ = (
        "the name of an object in the cluster: small letters, digits, dots and dashes",
        _CELL if name is SchedulerName.HIVED else _OBJECT,
    )
    return SchedulerConfig(
        name,
        tuple((team, entry.text(object_, hint)) for team, entry in section.children("queues").items()),
        tuple((level, entry.text(_OBJECT, hint)) for level, entry in classes.items()),
        scheduler.text(_CELL, "the name of a scheduler: letters, digits, dots and dashes") if scheduler else "",
        tuple((kind, entry.text(_CELL, "the name of a cell type")) for kind, entry in cells.items()),
    )


def _classes(scheduling: Section) -> PriorityClasses:
    section = scheduling.section("priority_classes", ("guaranteed", "preemptible"))
    if section is None:
        return PriorityClasses()
    names = (section.need_text(kind, _OBJECT, "the name of a PriorityClass") for kind in ("guaranteed", "preemptible"))
    return PriorityClasses(*names)


def read_culling(file: Section) -> Culling:
    section, usual = file.section("idle", _IDLE), Culling()
    if section is None:
        return usual
    busy = section.get("gpu_busy_percent")
    return Culling(
        window=section.maybe_seconds("window_seconds", 60, _YEAR),
        preemptible_window=section.maybe_seconds("preemptible_window_seconds", 60, _YEAR),
        lifetime=section.maybe_seconds("lifetime_seconds", 60, _YEAR),
        silent_ssh=_seconds(section, "silent_ssh_seconds", usual.silent_ssh, 0, _YEAR),
        keep_alive=_seconds(section, "keep_alive_seconds", usual.keep_alive, 0, _YEAR),
        gpu_busy=busy.integer(1, 100) if busy else usual.gpu_busy,
        metrics_age=_seconds(section, "metrics_age_seconds", usual.metrics_age, 30, 24 * _HOUR),
        dry_run=section.boolean("dry_run", usual.dry_run),
    )


_HOST = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_PATTERN = rf"(\*|(\*\.)?{_HOST})(:[1-9][0-9]{{0,4}})?"
_PATTERN_HINT = "a host, “*.” and a domain, or “*”, with “:” and a port where it is not the usual one"


def read_notifications(file: Section) -> Notifications:
    section = file.section("notifications", ("mail", "mail_domains", "hosts", "private_hosts"))
    if section is None:
        return Notifications()
    mail = section.section("mail", ("host", "port", "security", "sender", "user"))
    return Notifications(
        _mail_server(mail) if mail else None,
        section.texts("mail_domains", _HOST, "a domain"),
        section.texts("hosts", _PATTERN, _PATTERN_HINT),
        section.texts("private_hosts", _PATTERN, _PATTERN_HINT),
    )


def _mail_server(section: Section) -> MailServer | None:
    host, sender = section.need("host"), section.need("sender")
    if host is None or sender is None:
        return None
    return MailServer(
        host.text(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", "the name of a host"),
        sender.text(r"[^@\s<>,;]{1,64}@[A-Za-z0-9.-]{1,190}", "an e-mail address"),
        section.integer("port", 587, 1, 65535),
        section.one_of("security", MailSecurity.STARTTLS),
        section.text("user"),
    )


def _seconds(section: Section, key: str, usual: timedelta, low: int, high: int) -> timedelta:
    found = section.maybe_seconds(key, low, high)
    return usual if found is None else found
