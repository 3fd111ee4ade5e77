"""The Hub's client of the Manager, with its deadline, its token and its sentences.

The Manager is asked while a user waits for a start, so every question has one deadline over all its tries, never
after the start's own, and one that is not answered ends in ``Refused``: deny by default. Jobs that run are not touched
by it. Questions can be asked again without harm; only those may be added here. By which connection, is in
``connections``.

The Hub's connections to the Manager: kept for what is asked next, and one of its own for whatever is asked again.

Behind the Manager's address there may be several, of which one decides; which, may just be changing. So what was not
answered is asked again by a new connection: all that are kept may lead to a Manager that stands by, or to a machine
that is off. Closed while nobody needed it, a connection has carried no question, and aiohttp makes a new one.

There is one pool for each event loop. A spawner has no moment at which it could close what it keeps: the pool has a
task of its own, and asyncio, JupyterHub and tests all end by cancelling every task.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from dlspawner.backoff import FIRST_DELAY, LONGEST_DELAY, RETRIED, delays
from dlspawner.core.link import derive_hub_token
from dlspawner.core.text import with_time
from dlspawner.core.unix_account import UidRange, UnixIds
from dlspawner.spawner.kube.errors import StartRefused

SECONDS = 10.0
ADMISSION_SECONDS = 30.0  # longer than it takes another Manager to take over
ENDING_SECONDS = 3.0  # a user waits for the stop
KEPT_SECONDS = 20.0  # longer than a Manager takes to act when another one has died, and then waits for a log
PLACES_SECONDS = 2.0
RELEASE_SECONDS = 3.0  # without it the reservation expires by itself
_LONGEST_TELLING_DELAY = 15.0  # no user waits for it
_LISTENING_SECONDS = 0.25
_TELLING: dict[
    tuple[str, str, str], asyncio.Task[None]
] = {}  # stops that the Manager is to hear of, by user, server and job
T = TypeVar("T")

UNDECIDED = (
    "The part of this Hub that decides about GPUs does not answer, so no job can be started now. Running jobs go on. "
    "Try again soon."
)
NO_FILES = (
    "This Hub shares out GPUs, and the part of it that decides was not told how, so no job can be started. "
    "Ask an administrator."
)
AWAY = (
    "The part of this Hub that decides about GPUs does not answer, so neither your jobs in the queue nor your notices "
    "are shown. Running jobs go on."
)
SILENT = "The part of this Hub that keeps accounts does not answer. Running jobs go on. Try again soon."
BROKEN = "The Hub cannot tell your account in jobs. Ask an administrator."
FULL = "There is no account number left for you. Ask an administrator."


@dataclass(frozen=True, slots=True)
class PendingJobStatus:
    """A job that waits: *queued*, *login-required* …, its place in the queue, from 1, and what it waits for.

    ``never``: it can not start as things are.
    """

    state: str
    position: int
    why: str = ""
    never: bool = False


@dataclass(frozen=True, slots=True)
class UserNotice:
    """A notice as a page shows it; ``server`` is ``None`` in what administrators are told."""

    server: str | None
    level: str
    text: str
    keep: bool
    page: str = ""  # of the Manager's, that says more


@dataclass(frozen=True, slots=True)
class PodAdmission:
    """A job's one pod may be asked for ``until`` then, by the loop's clock, and was admitted for ``node``, if known."""

    until: float
    node: str | None = None


Waiting = Callable[[Sequence[str], str], StartRefused]  # of sentences and a reason


@dataclass(frozen=True, slots=True)
class ManagerClient:
    """The Manager at ``url``, which ends in its service's prefix, asked as the Hub."""

    url: str
    service_token: str = field(repr=False)
    log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    seconds: float = SECONDS
    silent: str = SILENT  # the sentence without an answer
    until: float | None = None  # of the event loop's clock: when the start that asks must be able to say why it failed
    longest_delay: float = LONGEST_DELAY  # between two tries

    async def account(self, user: str, uids: UidRange) -> UnixIds:
        """The uid and gid that this user has for ever."""
        body = {"first_uid": uids.first, "last_uid": uids.last}
        status, answer = await self._ask("PUT", f"/api/internal/users/{quote(user, safe='')}/account", body)
        return self._numbers(user, status, answer)

    async def prepare_start(self, user: str, server: str, uids: UidRange) -> tuple[str | None, UnixIds]:
        """Returns the id of the pending job of this server, which this start then continues, and the user's ids."""
        asked = replace(self, seconds=ADMISSION_SECONDS, silent=UNDECIDED)
        await asked._until_heard(user, server)
        body = {"server": server, "first_uid": uids.first, "last_uid": uids.last}
        status, answer = await asked._ask("PUT", f"/api/internal/users/{quote(user, safe='')}/starting", body)
        if status == 501:
            raise asked._undecided(status, f"user={user} the Manager answered {status} to a start")
        numbers = asked._numbers(user, status, answer)
        return (str(answer["job"]) if answer.get("job") else None), numbers

    async def pending_job(self, user: str, server: str) -> str | None:
        """The id of the job that waits for this server: a start of it is that job's."""
        asked = replace(self, seconds=ADMISSION_SECONDS, silent=UNDECIDED)
        await asked._until_heard(user, server)
        path = f"/api/internal/users/{quote(user, safe='')}/waiting?server={quote(server, safe='')}"
        status, answer = await asked._ask("GET", path)
        try:
            return next((str(one["job"]) for one in answer["waiting"]), None)
        except (KeyError, TypeError):
            raise asked._undecided(status, f"user={user} the Manager answered {status} to what waits") from None

    async def queue_status(self, user: str) -> Mapping[str, PendingJobStatus] | None:
        """Returns the queue status of this user's jobs by server; ``None`` without an answer in time."""
        asked = replace(self, seconds=PLACES_SECONDS)
        try:
            _, answer = await asked._ask("GET", f"/api/internal/users/{quote(user, safe='')}/waiting")
            return {
                str(one["server"]): PendingJobStatus(
                    str(one["state"]), int(one["position"]), str(one["why"]), one.get("never") is True
                )
                for one in answer["waiting"]
            }
        except (KeyError, TypeError, ValueError, StartRefused):
            return None

    async def notices(self, user: str, *, admin: bool) -> Sequence[UserNotice]:
        """Returns this user's notices, and those for administrators; none without an answer in time."""
        asked, now = replace(self, seconds=PLACES_SECONDS), datetime.now(UTC)
        try:
            _, answer = await asked._ask(
                "GET", f"/api/internal/users/{quote(user, safe='')}/notices?admin={int(admin)}"
            )
            return [_told(one, now) for one in answer["notices"]]
        except (KeyError, TypeError, ValueError, StartRefused):
            return ()

    async def admission(self, job: str, question: Mapping[str, object], waits: Waiting) -> PodAdmission:
        """Until when the one pod of this job may be asked for, and where it is to be; Refused: not now, or never.

        ``waits`` makes the exception of a job that is in the queue now.
        """
        asked = replace(self, seconds=ADMISSION_SECONDS, silent=UNDECIDED)
        try:
            status, answer, sent = await asked._ask_at("PUT", f"/api/internal/jobs/{job}/admission", question)
            decision, said = answer["decision"], [str(one) for one in answer["sentences"]]
            if decision == "admit":
                node = next(iter(answer["nodes"]), None)  # none where nothing is packed
                return PodAdmission(sent + float(answer["seconds"]), str(node) if node else None)
            queued = {"wait": True, "refuse": False}[decision]
            reason = str(answer["reason"])
        except (KeyError, TypeError, ValueError):
            raise asked._undecided(status, f"job={job} the Manager answered {status} to the admission") from None
        self.log.info("job=%s is not admitted: decision=%s reason=%s", job, decision, reason)
        raise waits(said, reason) if queued else StartRefused(*said, reason=reason, status=403)

    async def release_reservation(self, job: str, user: str, *, passes: bool, why: str) -> None:
        """The pod of this job was not made and will not be, for its person ``why``; ``passes``: it could be soon.

        Never fails: what is not told expires.
        """
        asked, path = replace(self, seconds=RELEASE_SECONDS), f"/api/internal/jobs/{job}/released"
        try:
            await asked._ask("POST", path, {"user": user, "passes": passes, "why": why})
        except StartRefused:
            return

    async def start_interrupted(
        self, user: str, server: str, job: str | None, heard: Callable[[], None] = lambda: None
    ) -> None:
        """Reports that this server was stopped during its start, as this ``job`` if it was known by then.

        Never fails, and returns after a moment: a Manager that is away is told when it is back, as long as this Hub
        lives, and ``heard`` is called then. It would start again what was stopped. Of a person who is removed with many
        servers one moment is waited, and not one for each: who did not hear of the first does not hear of the next.
        """
        told = (user, server, job or "")
        waited = any(other != told and other[0] == user for other in _TELLING)
        if told not in _TELLING:
            _TELLING[told] = asyncio.create_task(self._tell(*told, heard), name=f"stop of {user}/{server}")
            _TELLING[told].add_done_callback(lambda _: _TELLING.pop(told))
        await asyncio.wait({_TELLING[told]}, timeout=0 if waited else ENDING_SECONDS)

    async def _tell(self, user: str, server: str, job: str, heard: Callable[[], None]) -> None:
        asked = replace(self, longest_delay=_LONGEST_TELLING_DELAY)
        path = f"/api/internal/users/{quote(user, safe='')}/interrupted"
        await asked._until_answered("POST", path, {"server": server, "job": job})
        heard()

    async def _until_heard(self, user: str, server: str) -> None:
        """The Manager has heard of every earlier stop of this server, or would take this start for what was stopped."""
        telling = [task for (*where, _), task in _TELLING.items() if where == [user, server]]
        if telling and (await asyncio.wait(telling, timeout=self._seconds_left()))[1]:
            raise self._refused(self.silent, f"user={user} server={server!r} its last stop is still to be told")

    async def stop_reason(self, job: str) -> str | None:
        """The sentence on why the Manager has this job stopped; ``None`` when it has not, or does not answer."""
        asked = replace(self, seconds=ENDING_SECONDS)
        try:
            status, answer = await asked._ask("GET", f"/api/internal/jobs/{job}/ending", None)
            return str(answer["sentence"]) if status == 200 else None
        except (KeyError, StartRefused, TypeError):
            return None

    async def log_kept(self, job: str, pod: str) -> bool:
        """True once the logs of what has ended of this pod (its uid) are kept; ``False`` after some seconds."""
        asked = replace(self, seconds=KEPT_SECONDS)
        try:
            _, answer = await asked._ask("GET", f"/api/internal/jobs/{job}/log-kept?pod={quote(pod, safe='')}", None)
            return bool(answer["kept"])
        except (KeyError, StartRefused, TypeError):
            return False

    async def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, Any]:
        """Status and JSON of the answer; ``None`` for what is no JSON."""
        status, answer, _ = await self._ask_at(method, path, body)
        return status, answer

    async def _ask_at(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, Any, float]:
        """The same, and when the question that was answered had been sent."""
        seconds = self._seconds_left()
        try:
            return await _patiently(self._until_answered(method, path, body), seconds)
        except TimeoutError:
            raise self._refused(self.silent, f"no answer within {seconds:.3g} s to {method} {path}") from None

    def _seconds_left(self) -> float:
        left = math.inf if self.until is None else max(0.0, self.until - asyncio.get_running_loop().time())
        return min(self.seconds, left)

    async def _until_answered(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> tuple[int, Any, float]:
        clock = asyncio.get_running_loop().time
        headers = {"Authorization": f"token {derive_hub_token(self.service_token)}"}
        url = URL(self.url.rstrip("/") + path, encoded=True)
        kept = True
        for delay in delays(FIRST_DELAY, self.longest_delay):
            sent, trouble = clock(), ""
            try:
                async with (
                    manager_session(kept=kept) as session,
                    session.request(method, url, json=body, headers=headers, allow_redirects=False) as answer,
                ):
                    if answer.status not in RETRIED:
                        return answer.status, await _json(answer), sent
                    trouble = f"status {answer.status}"
                    answer.close()  # another service answers there: no second try
            except (aiohttp.ClientError, TimeoutError) as problem:
                trouble = type(problem).__name__
            self.log.warning("manager=%s does not answer %s %s, asking again: %s", self.url, method, path, trouble)
            await asyncio.sleep(delay)
            kept = False
        raise AssertionError("delays never end")

    def _numbers(self, user: str, status: int, answer: Any) -> UnixIds:
        if status == 409:
            raise self._refused(FULL, f"user={user} every uid of accounts: in the cluster file is taken")
        try:
            return UnixIds(int(answer["uid"]), int(answer["gid"]))
        except (KeyError, TypeError, ValueError):
            raise self._refused(BROKEN, f"user={user} the Manager answered {status} to the account") from None

    def _undecided(self, status: int, line: str) -> StartRefused:
        if status == 501:
            return self._refused(NO_FILES, f"{line}: it has no cluster_file, teams_file and templates_dir")
        return self._refused(UNDECIDED, line)

    def _refused(self, sentence: str, line: str) -> StartRefused:
        self.log.error("manager=%s %s", self.url, line)
        return StartRefused(sentence, reason="manager", status=429 if sentence is self.silent else 403)


def _told(one: Mapping[str, Any], now: datetime) -> UserNotice:
    until = datetime.fromisoformat(one["until"]) if one["until"] else None
    server = str(one["server"]) if one["user"] else None
    return UserNotice(
        server,
        str(one["level"]),
        with_time(str(one["text"]), until, now),
        bool(one["keep"]),
        str(one.get("page") or ""),
    )


async def _patiently(answer: Coroutine[Any, Any, T], seconds: float) -> T:
    """The answer, or TimeoutError after so many seconds in which this process could have heard it.

    When a crowd starts servers the Hub's event loop may be busy for longer than any deadline; the answer has then
    arrived unread.
    """
    asked = asyncio.ensure_future(answer)
    try:
        for _ in range(max(1, int(seconds / _LISTENING_SECONDS))):
            if (await asyncio.wait({asked}, timeout=_LISTENING_SECONDS))[0]:
                return asked.result()
        raise TimeoutError
    finally:
        if not asked.done():
            asked.cancel()
            await asyncio.wait({asked})


async def _json(answer: aiohttp.ClientResponse) -> Any:
    """It is read to its end in any case: a connection with something left in it is not kept."""
    said = await answer.read()
    try:
        return json.loads(said) if answer.status < 300 else None
    except ValueError:
        return None


CONNECT_SECONDS = 5.0  # one of several Managers may be on a machine that is off
SILENT_SECONDS = 5.0  # and may have been switched off after the connection was made
IDLE_SECONDS = 60.0  # less than after which the Manager closes it
_POOLS: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
_CLOSING: set[asyncio.Task[None]] = set()


@contextlib.asynccontextmanager
async def manager_session(*, kept: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """To ask with, once: by a connection that is ``kept``, or by a new one that is closed afterwards."""
    if kept:
        yield _pool()
        return
    connector = aiohttp.TCPConnector(force_close=True, resolver=aiohttp.ThreadedResolver())
    limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as own:
        yield own


def _pool() -> aiohttp.ClientSession:
    loop = asyncio.get_running_loop()
    pool = _POOLS.get(loop)
    if pool is None:
        # The resolver that is aiohttp's default with aiodns reads the system's configuration for every session.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, resolver=aiohttp.ThreadedResolver())
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        pool = aiohttp.ClientSession(connector=connector, timeout=limits, cookie_jar=aiohttp.DummyCookieJar())
        _POOLS[loop] = pool
        closing = loop.create_task(_close_at_the_end(pool), name="connections to the Manager")
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)
    return pool


async def _close_at_the_end(pool: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.create_future()
    finally:
        del _POOLS[loop]
        await pool.close()
