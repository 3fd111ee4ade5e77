"""REST resources about jobs for the Hub alone, under /services/jobs/api/internal/.

    PUT   jobs/{id}/admission       may it start? asking again gets the same answer
    POST  jobs/{id}/released        its pod was not made and will not be, or is given up: why, for its person
    POST  jobs/{id}/left            its pods wait in the cluster and stay, the start ends: why; null: not yet
    GET   jobs/{id}/ending          why it is being stopped, or has failed; 404 if the Manager does not know
    GET   users/{name}/waiting      the pending jobs of this user, at all servers or at ?server=
    PUT   users/{name}/starting     what a start needs before its pod is built: the pending job's id, account, and uid
    PUT   users/{name}/account      the user's account with uid and gid, the same for ever; GET: its name alone
    POST  users/{name}/renamed      account, keys and history belong to the new name from now on; 409 says why not
    POST  users/{name}/removed      the user is about to be removed: the keys go, account and history stay
    POST  users/{name}/interrupted  the Hub stops a server, or its start
    GET   free-gpus                 of each GPU type that is counted here: how many are free, and on one node
    GET   templates/{name}/usual-start    the median of how long the latest starts of this template took; null: unknown
    GET   files                     the administrators' files in their last good version, for a Hub that starts

Every answer to a question is 200 with a decision: what is no 200 is no answer, and the Hub refuses the start. A Manager
that does not act, because another one does or because it cannot see the cluster yet, answers 503: ask again. One that
has no files to decide by answers 501, and will tomorrow.

An admission of a job with GPUs says for each pod the node that it was admitted for, null where that is not known:
Kubernetes' scheduler would spread what was packed, and a job for which a whole node was kept would find two that are
half full.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from functools import partial
from statistics import median

from dlspawner import tracing
from dlspawner.core.config import SpecialPermission
from dlspawner.core.job import JobState
from dlspawner.core.scheduling import usage_report
from dlspawner.core.text import amount
from dlspawner.core.unix_account import UidRange
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.db import config_versions, outbox
from dlspawner.manager.db.jobs import read_start_seconds
from dlspawner.manager.db.store import AllocatedUid, DatabaseUnavailable
from dlspawner.manager.http.api.base import as_name
from dlspawner.manager.http.api.models.requests import (
    AdmissionBody,
    InterruptedStartBody,
    LeftBody,
    PrepareStartBody,
    ReleasedBody,
    RenamedBody,
    ServerQuery,
    UidRangeBody,
)
from dlspawner.manager.http.handlers import HttpProblem, HubOnlyHandler, log
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.model.notice import clean
from dlspawner.manager.state.lifecycle import on_job_ended, on_server_stopped

_LONGEST_WHY = 1000


class AdmissionHandler(HubOnlyHandler):
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
        found = await self.admission.review(question)
        self.manager.metrics.decided(found.decision, found.reason)
        made = {"dlspawner.decision": found.decision, "dlspawner.reason": found.reason}
        tracing.add({"dlspawner.job": job, "dlspawner.user": body.user, "dlspawner.template": body.template, **made})
        with contextlib.suppress(DatabaseUnavailable):  # the next start tells it again
            await self._note_email(body.user, body.email)
        self.reply(asdict(found))

    async def _note_email(self, user: str, email: str) -> None:
        if not email:
            return
        known = await self.manager.database.read(partial(outbox.read_settings, users={user}))
        if known[user].email_told != email:
            await self.manager.database.write(partial(outbox.note_email, user=user, email=email))


class ReservationReleasedHandler(HubOnlyHandler):
    async def post(self, job: str) -> None:
        body = self.read_body(ReleasedBody)
        why = clean(body.why, _LONGEST_WHY)
        if body.made:
            await self.admission.store.transact(lambda transaction: on_job_ended(transaction, job, body.user, why))
        else:
            await self.admission.release_reservation(job, body.user, temporary=body.temporary, why=why)
        self.set_status(204)


class LeftInClusterHandler(HubOnlyHandler):
    async def post(self, job: str) -> None:
        self.reply({"sentence": await self.admission.leave_in_cluster(job, self.read_body(LeftBody).user)})


class GoodFilesHandler(HubOnlyHandler):
    async def get(self) -> None:
        leader = self.manager.leader
        self.reply({"files": await leader.repository.read(config_versions.read_versions) if leader else {}})


class FreeGpusHandler(HubOnlyHandler):
    """For the Hub's form; empty where an engine counts."""

    async def get(self) -> None:
        state = self.admission.store.cluster_state
        native = state.cluster.scheduler.is_native
        found = usage_report.type_statuses(state, usage_report.node_statuses(state)) if native else ()
        kinds = [{"gpu_type": one.gpu_type.name, "free": amount(one.free), "most": amount(one.most)} for one in found]
        self.reply({"gpu_types": kinds})


