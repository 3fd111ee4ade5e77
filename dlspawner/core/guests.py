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
from dlspawner.core.backfill import closest_nodes, first_past_max_wait, jobs_blocked_by_others
from dlspawner.core.charge import ResourceRequest
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job
from dlspawner.core.limits import Blocked
from dlspawner.core.placing import Nodes, place_best
from dlspawner.core.rooms import NodeInfo, Resources
from dlspawner.core.world import ClusterState, JobOrderKey, job_order_key


@dataclass(frozen=True, slots=True)
class _WaitingTeams:
    """Those to whom guests leave something: at most one of each team in either part, in order of their submit times."""

    owners: tuple[tuple[Job, Nodes], ...]  # with the nodes of their share
    no_share: tuple[Job, ...]


_OfTeam = tuple[tuple[Job, Nodes] | None, Job | None]  # the owner with its nodes, the homeless one


def nodes_reserved_for_others(
    request: Job, kind: str, world: ClusterState, now: datetime
) -> tuple[Job | None, frozenset[str]]:
    """The nodes that a guest leaves to other teams, and a job that waits for them."""
    waiting = _waiting(kind, world, now)
    found: list[tuple[Job, Iterable[str]]] = [one for one in waiting.owners if one[0].team != request.team]
    first = next((job for job in waiting.no_share if job.team != request.team), None)
    if first is not None and _came(first) < _came(request):
        found.append((first, closest_nodes(first, world)))
    return (found[0][0] if found else None), frozenset(name for _, nodes in found for name in nodes)


def yields_to(waiting: Job) -> Blocked:
    """The answer to a guest that would take what is left to another team's job."""
    whose = counted(waiting.request.gpus)
    return Blocked(
        Reason.BLOCKED_BY_EARLIER, f"A job that wants {whose} comes first: it waits inside its team's quota."
    )


def _came(job: Job) -> tuple[datetime, str]:
    return job.submitted, job.id


def _waiting(kind: str, world: ClusterState, now: datetime) -> _WaitingTeams:
    known: tuple[datetime, _WaitingTeams] | None = world.memo.get(("waiting", kind))
    if known is None or known[0] != now:
        teams = [team for team, of in world.queues if team and of == kind and world.available_quota(team, kind) > 0]
        found = [_of_team(team, kind, world, now) for team in teams]
        owners = sorted((owner for owner, _ in found if owner is not None), key=lambda one: _came(one[0]))
        homeless = sorted((job for _, job in found if job is not None), key=_came)
        known = world.memo["waiting", kind] = (now, _WaitingTeams(tuple(owners), tuple(homeless)))
    return known[1]


def _of_team(team: str, kind: str, world: ClusterState, now: datetime) -> _OfTeam:
    memo = world.team_cache(team)
    known: tuple[datetime, _OfTeam] | None = memo.get(("waiting", kind))
    if known is None or known[0] != now:
        known = memo["waiting", kind] = (now, (_share_owner(team, kind, world, now), _no_share(team, kind, world, now)))
    return known[1]


def _share_owner(team: str, kind: str, world: ClusterState, now: datetime) -> tuple[Job, Nodes] | None:
    """The first job of a team that only guests and borrowers keep from its own share, and its nodes there."""
    share = world.quota_by_team(kind).get(team, {})
    keys = world.queues[team, kind][team]
    tried: set[ResourceRequest] = set()
    for job in _inside_quota(team, kind, keys, world, now) if share else ():
        nodes = None if job.request in tried else fits_own_share(job, share, world, beside_own=True)
        if nodes is not None:
            return job, nodes
        tried.add(job.request)
    return None


def _no_share(team: str, kind: str, world: ClusterState, now: datetime) -> Job | None:
    """The first job of a team that nobody may pass any more and that its share could not hold as the nodes are."""
    share = world.quota_by_team(kind).get(team, {})
    keys = queueing.waiting_since(world.queues[team, kind][team], now - world.cluster.scheduling.max_backfill_wait)
    tried: set[ResourceRequest] = set()
    for job in _inside_quota(team, kind, keys, world, now):
        if not share or (job.request not in tried and fits_own_share(job, share, world, beside_own=False) is None):
            return job
        tried.add(job.request)
    return None


def _inside_quota(
    team: str, kind: str, keys: Iterable[JobOrderKey], world: ClusterState, now: datetime
) -> Iterator[Job]:
    """Those of a team whose quota is enough for them and for the one of their own team that they may not pass."""
    left, ahead = world.available_quota(team, kind), first_past_max_wait((team, kind), team, world, now)
    behind = left if ahead is None else left - ahead.request.gpus

    def fitting() -> Iterator[Job]:
        for one in keys:
            passes = ahead is None or one <= job_order_key(ahead)
            if not passes and behind <= 0:
                return
            job = world.jobs[one[-1]]
            if job.request.gpus <= (left if passes else behind):
                yield job

    return jobs_blocked_by_others(fitting(), world)


def fits_own_share(job: Job, share: dict[str, int], world: ClusterState, *, beside_own: bool) -> Nodes | None:
    """Where on its team's share a job would be without others, beside the team's own jobs or instead of them."""
    resource = next(pod.resource for pod in job.request.pods if pod.resource)
    rooms = [world.rooms[name] for name in share if name in world.rooms and world.rooms[name].node.open]

    def space(room: NodeInfo, _: object) -> Resources:
        own = room.guaranteed_by_team.get(resource, {}).get(job.team, 0) if beside_own else 0
        return room.allocatable(resource)._replace(gpus=share[room.node.name] - own)

    return place_best(job.request.pods, rooms, space, lambda room, left: (left.gpus, room.node.name))
