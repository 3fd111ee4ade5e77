"""Shares: on which nodes each team's quota is, so that quotas are never in pieces that nobody can use.

Counting is not enough. Two teams with 8 GPUs each on two nodes of 8: when one of them has a single GPU on either node,
the other one's job of 8 GPUs can not start, although it would on a cluster of its own. So a team's quota is *laid out*:
whole nodes first, then the rest where it fits best. Guaranteed jobs go to their team's share; anybody's preemptible
jobs go anywhere and leave when they must. A team is then no worse off than with those nodes as its private cluster
[HiveD, OSDI'20, which calls them virtual clusters; its cells are bound to nodes as they are used, ours are fixed].

No layout is possible, and the answer is empty, when the quotas are more than what the nodes have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Layout = dict[str, dict[str, int]]  # by team and node


def lay_out(nodes: Mapping[str, int], quotas: Sequence[tuple[str, int]]) -> Layout:
    """For each team the nodes of its quota, and how many milli-GPUs of each; independent of the order of nodes.

    A rest that fits on no single node is spread. Teams keep the order of the file.
    """
    if sum(quota for _, quota in quotas) > sum(nodes.values()):
        return {}
    free = {name: nodes[name] for name in sorted(nodes, key=lambda name: (-nodes[name], name)) if nodes[name] > 0}
    layout: Layout = {team: {} for team, quota in quotas if quota > 0}
    rests: list[tuple[int, str]] = []
    for team, quota in quotas:
        left = quota
        for name in [name for name in free if free[name] == nodes[name]]:
            if 0 < nodes[name] <= left:
                layout[team][name] = nodes[name]
                left -= nodes[name]
                free[name] = 0
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
