"""Limits: what can never start, and what must wait whatever is free: caps of people and teams, approvals.

A limit says why in a sentence for the person, with the number that would have worked.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core import approval, quantity
from dlspawner.core.amounts import GPU, counted, free_of_them, shown
from dlspawner.core.charge import Charge, PodCharge
from dlspawner.core.decisions import Reason, Refuse
from dlspawner.core.jobs import Job, State
from dlspawner.core.model import Team
from dlspawner.core.nodes import has_type
from dlspawner.core.permissions import named
from dlspawner.core.placing import ranked
from dlspawner.core.rooms import Room
from dlspawner.core.world import World

BLOCKED = "You can not start jobs here; ask an administrator why."


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a job can not start now; ``until``: not before then."""

    reason: Reason
    sentence: str = ""
    until: datetime | None = None


def never(request: Job, world: World) -> Refuse | None:
    """Why a job can not start even on an empty cluster, as the files are today and the nodes were at their largest.

    A node that is gone, or has lost its GPUs, may be there again soon (a restart of a machine or of a device plugin); a
    type of which no node is known at all may get its first one.
    """
    return by_files(request, world) or _larger_than_nodes(request.charge, world)


def by_files(request: Job, world: World) -> Refuse | None:
    """The part of it that no node can change."""
    if request.refused:
        return Refuse(Reason.NOT_ALLOWED, request.refused)
    team = world.team(request.team)
    if request.user in world.teams.blocked:
        return Refuse(Reason.BLOCKED, BLOCKED)
    if team is None:
        return Refuse(Reason.UNKNOWN_TEAM, f"There is no team “{request.team}” any more; choose another one.")
    return _no_template(request, team, world) or _not_special(request, world) or _by_type(request, team, world)


def _by_type(request: Job, team: Team, world: World) -> Refuse | None:
    kind = request.charge.gpu_type
    if kind is not None:
        found = world.cluster.gpu_type(kind)
        if found is None or any(pod.resource not in {"", found.resource} for pod in request.charge.pods):
            return Refuse(Reason.UNKNOWN_TYPE, f"There are no GPUs of type “{kind}” any more; choose another type.")
        return _more_than_limits(request, kind, team, world)
    return None


def _no_template(request: Job, team: Team, world: World) -> Refuse | None:
    """Of a job that waits: what is asked for now the Hub has just checked, with files that may be newer than ours."""
    name, known = request.template, world.teams.templates
    if known is None or not name or request.state is State.SUBMITTED:
        return None
    if name not in known:
        return Refuse(Reason.UNKNOWN_TEMPLATE, f"There is no template “{name}” any more; choose another one.")
    if team.may_use(name) and (not known[name] or team.name in known[name]):
        return None
    sentence = f"Team {team.title or team.name} may not use the template “{name}” any more; choose another one."
    return Refuse(Reason.UNKNOWN_TEMPLATE, sentence)


def _not_special(request: Job, world: World) -> Refuse | None:
    off = frozenset(request.special.special if request.special else ()) - world.cluster.special
    if not off:
        return None
    sentence = f"Special permissions ({named(off)}) are not switched on any more; choose another template."
    return Refuse(Reason.NOT_ALLOWED, sentence)


def _more_than_limits(request: Job, kind: str, team: Team, world: World) -> Refuse | None:
    asked, hard, title = request.charge.gpus, team.user_caps.hard, team.title or team.name
    if hard is not None and asked > hard * GPU:
        sentence = f"Team {title} gives one person at most {counted(hard * GPU)}; you asked for {shown(asked)}."
        return Refuse(Reason.TOO_MANY, sentence, hard * GPU)
    if request.preemptible:
        limit = None if team.borrow_limit is None else team.borrow_limit * GPU
        if limit is not None and asked > limit:
            sentence = f"Team {title} may borrow at most {counted(limit)}; you asked for {shown(asked)}."
            return Refuse(Reason.TOO_MANY, sentence, limit)
        return None
    quota = world.quota(request.team, kind)
    if asked > quota and world.teams.has_quota:
        what = f"a quota of {counted(quota)} of type {kind}" if quota else f"no quota of GPUs of type {kind}"
        borrows = " A preemptible job may use idle GPUs of others." if _could_borrow(request, team, world) else ""
        return Refuse(Reason.TOO_MANY, f"Team {title} has {what}; you asked for {shown(asked)}.{borrows}", quota)
    return None


def _could_borrow(request: Job, team: Team, world: World) -> bool:
    """Whether the same job could be preemptible: its template offers that, and its team may borrow so many GPUs."""
    offering = world.teams.borrowing
    offered = offering is None or not request.template or request.template in offering
    return offered and (team.borrow_limit is None or request.charge.gpus <= team.borrow_limit * GPU)


