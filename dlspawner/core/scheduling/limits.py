"""Limits: what can never start, and what must wait even with free GPUs: caps of users and teams, approvals.

Every limit has a sentence for the user, with the number that would have worked.

A job that needs an approval holds nothing, competes with no job and keeps its submit time (*pending-approval*). The
required approvals follow from the job, the files and the user's other jobs, and are evaluated again after each change
of them: a raised cap, or the end of another job of the same user, may make an approval unnecessary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from dlspawner.core import units
from dlspawner.core.config import Team, format_permissions
from dlspawner.core.decisions import Reason, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import has_type
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.node_info import NodeInfo, place_best
from dlspawner.core.text import listed
from dlspawner.core.units import GPU, counted, free_of_them, shown

BLOCKED = "You can not start jobs here; ask an administrator why."


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a job can not start now; ``until``: not before then.

    ``reserve``: the nodes that other jobs leave already, after their notice. A victim is spared when no job has a
    reservation for its place, and its next notice would begin anew.
    ``text``: a sentence with figures is made when it is read; a pass over the queue reads none.
    """

    reason: Reason
    text: str | Callable[[], str] = ""
    until: datetime | None = None
    reserve: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return self.text if isinstance(self.text, str) else self.text()


def config_violation(request: Job, state: ClusterState) -> Refuse | None:
    """Returns why the configuration does not allow a job on any nodes."""
    if request.inadmissible:
        return Refuse(Reason.NOT_ALLOWED, request.inadmissible)
    team = state.team(request.team)
    if request.user in state.teams.blocked:
        return Refuse(Reason.BLOCKED, BLOCKED)
    if team is None:
        return Refuse(Reason.UNKNOWN_TEAM, f"There is no team “{request.team}” any more; choose another one.")
    return (
        _no_template(request, team, state)
        or _not_special(request, state)
        or state.config_cache(
            ("too much", request.team, request.template, request.preemptible, request.request),
            lambda: (
                _too_many_ports(request, state)
                or _more_than_extended_quota(request, team, state)
                or _by_type(request, team, state)
            ),
        )
    )


def _too_many_ports(request: Job, state: ClusterState) -> Refuse | None:
    asked, ports = ports_of(request.request), state.cluster.host_ports
    if not asked or (ports is not None and asked <= len(ports.numbers)):
        return None
    if ports is None:
        sentence = "This cluster no longer assigns ports of the host's network; choose another template."
        return Refuse(Reason.NOT_ALLOWED, sentence)
    sentence = f"There are {len(ports.numbers)} ports of the host's network for jobs; this job needs {asked}."
    return Refuse(Reason.EXCEEDS_LIMIT, sentence)


def _more_than_extended_quota(request: Job, team: Team, state: ClusterState) -> Refuse | None:
    quotas = dict(team.extended_quota)
    for name, asked in request.quota_extended:
        if name in quotas and asked > quotas[name] * GPU:
            what = f"a quota of {quotas[name]} {state.cluster.resource_title(name)}"
            sentence = f"Team {team.title or team.name} has {what}; you asked for {shown(asked)}."
            return Refuse(Reason.EXCEEDS_LIMIT, sentence)
    return None


def ports_of(charge: ResourceRequest) -> int:
    return sum(pod.ports for pod in charge.pods)


def _by_type(request: Job, team: Team, state: ClusterState) -> Refuse | None:
    kind = request.request.gpu_type
    if kind is not None:
        found = state.cluster.gpu_type(kind)
        if found is None or any(pod.resource not in {"", found.resource} for pod in request.request.pods):
            return Refuse(Reason.UNKNOWN_TYPE, f"There are no GPUs of type “{kind}” any more; choose another type.")
        return _more_than_limits(request, kind, team, state)
    return None


def _no_template(request: Job, team: Team, state: ClusterState) -> Refuse | None:
    """Of a job that waits: what is asked for now the Hub has just checked, with files that may be newer than ours."""
    name, known = request.template, state.teams.templates
    if known is None or not name or request.state is JobState.SUBMITTED:
        return None
    if name not in known:
        return Refuse(Reason.UNKNOWN_TEMPLATE, f"There is no template “{name}” any more; choose another one.")
    if team.may_use(name) and (not known[name] or team.name in known[name]):
        return None
    sentence = f"Team {team.title or team.name} may not use the template “{name}” any more; choose another one."
    return Refuse(Reason.UNKNOWN_TEMPLATE, sentence)


def _not_special(request: Job, state: ClusterState) -> Refuse | None:
    off = frozenset(request.special.special if request.special else ()) - state.cluster.special
    if not off:
        return None
    sentence = f"Special permissions ({format_permissions(off)}) are not switched on any more; choose another template."
    return Refuse(Reason.NOT_ALLOWED, sentence)


