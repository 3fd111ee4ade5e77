"""The page of one's own jobs and its buttons.

    GET   .                  my jobs, and my teams' quota; with `stopped`, a job, what has become of that
    GET   new                the Hub's form for the `server` that is named: where a form without JavaScript leads to
    POST  start              the job in the form starts again with its options; without one: those that the Hub keeps.
                             Of others for administrators of the Hub, as REST's `requeue`
    POST  tensorboard        the TensorBoard of the job in the form: the one that runs, or a new one
    POST  jobs/{id}/stop     the end of a job, for whoever may act on it
    POST  jobs/{id}/keep     *keep alive*, for its owner

A button is answered by a redirect to a page that says what has happened; what the Hub refuses is said in its words.
"""

from __future__ import annotations

from urllib.parse import urljoin

from dlspawner.core import naming
from dlspawner.core.jobs import JobState
from dlspawner.core.model import Team
from dlspawner.hubapi import HubError, HubRejected, HubUser
from dlspawner.manager import restarts
from dlspawner.manager.access import AccessRight
from dlspawner.manager.ends import JobEnder
from dlspawner.manager.job_words import NO_NAME, is_server_name
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.kept import JobHistory
from dlspawner.manager.ledger import NotLeader
from dlspawner.manager.notices import CannotKeep
from dlspawner.manager.portal.mine import TENSORBOARD, RowContext, ServerRow, latest, rows
from dlspawner.manager.portal.shares import quota_shares
from dlspawner.manager.portal_page import JOB_ID, NO_JOB, PortalPage
from dlspawner.manager.starting import JobStarter, StartRequest, check_may_start
from dlspawner.manager.waiting_page import page_path
from dlspawner.manager.web import HttpProblem

_STOPPED = {
    JobState.STOPPING: "{} is being stopped. Its files are kept.",
    JobState.ENDED: "{} has ended. Its files are kept.",
}
NO_HUB = "The Hub does not answer at the moment: jobs that do not run are not shown, and none can be started."


class MyJobsPageBase(PortalPage):
    """What the page and its buttons share."""

    async def show_jobs(self, status: int = 200, **values: object) -> None:
        """The page."""
        person, desk = self.person(), self.admission()
        user = await self.hub_user(person.name)
        facts = await self.facts(person.name, user)
        listed = rows(facts)
        self.show_page(
            "my_jobs.html",
            status,
            jobs=[(row, self.links(person.name, row, user)) for row in listed],
            shares=quota_shares(desk.store.cluster_state, self._teams(person.name, user)),
            trouble="" if user is not None else NO_HUB,
            **{"path": "" if self.request.method == "GET" else self.manager.service.prefix, **values},
        )

    async def facts(self, name: str, user: HubUser | None) -> RowContext:
        """What the rows of somebody's jobs are made of."""
        acting, desk = self.leader(), self.admission()
        settings, culler = acting.settings, acting.culler
        # In a turn: what has just ended is in the database by then, so that no job is missing in both for a moment.
        records = await self.on_disk(lambda book: latest(book.records, name))
        jobs = [one.job for one in records.values()]
        starting = [job.id for job in jobs if job.state is JobState.STARTING]
        policies = [(job.id, culler.evidence.policy(job)) for job in jobs] if culler else []
        return RowContext(
            user=name,
            titles={one.name: one.title for one in settings.templates},
            servers=user.servers if user is not None else None,
            records=records,
            looks={
                server: desk.explainer.explain(one, advises=False) for server, one in records.items() if one.is_pending
            },
            pods=culler.evidence.pods() if culler else {},
            ended=await acting.ledger.last_ends(name),
            teams=settings.teams.titles,
            endpoints={one.name: one.endpoints for one in settings.templates},
            happened=await acting.ledger.latest_pod_events(starting),
            kept=frozenset(job for job, policy in policies if policy.window is not None),
            recorded=frozenset(team.name for team in settings.teams.teams if team.record_terminals),
            gateway=self.manager.ssh_target,
            blocked=name in settings.teams.blocked,
        )

    def _teams(self, name: str, user: HubUser | None) -> tuple[Team, ...]:
        groups = user.groups if user is not None else self.identity.groups if self.identity else frozenset()
        return self.admission().store.cluster_state.teams.team_of(name, tuple(groups))

    def links(self, name: str, row: ServerRow, user: HubUser | None) -> dict[str, str]:
        """Where the ways into a job lead."""
        server = user.servers.get(row.server) if user is not None else None
        return {
            "open": urljoin(self.manager.service.hub_host, server.url)
            if server
            else self.server_page(name, row.server),
            "pending": self.hub("spawn-pending", name, row.server),
            "form": self.hub("spawn", name, row.server),
            "wait": page_path(self.manager.service.prefix, name, row.server),
        }

    async def start_server(self, server: str, options: dict[str, object] | None = None) -> bool:
        """Ask the Hub for a start of one's own; whether it is ready at once. Its no is a sentence on the page."""
        person, desk = self.person(), self.admission()
        self.viewer(AccessRight.ACT)
        begun = desk.store.now()
        try:
            return await self.leader().hub.start_server(person.name, server, options)
        except HubRejected as no:
            comes = desk.starting_or_pending(person.name, server) is not None
            if comes and (no.is_there or desk.last_start_of(person.name, server, begun)):
                return False  # it has its place in the queue; what was refused otherwise is not what waits there
            raise HttpProblem(409 if no.status < 500 else 503, str(no)) from no
        except HubError as problem:
            raise HttpProblem(503, str(problem)) from problem

    def follow(self, server: str) -> None:
        """Go where the start is told of: to its place in the queue, or to the Hub."""
        name = self.person().name
        record = self.admission().starting_or_pending(name, server)
        if record is not None and record.is_pending:
            self.redirect(page_path(self.manager.service.prefix, name, server), status=303)
        else:
            self.redirect(self.hub("spawn-pending", name, server), status=303)


