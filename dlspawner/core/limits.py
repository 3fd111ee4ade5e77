"""Limits: what can never start, and what must wait whatever is free: caps of people and teams, approvals.

A limit says why in a sentence for the person, with the number that would have worked.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core import approval, quantity
from dlspawner.core.amounts import GPU, counted, free_of_them, shown
from dlspawner.core.charge import PodRequest, ResourceRequest
from dlspawner.core.decisions import Reason, Refuse
from dlspawner.core.jobs import Job, JobState
from dlspawner.core.model import Team
from dlspawner.core.nodes import has_type
from dlspawner.core.permissions import format_permissions
from dlspawner.core.placing import place_best
from dlspawner.core.rooms import NodeInfo
from dlspawner.core.world import ClusterState

BLOCKED = "You can not start jobs here; ask an administrator why."


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a job can not start now; ``until``: not before then."""

    reason: Reason
    sentence: str = ""
    until: datetime | None = None


def inadmissible(request: Job, world: ClusterState) -> Refuse | None:
    """Why a job can not start even on an empty cluster, as the files are today and the nodes were at their largest.

    A node that is gone, or has lost its GPUs, may be there again soon (a restart of a machine or of a device plugin); a
    type of which no node is known at all may get its first one.
    """
    return config_violation(request, world) or _larger_than_nodes(request.request, world)


def config_violation(request: Job, world: ClusterState) -> Refuse | None:
    """The part of it that no node can change."""
    if request.inadmissible:
        return Refuse(Reason.NOT_ALLOWED, request.inadmissible)
    team = world.team(request.team)
    if request.user in world.teams.blocked:
        return Refuse(Reason.BLOCKED, BLOCKED)
    if team is None:
        return Refuse(Reason.UNKNOWN_TEAM, f"There is no team “{request.team}” any more; choose another one.")
    return _no_template(request, team, world) or _not_special(request, world) or _by_type(request, team, world)


def _by_type(request: Job, team: Team, world: ClusterState) -> Refuse | None:
    kind = request.request.gpu_type
    if kind is not None:
        found = world.cluster.gpu_type(kind)
        if found is None or any(pod.resource not in {"", found.resource} for pod in request.request.pods):
            return Refuse(Reason.UNKNOWN_TYPE, f"There are no GPUs of type “{kind}” any more; choose another type.")
        return _more_than_limits(request, kind, team, world)
    return None


def _no_template(request: Job, team: Team, world: ClusterState) -> Refuse | None:
    """Of a job that waits: what is asked for now the Hub has just checked, with files that may be newer than ours."""
    name, known = request.template, world.teams.templates
    if known is None or not name or request.state is JobState.SUBMITTED:
        return None
    if name not in known:
        return Refuse(Reason.UNKNOWN_TEMPLATE, f"There is no template “{name}” any more; choose another one.")
    if team.may_use(name) and (not known[name] or team.name in known[name]):
        return None
    sentence = f"Team {team.title or team.name} may not use the template “{name}” any more; choose another one."
    return Refuse(Reason.UNKNOWN_TEMPLATE, sentence)


def _not_special(request: Job, world: ClusterState) -> Refuse | None:
    off = frozenset(request.special.special if request.special else ()) - world.cluster.special
    if not off:
        return None
    sentence = f"Special permissions ({format_permissions(off)}) are not switched on any more; choose another template."
    return Refuse(Reason.NOT_ALLOWED, sentence)


def _more_than_limits(request: Job, kind: str, team: Team, world: ClusterState) -> Refuse | None:
    asked, hard, title = request.request.gpus, team.user_caps.hard, team.title or team.name
    if hard is not None and asked > hard * GPU:
        sentence = f"Team {title} gives one person at most {counted(hard * GPU)}; you asked for {shown(asked)}."
        return Refuse(Reason.EXCEEDS_LIMIT, sentence, hard * GPU)
    if request.preemptible:
        limit = None if team.borrow_limit is None else team.borrow_limit * GPU
        if limit is not None and asked > limit:
            sentence = f"Team {title} may borrow at most {counted(limit)}; you asked for {shown(asked)}."
            return Refuse(Reason.EXCEEDS_LIMIT, sentence, limit)
        return None
    quota = world.quota(request.team, kind)
    if asked > quota and world.teams.has_quota:
        what = f"a quota of {counted(quota)} of type {kind}" if quota else f"no quota of GPUs of type {kind}"
        borrows = " A preemptible job may use idle GPUs of others." if _could_borrow(request, team, world) else ""
        return Refuse(Reason.EXCEEDS_LIMIT, f"Team {title} has {what}; you asked for {shown(asked)}.{borrows}", quota)
    return None


