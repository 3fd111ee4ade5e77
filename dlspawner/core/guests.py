"""Guests: guaranteed jobs outside their team's share, and what they leave to the teams that wait inside their quota.

* At once: the nodes of another team's share that a waiting job of it needs, if nobody but guests is in its way there.
* Once it may not be passed any more (``queueing``): the nodes that come closest to holding another team's job that no
  open share would hold, because quotas can not be laid out or a node is away. Of several such jobs only the one that
  came first is heeded, and a guest that came before it does not wait for it.

Who waits behind a job of its own team that may not be passed is left nothing: it could not take it.

So a team that waits inside its quota waits for those who run already and not for those who come, while on its own share
no job is held up by another team. Borrowers are not held up at all: they leave when they must (``preemption``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core import queueing
from dlspawner.core.amounts import counted
from dlspawner.core.backfill import first_overdue, nearest, waiting_for_others
from dlspawner.core.charge import Charge
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job
from dlspawner.core.limits import Blocked
from dlspawner.core.placing import Nodes, ranked
from dlspawner.core.rooms import Room, Space
from dlspawner.core.world import Key, World, key


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Those to whom guests leave something: at most one of each team in either part, in order of their submit times."""

    owners: tuple[tuple[Job, Nodes], ...]  # with the nodes of their share
    homeless: tuple[Job, ...]


_OfTeam = tuple[tuple[Job, Nodes] | None, Job | None]  # the owner with its nodes, the homeless one


def left_to_others(request: Job, kind: str, world: World, now: datetime) -> tuple[Job | None, frozenset[str]]:
    """The nodes that a guest leaves to other teams, and a job that waits for them."""
    waiting = _waiting(kind, world, now)
    found: list[tuple[Job, Iterable[str]]] = [one for one in waiting.owners if one[0].team != request.team]
    first = next((job for job in waiting.homeless if job.team != request.team), None)
    if first is not None and _came(first) < _came(request):
        found.append((first, nearest(first, world)))
    return (found[0][0] if found else None), frozenset(name for _, nodes in found for name in nodes)


def comes_first(waiting: Job) -> Blocked:
    """The answer to a guest that would take what is left to another team's job."""
    whose = counted(waiting.charge.gpus)
    return Blocked(Reason.TURN, f"A job that wants {whose} comes first: it waits inside its team's quota.")


def _came(job: Job) -> tuple[datetime, str]:
    return job.submitted, job.id


def _waiting(kind: str, world: World, now: datetime) -> _Waiting:
    known: tuple[datetime, _Waiting] | None = world.memo.get(("waiting", kind))
    if known is None or known[0] != now:
        teams = [team for team, of in world.queues if team and of == kind and world.left(team, kind) > 0]
        found = [_of_team(team, kind, world, now) for team in teams]
        owners = sorted((owner for owner, _ in found if owner is not None), key=lambda one: _came(one[0]))
        homeless = sorted((job for _, job in found if job is not None), key=_came)
        known = world.memo["waiting", kind] = (now, _Waiting(tuple(owners), tuple(homeless)))
    return known[1]


def _of_team(team: str, kind: str, world: World, now: datetime) -> _OfTeam:
    memo = world.memo_of(team)
    known: tuple[datetime, _OfTeam] | None = memo.get(("waiting", kind))
    if known is None or known[0] != now:
        known = memo["waiting", kind] = (now, (_owner(team, kind, world, now), _homeless(team, kind, world, now)))
    return known[1]


def _owner(team: str, kind: str, world: World, now: datetime) -> tuple[Job, Nodes] | None:
    """The first job of a team that only guests and borrowers keep from its own share, and its nodes there."""
    share = world.layout(kind).get(team, {})
    keys = world.queues[team, kind][team]
    tried: set[Charge] = set()
    for job in _inside_quota(team, kind, keys, world, now) if share else ():
        nodes = None if job.charge in tried else home(job, share, world, beside_own=True)
        if nodes is not None:
            return job, nodes
        tried.add(job.charge)
    return None


def _homeless(team: str, kind: str, world: World, now: datetime) -> Job | None:
    """The first job of a team that nobody may pass any more and that its share could not hold as the nodes are."""
    share = world.layout(kind).get(team, {})
    keys = queueing.waiting_since(world.queues[team, kind][team], now - world.cluster.scheduling.patience)
    tried: set[Charge] = set()
    for job in _inside_quota(team, kind, keys, world, now):
        if not share or (job.charge not in tried and home(job, share, world, beside_own=False) is None):
            return job
        tried.add(job.charge)
    return None


def _inside_quota(team: str, kind: str, keys: Iterable[Key], world: World, now: datetime) -> Iterator[Job]:
    """Those of a team whose quota is enough for them and for the one of their own team that they may not pass."""
    left, ahead = world.left(team, kind), first_overdue((team, kind), team, world, now)
    behind = left if ahead is None else left - ahead.charge.gpus

    def fitting() -> Iterator[Job]:
        for one in keys:
            passes = ahead is None or one <= key(ahead)
            if not passes and behind <= 0:
                return
            job = world.jobs[one[-1]]
            if job.charge.gpus <= (left if passes else behind):
                yield job

    return waiting_for_others(fitting(), world)


def home(job: Job, share: dict[str, int], world: World, *, beside_own: bool) -> Nodes | None:
    """Where on its team's share a job would be without others, beside the team's own jobs or instead of them."""
    resource = next(pod.resource for pod in job.charge.pods if pod.resource)
    rooms = [world.rooms[name] for name in share if name in world.rooms and world.rooms[name].node.open]

    def space(room: Room, _: object) -> Space:
        own = room.entitled.get(resource, {}).get(job.team, 0) if beside_own else 0
        return room.whole(resource)._replace(gpus=share[room.node.name] - own)

    return ranked(job.charge.pods, rooms, space, lambda room, left: (left.gpus, room.node.name))
