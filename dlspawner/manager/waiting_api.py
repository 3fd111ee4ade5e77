"""A job that waits, for programs: what its page says, and the end of it, with a token of its owner or an administrator.

    GET     api/wait/{user}/{server}    why it waits, which place, what would start at once
    DELETE  api/wait/{user}/{server}    end the request, wherever it is on its way

404 when nothing waits there, and for everybody else. Once its turn has come both work until its server is ready, which
is 409 then: who has a server that is ready stops it.
"""

from __future__ import annotations

from dlspawner.core.jobs import State
from dlspawner.core.json_values import amount, time
from dlspawner.hubapi import HubApi, Identity
from dlspawner.manager.access import Right
from dlspawner.manager.cancelling import RUNS, Found, cancel_anywhere, unready
from dlspawner.manager.desk import Desk
from dlspawner.manager.jobs_api import NOT_HERE, NOT_YET
from dlspawner.manager.ledger import Fenced
from dlspawner.manager.waiting_page import owner, page_path
from dlspawner.manager.web import ApiHandler, Problem

NOTHING_WAITS = "Nothing waits for this server."


class Wait(ApiHandler):
    """The request for one server; the default one has an empty name."""

    async def get(self, user: str, server: str) -> None:
        self._owner(user, Right.SEE)
        desk, hub = self._deciding()
        record = desk.coming(user, server) or await unready(desk.book, hub, user, server)
        if record is None:
            raise Problem(404, NOTHING_WAITS)
        look = desk.looks.look(record)
        self.reply(
            {
                "job": look.job.id,
                "state": State.STARTING.value if look.job.state is State.RUNNING else look.state,
                "position": look.position,
                "waiting": look.waiting,
                "why": look.sentence,
                "submitted": time(look.job.submitted),
                "alternatives": [
                    {"gpus": amount(one.gpus), "gpu_type": one.gpu_type, "preemptible": one.preemptible}
                    for one in look.advice
                ],
                "page": page_path(self.manager.service.prefix, user, server),
            }
        )

    async def delete(self, user: str, server: str) -> None:
        who = self._owner(user, Right.ACT)
        try:
            desk, hub = self._deciding()
            found = await cancel_anywhere(desk.book, hub, user, server, who.name)
        except Fenced:
            raise Problem(503, NOT_YET) from None
        if found is Found.NOTHING:
            raise Problem(404, NOTHING_WAITS)
        if found is Found.RUNS:
            raise Problem(409, RUNS)
        self.set_status(204)

    def _owner(self, user: str, right: Right) -> Identity:
        self.known()
        return owner(self, user, right)

    def _deciding(self) -> tuple[Desk, HubApi]:
        acting = self.manager.acting
        if acting is None:
            raise Problem(404, NOT_HERE)
        if acting.desk is None:
            raise Problem(503, NOT_YET)
        return acting.desk, acting.hub
