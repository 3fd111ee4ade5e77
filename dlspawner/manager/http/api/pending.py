"""A job that waits, for programs: what its page says, and the end of it, with a token of its owner or an administrator.

    GET     api/users/{user}/servers/{server}/pending-job    why it waits, which place, what would start at once
    DELETE  api/users/{user}/servers/{server}/pending-job    end the request, wherever it is on its way

404 without a pending job, and for all others. Once its turn has come both work until its server is ready, which
is 409 then: a server that is ready is stopped.
"""

from __future__ import annotations

from dlspawner.clients.hub import HubClient
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.cluster.termination import RUNS, CancelResult, cancel_server_start, unready_job
from dlspawner.manager.http.api.base import check_owner, page_path
from dlspawner.manager.http.api.models.responses import AlternativeModel, PendingJobModel
from dlspawner.manager.http.handlers import NOT_LEADER, NOT_YET, ApiHandler, HttpProblem
from dlspawner.manager.model.access import AccessRight

NOTHING_WAITS = "No job is queued for this server."


class PendingJobHandler(ApiHandler):
    """The request for one server; the default one has an empty name."""

    async def get(self, user: str, server: str) -> None:
        check_owner(self, user, AccessRight.SEE)
        admission, hub = self._deciding()
        record = admission.starting_or_pending(user, server) or await unready_job(admission.store, hub, user, server)
        if record is None:
            raise HttpProblem(404, NOTHING_WAITS)
        look = admission.explainer.explain(record)
        self.reply(
            PendingJobModel(
                job=look.job.id,
                state="starting" if look.job.state is JobState.RUNNING else look.state,
                position=look.position,
                waiting=look.waiting,
                why=look.sentence,
                submitted=look.job.submitted,
                alternatives=[AlternativeModel.model_validate(one) for one in look.advice],
                page=page_path(self.manager.service.prefix, user, server),
            )
        )

    async def delete(self, user: str, server: str) -> None:
        check_owner(self, user, AccessRight.ACT)
        admission, hub = self._deciding()
        found = await cancel_server_start(admission.store, hub, user, server, self.caller.name)
        if found is CancelResult.NOTHING:
            raise HttpProblem(404, NOTHING_WAITS)
        if found is CancelResult.RUNS:
            raise HttpProblem(409, RUNS)
        self.set_status(204)

    def _deciding(self) -> tuple[AdmissionService, HubClient]:
        leader = self.manager.leader
        if leader is None:
            raise HttpProblem(404, NOT_LEADER)
        if leader.admission is None:
            raise HttpProblem(503, NOT_YET)
        return leader.admission, leader.hub
