"""Whether a job that has ended can start again as what it was: the Hub starts a server with what it keeps now."""

from __future__ import annotations

from dataclasses import replace

from dlspawner.core.jobs import JobState
from dlspawner.manager.access import Viewer
from dlspawner.manager.acting import LeaderElector
from dlspawner.manager.again import differences
from dlspawner.manager.kept import JobFilter, JobHistory
from dlspawner.manager.web import HttpProblem

TURNED = "turned-preemptible"  # the reason of an event, as `preempting` writes it
NOT_ENDED = "It has not ended. Only what has ended can be started again."
LATER = "This server has had another job since, whose options the Hub has kept: start that one again, or submit anew."
NO_OPTIONS = "The Hub has kept no options of this server. Submit it anew."
OTHERS = "The Hub has kept other options of this server since ({}): submit it anew."


async def check_restart(acting: LeaderElector, kept: JobHistory) -> None:
    """A problem where what would start now is not what this job was; HubUnavailable when that cannot be told."""
    if kept.state is not JobState.ENDED:
        raise HttpProblem(409, NOT_ENDED)
    newest = await acting.ledger.page(Viewer("", all=True), JobFilter(user=kept.user, server=kept.server), None, 1)
    if newest and newest[0].id != kept.id:
        raise HttpProblem(409, LATER)
    user = await acting.hub.user(kept.user)
    server = user.servers.get(kept.server) if user is not None else None
    if server is None or not server.user_options:
        raise HttpProblem(409, NO_OPTIONS)
    teams = acting.settings.teams.team_of(kept.user, tuple(user.groups if user else ()))
    others = differences(await _as_asked(acting, kept), server.user_options, acting.settings, teams)
    if others:
        raise HttpProblem(409, OTHERS.format("; ".join(others)))


async def _as_asked(acting: LeaderElector, kept: JobHistory) -> JobHistory:
    """A job as its person had asked for it: one that turned preemptible with its team's quota was not."""
    turned = kept.preemptible and any(one.reason == TURNED for one in await acting.ledger.history(kept.id))
    return replace(kept, preemptible=False) if turned else kept
