"""What resources for people and programs share: the part that decides, the query, jobs that somebody may see."""

from __future__ import annotations

from dlspawner.manager import query
from dlspawner.manager.access import Right, Viewer
from dlspawner.manager.acting import Acting
from dlspawner.manager.desk import Desk
from dlspawner.manager.jobs_api import NOT_HERE, desk_of
from dlspawner.manager.kept import Kept
from dlspawner.manager.web import ApiHandler, Manager, Problem

NO_JOB = "There is no such job of yours."
ONLY_SEEN = "You may see this job, and not do that to it."


def acting_of(manager: Manager) -> Acting:
    """The part that decides; 501 where there is none."""
    if manager.acting is None:
        raise Problem(501, NOT_HERE)
    return manager.acting


class Resource(ApiHandler):
    """A resource of somebody who may see jobs."""

    @property
    def acting(self) -> Acting:
        """The part that decides; 501 where there is none."""
        return acting_of(self.manager)

    @property
    def desk(self) -> Desk:
        """Where it is decided; 503 while that is not here."""
        return desk_of(self.manager)

    def sees(self) -> Viewer:
        """Who looks."""
        self.known()
        return self.viewer(Right.SEE)

    def acts(self) -> Viewer:
        """Who does something."""
        self.known()
        return self.viewer(Right.ACT)

    async def seen(self, job: str, viewer: Viewer) -> Kept:
        """A job that somebody may see; 404 for any other, whether there is one or not."""
        kept = await self.acting.ledger.seen(viewer, job)
        if kept is None:
            raise Problem(404, NO_JOB)
        return kept

    async def acted(self, job: str) -> Kept:
        """A job that somebody may act on; 403 for one that they only see, 404 for any other."""
        kept = await self.seen(job, self.sees())
        if not self.acts().reaches(kept.user, kept.team):
            raise Problem(403, ONLY_SEEN)
        return kept

    def given(self) -> query.Given:
        """The query; 422 for what is no text."""
        try:
            return {name: [value.decode() for value in values] for name, values in self.request.query_arguments.items()}
        except UnicodeDecodeError:
            raise Problem(422, "The query is not UTF-8.") from None

    def searched(self) -> str:
        """The words that are searched for, where that is all that may be asked; 422 for anything else."""
        given = self.given()
        try:
            query.known(given, "search")
            return query.read_search(given)
        except query.Wrong as problem:
            raise Problem(422, str(problem)) from None