class UsualStartHandler(HubOnlyHandler):
    async def get(self, template: str) -> None:
        leader = self.manager.leader
        found = (
            await leader.repository.read(lambda connection: read_start_seconds(connection, template)) if leader else []
        )
        self.reply({"seconds": median(found) if found else None})


class StopReasonHandler(HubOnlyHandler):
    """Why a job is being stopped, or how it has ended, for the Hub to tell its person."""

    async def get(self, job: str) -> None:
        leader = self.manager.leader
        kept = await leader.repository.job_history(job) if leader is not None else None
        told = kept is not None and (kept.stop is not None or kept.state is JobState.ENDED)
        if leader is None or kept is None or not told:
            raise HttpProblem(404, "This Manager knows of no stop and no end of this job.")
        detail = (await leader.repository.end_details([kept])).get(job, "")
        reason = kept.stop.code if kept.stop is not None else kept.reason
        self.reply({"reason": reason, "sentence": end_sentence(kept.reason, detail, kept.stop)})


class PendingJobsHandler(HubOnlyHandler):
    """The pending job of a user's server: its id, because a start that is requested again is of the same job."""

    async def get(self, user: str) -> None:
        server, admission = self.read_query(ServerQuery).server, self.admission
        now = admission.store.now()
        waiting = [
            {
                "job": one.job.id,
                "server": one.job.server,
                "state": one.job.state.value if one.position else JobState.QUEUED.value,
                "position": one.position,
                "why": admission.explainer.why(one.job, now),
                "never": admission.explainer.inadmissible(one.job),
            }
            for one in admission.pending(user, server)
        ]
        self.reply({"waiting": waiting})


class PrepareStartHandler(HubOnlyHandler):
    """The pending job of this server and its user's account, in one answer, because a user waits for it."""

    async def put(self, user: str) -> None:
        body = self.read_body(PrepareStartBody)
        waits = self.admission.store.pending_job(as_name(user), body.server)
        account, given = await allocate_uid(self, user, body)
        job = waits.job.id if waits else None
        self.reply({"account": account, "job": job, "uid": given.uid, "gid": given.uid})


class StartInterruptedHandler(HubOnlyHandler):
    """The Hub stops a server: its start or its pending job is cancelled, a job that runs is being stopped."""

    async def post(self, user: str) -> None:
        body, whose = self.read_body(InterruptedStartBody), as_name(user)
        await self.admission.store.transact(
            lambda transaction: on_server_stopped(transaction, whose, body.server, body.job)
        )
        self.set_status(204)


class UnixAccountHandler(HubOnlyHandler):
    """The account of a user, with a uid for one without any from the authenticator, of the range in cluster.yaml."""

    async def get(self, user: str) -> None:
        self.reply({"account": await account_of(self, user)})

    async def put(self, user: str) -> None:
        account, given = await allocate_uid(self, user, self.read_body(UidRangeBody))
        self.reply({"account": account, "uid": given.uid, "gid": given.uid}, 201 if given.new else 200)


class UserRenamedHandler(HubOnlyHandler):
    async def post(self, user: str) -> None:
        name, new = as_name(user), self.read_body(RenamedBody).name
        problem = await self.manager.database.rename(name, new)
        if problem is not None:
            raise HttpProblem(409, problem)
        log.info("account user=%s is renamed to %s", name, new)
        self.set_status(204)


class UserRemovedHandler(HubOnlyHandler):
    async def post(self, user: str) -> None:
        await self.manager.database.forget_keys(as_name(user))
        self.set_status(204)


async def account_of(handler: HubOnlyHandler, user: str) -> str:
    """The name of the account that this user has for ever; 423 when it is another person's."""
    name = as_name(user)
    if not name:
        raise HttpProblem(422, "No user has such a name.")
    account = await handler.manager.database.account(name)
    if account is None:
        raise HttpProblem(423, f"The account {name} is that of a person who was renamed.")
    return account


async def allocate_uid(handler: HubOnlyHandler, user: str, body: UidRangeBody) -> tuple[str, AllocatedUid]:
    """The user's account and its uid; 507 when every uid is taken."""
    account, uids = await account_of(handler, user), UidRange(body.first_uid, body.last_uid)
    given = await handler.manager.database.uid(account, uids, handler.manager.now())
    if given is None:
        log.error("account=%s uid=none: %d to %d are all taken", account, uids.first, uids.last)
        raise HttpProblem(507, f"Every uid from {uids.first} to {uids.last} is taken.")
    if given.new:
        log.info("account=%s uid=%d", account, given.uid)
    return account, given
