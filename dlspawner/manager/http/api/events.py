"""GET api/events: server-sent events for pages and programs, with a login or a token that may see jobs.

Each part is there when it has changed: of the Hub, that it does not answer any more, or does again. Jobs are those that
the reader may see; ``more``: there were too many to name. The first event, ``ready``, comes at once. A comment every
few seconds keeps the connection; a stream ends in a while, and ``retry`` says when to come back. Listeners are checked
every half a minute: without the right any more they receive the reason as ``ended``, and a team's former admin receives
no more of its jobs. 429: this person's pages, this person's programs, or this service have too many of them open; 503:
too many listen altogether, or this Manager does not decide now. Clients that cannot listen poll now and then.
"""

from __future__ import annotations

import asyncio
import random

from tornado.iostream import StreamClosedError

from dlspawner.clients.hub import HubIdentity, IdentityKind
from dlspawner.manager.http.api.base import leader_of, until_access_ends
from dlspawner.manager.http.api.models.responses import NewsModel, as_json
from dlspawner.manager.http.handlers import ApiHandler, HttpProblem, admission_of
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.state.event_bus import PER_SHARE, EventBus, Listener, ListenerLimit, ListenerShare

RETRY_MILLISECONDS = 3000
BEAT_SECONDS = 5.0  # an open page that hears nothing for some of them says so: portal_live.html
LONGEST_SECONDS = 600.0
_PATIENCE_SECONDS = 30.0  # with a client that does not read
_TOO_MANY = {
    "pages": "You have {} pages that are kept up to date; close one.",
    "programs": "Your programs follow the jobs with {} streams already; close one.",
    "service": "This service follows the jobs with {} streams already; close one.",
}
TOO_MANY_LISTENERS = (
    "More pages and programs follow the jobs than this service can keep up to date; ask again now and then."
)


class EventStreamHandler(ApiHandler):
    _listener: Listener | None = None

    async def get(self) -> None:
        share = self._share(self.caller)
        listener = self._changes().subscribe(self.viewer(AccessRight.SEE), share)
        if isinstance(listener, ListenerLimit):
            sentence = TOO_MANY_LISTENERS if listener is ListenerLimit.ALL else _TOO_MANY[share.kind].format(PER_SHARE)
            raise HttpProblem(listener.value, sentence, {"Retry-After": "60"})
        self._listener = listener
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        self.manager.running.end()  # a stop of this process does not wait for streams
        checking = asyncio.create_task(self._end(listener), name=f"right of {share.name} to listen")
        try:
            await self._tell(listener)
            if checking.done():
                await self._send(f"event: ended\ndata: {as_json(NewsModel(detail=checking.result()))}\n\n")
        except (StreamClosedError, TimeoutError):
            return
        finally:
            checking.cancel()
            self.manager.running.begin()
            self._changes().unsubscribe(listener)

    async def _end(self, listener: Listener) -> str:
        async def allowed() -> None:
            listener.set_viewer(self.viewer(AccessRight.SEE))

        try:
            return await until_access_ends(self, allowed)
        finally:
            listener.end()

    def _share(self, identity: HubIdentity) -> ListenerShare:
        if identity.kind is IdentityKind.SERVICE:
            return ListenerShare("service", identity.name)
        return ListenerShare("programs" if self.by_token else "pages", identity.name)

    def _changes(self) -> EventBus:
        if self._listener is None:
            admission_of(self.manager)
        return leader_of(self.manager).event_bus

    async def _tell(self, listener: Listener) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + LONGEST_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311 - so that not all come back at once
        await self._send(f"retry: {RETRY_MILLISECONDS}\nevent: ready\ndata: {{}}\n\n")
        while clock() < until:
            await listener.wait(min(BEAT_SECONDS, max(0.0, until - clock())))
            if listener.ended:
                return
            news = listener.take()
            await self._send(
                f"event: changed\ndata: {as_json(NewsModel.model_validate(news.as_json()))}\n\n" if news else ": \n\n"
            )

    async def _send(self, text: str) -> None:
        self.write(text)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self.flush()

    def on_connection_close(self) -> None:
        if self._listener is not None:
            self._listener.end()