def _larger_than_nodes(charge: Charge, world: World) -> Refuse | None:
    pods, kind = charge.pods, charge.gpu_type
    if world.lasting(("on some nodes", charge), lambda: _on_some_nodes(charge, world)):
        return None
    if _nothing_of_its_kind(kind, world):
        return None
    rooms = _suitable(charge, world)
    largest = max(pods, key=lambda pod: pod.gpus)
    most = max((room.whole(largest.resource).gpus for room in rooms), default=0) if kind else 0
    if kind is not None and not most:
        sentence = (
            f"No node has GPUs of type {kind} that this job could use; choose another type of GPU or another template."
        )
        return Refuse(Reason.TOO_MANY, sentence, 0)
    if kind is not None and most < largest.gpus:
        sentence = (
            f"No node has more than {counted(most)} of type {kind}; you asked for {shown(largest.gpus)} on one node."
        )
        return Refuse(Reason.TOO_MANY, sentence, most)
    too_large = next((pod for pod in pods if not _on_rooms((pod,), rooms)), None)
    if too_large is not None:
        return Refuse(Reason.SHARE, _share_sentence(too_large, rooms))
    smallest = sorted(pods, key=lambda pod: (pod.gpus, pod.cpu_milli, pod.memory_bytes))
    fit = bisect_right(range(1, len(pods)), False, key=lambda count: not _on_rooms(tuple(smallest[:count]), rooms))
    sentence = f"The cluster's nodes can not hold the {len(pods)} pods of this job together, only {fit} of them."
    return Refuse(Reason.TOO_MANY, sentence)


def _share_sentence(pod: PodCharge, rooms: list[Room]) -> str:
    """What of a pod's CPU and memory no node has beside its GPUs, and the most that one has."""
    wholes = [room.whole(pod.resource) for room in rooms if pod.placement.suits(room.node)]
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
        have.append(f"{_rounded(memory)} of memory")
    if have:
        most = " and ".join(have)
        return f"No node that this job could use has more than {most}{beside}; you asked for {' and '.join(asked)}."
    with_cpu = max(space.memory_bytes for space in spaces if space.cpu_milli >= pod.cpu_milli)
    return (
        f"No node that this job could use with {counted(pod.cpu_milli, 'CPU')} has more than {_rounded(with_cpu)} of "
        f"memory{beside}; you asked for {quantity.memory(pod.memory_bytes)}."
    )


def _rounded(memory: int) -> str:
    return quantity.memory(quantity.at_most(memory))


def _nothing_of_its_kind(kind: str | None, world: World) -> bool:
    """Whether no node is known that has GPUs of a type, or no node at all."""
    found = world.cluster.gpu_type(kind) if kind is not None else None
    nodes = [room.node for room in (*world.rooms.values(), *world.away.rooms.values())]
    return not any(found is None or (has_type(node, found) and node.gpus_of(found.resource)) for node in nodes)


def _on_some_nodes(charge: Charge, world: World) -> bool:
    """Whether all nodes together, if they were empty and open and all there, could hold it."""
    pods = charge.pods
    if len(pods) == 1 and _some_room(pods[0], world):
        return True
    return _on_rooms(pods, _suitable(charge, world))


def _on_rooms(pods: tuple[PodCharge, ...], rooms: list[Room]) -> bool:
    return ranked(pods, rooms, lambda room, pod: room.whole(pod.resource), lambda _, left: left) is not None


def _suitable(charge: Charge, world: World) -> list[Room]:
    known = {**world.rooms, **world.away.rooms}
    return [room for room in known.values() if any(pod.placement.suits(room.node) for pod in charge.pods)]


def _some_room(pod: PodCharge, world: World) -> bool:
    pool = world.pool(pod.resource, pod.placement)
    if any(room.whole(pod.resource).holds(pod) for room in pool.rooms.values()):
        return True
    known = (*world.rooms.values(), *world.away.rooms.values())
    return any(room.whole(pod.resource).holds(pod) and pod.placement.suits(room.node) for room in known)


def approvals(request: Job, world: World) -> tuple[approval.Need, ...]:
    """What somebody has to approve; nothing where the files do not let it start whoever approves it."""
    found = approval.needs(request, world)
    return found if found and by_files(request, world) is None else ()


def caps(request: Job, world: World) -> Blocked | None:
    """What a job waits for that is not the cluster's: an approval, or that the person or the team ends another job."""
    needs = approval.needs(request, world)
    if needs:
        return Blocked(Reason.APPROVAL, " ".join(need.sentence for need in needs))
    team = world.team(request.team)
    if team is None:
        return None
    asked, title = request.charge.gpus, team.title or team.name
    own = asked if request.promised and request.id in world.jobs else 0
    if request.charge.gpu_type is None:
        return _cpu_caps(request, title, world)
    held = world.held_by(request.team, request.user) - own
    hold = "hold or were promised" if world.promised_to(request.team, request.user) > own else "hold"
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


def _cpu_caps(request: Job, title: str, world: World) -> Blocked | None:
    per_user, per_team = world.cluster.cpu_jobs.per_user, world.cluster.cpu_jobs.per_team
    mine = world.cpu_jobs(request.team, request.user)
    if per_user is not None and mine >= per_user:
        return Blocked(Reason.USER_CAP, f"You have {mine} jobs without GPUs in team {title}, and may have {per_user}.")
    if per_team is not None and world.cpu_jobs(request.team) >= per_team:
        return Blocked(Reason.TEAM_CAP, f"Team {title} has {per_team} jobs without GPUs, which is its most.")
    return None
