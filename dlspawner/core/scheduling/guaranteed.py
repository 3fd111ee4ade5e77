"""Guaranteed jobs: the search for their nodes, and for victims there. The rules are in ``admission``.

Out-of-share placements (guaranteed jobs outside their team's share) leave to the teams that wait inside their quota:

* At once: the nodes of another team's share that a waiting job of it needs, if only out-of-share jobs are
  in its way there.
* Once it may not be passed any more (``queue``): the nodes that come closest to holding another team's job that no
  open share would hold, because quotas can not be laid out or a node is away. Of several such jobs only the one that
  came first counts, and an out-of-share job that came before it does not wait for it.

A job behind a job of its own team that may not be passed is left nothing: it could not take it.

So a team that waits inside its quota waits for jobs that run already and not for later ones, while on its own share
no job is held up by another team. Borrowers are not held up at all: they leave when they must (``preemption``).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from dlspawner.core.decisions import Admit, Preempt, Reason
from dlspawner.core.job import Job
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.scheduling import queue
from dlspawner.core.scheduling.cluster_state import ClusterState, JobOrderKey, job_order_key
from dlspawner.core.scheduling.limits import Blocked
from dlspawner.core.scheduling.node_info import NodeInfo, Nodes, Resources, place_best, resources_needed
from dlspawner.core.scheduling.placement import find_free_nodes, no_fit_message
from dlspawner.core.scheduling.preemption import (
    choose_victims,
    is_protected,
    may_be_stopped,
    order_candidates,
    releasing_of,
    share_overrun,
)
from dlspawner.core.scheduling.queue import (
    blocked_by,
    blocking_job,
    closest_nodes,
    first_past_max_wait,
    jobs_blocked_by_others,
    takes_quota_of,
)
from dlspawner.core.units import counted

_ENDLESS = 2**62

Stops = Callable[[Job], bool]


class NodeSearch:
    """The search for nodes of one guaranteed job, and for victims there."""

    def __init__(self, request: Job, kind: str, short: int, state: ClusterState, now: datetime) -> None:
        self.request, self.kind, self.short, self.state, self.now = request, kind, short, state, now
        self.pods = request.request.pods
        self.resource = next(pod.resource for pod in self.pods if pod.resource)
        self.share = state.quota_by_team(kind).get(request.team, {})
        # What jobs of the own team have to give back of the quota, beside those that leave already.
        self.owed = max(0, short - state.releasing(request.team, kind))

    def decide(self) -> Admit | Preempt | Blocked:
        """Decides: a reservation is kept; a job that fits elsewhere before it is free starts there, without victims."""
        promised = self._reserved()
        if isinstance(promised, Admit) or (promised is not None and (self.short or not self._may_have_room())):
            return promised
        found = self._decide()
        return found if promised is None or isinstance(found, Admit) else promised

    def _may_have_room(self) -> bool:
        """A quick look: whether a node of the share, or any node where there is no share, has enough idle GPUs."""
        largest = max(self.pods, key=lambda pod: pod.gpus)
        if not self.share:
            return self.state.pool(largest.resource, largest.placement).most_free >= largest.gpus
        return any(info.gpus.get(self.resource, 0) >= largest.gpus for info in self._share_nodes())

    def _decide(self) -> Admit | Preempt | Blocked:
        ahead = blocking_job(self.request, self.state, self.now) if not self.short else None
        kept: frozenset[str] = frozenset()
        if ahead is not None:
            left = self.state.available_quota(self.request.team, self.kind, self.request)
            if takes_quota_of(ahead, self.request, left):
                return blocked_by(ahead)
            kept = self._nodes_kept(ahead)
        found = self._search(kept)
        if found is not None:
            return found
        if kept and isinstance(self._search(frozenset()), Admit | Preempt):
            return blocked_by(ahead)
        return Blocked(Reason.NO_FIT, lambda: no_fit_message(self.request, self.state))

    def _reserved(self) -> Admit | Blocked | None:
        """Returns the reservation, if its nodes are still there or coming."""
        if self.owed or not self.request.reserved:
            return None
        nodes = tuple(node for node in self.request.nodes if node is not None)
        if len(nodes) != len(self.pods):
            return None
        wanted = self._wanted(nodes)
        if not all(name in self.state.node_infos and self.state.node_infos[name].node.open for name in wanted):
            return None
        free = all(self._available(self.state.node_infos[name]).covers(want) for name, want in wanted.items())
        if free and not self.short and not any(self._waits_for_own_to_leave(name) for name in wanted):
            return Admit(nodes)
        if all(
            self._available_after_termination(self.state.node_infos[name]).covers(want) for name, want in wanted.items()
        ):
            return self._ending(nodes)
        return None

    def _waits_for_own_to_leave(self, node: str) -> bool:
        """True if a part of the own share is missing there, and GPUs of other teams are idle."""
        info = self.state.node_infos[node]
        beyond = share_overrun(self.request.team, self.kind, info, self.state)
        return beyond > 0 and self._own_terminating(info) > 0

    def _nodes_kept(self, ahead: Job) -> frozenset[str]:
        """Returns the closest nodes for the job that may not be passed, of the team's share if it can be there."""
        if not self.share:
            return closest_nodes(ahead, self.state)
        known: frozenset[str] | None = self.state.memo.get(("kept of share", ahead.id))
        if known is None and fits_own_share(ahead, self.share, self.state, beside_own=False) is None:
            known = self.state.memo["kept of share", ahead.id] = closest_nodes(ahead, self.state)
        elif known is None:
            nodes = place_best(
                ahead.request.pods,
                self._share_nodes(),
                lambda info, pod: _with_gpus(self.share[info.node.name], pod),
                lambda info, _: (-self._share_left(info), *self._tie_break(info)),
            )
            known = self.state.memo["kept of share", ahead.id] = frozenset(nodes or ())
        return known

    def _search(self, kept: frozenset[str]) -> Admit | Preempt | Blocked | None:
        """Searches the own share, GPUs of no share, then all nodes; spares the own team's jobs if possible."""
        stops: list[tuple[Stops, Stops]] = [] if self.short else [(self._stops_borrowed, self._stops_any_borrowed)]
        team = self.state.team(self.request.team)
        if team is not None and team.preempt_within_team:
            stops.append((self._stops_own, self._stops_any_own))
        for now, later in stops:
            found = self._on_own_share(now, kept) or self._on_own_share(later, kept)
            if found is None and not self._waits_for_own_share(now, kept):
                found = self._out_of_share((now, later), kept)
            if found is not None:
                return found
        self._note_full_share()
        return None

    def _note_full_share(self) -> None:
        """Remembers that the team's own jobs alone keep such a job waiting, which no other team's job can change."""
        team = self.state.team(self.request.team)
        if self.short or self.request.reserved or (team is not None and team.preempt_within_team):
            return
        if not self.state.unassigned(self.kind) and self._waits_for_own_share(self._stops_borrowed, frozenset()):
            full_share_requests(self.request.team, self.state).add(self.request.request)

    def _on_own_share(self, stop: Stops, kept: frozenset[str]) -> Admit | Preempt | Blocked | None:
        return self._in_share(stop, kept) or self._unclaimed(stop, kept)

    def _out_of_share(self, stops: tuple[Stops, Stops], kept: frozenset[str]) -> Admit | Preempt | Blocked | None:
        found = self._anywhere(stops[0], kept) or self._anywhere(stops[1], kept)
        if found is None:
            return None
        waiting, theirs = self._reserved_for_others()
        if waiting is None:
            return found
        kept |= theirs
        beside = self._anywhere(stops[0], kept) or self._anywhere(stops[1], kept)
        return beside or (yields_to(waiting) if isinstance(found, Admit | Preempt) else found)

    def _reserved_for_others(self) -> tuple[Job | None, frozenset[str]]:
        return nodes_reserved_for_others(self.request, self.kind, self.state, self.now)

    # possible victims

    def _stops_borrowed(self, job: Job) -> bool:
        return job.preemptible and self._stops_own(job)

    def _stops_own(self, job: Job) -> bool:
        return self._stops_any_own(job) and not is_protected(job, self.state, self.now)

    def _stops_any_borrowed(self, job: Job) -> bool:
        """Tries victims below the minimum run time as well."""
        return job.preemptible and self._stops_any_own(job)

    def _stops_any_own(self, job: Job) -> bool:
        return may_be_stopped(job, self.request, self.state)

    def _is_of_own(self, stop: Stops) -> bool:
        return stop in (self._stops_own, self._stops_any_own)

    # where

    def _in_share(self, stop: Stops, kept: frozenset[str]) -> Admit | Preempt | Blocked | None:
        """Returns the node with the least left, as on a private cluster.

        An emptier node is not taken although it needs no victim: a larger job of the team would miss it. Of two that
        have as little left, one that needs no victim is taken where a victim has notice: the wait for its end would
        delay the jobs behind, too. Where victims leave at once, the team's jobs lie exactly as on a private cluster.
        """
        bounds = self._distinct(self.state.closed | kept, stop if self._is_of_own(stop) else None)
        if not bounds:
            return None
        infos = [self.state.node_infos[name] for name in bounds]

        def space(info: NodeInfo, pod: PodRequest) -> Resources:
            return self._limited(info, stop, bounds[info.node.name])

        largest, rules = max(pod.gpus for pod in self.pods), self.state.cluster.scheduling
        at_once = not rules.notice and not rules.min_run

        def rank(info: NodeInfo, left: Resources) -> tuple[object, ...]:
            idle = 0 if at_once else min(largest, self._available(info).gpus)
            return (left.gpus, self.share[info.node.name], -idle, *self._tie_break(info))

        return self._conclude(place_best(self.pods, infos, space, rank), stop, self._share_left)

    def _distinct(self, shut: Collection[str], own: Stops | None) -> dict[str, int]:
        """Returns the rest of the share on its open nodes, by name, without nodes that no pod would take: those with
        too little left, and of equal empty ones the last names.
        """
        found: dict[str, int] = {}
        equal: dict[tuple[object, int], list[str]] = {}
        infos, several, least = self.state.node_infos, len(self.pods), min(pod.gpus for pod in self.pods)
        by_name = any(pod.placement.node or pod.placement.terms for pod in self.pods)
        for name, milli in self.share.items():
            if name in shut:
                continue
            info = infos[name]
            if info.allocations or info.reservations or by_name:
                left = self._share_left(info, own)
                if left >= least:
                    found[name] = left
            elif milli >= least:
                names = equal.setdefault((info.size, milli), [])
                if len(names) < several or name < names[-1]:
                    insort(names, name)
        for (_, milli), names in equal.items():
            found |= dict.fromkeys(names[:several], milli)
        return found

    def _unclaimed(self, stop: Stops, kept: frozenset[str]) -> Admit | Preempt | Blocked | None:
        spare = self.state.unassigned(self.kind)
        if not spare:
            return None  # all that there is is in the shares
        kept |= self._reserved_for_others()[1].difference(self.share)
        names = [name for name in {**self.share, **spare} if name not in kept]

        def space(info: NodeInfo, pod: PodRequest) -> Resources:
            return self._limited(info, stop, self._unclaimed_on(info) + self._own_victims(info, stop))

        infos = [info for name in names if (info := self.state.node_infos[name]).node.open]
        return self._conclude(place_best(self.pods, infos, space, self._fewest_victims), stop, self._unclaimed_on)

    def _anywhere(self, stop: Stops, kept: frozenset[str]) -> Admit | Preempt | Blocked | None:
        if not self.short:
            nodes = find_free_nodes(self.request, self.state, kept)
            if nodes is not None:
                return Admit(nodes)
        least = min(pod.gpus for pod in self.pods)
        own = self._is_of_own(stop)
        pools = {pod.placement: self.state.pool(pod.resource, pod.placement) for pod in self.pods}
        infos = {
            name: info
            for pool in pools.values()
            for name, info in pool.node_infos.items()
            if name not in kept
            and (own or info.gpus.get(self.resource, 0) + info.borrowed.get(self.resource, 0) >= least)
        }

        def space(info: NodeInfo, pod: PodRequest) -> Resources:
            return self._limited(info, stop, _ENDLESS)

        return self._conclude(place_best(self.pods, infos.values(), space, self._fewest_victims), stop)

    def _waits_for_own_share(self, stop: Stops, kept: frozenset[str]) -> bool:
        """True if a private cluster would make the job wait, too: then it has no claim on the shares of others."""
        if not self.share:
            return False
        question = ("share holds", self.request.team, self.request.request)
        if not self.state.config_cache(question, lambda: self._fits(self.share)):
            return False
        least, own = min(pod.gpus for pod in self.pods), stop if self._is_of_own(stop) else None
        left = {info.node.name: self._share_left(info, own) for info in self._share_nodes()}
        return not self._fits({name: gpus for name, gpus in left.items() if gpus >= least and name not in kept})

    def _fits(self, gpus: Mapping[str, int]) -> bool:
        """True if these nodes could hold the job with so many GPUs each, and everything else without end."""
        infos = [self.state.node_infos[name] for name in gpus]

        def spaces(info: NodeInfo, pod: PodRequest) -> Resources:
            return _with_gpus(gpus[info.node.name], pod)

        return place_best(self.pods, infos, spaces, lambda _, left: left) is not None

    # how much

    def _share_nodes(self) -> list[NodeInfo]:
        return [self.state.node_infos[name] for name in self.share]

    def _share_left(self, info: NodeInfo, own: Stops | None = None) -> int:
        """Returns the rest of the share on a node, with what ``own`` victims of the team would give back."""
        held = info.guaranteed_by_team.get(self.resource)
        left = self.share[info.node.name] - (held.get(self.request.team, 0) if held else 0)
        if info.reservations:
            left += self._reserved_on(info)
        return left if own is None else left + self._own_victims(info, own)

    def _reserved_on(self, info: NodeInfo) -> int:
        """Milli-GPUs that the request itself was promised on a node."""
        return resources_needed(info.reservations.get(self.request.id, ()), self.resource).gpus

    def _guaranteed_on(self, info: NodeInfo) -> dict[str, int]:
        """Milli-GPUs that guaranteed jobs hold or were promised on a node, by team; the request's own left out."""
        held, own, team = info.guaranteed_by_team.get(self.resource, {}), self._reserved_on(info), self.request.team
        return {**held, team: held.get(team, 0) - own} if own else held

    def _unclaimed_on(self, info: NodeInfo) -> int:
        """Returns the resources beside the shares of others, used or not, and the held ones."""
        held = self._guaranteed_on(info)
        shares = self.state.quota_by_node(self.kind).get(info.node.name, {})
        claimed = sum(
            max(held.get(team, 0), 0 if team == self.request.team else shares.get(team, 0)) for team in {*held, *shares}
        )
        return info.node.gpus_of(self.resource) - claimed

    def _own_victims(self, info: NodeInfo, stop: Stops) -> int:
        """Returns the resources of its share that the team's own guaranteed jobs, and victims, would give back."""
        if not self._is_of_own(stop):
            return 0
        jobs = ((self.state.jobs[name], pods) for name, pods in info.allocations.items())
        stopped = sum(
            resources_needed(pods, self.resource).gpus for job, pods in jobs if not job.preemptible and stop(job)
        )
        return stopped + self._own_terminating(info)

    def _own_terminating(self, info: NodeInfo) -> int:
        return releasing_of(self.request.team, info, self.resource, self.state)

    def _limited(self, info: NodeInfo, stop: Stops, gpus: int) -> Resources:
        found = (
            self._with_borrowed(info) if stop == self._stops_borrowed else self._and_of(info, stop, info.allocations)
        )
        return Resources(min(found.gpus, gpus), found.cpu_milli, found.memory_bytes, found.extended)

    def _with_borrowed(self, info: NodeInfo) -> Resources:
        """Returns the same free resources of a node for all jobs, but for jobs with a reservation there."""
        if not info.preemptible or self.request.id in info.reservations:
            return self._and_of(info, self._stops_borrowed, info.preemptible)
        known: tuple[datetime, Resources] | None = info.cache.get(("lent", self.resource))
        if known is None or known[0] != self.now:
            known = (self.now, self._and_of(info, self._stops_borrowed, info.preemptible))
            info.cache["lent", self.resource] = known
        return known[1]

    def _and_of(self, info: NodeInfo, stop: Stops, holders: Iterable[str]) -> Resources:
        """Returns the future free resources there, and those of possible victims."""
        found = self._available_after_termination(info)
        for name in holders:
            if stop(self.state.jobs[name]):
                found = found + resources_needed(info.allocations[name], self.resource)
        return found

    def _available(self, info: NodeInfo) -> Resources:
        return info.available(self.resource, self.request.id)

    def _available_after_termination(self, info: NodeInfo) -> Resources:
        return info.available_after_termination(self.resource, self.request.id)

    def _fewest_victims(self, info: NodeInfo, left: Resources) -> tuple[object, ...]:
        return (max(0, left.gpus - self._available(info).gpus) > 0, left.gpus, info.node.name)

    def _tie_break(self, info: NodeInfo) -> tuple[object, ...]:
        """Orders nodes of a share by values that a private cluster would have as well, so that both choose the same."""
        own = self._own_jobs(info)
        stops = 0 if own else -self._available(info).gpus
        return (self.share[info.node.name], own, stops, info.node.name)

    def _own_jobs(self, info: NodeInfo) -> list[str]:
        team = self.request.team
        known: list[str] | None = info.cache.get(("guaranteed", team))
        if known is None:
            jobs = (self.state.jobs[name] for name in info.allocations if name not in info.preemptible)
            known = info.cache["guaranteed", team] = sorted(job.id for job in jobs if job.team == team)
        return known

    # then

    def _wanted(self, nodes: Nodes) -> dict[str, Resources]:
        wanted: dict[str, Resources] = {}
        for pod, name in zip(self.pods, nodes, strict=True):
            want = resources_needed((pod,), self.resource)
            wanted[name] = wanted[name] + want if name in wanted else want
        return wanted

    def _conclude(
        self, nodes: Nodes | None, stop: Stops, bound: Callable[[NodeInfo], int] = lambda _: _ENDLESS
    ) -> Admit | Preempt | Blocked | None:
        """Decides about these nodes: start, wait for victims that stop already, or choose more victims.

        Above the ``bound`` of a node, jobs of the team itself have to give back what the job takes.
        """
        if nodes is None:
            return None
        wanted = self._wanted(nodes)
        infos = {name: self.state.node_infos[name] for name in wanted}
        beyond = {name: more for name, want in wanted.items() if (more := want.gpus - bound(infos[name])) > 0}
        free = all(self._available(infos[name]).covers(want) for name, want in wanted.items())
        if free and not self.short and not beyond:
            return Admit(nodes)
        lacking = (max(0, more - self._own_terminating(infos[name])) for name, more in beyond.items())
        owed = max(self.owed, sum(lacking))
        missing = {name: want - self._available_after_termination(infos[name]) for name, want in wanted.items()}
        if not owed and not any(space.meets(space) for space in missing.values()):
            return self._ending(nodes)
        if self.short:  # the quota is missing wherever the jobs are that hold it
            jobs = (job for job in self.state.jobs.values() if job.request.gpu_type == self.kind)
        else:
            jobs = (self.state.jobs[name] for info in infos.values() for name in info.allocations)
        stoppable = {job.id: job for job in jobs if stop(job)}
        victims = choose_victims(
            missing, self.resource, order_candidates(stoppable.values(), self.state, self.now), owed
        )
        return None if not victims else Preempt(tuple(job.id for job in victims), nodes)

    def _ending(self, nodes: Nodes) -> Blocked:
        leaving = [
            job
            for node in set(nodes)
            for job in (self.state.jobs[name] for name in self.state.node_infos[node].allocations)
            if job.terminating
        ]
        until = max((job.notice for job in leaving if job.notice is not None), default=None)
        text = "The GPUs are being freed: other jobs are about to end."
        reserve = () if self.request.reserved or until is None else nodes
        return Blocked(Reason.VICTIMS_TERMINATING, text, until, reserve=reserve)


