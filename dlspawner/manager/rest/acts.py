"""What is done to one job by those who may act on it.

DELETE  jobs/{id}            KillJob: 202 while it stops, 204 when it has ended, or had before
POST    jobs/{id}/cancel     only what waits or is being started; 409 for what runs
POST    jobs/{id}/requeue    a job that has ended starts again with the same options: a new job
"""

from __future__ import annotations

from dlspawner.core.jobs import State
from dlspawner.manager import restarts
from dlspawner.manager.access import named
from dlspawner.manager.cancelling import BEFORE, unready
from dlspawner.manager.ends import Ender
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.kept import Kept
from dlspawner.manager.ledger import Fenced
from dlspawner.manager.records import CANCELLED
from dlspawner.manager.resource import Resource
from dlspawner.manager.rest.once import Answer
from dlspawner.manager.rest.submit import Starting
from dlspawner.manager.starting import Wanted, check_may
from dlspawner.manager.stopping import stop
from dlspawner.manager.web import Problem

RUNS = "It runs: to stop it, delete it."
_BEFORE_IT_RUNS = frozenset(State) - {State.RUNNING, State.STOPPING, State.ENDED}


class Ends(Resource):
    """What ends jobs."""

    async def end(self, kept: Kept) -> None:
        """End a job wherever it stands, and say whether it has ended."""
        record = self.desk.book.records.get(kept.id)
        if record is None:
            self.set_status(204)
            return
        name = named(self.known())
        try:
            await Ender(self.desk.book, self.acting.hub).end(record, name)
        except Fenced:
            raise Problem(503, NOT_YET) from None
        self.set_status(202 if kept.id in self.desk.book.records else 204)


class Cancel(Ends):
    """For those who would not stop what runs. A pod may run before the server is ready, which the Hub knows."""

    async def post(self, job: str) -> None:
        kept = await self.acted(job)
        if kept.state is State.RUNNING:
            await self._cancel_unready(kept)
            return
        if kept.state not in _BEFORE_IT_RUNS and kept.state is not State.ENDED:
            raise Problem(409, RUNS)
        await self.end(kept)

    async def _cancel_unready(self, kept: Kept) -> None:
        book = self.desk.book
        coming = await unready(book, self.acting.hub, kept.user, kept.server)
        if coming is None or coming.job.id != kept.id:
            raise Problem(409, RUNS)
        try:
            await book.turn(lambda turn: stop(turn, kept.id, CANCELLED, BEFORE))
        except Fenced:
            raise Problem(503, NOT_YET) from None
        self.set_status(202)


class Requeue(Starting):
    """A restart is a new job, of the same server and its options."""

    async def post(self, job: str) -> None:
        kept = await self.acted(job)
        check_may(self.acting, self.acts(), kept.user)
        wanted = Wanted(kept.user, kept.server, None)

        async def work() -> Answer:
            await restarts.check(self.acting, kept)
            return await self.start(wanted)

        await self.carry_out(wanted, ["requeue", kept.id], work)
