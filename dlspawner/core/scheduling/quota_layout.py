"""Shares: the nodes of each team's quota, so that quotas are never in unusable pieces.

Counting is not enough. Two teams with 8 GPUs each on two nodes of 8: when one of them has a single GPU on either node,
the other one's job of 8 GPUs can not start, although it would on a cluster of its own. So a team's quota is *laid out*:
whole nodes first, then the rest where it fits best. Guaranteed jobs go to their team's share; preemptible
jobs go anywhere and leave when they must. A team is then no worse off than with those nodes as its private cluster
[HiveD, OSDI'20, which calls them virtual clusters; its cells are bound to nodes as they are used, ours are fixed].

No layout is possible, and the answer is empty, when the quotas are more than what the nodes have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from dlspawner.core.config import ClusterConfig, TeamsConfig
from dlspawner.core.nodes import Node, has_type

TeamNodes = dict[str, dict[str, int]]  # by team and node


class QuotaLayout:
    """The layouts of all types on these nodes, each computed at its first use."""

    def __init__(self, cluster: ClusterConfig, teams: TeamsConfig, nodes: Sequence[Node]) -> None:
        self._cluster, self._teams, self._nodes = cluster, teams, nodes
        self._types: dict[str, _TypeLayout] = {}

    def of(self, gpu_type: str) -> _TypeLayout:
        """Returns the layout of a type; an unknown type has no nodes."""
        found = self._types.get(gpu_type)
        if found is None:
            kind = self._cluster.gpu_type(gpu_type)
            nodes = [node for node in self._nodes if has_type(node, kind)] if kind is not None else []
            sizes = {node.name: node.gpus_of(kind.resource) for node in nodes} if kind is not None else {}
            quotas = [(team.name, team.entitled(gpu_type)) for team in self._teams.teams]
            found = self._types[gpu_type] = _TypeLayout(sizes, quotas)
        return found


class _TypeLayout:
    """The layout of one GPU type; ``nodes``: the milli-GPUs of each node with the type, open or not."""

    def __init__(self, nodes: Mapping[str, int], quotas: Sequence[tuple[str, int]]) -> None:
        self._nodes, self._quotas = nodes, quotas

    @cached_property
    def capacity(self) -> int:
        return sum(self._nodes.values())

    @cached_property
    def by_team(self) -> TeamNodes:
        """By team and node; empty while no team has a quota, or quotas are more than there is."""
        return assign(self._nodes, self._quotas) if any(milli for _, milli in self._quotas) else {}

    @cached_property
    def by_node(self) -> dict[str, dict[str, int]]:
        """By node and team; nodes without GPUs of the type are left out."""
        found: dict[str, dict[str, int]] = {name: {} for name in self._nodes}
        for team, nodes in self.by_team.items():
            for name, milli in nodes.items():
                found[name][team] = milli
        return found

    @cached_property
    def unassigned(self) -> dict[str, int]:
        """The GPUs in no team's share, by node; none without a layout."""
        if not self.by_team:
            return {}
        left = {name: milli - sum(self.by_node[name].values()) for name, milli in self._nodes.items()}
        return {name: milli for name, milli in left.items() if milli}


def assign(nodes: Mapping[str, int], quotas: Sequence[tuple[str, int]]) -> TeamNodes:
    """For each team the nodes of its quota, and how many milli-GPUs of each; independent of the order of nodes.

    A rest that fits on no single node is spread. Teams keep the order of the file.
    """
    if sum(quota for _, quota in quotas) > sum(nodes.values()):
        return {}
    free = {name: nodes[name] for name in sorted(nodes, key=lambda name: (-nodes[name], name)) if nodes[name] > 0}
    layout: TeamNodes = {team: {} for team, quota in quotas if quota > 0}
    rests: list[tuple[int, str]] = []
    whole = list(free)
    for team, quota in quotas:
        left = quota
        for name in whole if left > 0 else ():
            if nodes[name] <= left:
                layout[team][name] = nodes[name]
                left -= nodes[name]
                free[name] = 0
            if not left:
                break
        whole = [name for name in whole if free[name]] if left < quota else whole
        if left > 0:
            rests.append((left, team))
    rests.sort(key=lambda rest: -rest[0])
    for rest, team in rests:
        left = rest
        while left > 0:
            name = _best(free, left)
            part = min(left, free[name])
            layout[team][name] = layout[team].get(name, 0) + part
            free[name] -= part
            left -= part
    return layout


def _best(free: Mapping[str, int], wanted: int) -> str:
    """The fullest node that still has all of it, or the emptiest."""
    enough = [(milli, name) for name, milli in free.items() if milli >= wanted]
    if enough:
        return min(enough)[1]
    return max(free, key=lambda name: (free[name], name))