def full_share_requests(team: str, state: ClusterState) -> set[ResourceRequest]:
    """Returns the requests that are known to wait for the end of a job of their own team."""
    found: set[ResourceRequest] = state.team_cache(team).setdefault("full share", set())
    return found


def _with_gpus(gpus: int, pod: PodRequest) -> Resources:
    """So many GPUs, and everything else without end."""
    return Resources(gpus, _ENDLESS, _ENDLESS, tuple((name, _ENDLESS) for name, _ in pod.extended))


@dataclass(frozen=True, slots=True)
class _WaitingTeams:
    """The jobs to which out-of-share jobs leave resources: at most one of each team in either part, oldest first."""

    owners: tuple[tuple[Job, Nodes], ...]  # with the nodes of their share
    no_share: tuple[Job, ...]


_OfTeam = tuple[tuple[Job, Nodes] | None, Job | None]  # the owner with its nodes, the one without a share


def nodes_reserved_for_others(
    request: Job, kind: str, state: ClusterState, now: datetime
) -> tuple[Job | None, frozenset[str]]:
    """The nodes that an out-of-share job leaves to other teams, and a job that waits for them."""
    waiting = _waiting(kind, state, now)
    found: list[tuple[Job, Iterable[str]]] = [one for one in waiting.owners if one[0].team != request.team]
    first = next((job for job in waiting.no_share if job.team != request.team), None)
    if first is not None and _came(first) < _came(request):
        found.append((first, closest_nodes(first, state)))
    return (found[0][0] if found else None), frozenset(name for _, nodes in found for name in nodes)