def _more_than_limits(request: Job, kind: str, team: Team, state: ClusterState) -> Refuse | None:
    asked, hard, title = request.request.gpus, team.user_caps.hard, team.title or team.name
    if hard is not None and asked > hard:
        sentence = f"Team {title} gives one person at most {counted(hard)}; you asked for {shown(asked)}."
        return Refuse(Reason.EXCEEDS_LIMIT, sentence, hard)
    if request.preemptible:
        limit = team.borrow_limit
        if limit is not None and asked > limit:
            sentence = f"Team {title} may borrow at most {counted(limit)}; you asked for {shown(asked)}."
            return Refuse(Reason.EXCEEDS_LIMIT, sentence, limit)
        return None
    quota = state.quota(request.team, kind)
    if asked > quota and state.teams.has_quota and state.cluster.scheduler.is_native:
        what = f"a quota of {counted(quota)} of type {kind}" if quota else f"no quota of GPUs of type {kind}"
        borrows = " A preemptible job may use idle GPUs of others." if _could_borrow(request, team, state) else ""
        return Refuse(Reason.EXCEEDS_LIMIT, f"Team {title} has {what}; you asked for {shown(asked)}.{borrows}", quota)
    return None


def _could_borrow(request: Job, team: Team, state: ClusterState) -> bool:
    """True if the same job could be preemptible: its template offers that, and its team may borrow so many GPUs."""
    offering = state.teams.borrowing
    offered = offering is None or not request.template or request.template in offering
    return offered and (team.borrow_limit is None or request.request.gpus <= team.borrow_limit)


def larger_than_nodes(charge: ResourceRequest, state: ClusterState) -> Blocked | None:
    """Returns what a job asks for beyond the present nodes, even if they were empty; with the most that one has.

    The job waits: a node that restarts, or that an autoscaler adds, may hold it. Refused: to remember the sizes of
    nodes that are gone, so that a job is refused only if no node ever had enough.
    """
    pods, kind = charge.pods, charge.gpu_type
    if state.config_cache(("on some nodes", charge), lambda: _on_some_nodes(charge, state)):
        return None
    if _nothing_of_its_kind(kind, state):
        return None
    infos = _suitable(charge, state)
    largest = max(pods, key=lambda pod: pod.gpus)
    most = max((info.allocatable(largest.resource).gpus for info in infos), default=0)
    if kind is not None and not most:
        sentence = (
            f"No node has GPUs of type {kind} that this job could use; choose another type of GPU or another template."
        )
        return Blocked(Reason.NO_FIT, sentence)
    if kind is not None and most < largest.gpus:
        sentence = (
            f"No node has more than {counted(most)} of type {kind}; you asked for {shown(largest.gpus)} on one node."
        )
        return Blocked(Reason.NO_FIT, sentence)
    too_large = next((pod for pod in pods if not _on_node_infos((pod,), infos)), None)
    if too_large is not None:
        return Blocked(Reason.NO_FIT, _share_sentence(too_large, infos, state))
    smallest = sorted(pods, key=lambda pod: (pod.gpus, pod.cpu_milli, pod.memory_bytes))
    fit = bisect_right(range(1, len(pods)), False, key=lambda count: not _on_node_infos(tuple(smallest[:count]), infos))
    sentence = f"The cluster's nodes can not hold the {len(pods)} pods of this job together, only {fit} of them."
    return Blocked(Reason.NO_FIT, sentence)


def _share_sentence(pod: PodRequest, infos: list[NodeInfo], state: ClusterState) -> str:
    """Names what a pod asks for that no node has beside its GPUs, and the most that a node has."""
    wholes = [info.allocatable(pod.resource) for info in infos if pod.placement.matches(info.node)]
    spaces = [space for space in wholes if space.gpus >= pod.gpus]
    if not spaces:
        return "There is no node that this job could use; choose another template."
    for name, amount in pod.extended:
        largest = max(dict(space.extended).get(name, 0) for space in spaces)
        if largest < amount:
            told = f"has more than {shown(largest)} {state.cluster.resource_title(name)}"
            return f"No node that this job could use {told}; you asked for {shown(amount)} on one node."
    spaces = [space for space in spaces if space.has(pod.extended)] or spaces
    beside = "" if pod.resource else " beside what comes with its GPUs"
    cpu, memory = max(space.cpu_milli for space in spaces), max(space.memory_bytes for space in spaces)
    asked, have = [], []
    if cpu < pod.cpu_milli:
        asked.append(shown(pod.cpu_milli))
        have.append(counted(max(0, cpu), "CPU"))
    if memory < pod.memory_bytes:
        asked.append(units.size(pod.memory_bytes))
        have.append(f"{_rounded_share(memory)} of memory")
    if have:
        most = " and ".join(have)
        return f"No node that this job could use has more than {most}{beside}; you asked for {' and '.join(asked)}."
    with_cpu = max(space.memory_bytes for space in spaces if space.cpu_milli >= pod.cpu_milli)
    return (
        f"No node that this job could use with {counted(pod.cpu_milli, 'CPU')} has more than "
        f"{_rounded_share(with_cpu)} of "
        f"memory{beside}; you asked for {units.size(pod.memory_bytes)}."
    )


