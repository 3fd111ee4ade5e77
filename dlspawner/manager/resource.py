"""What resources for people and programs share: the part that decides, the query, jobs that somebody may see."""

from __future__ import annotations

from dlspawner.manager import query
from dlspawner.manager.access import AccessRight, Viewer
from dlspawner.manager.acting import LeaderElector
from dlspawner.manager.desk import AdmissionService
from dlspawner.manager.jobs_api import NOT_LEADER, admission_of
from dlspawner.manager.kept import JobHistory
from dlspawner.manager.web import ApiHandler, HttpProblem, ManagerContext

NO_JOB = "There is no such job of yours."
ONLY_SEEN = "You may see this job, and not do that to it."


def leader_of(manager: ManagerContext) -> LeaderElector:
    """The part that decides; 501 where there is none."""
    if manager.leader is None:
        raise HttpProblem(501, NOT_LEADER)
    return manager.leader


class JobApiHandler(ApiHandler):
    """A resource of somebody who may see jobs."""

    @property
    def leader(self) -> LeaderElector:
        """The part that decides; 501 where there is none."""
        return leader_of(self.manager)

    @property
    def admission(self) -> AdmissionService:
        """Where it is decided; 503 while that is not here."""
        return admission_of(self.manager)

    def sees(self) -> Viewer:
        """Who looks."""
        self.check_parameters()
        return self.viewer(AccessRight.SEE)

    def acts(self) -> Viewer:
        """Who does something."""
        self.check_parameters()
        return self.viewer(AccessRight.ACT)

    async def seen(self, job: str, viewer: Viewer) -> JobHistory:
        """A job that somebody may see; 404 for any other, whether there is one or not."""
        kept = await self.leader.ledger.visible_job(viewer, job)
        if kept is None:
            raise HttpProblem(404, NO_JOB)
        return kept

    async def acted(self, job: str) -> JobHistory:
        """A job that somebody may act on; 403 for one that they only see, 404 for any other."""
        kept = await self.seen(job, self.sees())
        if not self.acts().reaches(kept.user, kept.team):
            raise HttpProblem(403, ONLY_SEEN)
        return kept

    def given(self) -> query.Given:
        """The query; 422 for what is no text."""
        try:
            return {name: [value.decode() for value in values] for name, values in self.request.query_arguments.items()}
        except UnicodeDecodeError:
            raise HttpProblem(422, "The query is not UTF-8.") from None

    def searched(self) -> str:
        """The words that are searched for, where that is all that may be asked; 422 for anything else."""
        given = self.given()
        try:
            query.check_parameters(given, "search")
            return query.read_search(given)
        except query.InvalidQuery as problem:
            raise HttpProblem(422, str(problem)) from None
