"""The logs of a job, for programs, under /services/jobs/api/. For its owner and the admins of its team only.

GET  jobs/{id}/logs    which logs there are: one for each run of each container, by pod, the oldest first
GET  jobs/{id}/pod-events    what Kubernetes has told of its pods, in our words; ?search= as below
GET  internal/jobs/{id}/log-kept    whether the log of its ended pod of the uid ?pod= is kept: for the Hub, which waits
GET  jobs/{id}/log     one of them as text: the newest of people's own program, or the one that is asked for

A reader of a followed log who has lost the right is told so in its last line, within half a minute or so. After a place
the log goes on with the very next line; 410 where it does not go on there, or where the place is forgotten: after more
than some minutes, or with another Manager.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from tornado.iostream import StreamClosedError

from dlspawner.manager.db import pod_events as pod_event_rows
from dlspawner.manager.http.api.base import JobApiHandler, matches_search, until_access_ends
from dlspawner.manager.http.api.models.requests import LogQuery, PodQuery, SearchQuery
from dlspawner.manager.http.api.models.responses import ListModel, LogModel, PodEventModel
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem, HubOnlyHandler
from dlspawner.manager.logs import redaction
from dlspawner.manager.logs.reader import ContainerRun, FollowCursor, LogReader, LogText, TooManyReads, choose

NO_LOG = "There is no such log: nothing is kept of such a pod, container or run of this job."
NOT_YOURS = (
    "Logs, and events of pods, are for the job's owner and the admins of its team. An administrator of the Hub who has "
    "to read them becomes one of those in teams.yaml."
)
FOLLOW_SECONDS = 600.0
_FOLLOWERS, _OF_ONE = 24, 4
_KEPT_SECONDS = 4.0  # for which the Hub may wait for one log: shorter than it waits for any answer
NO_PLACE = (
    "This place in the log is not known any more, or the log has ended. Without “after” it begins with its last lines."
)


def shown(body: bytes, query: LogQuery) -> str:
    """Returns the requested part of a log as harmless text."""
    found = redaction.readable(body)
    if query.search:
        found = redaction.matching(found, query.search)
    return redaction.last_lines(found, query.tail) if query.tail else found


async def read_log(log_reader: LogReader, who: str, run: ContainerRun, query: LogQuery) -> tuple[LogText, str]:
    """Reads the requested part of a log as harmless text; 429 for callers that read many already."""
    try:
        async with log_reader.limiter.wait_for_slot(who):
            found = await log_reader.text(run, query.lines)
            return found, await asyncio.to_thread(shown, found.body, query)
    except TooManyReads as problem:
        raise HttpProblem(429, str(problem), {"Retry-After": "2"}) from None


class JobInsideHandler(JobApiHandler):
    async def readable(self, job: str) -> None:
        """Returns for callers that may read it; 403 for callers that only see the job, 404 for all others."""
        viewer = self.sees()
        kept = await self.seen(job, viewer)
        if not viewer.reads(kept.user, kept.team):
            raise HttpProblem(403, NOT_YOURS)


class LogApiHandler(JobInsideHandler):
    @property
    def log_reader(self) -> LogReader:
        log_reader = self.leader.log_reader
        if log_reader is None:
            raise HttpProblem(503, NOT_YET)
        return log_reader

    async def runs(self, job: str) -> list[ContainerRun]:
        """Returns the job's logs, for viewers that may read them."""
        await self.readable(job)
        return await self.log_reader.runs(job)


class LogsHandler(LogApiHandler):
    async def get(self, job: str) -> None:
        self.reply(ListModel[LogModel](items=[_told(run) for run in await self.runs(job)], next=None))


class PodEventsHandler(JobInsideHandler):
    async def get(self, job: str) -> None:
        await self.readable(job)
        words = self.read_query(SearchQuery).search
        found = await self.leader.repository.read(lambda connection: pod_event_rows.read_pod_events(connection, job))
        items = [PodEventModel.model_validate(one) for one in found if matches_search(words, one.reason, one.sentence)]
        self.reply(ListModel[PodEventModel](items=items, next=None))