def _rounded_share(memory: int) -> str:
    return units.size(units.at_most(memory))


def _nothing_of_its_kind(kind: str | None, state: ClusterState) -> bool:
    """True if no node has GPUs of a type, or there is no node at all."""
    found = state.cluster.gpu_type(kind) if kind is not None else None
    nodes = (info.node for info in state.node_infos.values())
    return not any(found is None or has_type(node, found) for node in nodes)


def _on_some_nodes(charge: ResourceRequest, state: ClusterState) -> bool:
    """True if all nodes together could hold it, empty and open."""
    pods = charge.pods
    if len(pods) == 1 and _some_node_fits(pods[0], state):
        return True
    return _on_node_infos(pods, _suitable(charge, state))


def _on_node_infos(pods: tuple[PodRequest, ...], infos: list[NodeInfo]) -> bool:
    return place_best(pods, infos, lambda info, pod: info.allocatable(pod.resource), lambda _, left: left) is not None


def _suitable(charge: ResourceRequest, state: ClusterState) -> list[NodeInfo]:
    return [info for info in state.node_infos.values() if any(pod.placement.matches(info.node) for pod in charge.pods)]


def _some_node_fits(pod: PodRequest, state: ClusterState) -> bool:
    pool = state.pool(pod.resource, pod.placement)
    if any(info.allocatable(pod.resource).holds(pod) for info in pool.node_infos.values()):
        return True
    infos = state.node_infos.values()
    return any(info.allocatable(pod.resource).holds(pod) and pod.placement.matches(info.node) for info in infos)


def missing_approvals(request: Job, state: ClusterState) -> tuple[RequiredApproval, ...]:
    """Returns the approvals that are missing; none where the files forbid the start in any case."""
    found = required_approvals(request, state)
    return found if found and config_violation(request, state) is None else ()


def caps(request: Job, state: ClusterState) -> Blocked | None:
    """Returns the wait for an approval, or for the end of another job of the user or team."""
    needs = required_approvals(request, state)
    if needs:
        return Blocked(Reason.APPROVAL, " ".join(need.sentence for need in needs))
    team, taken = state.team(request.team), _ports_taken(request, state) or _over_extended_quota(request, state)
    if team is None or taken is not None:
        return taken
    asked, title = request.request.gpus, team.title or team.name
    own = request.reserved_gpus
    if request.request.gpu_type is None:
        return _cpu_caps(request, title, state)
    hard = team.user_caps.hard
    if hard is not None and (held := state.held_by(request.team, request.user) - own) + asked > hard:
        hold = "hold or were promised" if state.reserved_by_user(request.team, request.user) > own else "hold"
        return Blocked(
            Reason.USER_CAP,
            f"You {hold} {counted(held)} of the {shown(hard)} that team {title} gives one person; "
            f"this job waits until {free_of_them(held + asked - hard)}.",
        )
    if request.preemptible and team.borrow_limit is not None:
        borrowed, limit = state.borrowed(request.team), team.borrow_limit
        if borrowed + asked > limit:
            left = shown(limit - borrowed) if borrowed < limit else "no"
            return Blocked(
                Reason.BORROW_LIMIT,
                f"Team {title} borrows {shown(borrowed)} of at most {counted(limit)} and may borrow {left} more; "
                f"this job needs {shown(asked)}.",
            )
    return None


def _ports_taken(request: Job, state: ClusterState) -> Blocked | None:
    ports = state.cluster.host_ports
    if ports is None or not (asked := ports_of(request.request)) or asked <= (free := len(state.free_ports())):
        return None
    used = len(ports.numbers) - free
    sentence = (
        f"Jobs use {used} of the {len(ports.numbers)} ports of the host's network ({ports.first} to {ports.last}); "
        f"this job needs {asked}."
    )
    return Blocked(Reason.HOST_PORTS, sentence)


def _over_extended_quota(request: Job, state: ClusterState) -> Blocked | None:
    if not request.quota_extended:
        return None
    team = state.team(request.team) or Team(request.team)
    quotas = dict(team.extended_quota)
    for name, asked in request.quota_extended:
        used = state.extended(request.team, name) - (asked if request.reserved else 0)
        if name in quotas and used + asked > quotas[name] * GPU:
            what = f"{shown(used)} of its {quotas[name]} {state.cluster.resource_title(name)}"
            sentence = f"Team {team.title or team.name} uses {what}; this job needs {shown(asked)}."
            return Blocked(Reason.TEAM_QUOTA, sentence)
    return None


