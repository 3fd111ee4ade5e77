"""What a trace is replayed on: a cluster, teams and nodes, from the administrators' files or derived from the trace.

Without ``cluster.yaml`` the GPU types are those of the trace. Without ``teams.yaml`` each team gets so many whole nodes
that its guaranteed jobs keep a given share of them busy, and at least what its largest job needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from dlspawner import settings
from dlspawner.core.config import ClusterConfig, Team, TeamsConfig
from dlspawner.core.nodes import Node, NodePlacement
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.scheduling.cluster_state import ClusterState, Snapshot
from dlspawner.core.units import GPU
from dlspawner.errors import InvalidConfiguration
from dlspawner.simulate.engine import Replay
from dlspawner.simulate.trace import Trace, TraceJob

NODE_GPUS = 8


class WrongScenario(Exception):
    """The files and options make no cluster to replay on; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, its teams and its nodes. ``pool``: the quotas are not enforced, all teams share all GPUs."""

    cluster: ClusterConfig
    teams: TeamsConfig
    nodes: tuple[Node, ...]
    sizes: Mapping[str, int]  # GPUs of a node, by type
    pool: bool = False

    def replay(self, trace: Trace) -> Replay:
        teams = self.teams
        if self.pool:
            teams = replace(teams, teams=tuple(replace(team, quota=()) for team in teams.teams))
        return Replay(ClusterState.of(Snapshot(self.cluster, teams, self.nodes)), trace, self._requests())

    def renamed(self, names: Mapping[str, str]) -> Scenario:
        """The same with other names of teams, and no titles."""
        teams = tuple(replace(team, name=names[team.name], title="") for team in self.teams.teams)
        return replace(self, teams=replace(self.teams, teams=teams))

    def private(self, team: Team, trace: Trace) -> Replay | None:
        """The team's guaranteed jobs on a cluster of its own, of the nodes of its quota; ``None`` without any."""
        jobs = tuple(one for one in trace.jobs if one.team == team.name and not one.preemptible)
        whole, nodes = ClusterState.of(Snapshot(self.cluster, self.teams, self.nodes)), []
        for quota in team.quota:
            share = whole.quota_by_team(quota.gpu_type).get(team.name)
            size, milli = _milli(self.cluster, quota.gpu_type, self.sizes[quota.gpu_type]), int(quota.gpus * GPU)
            parts = list(share.values()) if share else [min(size, milli - at) for at in range(0, milli, size)]
            names = list(share) if share else [f"{quota.gpu_type}-{number:05}" for number in range(len(parts))]
            nodes += [_node(self.cluster, quota.gpu_type, name, part) for name, part in zip(names, parts, strict=True)]
        if not jobs or not nodes:
            return None
        state = ClusterState.of(Snapshot(self.cluster, TeamsConfig((team,)), tuple(nodes)))
        return Replay(state, replace(trace, jobs=jobs), self._requests())

    def _requests(self) -> Any:
        kinds = {kind.name: kind for kind in self.cluster.gpu_types}

        @cache
        def request(gpu_type: str, pods: tuple[int, ...]) -> ResourceRequest:
            kind = kinds.get(gpu_type)
            if not sum(pods):
                return ResourceRequest()
            place = NodePlacement(kind.node_selector, tolerations=kind.tolerations) if kind else NodePlacement()
            resource, unit = (kind.resource, kind.milli) if kind else ("unknown", GPU)
            return ResourceRequest(gpu_type, tuple(PodRequest(resource, gpus * unit, placement=place) for gpus in pods))

        def request_of(one: TraceJob) -> ResourceRequest:
            gpu_type = one.gpu_type or next(iter(kinds), "")
            return request(gpu_type, one.pods or _pods(one.gpus, self.sizes.get(gpu_type, NODE_GPUS)))

        return request_of


def _pods(gpus: int, size: int) -> tuple[int, ...]:
    """GPUs of each pod of a job that is spread over whole nodes."""
    whole, rest = divmod(gpus, size)
    return (*[size] * whole, *[rest] * bool(rest)) or (0,)


def _node(cluster: ClusterConfig, gpu_type: str, name: str, milli: int) -> Node:
    kind = cluster.gpu_type(gpu_type)
    assert kind is not None  # noqa: S101 - settings have checked the types of quotas and nodes
    units = kind.units(milli)
    share = kind.per_gpu.times(units)
    return Node(name, ((kind.resource, units * GPU),), share.cpu_milli, share.memory_bytes, kind.node_selector)


def _milli(cluster: ClusterConfig, gpu_type: str, units: int) -> int:
    kind = cluster.gpu_type(gpu_type)
    return units * (kind.milli if kind else GPU)


