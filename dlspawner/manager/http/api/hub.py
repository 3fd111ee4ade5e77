"""REST resources about jobs, under /services/jobs/api/, for the Hub alone.

    PUT   jobs/{id}             may it start? asking again gets the same answer
    POST  jobs/{id}/released    its pod was not made, and will not be: why, for its person
    GET   jobs/{id}/ending      why it is being stopped; 404 if the Manager did not decide that
    GET   users/{name}/waiting  what of this person's waits, at all servers or at ?server=
    PUT   users/{name}/starting what a start needs before its pod is built: the id of what waits there, and the uid
    POST  users/{name}/interrupted  a user has stopped a server while the Hub started it

Every answer to a question is 200 with a decision: what is no 200 is no answer, and the Hub refuses the start. A Manager
that does not act, because another one does or because it cannot see the cluster yet, answers 503: ask again. One that
has no files to decide by answers 501, and will tomorrow.

An admission of a job with GPUs says for each pod the node that it was admitted for, null where that is not known:
Kubernetes' scheduler would spread what was packed, and a job for which a whole node was kept would find two that are
half full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlspawner.core.config import SpecialPermission
from dlspawner.core.unix_account import LARGEST, UidRange
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionService
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import AllocatedUid
from dlspawner.manager.http.api.base import as_name, fields
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem, HubOnlyHandler, JsonHandler, admission_of, log
from dlspawner.manager.model.notice import clean
from dlspawner.manager.state.lifecycle import on_start_interrupted

_FIELDS = {
    "user": str,
    "server": str,
    "team": str,
    "template": str,
    "preemptible": bool,
    "priority": str,
    "requeue": bool,
    "request_milliseconds": int,
    "namespace": str,
    "pods": list,
    "special": list,
    "image": str,
    "nonce": str,
}
_NEEDED = set(_FIELDS) - {"special", "image", "nonce"}
_LONGEST_WHY = 1000


class _ForJobs(HubOnlyHandler):
    def desk(self) -> AdmissionService:
        return admission_of(self.manager)


async def review_for_hub(handler: JsonHandler, job: str) -> None:
    """The answer to the Hub about a job that wants to start; its address is ``rest.one``'s."""
    question = _question(job, fields(handler.read_object(), _FIELDS, _NEEDED))
    try:
        found = await admission_of(handler.manager).review(question)
    except NotLeader:
        raise HttpProblem(503, NOT_YET) from None
    handler.manager.meters.decided(found.decision, found.reason)
    handler.reply(
        {
            "decision": found.decision,
            "reason": found.reason,
            "sentences": list(found.sentences),
            "seconds": found.seconds,
            "nodes": list(found.nodes),
        }
    )


class ReservationReleasedHandler(_ForJobs):
    """Releases a job's reservation."""

    async def post(self, job: str) -> None:
        body = fields(self.read_object(), {"user": str, "passes": bool, "why": str}, {"user"})
        why = clean(body.get("why", ""), _LONGEST_WHY)
        try:
            await self.desk().release_reservation(job, body["user"], passes=body.get("passes", False), why=why)
        except NotLeader:
            raise HttpProblem(503, NOT_YET) from None
        self.set_status(204)


class StopReasonHandler(HubOnlyHandler):
    """Why a job is being stopped, for the Hub to tell its person."""

    async def get(self, job: str) -> None:
        acting = self.manager.leader
        record = await acting.ledger.find(job) if acting is not None else None
        if record is None or record.stop is None:
            raise HttpProblem(404, "Nobody here has decided to stop this job.")
        self.reply({"reason": record.stop.code, "sentence": record.stop.message})


