"""The rights of viewers to see jobs and act on them.

PURE. In a browser users have their own rights. A token counts for less than its owner: to see jobs with it, it must be
able to read its owner's servers in the Hub (``read:servers``), and to act on jobs, to start and stop them
(``servers``); for what an administrator sees beside their own, it must hold that scope for all users. The token inside
a job is none of its person's, and sees nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dlspawner.clients.hub import HubIdentity, IdentityKind, has_scope, own_server
from dlspawner.core.config import Team

READ_METRICS = "read:metrics"


class AccessRight(Enum):
    """A kind of access to jobs; the values are the Hub's scopes."""

    SEE = "read:servers"
    ACT = "servers"


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user or service with one right: over their own jobs, those of the teams they administer, or all."""

    name: str
    teams: frozenset[str] = frozenset()
    all: bool = False

    def reaches(self, user: str, team: str) -> bool:
        """True if the right covers this user's jobs in this team."""
        return self.all or user == self.name or team in self.teams

    def reads(self, user: str, team: str) -> bool:
        """True for the owner and admins of the team, the only ones that may read the inside of this user's jobs.

        Administrators of the Hub and services see that a job is there, and not what it prints.
        """
        return bool(self.name) and (user == self.name or team in self.teams)

    def administers(self, team: str) -> bool:
        """True if the right covers all jobs of this team."""
        return self.all or team in self.teams


def viewer_of(identity: HubIdentity, teams: Iterable[Team], right: AccessRight, *, by_token: bool) -> Viewer | str:
    """Over which jobs this request has the right; a sentence where it has it over none."""
    scope = right.value
    everybody = has_scope(identity.scopes, scope)
    if identity.kind is IdentityKind.SERVICE:
        return Viewer("", all=True) if everybody else f"This needs the scope {scope}."
    if own_server(identity) is not None:
        return "A job's own token does not open this; use one of the Hub's token page."
    if by_token and not has_scope(identity.scopes, scope, user=identity.name):
        return f"This needs a token with the scope {scope}, at least for its owner ({scope}!user={identity.name})."
    administered = frozenset(team.name for team in teams if identity.name in team.admins)
    return Viewer(identity.name, administered, identity.admin and (everybody or not by_token))


def actor_name(identity: HubIdentity) -> str:
    """Returns the actor's name for records: a service is marked as one, so that its name is not read as a user's."""
    return identity.name if identity.kind is IdentityKind.USER else f"the service {identity.name}"


def may_read_metrics(identity: HubIdentity, *, by_token: bool) -> str | None:
    """True with the Hub's scope for its own metrics, and for administrators in a browser, whose login has no scopes."""
    if has_scope(identity.scopes, READ_METRICS) or (identity.admin and not by_token):
        return None
    return f"This needs a token with the scope {READ_METRICS}, or the browser of an administrator of the Hub."
