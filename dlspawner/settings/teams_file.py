"""``teams.yaml``: teams with their quota, caps and mounts, and the blocked users.

Read and checked against the cluster and the templates; ``core.scheduling.admission`` defines the meaning of the
numbers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from fractions import Fraction

from dlspawner.core.config import ClusterConfig, IdleWindows, Team, TeamMount, TeamQuota, TeamsConfig, UserCaps
from dlspawner.core.text import show
from dlspawner.core.units import GPU
from dlspawner.core.unix_account import LARGEST, NOBODY
from dlspawner.settings.document import Entry, Section

_KEYS = ("teams", "blocked")
_TEAM_KEYS = (
    *("title", "admins", "members", "quota", "borrow_limit", "user_caps", "priorities", "preempt_within_team"),
    *("templates", "mounts", "idle", "gid"),
)
_CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_PERSON = r"[^\x00-\x1f\x7f]{1,255}"
_MOST_GPUS = 1_000_000
_LONGEST_WINDOW = 366 * 24 * 3600

# Directories that a job itself needs; a team's data must neither be below them nor hide them.
_SYSTEM = "bin dev etc home job lib proc root run sbin sys tmp usr"
_RESERVED = tuple(f"/{place}" for place in _SYSTEM.split())


def read_teams(root: Entry, cluster: ClusterConfig, templates: Collection[str]) -> TeamsConfig:
    file = root.section(_KEYS)
    listed = root.entries().get("teams")
    if listed is not None and listed.value is None:
        listed.problem("there is nothing below it, so no team would have a quota. Write `teams: {}` if that is meant.")
    teams = tuple(_team(name, entry, cluster, templates) for name, entry in file.children("teams").items())
    _check_gids(file, teams)
    return TeamsConfig(teams, frozenset(file.texts("blocked", _PERSON, "a user name")))


def _team(name: str, entry: Entry, cluster: ClusterConfig, templates: Collection[str]) -> Team:
    section = entry.section(_TEAM_KEYS)
    quotas = section.children("quota")
    entry.named(name, _PERSON, "the name of a group of the Hub")
    return Team(
        name=name,
        title=section.text("title", name),
        admins=section.texts("admins", _PERSON, "a user name"),
        members=section.texts("members", _PERSON, "a user name"),
        quota=tuple(_quota(kind, amount, cluster) for kind, amount in quotas.items() if "/" not in kind),
        extended_quota=tuple(_extended(name, amount, cluster) for name, amount in quotas.items() if "/" in name),
        borrow_limit=_milli(section, "borrow_limit"),
        user_caps=_user_caps(section),
        priorities=_priorities(section, cluster),
        preempt_within_team=section.boolean("preempt_within_team", default=False),
        templates=_templates(section, templates),
        mounts=_mounts(section),
        idle=_idle(section),
        gid=_gid(section, cluster),
    )


def _quota(kind: str, entry: Entry, cluster: ClusterConfig) -> TeamQuota:
    entry.expect(kind, [one.name for one in cluster.gpu_types], "GPU type", against_cluster=True)
    found, gpus = cluster.gpu_type(kind), entry.gpus(0, _MOST_GPUS)
    number = gpus / (found.share if found else 1)
    if number.denominator != 1:
        share = found.share if found else 1
        entry.problem(f"{show(entry.value)} is no whole number of {share} GPU.", against_cluster=True)
    # What so many units count as: 7 of 1/7 are 0.994.
    return TeamQuota(kind, Fraction(int(number) * found.milli, GPU) if found else gpus)


def _extended(name: str, entry: Entry, cluster: ClusterConfig) -> tuple[str, int]:
    entry.expect(name, [one.name for one in cluster.extended_resources], "extended resource", against_cluster=True)
    return name, entry.integer(0, _MOST_GPUS)


def _milli(section: Section, key: str) -> int | None:
    found = section.get(key)
    return None if found is None else int(GPU * found.gpus(0, _MOST_GPUS))


def _user_caps(team: Section) -> UserCaps:
    section = team.section("user_caps", ("soft", "hard"))
    if section is None:
        return UserCaps()
    caps = UserCaps(_milli(section, "soft"), _milli(section, "hard"))
    if caps.soft is not None and caps.hard is not None and caps.soft > caps.hard:
        section.entry.problem("soft is more than hard, so it would have no effect.")
    return caps


def _priorities(team: Section, cluster: ClusterConfig) -> tuple[str, ...]:
    for entry in team.items("priorities"):
        entry.expect(entry.value, [one.name for one in cluster.priorities], "priority", against_cluster=True)
    return team.texts("priorities")


def _templates(team: Section, known: Collection[str]) -> tuple[str, ...]:
    for entry in team.items("templates"):
        entry.expect(entry.value, sorted(known), "template")
    return team.texts("templates")


def _mounts(team: Section) -> tuple[TeamMount, ...]:
    mounts: list[TeamMount] = []
    for entry in team.items("mounts"):
        section = entry.section(("claim", "path", "read_only"))
        path = section.need("path")
        mount = TeamMount(
            claim=section.need_text("claim", _CLAIM, "the name of a PersistentVolumeClaim"),
            path=path.text() if path else "",
            read_only=section.boolean("read_only", default=False),
        )
        if path is not None and mount.path:
            _check_path(path, mount.path, [other.path for other in mounts])
        mounts.append(mount)
    return tuple(mounts)


def _check_path(entry: Entry, path: str, others: list[str]) -> None:
    if not path.startswith("/") or path != posixpath.normpath(path) or path in {"/", "//"}:
        entry.problem("must be an absolute path without “..” and without a slash at the end, such as /data/vision.")
    elif any(path == place or path.startswith(f"{place}/") for place in _RESERVED):
        entry.problem(f"{path} belongs to the job itself; choose a place such as /data{path}.")
    elif path in others:
        entry.problem(f"{path} is mounted twice.")


def _gid(team: Section, cluster: ClusterConfig) -> int | None:
    gid = team.maybe_integer("gid", 100, LARGEST)
    if gid is not None and (gid in cluster.accounts or gid in NOBODY):
        whose = "nobody's" if gid in NOBODY else "in the range of people's own numbers (accounts: in the cluster file)"
        team.entries["gid"].problem(f"{gid} is {whose}; choose another.", against_cluster=gid not in NOBODY)
    return gid


def _check_gids(file: Section, teams: tuple[Team, ...]) -> None:
    seen: dict[int, str] = {}
    for team in teams:
        if team.gid is not None and seen.setdefault(team.gid, team.name) != team.name:
            entry = file.children("teams")[team.name]
            entry.problem(f"the team {seen[team.gid]} has the gid {team.gid} already.")


def _idle(team: Section) -> IdleWindows:
    section = team.section("idle", ("window_seconds", "preemptible_window_seconds"))
    if section is None:
        return IdleWindows()
    return IdleWindows(
        section.maybe_seconds("window_seconds", 60, _LONGEST_WINDOW),
        section.maybe_seconds("preemptible_window_seconds", 60, _LONGEST_WINDOW),
    )