class PendingJobsHandler(_ForJobs):
    """The pending job of a user's server: its id, because a start that is requested again is of the same job."""

    async def get(self, user: str) -> None:
        given = self.get_query_arguments("server", strip=False)
        desk = self.desk()
        now = desk.store.now()
        told = [
            {
                "job": one.job.id,
                "server": one.job.server,
                "state": one.job.state.value,
                "position": one.position,
                "why": desk.explainer.why(one.job, now),
                "never": desk.explainer.inadmissible(one.job),
            }
            for one in desk.pending(user, given[0] if given else None)
        ]
        self.reply({"waiting": told})


class PrepareStartHandler(_ForJobs):
    """The pending job of this server and its user's account, in one answer, because a user waits for it."""

    async def put(self, user: str) -> None:
        body = fields(self.read_object(), {"server": str, **UIDS}, {"server", *UIDS})
        waits = self.desk().store.pending_job(as_name(user), as_name(body["server"]))
        account = await allocate_account(self, user, body)
        self.reply({"job": waits.job.id if waits else None, "uid": account.uid, "gid": account.uid})


class StartInterruptedHandler(_ForJobs):
    """Cancels the start of a server, or its pending job."""

    async def post(self, user: str) -> None:
        body = fields(self.read_object(), {"server": str, "job": str}, {"server"})
        try:
            whose, server, job = as_name(user), as_name(body["server"]), as_name(body.get("job", ""))
            await self.desk().store.transact(lambda turn: on_start_interrupted(turn, whose, server, job))
        except NotLeader:
            raise HttpProblem(503, NOT_YET) from None
        self.set_status(204)


def _question(job: str, body: dict[str, Any]) -> AdmissionRequest:
    names = [as_name(body[name]) for name in ("user", "server", "team", "template", "priority", "namespace")]
    pods = body["pods"]
    if not names[0] or not pods or not all(isinstance(pod, dict) for pod in pods):
        raise HttpProblem(422, "A user and at least one pod are needed.")
    seconds = min(max(0, body["request_milliseconds"]), 600_000) / 1000
    user, server, team, template, priority, namespace = names
    asks, again = body["preemptible"], body["requeue"]
    special, image = _special(body.get("special", [])), as_name(body.get("image", ""))
    nonce = as_name(body.get("nonce", ""))  # an earlier version of the Hub has none
    question = AdmissionRequest(
        job, user, server, team, template, asks, priority, again, seconds, namespace, tuple(pods)
    )
    return replace(question, special=special, image=image, nonce=nonce)


def _special(names: list[object]) -> tuple[SpecialPermission, ...]:
    """Permissions in their own order; 422 for what is none."""
    known = [special.value for special in SpecialPermission]
    if not all(name in known for name in names):
        raise HttpProblem(422, f"Special permissions are {', '.join(known)}.")
    return tuple(special for special in SpecialPermission if special.value in names)


UIDS = {"first_uid": int, "last_uid": int}


class UnixAccountHandler(HubOnlyHandler):
    """The uid of a user without one from the authenticator; the Hub sends the range of cluster.yaml."""

    async def put(self, user: str) -> None:
        account = await allocate_account(self, user, fields(self.read_object(), UIDS, set(UIDS)))
        self.reply({"uid": account.uid, "gid": account.uid}, 201 if account.new else 200)


async def allocate_account(handler: HubOnlyHandler, user: str, body: Mapping[str, Any]) -> AllocatedUid:
    """The account that this user has for ever; 409 when every uid is taken."""
    name, uids = as_name(user), UidRange(body["first_uid"], body["last_uid"])
    if not name or not 0 < uids.first <= uids.last <= LARGEST:
        raise HttpProblem(422, "A name, and first_uid to last_uid between 1 and 2147483647, are needed.")
    account = await handler.manager.store.account(name, uids, handler.manager.now())
    if account is None:
        log.error("account user=%s uid=none: %d to %d are all taken", name, uids.first, uids.last)
        raise HttpProblem(409, f"Every uid from {uids.first} to {uids.last} is taken.")
    if account.new:
        log.info("account user=%s uid=%d", name, account.uid)
    return account
