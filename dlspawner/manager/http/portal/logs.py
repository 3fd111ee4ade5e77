"""The page of a job's log: which container and run, the words that are searched for, and the text.

GET  jobs/{id}/log    for the job's owner and the admins of its team; with ``download`` the text alone, as a file
"""

from __future__ import annotations

from urllib.parse import urlencode

from dlspawner.manager.http.api.logs import NOT_YOURS, read_log
from dlspawner.manager.http.api.models.requests import LogQuery
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem
from dlspawner.manager.http.portal.base import PortalPage
from dlspawner.manager.logs.reader import ContainerRun, LogText, choose
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.job_history import JobHistory

TAILS = (200, 1000, 5000, 0)
EVERY_SECONDS = 10  # between two looks at a log that goes on
_QUIET_SECONDS = 300  # and at one that does not
_MOST_SHOWN = 256 * 1024  # letters of a page; the file has all


class LogPage(PortalPage):
    async def get(self, job: str) -> None:
        kept, query = await self._wanted(job)
        log_reader = self.leader().log_reader
        if log_reader is None:
            raise HttpProblem(503, NOT_YET)
        runs = await log_reader.runs(job)
        run = choose(runs, query.container, query.pod, query.run, query.previous)
        found, body = await read_log(log_reader, self.person().name, run, query) if run is not None else (LogText(), "")
        if run is not None and self.get_query_argument("download", ""):
            self._give(job, run, body)
            return
        goes_on = run is not None and run.running and not query.search
        self.show_page(
            "job_log.html",
            job=kept,
            query=query,
            runs=runs,
            run=run,
            tails=TAILS,
            note=found.note,
            body=body[-_MOST_SHOWN:],
            more=len(body) > _MOST_SHOWN,
            printed=bool(found.body),
            goes_on=goes_on,
            file=f"?{self._query(run, query)}" if run is not None else "",
            every=EVERY_SECONDS if goes_on else _QUIET_SECONDS,
        )

    async def _wanted(self, job: str) -> tuple[JobHistory, LogQuery]:
        self.person()
        kept = await self.kept(job)
        if not self.viewer(AccessRight.SEE).reads(kept.user, kept.team):
            raise HttpProblem(403, NOT_YOURS)
        return kept, _chosen(self.read_query(LogQuery), self.get_query_argument("log", ""))

    def _give(self, job: str, run: ContainerRun, body: str) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{job}-{run.container}-{run.number}.log"')
        self.finish(body)

    def _query(self, run: ContainerRun, query: LogQuery) -> str:
        named = {"pod": run.key[0], "container": run.container, "run": run.number, "search": query.search}
        return urlencode({**named, "tail": 0, "download": 1})


def _chosen(query: LogQuery, log: str) -> LogQuery:
    """With what the page's list says: a pod's uid, a container and a run."""
    pod, _, rest = log.partition("/")
    container, _, run = rest.partition("/")
    if not (run.isascii() and run.isdecimal() and len(run) < 8):
        return query
    return query.model_copy(update={"pod": pod, "container": container, "run": int(run)})
