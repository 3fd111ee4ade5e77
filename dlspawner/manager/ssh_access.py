"""One question of the gateway about everybody who is connected: ``POST /services/jobs/api/ssh-access``.

It sends the keys that sessions were opened with, as pairs of a user's name and a fingerprint, and reads which of them
are registered no more, and of ``teams.yaml`` whom it blocks and the teams whose terminals are recorded. By the scope
custom:ssh-keys:read, for all users.
"""

from __future__ import annotations

from typing import Any

from dlspawner.core.model import TeamsConfig
from dlspawner.hubapi import has_scope
from dlspawner.manager.api import as_name, fields
from dlspawner.manager.identity import NOT_THE_GATEWAY, READ_KEYS
from dlspawner.manager.web import ApiHandler, HttpProblem, Routes

MOST = 240 * 1024
MOST_KEYS = 1000


class SshAccessHandler(ApiHandler):
    """A Manager without files knows of nobody who is blocked, or recorded."""

    async def post(self) -> None:
        self.refuse(None if has_scope(self.check_parameters().scopes, READ_KEYS) else NOT_THE_GATEWAY)
        asked = _pairs(fields(self.read_object(MOST), {"keys": list}, {"keys"})["keys"])
        registered = await self.manager.store.registered(asked)
        acting = self.manager.leader
        teams = acting.settings.teams if acting is not None else TeamsConfig()
        recorded = sorted(team.name for team in teams.teams if team.record_terminals)
        self.reply({"blocked": sorted(teams.blocked), "gone": sorted(asked - registered), "recorded": recorded})


def _pairs(items: list[Any]) -> set[tuple[str, str]]:
    right = all(isinstance(one, list) and [type(part) for part in one] == [str, str] for one in items)
    if len(items) > MOST_KEYS or not right:
        raise HttpProblem(422, f"At most {MOST_KEYS} pairs of a user's name and a key's fingerprint are expected.")
    return {(as_name(user), as_name(fingerprint)) for user, fingerprint in items}


ACCESS_ROUTES: Routes = (("api/ssh-access", SshAccessHandler),)