def _could_borrow(request: Job, team: Team, world: ClusterState) -> bool:
    """Whether the same job could be preemptible: its template offers that, and its team may borrow so many GPUs."""
    offering = world.teams.borrowing
    offered = offering is None or not request.template or request.template in offering
    return offered and (team.borrow_limit is None or request.request.gpus <= team.borrow_limit * GPU)


def _larger_than_nodes(charge: ResourceRequest, world: ClusterState) -> Refuse | None:
    pods, kind = charge.pods, charge.gpu_type
    if world.config_cache(("on some nodes", charge), lambda: _on_some_nodes(charge, world)):
        return None
    if _nothing_of_its_kind(kind, world):
        return None
    rooms = _suitable(charge, world)
    largest = max(pods, key=lambda pod: pod.gpus)
    most = max((room.allocatable(largest.resource).gpus for room in rooms), default=0) if kind else 0
    if kind is not None and not most:
        sentence = (
            f"No node has GPUs of type {kind} that this job could use; choose another type of GPU or another template."
        )
        return Refuse(Reason.EXCEEDS_LIMIT, sentence, 0)
    if kind is not None and most < largest.gpus:
        sentence = (
            f"No node has more than {counted(most)} of type {kind}; you asked for {shown(largest.gpus)} on one node."
        )
        return Refuse(Reason.EXCEEDS_LIMIT, sentence, most)
    too_large = next((pod for pod in pods if not _on_node_infos((pod,), rooms)), None)
    if too_large is not None:
        return Refuse(Reason.NODE_TOO_SMALL, _share_sentence(too_large, rooms))
    smallest = sorted(pods, key=lambda pod: (pod.gpus, pod.cpu_milli, pod.memory_bytes))
    fit = bisect_right(range(1, len(pods)), False, key=lambda count: not _on_node_infos(tuple(smallest[:count]), rooms))
    sentence = f"The cluster's nodes can not hold the {len(pods)} pods of this job together, only {fit} of them."
    return Refuse(Reason.EXCEEDS_LIMIT, sentence)


def _share_sentence(pod: PodRequest, rooms: list[NodeInfo]) -> str:
    """What of a pod's CPU and memory no node has beside its GPUs, and the most that one has."""
    wholes = [room.allocatable(pod.resource) for room in rooms if pod.placement.matches(room.node)]
    spaces = [space for space in wholes if space.gpus >= pod.gpus]
    if not spaces:
        return "There is no node that this job could use; choose another template."
    beside = "" if pod.resource else " beside what comes with its GPUs"
    cpu, memory = max(space.cpu_milli for space in spaces), max(space.memory_bytes for space in spaces)
    asked, have = [], []
    if cpu < pod.cpu_milli:
        asked.append(shown(pod.cpu_milli))
        have.append(counted(max(0, cpu), "CPU"))
    if memory < pod.memory_bytes:
        asked.append(quantity.memory(pod.memory_bytes))
        have.append(f"{_rounded_share(memory)} of memory")
    if have:
        most = " and ".join(have)
        return f"No node that this job could use has more than {most}{beside}; you asked for {' and '.join(asked)}."
    with_cpu = max(space.memory_bytes for space in spaces if space.cpu_milli >= pod.cpu_milli)
    return (
        f"No node that this job could use with {counted(pod.cpu_milli, 'CPU')} has more than {_rounded_share(with_cpu)} of "
        f"memory{beside}; you asked for {quantity.memory(pod.memory_bytes)}."
    )


def _rounded_share(memory: int) -> str:
    return quantity.memory(quantity.at_most(memory))