def make(
    trace: Trace,
    files: tuple[Path | None, Path | None],
    changes: Sequence[str] = (),
    nodes: Sequence[str] = (),
    load: float = 0.7,
) -> Scenario:
    """Reads ``cluster.yaml`` and ``teams.yaml``, or derives them, and applies ``changes`` such as ``a.b=1``."""
    documents = [_read(file) for file in files]
    cluster = documents[0] or _derived_cluster(trace)
    cluster.pop("defaults", None)  # templates play no part
    teams = documents[1] or _derived_teams(trace, next(iter(cluster.get("gpu_types") or {"gpu": None})), load)
    for team in (teams.get("teams") or {}).values():
        if isinstance(team, dict):
            team.pop("templates", None)
    for change in changes:
        _check_team(teams, change)
        _change(teams if change.startswith("teams.") else cluster, change)
    found = _checked(cluster, teams, files)
    if not found.cluster.scheduler.is_native:
        title = found.cluster.scheduler.title
        raise WrongScenario(
            f"{files[0] or 'cluster.yaml'}: scheduler: {title}'s decisions cannot be replayed; leave it out for ours."
        )
    kinds = [kind.name for kind in found.cluster.gpu_types]
    sizes = dict.fromkeys(kinds, NODE_GPUS)
    counts = {kind: ceil(_quota(found.teams, kind) / NODE_GPUS) for kind in kinds}
    for text in nodes:
        kind, counts_of_kind = _parse_nodes(text, kinds)
        counts[kind], sizes[kind] = counts_of_kind
    made = [
        _node(found.cluster, kind, f"{kind}-{number:05}", _milli(found.cluster, kind, sizes[kind]))
        for kind in kinds
        for number in range(counts[kind])
    ]
    if not made:
        raise WrongScenario("There are no nodes: no team has a quota, and --nodes names none (--nodes a100=4x8).")
    return Scenario(found.cluster, found.teams, tuple(made), sizes)


def _read(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WrongScenario(f"{file}: {getattr(error, 'strerror', None) or error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise WrongScenario(f"{file}, line {mark.line + 1 if mark else 1}: this is no YAML.") from None
    if not isinstance(found, dict):
        raise WrongScenario(f"{file}: must be a mapping.")
    return found


def _checked(
    cluster: dict[str, Any], teams: dict[str, Any], files: tuple[Path | None, Path | None]
) -> settings.Settings:
    """Reads the documents as the Hub does; problems name the administrators' files, by path in the file."""
    names = [
        str(file or f"{name}.yaml (from the trace)") for file, name in zip(files, ("cluster", "teams"), strict=True)
    ]
    with TemporaryDirectory(prefix="dlspawner-") as folder:
        places = [Path(folder) / name for name in ("cluster.yaml", "teams.yaml")]
        for place, document in zip(places, (cluster, teams), strict=True):
            place.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
        try:
            return settings.load(None, *places)
        except InvalidConfiguration as wrong:
            told = dict(zip(map(str, places), names, strict=True))
            first = wrong.problems[0]
            raise WrongScenario(f"{told[first.file]}: {first.path}: {first.sentence}") from None


def _check_team(teams: dict[str, Any], change: str) -> None:
    """A misspelled team is not to become one more."""
    known, (start, name, *_) = teams.get("teams") or {}, [*change.partition("=")[0].split("."), "", ""]
    if start == "teams" and name and name not in known:
        raise WrongScenario(f"--set {change}: there is no team {name}; teams: {', '.join(map(str, known)) or 'none'}.")


def _change(document: dict[str, Any], change: str) -> None:
    path, found, text = change.partition("=")
    if not found or not path:
        raise WrongScenario(f"--set {change}: must be like scheduling.notice_seconds=60.")
    *above, last = path.split(".")
    here: Any = document
    for key in above:
        here = here.setdefault(key, {})
        if not isinstance(here, dict):
            raise WrongScenario(f"--set {change}: {key} has no keys.")
    try:
        here[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise WrongScenario(f"--set {change}: the value is no YAML.") from None


def _parse_nodes(text: str, kinds: Sequence[str]) -> tuple[str, tuple[int, int]]:
    kind, _, size = text.rpartition("=")
    count, _, gpus = size.partition("x")
    kind = kind or next(iter(kinds), "")
    if kind not in kinds or not count.isdecimal() or not gpus.isdecimal() or not int(gpus):
        raise WrongScenario(f"--nodes {text}: must be like TYPE=42x8, with a type of {', '.join(kinds)}.")
    return kind, (int(count), int(gpus))


def _quota(teams: TeamsConfig, gpu_type: str) -> int:
    return sum(team.entitled(gpu_type) for team in teams.teams) // GPU


def _derived_cluster(trace: Trace) -> dict[str, Any]:
    kinds = sorted({one.gpu_type or "gpu" for one in trace.jobs if one.gpus}) or ["gpu"]
    kind = {"resource": "nvidia.com/gpu", "cpu_per_gpu": 1, "memory_per_gpu": "1Gi", "max_per_job": 1024}
    return {"gpu_types": {name: {**kind, "node_selector": {"gpu": name}} for name in kinds}, "idle": {"dry_run": False}}


def _derived_teams(trace: Trace, usual: str, load: float) -> dict[str, Any]:
    jobs: dict[str, dict[str, list[TraceJob]]] = {}
    for one in trace.jobs:
        kinds = jobs.setdefault(one.team, {})
        if one.gpus and not one.preemptible:
            kinds.setdefault(one.gpu_type or usual, []).append(one)
    span = max(trace.span, 1.0)
    return {
        "teams": {
            name: {"quota": {kind: NODE_GPUS * _nodes_for(some, span, load) for kind, some in sorted(kinds.items())}}
            for name, kinds in sorted(jobs.items())
        }
    }


def _nodes_for(jobs: Iterable[TraceJob], span: float, load: float) -> int:
    busy = largest = 0.0
    for one in jobs:
        busy += one.gpus * min(one.seconds, span) / span
        largest = max(largest, one.gpus)
    return max(ceil(busy / NODE_GPUS / load), ceil(largest / NODE_GPUS))


def quota_gpus(team: Team | None) -> float:
    return float(sum(quota.gpus for quota in team.quota)) if team else 0.0