def yields_to(waiting: Job) -> Blocked:
    """The answer to an out-of-share job that would take what is left to another team's job."""
    whose = counted(waiting.request.gpus)
    return Blocked(
        Reason.BLOCKED_BY_EARLIER, f"A job that wants {whose} comes first: it waits inside its team's quota."
    )


def _came(job: Job) -> tuple[datetime, str]:
    return job.submitted, job.id


def _waiting(kind: str, state: ClusterState, now: datetime) -> _WaitingTeams:
    known: tuple[datetime, _WaitingTeams] | None = state.memo.get(("waiting", kind))
    if known is None or known[0] != now:
        teams = [team for team, of in state.queues if team and of == kind and state.available_quota(team, kind) > 0]
        found = [_of_team(team, kind, state, now) for team in teams]
        owners = sorted((owner for owner, _ in found if owner is not None), key=lambda one: _came(one[0]))
        without_share = sorted((job for _, job in found if job is not None), key=_came)
        known = state.memo["waiting", kind] = (now, _WaitingTeams(tuple(owners), tuple(without_share)))
    return known[1]


def _of_team(team: str, kind: str, state: ClusterState, now: datetime) -> _OfTeam:
    memo = state.team_cache(team)
    known: tuple[datetime, _OfTeam] | None = memo.get(("waiting", kind))
    if known is None or known[0] != now:
        known = memo["waiting", kind] = (now, (_share_owner(team, kind, state, now), _no_share(team, kind, state, now)))
    return known[1]