def _cpu_caps(request: Job, title: str, state: ClusterState) -> Blocked | None:
    per_user, per_team = state.cluster.cpu_jobs.per_user, state.cluster.cpu_jobs.per_team
    mine = state.cpu_jobs(request.team, request.user)
    if per_user is not None and mine >= per_user:
        return Blocked(Reason.USER_CAP, f"You have {mine} jobs without GPUs in team {title}, and may have {per_user}.")
    if per_team is not None and state.cpu_jobs(request.team) >= per_team:
        return Blocked(Reason.TEAM_CAP, f"Team {title} has {per_team} jobs without GPUs, which is its most.")
    return None


class ApprovalKind(Enum):
    """The subject of an approval; the values are those of REST, logs and the database."""

    SOFT_CAP = "soft-cap"  # more GPUs than one person of the team gets; decided by the team's admins
    SPECIAL = "special"  # a special permission; decided by an administrator of the Hub


@dataclass(frozen=True, slots=True)
class RequiredApproval:
    """An approval that a job needs: ``what`` and ``why`` for approvers, ``sentence`` for the job's user."""

    kind: ApprovalKind
    what: str
    why: str
    sentence: str


def required_approvals(job: Job, state: ClusterState) -> tuple[RequiredApproval, ...]:
    """Returns the approvals that this job needs before it is queued."""
    return tuple(need for need in (_over_soft_cap(job, state), _special(job)) if need is not None)


def approvers(team: Team, user: str) -> tuple[str, ...]:
    """Returns the team's admins that may decide about a soft cap of this user, without the user."""
    return tuple(name for name in team.admins if name != user)


def approver_sentence(team: Team, user: str) -> str:
    """Returns the sentence for the waiting user."""
    names, title = approvers(team, user), team.title or team.name
    if names:
        return f"{listed(names, 'or')} can approve it for team {title}."
    other = "other " if team.admins else ""
    return f"Team {title} has no {other}admin: an administrator of the Hub can approve it."


def holding_text(user: str, held: int, *, promised: bool = False) -> str:
    """Returns the user's other resources, as the end of ``why``."""
    return f"{user} holds {'or was promised ' if promised else ''}{shown(held)}"


def _special(job: Job) -> RequiredApproval | None:
    """Special permissions: no team gives them, and an approval is for this job alone."""
    asked = job.special
    if asked is None or asked.approved:
        return None
    words = format_permissions(asked.special)
    image = f" for the image {asked.image}" if asked.image else ""
    return RequiredApproval(
        ApprovalKind.SPECIAL,
        f"Special permissions ({words}){image}",
        f"Template {job.template} asks for them. They reach beyond the job, and are approved job by job.",
        f"It needs special permissions ({words}): an administrator of the Hub approves each such job.",
    )


def _over_soft_cap(job: Job, state: ClusterState) -> RequiredApproval | None:
    """More GPUs than the team gives one person without approval, alone or with what the person holds already."""
    team, asked, kind = state.team(job.team), job.request.gpus, job.request.gpu_type
    if kind is None or team is None or team.user_caps.soft is None or job.approved:
        return None
    hard = team.user_caps.hard
    if hard is not None and hard <= team.user_caps.soft:
        return None  # the largest approvable value
    own = job.reserved_gpus
    soft, held = team.user_caps.soft, state.held_by(job.team, job.user) - own
    if held + asked <= soft:
        return None
    promised = state.reserved_by_user(job.team, job.user) > own
    hold = "hold or were promised" if promised else "hold"
    title = team.title or team.name
    if asked <= soft:
        sentence = (
            f"You {hold} {counted(held)} of the {shown(soft)} that team {title} gives one person without approval; "
            f"this job waits until {free_of_them(held + asked - soft)}, or until it is approved."
        )
    else:
        held_too = f" and {hold} {shown(held)}" if held else ""
        sentence = (
            f"Team {title} gives one person at most {counted(soft)} without approval; "
            f"you asked for {shown(asked)}{held_too}, so it waits for approval."
        )
    if hard is not None and held + asked > hard:
        sentence += f" Once approved, it still waits for your other jobs: one person holds at most {shown(hard)}."
    what = f"{counted(asked)} of type {kind}{', preemptible' if job.preemptible else ''}"
    besides = f"; {holding_text(job.user, held, promised=promised)}" if held else ""
    why = f"Team {title} gives one person at most {counted(soft)} without approval{besides}."
    return RequiredApproval(ApprovalKind.SOFT_CAP, what, why, f"{sentence} {approver_sentence(team, job.user)}")