class MyJobsPage(MyJobsPageBase):
    """The page itself; where nothing is decided here, people have no other page than that of their keys."""

    async def get(self) -> None:
        if self.manager.leader is None:
            self.redirect(f"{self.manager.service.prefix}keys")
            return
        await self.show_jobs(said=await self._said())

    async def _said(self) -> str:
        """What has become of the job that was to end; links may name any, so it says what is true of it now."""
        person, job = self.person(), self.get_query_argument("stopped", "")
        kept = (
            await self.leader().ledger.visible_job(self.viewer(AccessRight.SEE), job) if JOB_ID.fullmatch(job) else None
        )
        if kept is None:
            return ""
        name = kept.server or "The default server"
        return _STOPPED.get(kept.state, "").format(name if kept.user == person.name else f"{name} of {kept.user}")


class NewJobPage(MyJobsPageBase):
    """On the way from a name to the Hub's form, for browsers that make no address of it themselves."""

    async def get(self) -> None:
        person, server = self.person(), self.get_query_argument("server", "").strip().lower()
        if not is_server_name(server):
            await self.show_jobs(422, problem=NO_NAME, path=self.manager.service.prefix)
            return
        self.redirect(self.hub("spawn", person.name, server))


class _Button(MyJobsPageBase):
    """What is answered to a button."""

    def get(self, *_: str) -> None:
        self.back()  # somebody has loaded the address of a form

    async def answer(self, problem: HttpProblem) -> None:
        """The page with what was wrong."""
        await self.show_jobs(problem.status_code, problem=problem.detail)


class StartButton(_Button):
    """*Start again*: the Hub kept the options, unless something else was asked for since."""

    async def post(self) -> None:
        server, job = (self.get_body_argument(name, "", strip=False) for name in ("server", "job"))
        try:
            kept = await self._checked(job, server) if job else None
            if kept is not None and kept.user != self.person().name:
                await self._start_for(kept)
                return
            await self.start_server(server)
        except HubError as problem:
            await self.answer(HttpProblem(503, str(problem)))
            return
        except HttpProblem as problem:
            await self.answer(problem)
            return
        self.follow(server)

    async def _checked(self, job: str, server: str) -> JobHistory:
        """The job, if it can start again as what it was, and whoever asks may start it."""
        self.person()
        kept = await self.kept(job)
        if kept.server != server:
            raise HttpProblem(404, NO_JOB)
        check_may_start(self.leader(), self.viewer(AccessRight.ACT), kept.user)
        await restarts.check_restart(self.leader(), kept)
        return kept

    async def _start_for(self, kept: JobHistory) -> None:
        """Somebody else's job: its new one has a page, and where the Hub shows its start is only its person's."""
        acting = self.leader()
        starter = JobStarter(self.admission(), acting.ledger, acting.hub, self.manager.service.prefix)
        _, new = await starter.start(StartRequest(kept.user, kept.server, None))
        self.back(f"jobs/{(new or kept).id}")


class TensorBoardButton(_Button):
    """On the log directory of a job that runs, with what the Hub's home page would ask for."""

    async def post(self) -> None:
        of = self.get_body_argument("server", "", strip=False)
        try:
            name = await self._open(of)
        except HttpProblem as problem:
            await self.answer(problem)
            return
        self.follow(name)

    async def _open(self, of: str) -> str:
        person = self.person()
        row = next((one for one in rows(await self.facts(person.name, None)) if one.server == of), None)
        if row is None or not row.shows_logs:
            raise HttpProblem(404, "This job has no log directory that a TensorBoard could show.")
        name = naming.tensorboard_server(of)
        user = await self.hub_user(person.name)
        server = user.servers.get(name) if user is not None else None
        if server is None or not (server.ready or server.pending):
            await self.start_server(name, self._options(row))
        return name

    def _options(self, row: ServerRow) -> dict[str, object]:
        """A team is told where the template offers it: logs may lie in the data of the team that pays for the job."""
        board, record = self.leader().settings.template(TENSORBOARD), self.admission().store.records.get(row.job)
        offers = board is not None and board.option("team") is not None
        team = {"team": record.job.team} if offers and record is not None else {}
        return {"template": TENSORBOARD, "log_dir": row.log_dir, **team}


class StopButton(_Button):
    """The end of a job that runs, starts or waits."""

    async def post(self, job: str) -> None:
        record = self.record(job, AccessRight.ACT)
        ender = JobEnder(self.admission().store, self.leader().hub)
        try:
            await ender.end(record, self.person().name)
        except NotLeader:
            raise HttpProblem(503, NOT_YET) from None
        self.back(stopped=job)


class KeepJobButton(_Button):
    """A job goes on although nobody uses it."""

    async def post(self, job: str) -> None:
        record, culler = self.record(job, AccessRight.ACT), self.leader().culler
        if record.job.user != self.person().name:
            raise HttpProblem(403, "Only its owner can keep a job running.")
        if culler is None:
            raise HttpProblem(503, NOT_YET)
        try:
            said = await culler.keep_alive(job)
        except CannotKeep as problem:
            await self.answer(HttpProblem(409, str(problem)))
            return
        except NotLeader:
            raise HttpProblem(503, NOT_YET) from None
        await self.show_jobs(said=said)
