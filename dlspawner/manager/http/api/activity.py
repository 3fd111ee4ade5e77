"""REST resources about the use of jobs, under /services/jobs/api/.

    PUT   kernels                 a job tells of its kernels, with its own token; for its own server only
    PUT   ssh-sessions            the gateway tells of all its sessions, by the scope custom:ssh-sessions:write
    PUT   wrong-ports             a job tells of a program on a port of the host that is not the job's, in the same way
    POST  jobs/{id}/keep-alive    a person keeps one of theirs; the job's own token is enough
    GET   idle                    what the latest round has found, for administrators of the Hub

How long ago something was is told in seconds: the clocks of pods and gateways are theirs.
"""

from __future__ import annotations

from dlspawner.clients.hub import HubIdentity, has_scope, own_server
from dlspawner.core.idle import KeepJob, StopJob, WarnUser
from dlspawner.core.job import JobState
from dlspawner.manager.culling.culler import Culler, held_text
from dlspawner.manager.culling.evidence import JobEvaluation
from dlspawner.manager.http.api.models.requests import KernelsBody, SshSessionsBody, WrongPortBody
from dlspawner.manager.http.api.models.responses import (
    CullReportModel,
    GpuUseModel,
    KeptAliveModel,
    UnusedJobModel,
    UseModel,
)
from dlspawner.manager.http.handlers import NOT_LEADER, NOT_YET, ApiHandler, HttpProblem, admission_of, log
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.activity import SshSessionReport
from dlspawner.manager.model.notice import clean

WRITE_SESSIONS = "custom:ssh-sessions:write"
_LONGEST_PROGRAM = 64
MOST = 240 * 1024  # of JSON: the sessions on some 5,000 servers


class _AboutUse(ApiHandler):
    def culler(self) -> Culler:
        """Returns the culler; 503 on a Manager that does not lead, or does not cull yet."""
        leader = self.manager.leader
        if leader is None:
            raise HttpProblem(503, NOT_LEADER)
        if leader.culler is None:
            raise HttpProblem(503, NOT_YET)
        return leader.culler


def reporting_server(identity: HubIdentity) -> str:
    """Returns the server of a job that reports with its own token; 403 for any other token."""
    server = own_server(identity)
    if server is None:
        raise HttpProblem(403, "Only a job itself can tell of this, with its own token.")
    return server


class KernelReportHandler(_AboutUse):
    """Accepts a pod's kernel report: busy or not, and since when; the answer says when to report again."""

    async def put(self) -> None:
        identity = self.caller
        server = reporting_server(identity)
        body, culler = self.read_body(KernelsBody), self.culler()
        if not culler.report_kernels(identity.name, server, body.busy, body.seconds):
            raise HttpProblem(404, "There is no running job on this server.")
        self.reply({"seconds": culler.report_seconds})


class WrongPortHandler(ApiHandler):
    """Accepts a job's report of a program that listens on a port of the host which is not the job's."""

    async def put(self) -> None:
        identity = self.caller
        server = reporting_server(identity)
        body, store = self.read_body(WrongPortBody), admission_of(self.manager).store
        job = next((one for one in store.on(identity.name, server) if one.ports), None)
        if job is None:
            raise HttpProblem(404, "There is no job with ports of the host on this server.")
        told = (job.id, job.user, job.server, body.port, clean(body.program, _LONGEST_PROGRAM))
        log.warning("job=%s user=%s server=%s listens on port=%d of the host, which is not its own: program=%s", *told)
        self.manager.metrics.wrong_port(job.template)
        self.set_status(204)


class SshSessionReportHandler(_AboutUse):
    """Accepts the gateway's report: every server with sessions, or with an unreported end of its last session."""

    async def put(self) -> None:
        if not has_scope(self.caller.scopes, WRITE_SESSIONS):
            raise HttpProblem(403, f"This needs the scope {WRITE_SESSIONS}, which only the SSH gateway should hold.")
        body = self.read_body(SshSessionsBody, MOST)
        await self.culler().report_ssh(body.gateway[:64], [SshSessionReport(*one) for one in body.sessions])
        self.set_status(204)


class KeepAliveHandler(_AboutUse):
    async def post(self, job: str) -> None:
        identity, culler = self.caller, self.culler()
        record = culler.record(job)
        server = own_server(identity)
        if record is None or record.job.user != identity.name or server not in {None, record.job.server}:
            raise HttpProblem(404, "You have no such job that runs.")
        if server is None:
            self.viewer(AccessRight.ACT)  # 403 for a token that is less than its owner; the job's own is enough
        if record.job.state is not JobState.RUNNING:
            raise HttpProblem(409, "This job does not run.")
        self.reply(KeptAliveModel.model_validate(await culler.keep(record)))


class CullReportHandler(_AboutUse):
    """The report. Of people's jobs it says no more than what the Hub's admin page does."""

    async def get(self) -> None:
        identity = self.caller
        if not identity.admin or own_server(identity) is not None:
            raise HttpProblem(403, "This is for administrators of the Hub.")
        if not self.viewer(AccessRight.SEE).all:
            raise HttpProblem(
                403, f"This needs a token with the scope {AccessRight.SEE.value}, for everybody's servers."
            )
        report = self.culler().report
        if report is None:
            raise HttpProblem(503, NOT_YET)
        jobs = [_told(one) for one in report.judged]
        self.reply(CullReportModel(at=report.at, dry_run=report.dry_run, gpus_unknown=report.gpus_unknown, jobs=jobs))


def _told(one: JobEvaluation) -> UnusedJobModel:
    job, verdict = one.job, one.decision
    match verdict:
        case KeepJob():
            word = "keep"
        case WarnUser(percent):
            word = f"warned-{percent}"
        case StopJob(dry_run=dry_run):
            word = "would-stop" if dry_run else "stop"
    return UnusedJobModel(
        job=job.id,
        user=job.user,
        server=job.server,
        team=job.team,
        template=job.template,
        preemptible=job.preemptible,
        holds=held_text(job),
        verdict=word,
        why=verdict.why,
        idle=one.idle,
        since=verdict.idle_since,
        window_seconds=one.policy.window.total_seconds() if one.policy.window else None,
        used=UseModel.model_validate(one.activity),
        gpus=tuple(GpuUseModel.model_validate(gpu) for gpu in one.activity.gpus),
    )
