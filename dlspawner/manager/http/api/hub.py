"""REST resources about jobs for the Hub alone, under /services/jobs/api/internal/.

    PUT   jobs/{id}/admission       may it start? asking again gets the same answer
    POST  jobs/{id}/released        its pod was not made and will not be, or is given up: why, for its person
    POST  jobs/{id}/left            its pods wait in the cluster and stay, the start ends: why; null: not yet
    GET   jobs/{id}/ending          why it is being stopped, or has failed; 404 if the Manager does not know
    GET   users/{name}/waiting      the pending jobs of this user, at all servers or at ?server=
    PUT   users/{name}/starting     what a start needs before its pod is built: the pending job's id, and the uid
    PUT   users/{name}/account      the user's uid and gid, the same for ever
    POST  users/{name}/interrupted  a user has stopped a server while the Hub started it
    GET   files                     the administrators' files in their last good version, for a Hub that starts

Every answer to a question is 200 with a decision: what is no 200 is no answer, and the Hub refuses the start. A Manager
that does not act, because another one does or because it cannot see the cluster yet, answers 503: ask again. One that
has no files to decide by answers 501, and will tomorrow.

An admission of a job with GPUs says for each pod the node that it was admitted for, null where that is not known:
Kubernetes' scheduler would spread what was packed, and a job for which a whole node was kept would find two that are
half full.
"""

from __future__ import annotations

import json

from dlspawner.core.config import SpecialPermission
from dlspawner.core.job import JobState
from dlspawner.core.unix_account import UidRange
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionService
from dlspawner.manager.db import config_versions
from dlspawner.manager.db.store import AllocatedUid
from dlspawner.manager.http.api.base import as_name
from dlspawner.manager.http.api.models.requests import (
    AdmissionBody,
    InterruptedStartBody,
    LeftBody,
    PrepareStartBody,
    ReleasedBody,
    ServerQuery,
    UidRangeBody,
)
from dlspawner.manager.http.api.models.responses import (
    AdmissionModel,
    GoodFilesModel,
    LeftModel,
    PrepareStartModel,
    StopReasonModel,
    UnixAccountModel,
    UserPendingJobModel,
    UserPendingJobsModel,
)
from dlspawner.manager.http.handlers import HttpProblem, HubOnlyHandler, admission_of, log
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.model.notice import clean
from dlspawner.manager.state.lifecycle import on_job_failed, on_start_interrupted

_LONGEST_WHY = 1000
_SEEN_ENDS = frozenset({EventReason.FAILED, EventReason.EVICTED})


class _ForJobs(HubOnlyHandler):
    def desk(self) -> AdmissionService:
        return admission_of(self.manager)


class AdmissionHandler(_ForJobs):
    async def put(self, job: str) -> None:
        body = self.read_body(AdmissionBody)
        question = AdmissionRequest(
            job,
            body.user,
            body.server,
            body.team,
            body.template,
            body.preemptible,
            body.priority,
            body.requeue,
            min(max(0, body.request_milliseconds), 600_000) / 1000,
            body.namespace,
            body.pods,
            tuple(one for one in SpecialPermission if one in body.special),
            as_name(body.image),
            body.nonce,
            json.dumps(body.options, sort_keys=True),
            body.ports,
        )
        found = await self.desk().review(question)
        self.manager.meters.decided(found.decision, found.reason)
        self.reply(AdmissionModel.model_validate(found))


class ReservationReleasedHandler(_ForJobs):
    async def post(self, job: str) -> None:
        body = self.read_body(ReleasedBody)
        why = clean(body.why, _LONGEST_WHY)
        if body.made:
            await self.desk().store.transact(lambda turn: on_job_failed(turn, job, body.user, why))
        else:
            await self.desk().release_reservation(job, body.user, passes=body.passes, why=why)
        self.set_status(204)


class LeftInClusterHandler(_ForJobs):
    async def post(self, job: str) -> None:
        self.reply(LeftModel(sentence=await self.desk().leave_in_cluster(job, self.read_body(LeftBody).user)))


class GoodFilesHandler(HubOnlyHandler):
    async def get(self) -> None:
        acting = self.manager.leader
        self.reply(GoodFilesModel(files=await acting.ledger.read(config_versions.read_versions) if acting else {}))


class StopReasonHandler(HubOnlyHandler):
    """Why a job is being stopped, or how it has ended, for the Hub to tell its person."""

    async def get(self, job: str) -> None:
        acting = self.manager.leader
        kept = await acting.ledger.job_history(job) if acting is not None else None
        told = kept is not None and (kept.stop is not None or kept.reason in _SEEN_ENDS)
        if acting is None or kept is None or not told:
            raise HttpProblem(404, "Nobody here has decided to stop this job, or seen why it ended.")
        detail = (await acting.ledger.end_details([kept])).get(job, "")
        reason = kept.stop.code if kept.stop is not None else kept.reason
        self.reply(StopReasonModel(reason=reason, sentence=end_sentence(kept.reason, detail, kept.stop)))


class PendingJobsHandler(_ForJobs):
    """The pending job of a user's server: its id, because a start that is requested again is of the same job."""

    async def get(self, user: str) -> None:
        server, desk = self.read_query(ServerQuery).server, self.desk()
        now = desk.store.now()
        waiting = [
            UserPendingJobModel(
                job=one.job.id,
                server=one.job.server,
                state=one.job.state.value if one.position else JobState.QUEUED.value,
                position=one.position,
                why=desk.explainer.why(one.job, now),
                never=desk.explainer.inadmissible(one.job),
            )
            for one in desk.pending(user, server)
        ]
        self.reply(UserPendingJobsModel(waiting=waiting))


class PrepareStartHandler(_ForJobs):
    """The pending job of this server and its user's account, in one answer, because a user waits for it."""

    async def put(self, user: str) -> None:
        body = self.read_body(PrepareStartBody)
        waits = self.desk().store.pending_job(as_name(user), body.server)
        account = await allocate_account(self, user, body)
        self.reply(PrepareStartModel(job=waits.job.id if waits else None, uid=account.uid, gid=account.uid))


class StartInterruptedHandler(_ForJobs):
    """Cancels the start of a server, or its pending job."""

    async def post(self, user: str) -> None:
        body, whose = self.read_body(InterruptedStartBody), as_name(user)
        await self.desk().store.transact(lambda turn: on_start_interrupted(turn, whose, body.server, body.job))
        self.set_status(204)


class UnixAccountHandler(HubOnlyHandler):
    """The uid of a user without one from the authenticator; the Hub sends the range of cluster.yaml."""

    async def put(self, user: str) -> None:
        account = await allocate_account(self, user, self.read_body(UidRangeBody))
        self.reply(UnixAccountModel(uid=account.uid, gid=account.uid), 201 if account.new else 200)


async def allocate_account(handler: HubOnlyHandler, user: str, body: UidRangeBody) -> AllocatedUid:
    """The account that this user has for ever; 409 when every uid is taken."""
    name, uids = as_name(user), UidRange(body.first_uid, body.last_uid)
    if not name:
        raise HttpProblem(422, "No user has such a name.")
    account = await handler.manager.store.account(name, uids, handler.manager.now())
    if account is None:
        log.error("account user=%s uid=none: %d to %d are all taken", name, uids.first, uids.last)
        raise HttpProblem(409, f"Every uid from {uids.first} to {uids.last} is taken.")
    if account.new:
        log.info("account user=%s uid=%d", name, account.uid)
    return account