class LogCollectedHandler(HubOnlyHandler):
    """Answers when the logs of a pod's ended containers are kept, or after a moment; the Hub then deletes the pod."""

    async def get(self, _job: str) -> None:
        leader = self.manager.leader
        if leader is not None and leader.log_reader is None:
            raise HttpProblem(503, NOT_YET)
        pod = self.read_query(PodQuery).pod
        kept = leader is None or leader.log_reader is None or await leader.log_reader.collector.kept(pod, _KEPT_SECONDS)
        self.reply({"kept": kept})  # without configuration none are kept


class LogHandler(LogApiHandler):
    _following: asyncio.Task[None] | None = None

    async def get(self, job: str) -> None:
        query = self.read_query(LogQuery)
        runs = await self.runs(job)
        if query.after:
            await self._go_on(job, runs, query.after)
            return
        run = choose(runs, query.container, query.pod, query.run, query.previous)
        if run is None:
            raise HttpProblem(404, NO_LOG)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if query.follow and run.running:
            place = FollowCursor(run.key)
            if query.place:
                self.log_reader.places.keep(self.caller.name, query.place, place)
            await self._follow(job, run, place)
            return
        found, body = await read_log(self.log_reader, self.caller.name, run, query)
        if found.note:
            self.set_header("Dlspawner-Note", found.note)
        self.finish(body)

    def on_connection_close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _go_on(self, job: str, runs: Sequence[ContainerRun], after: str) -> None:
        place = self.log_reader.places.find(self.caller.name, after)
        run = next((one for one in runs if place is not None and one.running and one.key == place.key), None)
        if place is None or run is None:
            raise HttpProblem(410, NO_PLACE)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        await self._follow(job, run, place)

    async def _follow(self, job: str, run: ContainerRun, place: FollowCursor) -> None:
        who, followers = self.caller.name, self.log_reader.followers
        if followers.count(who) >= _OF_ONE or len(followers) >= _FOLLOWERS:
            sentence = "Too many logs are being followed: end one, or ask without follow."
            raise HttpProblem(429, sentence, {"Retry-After": "60"})
        followers.append(who)
        self.manager.running.end()  # a stop of this process does not wait for streams
        checking = asyncio.create_task(self._end(job), name=f"right of {who} to follow")
        try:
            # In a task of its own, which ends when the reader has gone, also while nothing is printed.
            task = self._following = asyncio.create_task(self._stream(run, place), name=f"follow for {who}")
            await asyncio.wait({task, checking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.manager.running.begin()
            followers.remove(who)
            self.on_connection_close()
            checking.cancel()
        if task.done() and not task.cancelled():
            task.result()
        elif checking.done():
            await self._say(checking.result())

    async def _end(self, job: str) -> str:
        return await until_access_ends(self, lambda: self.runs(job))

    async def _say(self, sentence: str) -> None:
        with contextlib.suppress(StreamClosedError):
            self.write(f"dlspawner: {sentence}\n")
            await self.flush()

    async def _stream(self, run: ContainerRun, place: FollowCursor) -> None:
        with contextlib.suppress(StreamClosedError):
            await self.flush()
            async with contextlib.aclosing(self.log_reader.follow(run, place, FOLLOW_SECONDS)) as pieces:
                async for piece in pieces:
                    self.write(redaction.readable(piece))
                    await self.flush()  # the next piece is read when this one has been taken


def _told(run: ContainerRun) -> LogModel:
    kept = run.kept
    return LogModel(
        pod=run.pod,
        role=run.role,
        container=run.container,
        run=run.number,
        running=run.running,
        kept=kept is not None,
        size=kept.size if kept else None,
        read=kept.read if kept else None,
        whole=kept.whole if kept else False,
        shortened=kept.lost if kept else False,
    )