def _share_owner(team: str, kind: str, state: ClusterState, now: datetime) -> tuple[Job, Nodes] | None:
    """The first job of a team that only out-of-share jobs and borrowers keep from its own share, with its nodes."""
    share = state.quota_by_team(kind).get(team, {})
    keys = state.queues[team, kind][team].keys
    tried: set[ResourceRequest] = set()
    for job in _inside_quota(team, kind, keys, state, now) if share else ():
        nodes = None if job.request in tried else fits_own_share(job, share, state, beside_own=True)
        if nodes is not None:
            return job, nodes
        tried.add(job.request)
    return None


def _no_share(team: str, kind: str, state: ClusterState, now: datetime) -> Job | None:
    """Returns the first job of a team that may not be passed any more and that its share cannot hold."""
    share = state.quota_by_team(kind).get(team, {})
    keys = queue.waiting_since(state.queues[team, kind][team].keys, now - state.cluster.scheduling.max_backfill_wait)
    tried: set[ResourceRequest] = set()
    for job in _inside_quota(team, kind, keys, state, now):
        if job.request not in tried and fits_own_share(job, share, state, beside_own=False) is None:
            return job
        tried.add(job.request)
    return None


def _inside_quota(
    team: str, kind: str, keys: Iterable[JobOrderKey], state: ClusterState, now: datetime
) -> Iterator[Job]:
    """Returns the jobs of a team within its quota, together with the job of their own team that they may not pass."""
    left, ahead = state.available_quota(team, kind), first_past_max_wait((team, kind), team, state, now)
    behind = left if ahead is None else left - ahead.request.gpus

    def fitting() -> Iterator[Job]:
        for one in keys:
            passes = ahead is None or one <= job_order_key(ahead)
            if not passes and behind <= 0:
                return
            job = state.jobs[one[-1]]
            if job.request.gpus <= (left if passes else behind):
                yield job

    return jobs_blocked_by_others(fitting(), state)


def fits_own_share(job: Job, share: dict[str, int], state: ClusterState, *, beside_own: bool) -> Nodes | None:
    """Returns nodes of the team's share for a job, beside the team's own jobs or instead of them."""
    resource = next(pod.resource for pod in job.request.pods if pod.resource)
    infos = [info for name in share if (info := state.node_infos[name]).node.open]

    def space(info: NodeInfo, _: object) -> Resources:
        own = info.guaranteed_by_team.get(resource, {}).get(job.team, 0) if beside_own else 0
        return info.allocatable(resource)._replace(gpus=share[info.node.name] - own)

    return place_best(job.request.pods, infos, space, lambda info, left: (left.gpus, info.node.name))