def _nothing_of_its_kind(kind: str | None, world: ClusterState) -> bool:
    """Whether no node is known that has GPUs of a type, or no node at all."""
    found = world.cluster.gpu_type(kind) if kind is not None else None
    nodes = [room.node for room in (*world.rooms.values(), *world.away.rooms.values())]
    return not any(found is None or (has_type(node, found) and node.gpus_of(found.resource)) for node in nodes)


def _on_some_nodes(charge: ResourceRequest, world: ClusterState) -> bool:
    """Whether all nodes together, if they were empty and open and all there, could hold it."""
    pods = charge.pods
    if len(pods) == 1 and _some_node_fits(pods[0], world):
        return True
    return _on_node_infos(pods, _suitable(charge, world))


def _on_node_infos(pods: tuple[PodRequest, ...], rooms: list[NodeInfo]) -> bool:
    return place_best(pods, rooms, lambda room, pod: room.allocatable(pod.resource), lambda _, left: left) is not None


def _suitable(charge: ResourceRequest, world: ClusterState) -> list[NodeInfo]:
    known = {**world.rooms, **world.away.rooms}
    return [room for room in known.values() if any(pod.placement.matches(room.node) for pod in charge.pods)]


def _some_node_fits(pod: PodRequest, world: ClusterState) -> bool:
    pool = world.pool(pod.resource, pod.placement)
    if any(room.allocatable(pod.resource).holds(pod) for room in pool.rooms.values()):
        return True
    known = (*world.rooms.values(), *world.away.rooms.values())
    return any(room.allocatable(pod.resource).holds(pod) and pod.placement.matches(room.node) for room in known)


def missing_approvals(request: Job, world: ClusterState) -> tuple[approval.RequiredApproval, ...]:
    """What somebody has to approve; nothing where the files do not let it start whoever approves it."""
    found = approval.required_approvals(request, world)
    return found if found and config_violation(request, world) is None else ()


def caps(request: Job, world: ClusterState) -> Blocked | None:
    """What a job waits for that is not the cluster's: an approval, or that the person or the team ends another job."""
    needs = approval.required_approvals(request, world)
    if needs:
        return Blocked(Reason.APPROVAL, " ".join(need.sentence for need in needs))
    team = world.team(request.team)
    if team is None:
        return None
    asked, title = request.request.gpus, team.title or team.name
    own = asked if request.reserved and request.id in world.jobs else 0
    if request.request.gpu_type is None:
        return _cpu_caps(request, title, world)
    held = world.held_by(request.team, request.user) - own
    hold = "hold or were promised" if world.reserved_by_user(request.team, request.user) > own else "hold"
    hard = team.user_caps.hard
    if hard is not None and held + asked > hard * GPU:
        return Blocked(
            Reason.USER_CAP,
            f"You {hold} {counted(held)} of the {shown(hard * GPU)} that team {title} gives one person; "
            f"this job waits until {free_of_them(held + asked - hard * GPU)}.",
        )
    if request.preemptible and team.borrow_limit is not None:
        borrowed, limit = world.borrowed(request.team), team.borrow_limit * GPU
        if borrowed + asked > limit:
            left = shown(limit - borrowed) if borrowed < limit else "no"
            return Blocked(
                Reason.BORROW_LIMIT,
                f"Team {title} borrows {shown(borrowed)} of at most {counted(limit)} and may borrow {left} more; "
                f"this job needs {shown(asked)}.",
            )
    return None


def _cpu_caps(request: Job, title: str, world: ClusterState) -> Blocked | None:
    per_user, per_team = world.cluster.cpu_jobs.per_user, world.cluster.cpu_jobs.per_team
    mine = world.cpu_jobs(request.team, request.user)
    if per_user is not None and mine >= per_user:
        return Blocked(Reason.USER_CAP, f"You have {mine} jobs without GPUs in team {title}, and may have {per_user}.")
    if per_team is not None and world.cpu_jobs(request.team) >= per_team:
        return Blocked(Reason.TEAM_CAP, f"Team {title} has {per_team} jobs without GPUs, which is its most.")
    return None
