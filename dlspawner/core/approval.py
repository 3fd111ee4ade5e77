"""Approval: what a job needs somebody's word for before it may wait for its turn, and whose word counts.

A job that needs one holds nothing, competes with nobody and keeps its submit time (*waiting-approval*). What is needed
follows from the job and the files alone, so it is found again whenever one of them changes: a cap that is raised, or a
job of the same person that ends, may make it needless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dlspawner.core.amounts import GPU, counted, free_of_them, shown
from dlspawner.core.jobs import Job
from dlspawner.core.model import Team
from dlspawner.core.permissions import format_permissions
from dlspawner.core.world import ClusterState


class ApprovalKind(Enum):
    """What is asked for; the values are what REST, logs and the database say."""

    SOFT_CAP = "soft-cap"  # more GPUs than one person of the team gets; decided by the team's admins
    SPECIAL = "special"  # a special permission; decided by an administrator of the Hub


@dataclass(frozen=True, slots=True)
class RequiredApproval:
    """One word that a job needs: ``what`` it asks for and ``why`` that needs one, for who decides; ``sentence`` says
    the same to the job's person.
    """

    kind: ApprovalKind
    what: str
    why: str
    sentence: str


def required_approvals(job: Job, world: ClusterState) -> tuple[RequiredApproval, ...]:
    """What has to be approved before this job may wait for its turn, as things are."""
    return tuple(need for need in (_over_soft_cap(job, world), _special(job)) if need is not None)


def approvers(team: Team, user: str) -> tuple[str, ...]:
    """The team's admins who may decide about a soft cap of this person: nobody does for themselves."""
    return tuple(name for name in team.admins if name != user)


def approver_sentence(team: Team, user: str) -> str:
    """The same as a sentence for the person who waits."""
    names, title = approvers(team, user), team.title or team.name
    if names:
        return f"{list_names(names)} can approve it for team {title}."
    other = "other " if team.admins else ""
    return f"Team {title} has no {other}admin: an administrator of the Hub can approve it."


def holding_text(user: str, held: int, *, promised: bool = False) -> str:
    """What somebody has besides, as the end of ``why`` says it."""
    return f"{user} holds {'or was promised ' if promised else ''}{shown(held)}"


def list_names(names: Sequence[str]) -> str:
    """Names as people say them: ``ann``, ``ann or bob``, ``ann, bob or carl``."""
    return " or ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def _special(job: Job) -> RequiredApproval | None:
    """Special permissions: nobody has them by being in a team, and an approval is for this job alone."""
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


def _over_soft_cap(job: Job, world: ClusterState) -> RequiredApproval | None:
    """More GPUs than the team gives one person without approval, alone or with what the person holds already."""
    team, asked, kind = world.team(job.team), job.request.gpus, job.request.gpu_type
    if kind is None or team is None or team.user_caps.soft is None or job.approved:
        return None
    hard = team.user_caps.hard
    if hard is not None and hard <= team.user_caps.soft:
        return None  # nobody can approve more than that
    own = asked if job.reserved and job.id in world.jobs else 0
    soft, held = team.user_caps.soft * GPU, world.held_by(job.team, job.user) - own
    if held + asked <= soft:
        return None
    promised = world.reserved_by_user(job.team, job.user) > own
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
            f"you asked for {shown(asked)}{held_too}, so it waits until somebody approves it."
        )
    if hard is not None and held + asked > hard * GPU:
        sentence += f" Approved, it waits for your other jobs still: nobody holds more than {shown(hard * GPU)}."
    what = f"{counted(asked)} of type {kind}{', preemptible' if job.preemptible else ''}"
    besides = f"; {holding_text(job.user, held, promised=promised)}" if held else ""
    why = f"Team {title} gives one person at most {counted(soft)} without approval{besides}."
    return RequiredApproval(ApprovalKind.SOFT_CAP, what, why, f"{sentence} {approver_sentence(team, job.user)}")
