"""The only client of the Manager's REST API, for the Hub and the gateway.

It returns its own values and raises two exceptions: `ManagerUnavailable` (no answer within the deadline) and
`ManagerRejected` (an answer, but not the requested one). Callers translate them into their own refusals.

Rules:

* Every call has one deadline over all its tries, never after ``until``.
* The Hub's calls may be repeated without harm, and are repeated with jittered back-off until the deadline: of several
  Managers behind one address only the leader answers, and the leader may just be changing. Each further try has a new
  connection, because all that are kept may lead to a Manager that stands by, or to a machine that is off. The gateway's
  calls are sent once (``repeats=False``), because a login waits for them.
* No redirect is followed, and no token and no body is in an exception or log line.

There is one pool of connections for each event loop. A spawner has no moment at which it could close the pool: the pool
has a task of its own, and asyncio, JupyterHub and tests all end by cancelling every task.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from dlspawner import request_log, tracing
from dlspawner.backoff import FIRST_DELAY, LONGEST_DELAY, RETRIED, delays
from dlspawner.core.unix_account import UidRange, UnixIds

SECONDS = 10.0
ADMISSION_SECONDS = 30.0  # longer than it takes another Manager to take over
ENDING_SECONDS = 3.0  # a user waits for the stop
KEPT_SECONDS = 20.0  # longer than a Manager takes to act when another one has died, and then waits for a log
PAGE_SECONDS = 2.0  # a page is shown without what does not come in time
RELEASE_SECONDS = 3.0  # without it the reservation expires by itself
SSH_START_SECONDS = 30.0  # of the Hub's answer to the Manager, in addition to the deadline
CONNECT_SECONDS = 5.0  # one of several Managers may be on a machine that is off
SILENT_SECONDS = 5.0  # and may have been switched off after the connection was made
IDLE_SECONDS = 60.0  # less than after which the Manager closes it
_LONGEST_REPORT_DELAY = 15.0  # no user waits for it
_LISTENING_SECONDS = 0.25
_POOLS: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
_CLOSING: set[asyncio.Task[None]] = set()
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
T = TypeVar("T")


class ManagerUnavailable(Exception):
    """No answer within the deadline; ``why`` is the last obstacle, in one word."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class ManagerRejected(Exception):
    """The Manager answered ``status``, or what cannot be read; ``answer`` is its JSON, ``None`` without any."""

    def __init__(self, status: int, answer: Any) -> None:
        super().__init__(f"the Manager answered {status}")
        self.status = status
        self.answer: Mapping[str, Any] | None = answer if isinstance(answer, dict) else None


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
class Admission:
    """The decision about a job: *admit*, *wait* or *refuse*, with sentences and a reason.

    The pods of an admitted job may be requested before ``until`` on the event loop's clock, for ``nodes`` if known,
    with these ``ports`` of the host and ``additions`` to their manifests. ``pods_exist``: they are in the cluster.
    """

    decision: str
    sentences: tuple[str, ...]
    reason: str
    until: float = 0.0
    nodes: tuple[str | None, ...] = ()
    ports: tuple[tuple[int, ...], ...] = ()
    additions: tuple[dict[str, Any], ...] = ()
    pods_exist: bool = False


@dataclass(frozen=True, slots=True)
class SshKey:
    """A public key that a user registered; ``data`` is the key in SSH's encoding."""

    id: int
    data: bytes
    fingerprint: str


@dataclass(frozen=True, slots=True)
class AccessState:
    """The blocked users, and those of the requested keys that are no longer registered."""

    blocked: frozenset[str] = frozenset()
    gone_keys: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class StartStatus:
    """The status of a start that a login requested, in the Manager's words, and the path of the page with details."""

    state: str
    sentence: str = ""
    page: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class JobNotice:
    """A notice for the users on a server; ``until`` is the time of the announced event.

    It is about ``job``, or about every job of the server; after ``ends`` it is not shown any more. ``user`` is empty in
    notices for administrators.
    """

    id: str
    user: str
    server: str
    text: str
    until: datetime | None = None
    seen: bool = False
    job: str = ""
    ends: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer; ``sent`` is when its request was sent, on the event loop's clock."""

    status: int
    content: Any
    sent: float

    def read(self, reader: Callable[[Any], T]) -> T:
        """Returns the value of an answer that was successful and is readable; raises ManagerRejected otherwise."""
        with contextlib.suppress(*_UNREADABLE):
            if self.status < 300:
                return reader(self.content)
        raise ManagerRejected(self.status, self.content)


@dataclass(frozen=True, slots=True)
class ManagerClient:
    """The Manager at ``url``, which ends in its service's prefix, with one token."""

    url: str
    token: str = field(repr=False)
    log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    seconds: float = SECONDS
    until: float | None = None  # of the event loop's clock: when the start that asks must be able to say why it failed
    repeats: bool = True

    # For the Hub alone.

    async def account(self, user: str) -> str:
        """The name of this user's account: the user's first name."""
        answer = await self._call("GET", f"{_of_user(user)}/account")
        return answer.read(lambda found: str(found["account"]))

    async def unix_account(self, user: str, uids: UidRange) -> tuple[str, UnixIds]:
        """The name, uid and gid of the account that this user has for ever."""
        answer = await self._call("PUT", f"{_of_user(user)}/account", _range(uids))
        return answer.read(lambda found: (str(found["account"]), _unix_ids(found)))

    async def rename(self, user: str, new: str) -> None:
        """Account, keys and history of the user belong to the ``new`` name from now on."""
        answer = await self._call("POST", f"{_of_user(user)}/renamed", {"name": new})
        answer.read(lambda _: None)

    async def remove(self, user: str) -> None:
        """The user is about to be removed from the Hub."""
        answer = await self._call("POST", f"{_of_user(user)}/removed", {})
        answer.read(lambda _: None)

    async def prepare_start(self, user: str, server: str, uids: UidRange) -> tuple[str | None, str, UnixIds]:
        """Returns the id of the pending job of this server, the user's account, and its ids."""
        body = {"server": server, **_range(uids)}
        answer = await self._call("PUT", f"{_of_user(user)}/starting", body, ADMISSION_SECONDS)
        return answer.read(
            lambda found: (str(found["job"]) if found.get("job") else None, str(found["account"]), _unix_ids(found))
        )

    async def pending_job(self, user: str, server: str) -> str | None:
        """The id of the job that waits for this server: a start of it is that job's."""
        path = f"{_of_user(user)}/waiting?server={_part(server)}"
        answer = await self._call("GET", path, seconds=ADMISSION_SECONDS)
        return answer.read(lambda found: next((str(one["job"]) for one in found["waiting"]), None))

    async def queue_status(self, user: str) -> Mapping[str, PendingJobStatus]:
        answer = await self._call("GET", f"{_of_user(user)}/waiting", seconds=PAGE_SECONDS)
        return answer.read(lambda found: {str(one["server"]): _pending(one) for one in found["waiting"]})

    async def admission(self, job: str, question: Mapping[str, object]) -> Admission:
        """Sends the admission request of this job; the same request again gets the same answer."""
        answer = await self._call("PUT", f"/api/internal/jobs/{job}/admission", question, ADMISSION_SECONDS)
        return answer.read(lambda found: _admission(found, answer.sent))

    async def release_reservation(self, job: str, user: str, *, temporary: bool, why: str) -> None:
        """Reports that no pod of this job will be created; see `manager_link.ManagerLink.release_reservation`."""
        body = {"user": user, "temporary": temporary, "why": why}
        await self._call("POST", f"/api/internal/jobs/{job}/released", body, RELEASE_SECONDS)

    async def job_ended(self, job: str, user: str, why: str) -> None:
        """The pod of this job is about to be deleted, because the job has ended or its start is given up."""
        body = {"user": user, "temporary": False, "why": why, "made": True}
        await self._call("POST", f"/api/internal/jobs/{job}/released", body, RELEASE_SECONDS)

    async def leave_in_cluster(self, job: str, user: str) -> str | None:
        """The pods of this job wait in the cluster, and its start ends: why they wait; ``None``: not yet."""
        answer = await self._call("POST", f"/api/internal/jobs/{job}/left", {"user": user}, RELEASE_SECONDS)
        return answer.read(lambda found: str(found["sentence"]) if found["sentence"] is not None else None)

    async def start_interrupted(self, user: str, server: str, job: str) -> None:
        """Reports that the Hub stops this server, or its start; returns once a Manager has answered."""
        body = {"server": server, "job": job}
        await self._call("POST", f"{_of_user(user)}/interrupted", body, math.inf, _LONGEST_REPORT_DELAY)

    async def usual_start(self, template: str) -> float | None:
        """Returns the usual seconds of a start of this template; ``None`` where none is known."""
        answer = await self._call("GET", f"/api/internal/templates/{_part(template)}/usual-start", seconds=PAGE_SECONDS)
        return answer.read(lambda found: None if found["seconds"] is None else float(found["seconds"]))

    async def free_gpus(self) -> Mapping[str, tuple[float, float]]:
        """The free GPUs of each type, and the most of them on one node."""
        answer = await self._call("GET", "/api/internal/free-gpus", seconds=PAGE_SECONDS)
        return answer.read(
            lambda found: {str(one["gpu_type"]): (float(one["free"]), float(one["most"])) for one in found["gpu_types"]}
        )

    async def good_files(self) -> Mapping[str, str]:
        """The texts of the administrators' files in their last good version, by name; none if there has been none."""
        answer = await self._call("GET", "/api/internal/files")
        return answer.read(lambda found: {str(name): str(text) for name, text in found["files"].items()})

    async def stop_reason(self, job: str) -> str:
        """The sentence on why the Manager has this job stopped."""
        answer = await self._call("GET", f"/api/internal/jobs/{job}/ending", seconds=ENDING_SECONDS)
        return answer.read(lambda found: str(found["sentence"]))

    async def log_kept(self, job: str, pod: str) -> bool:
        """True once the logs of what has ended of this pod (its uid) are kept."""
        path = f"/api/internal/jobs/{job}/log-kept?pod={_part(pod)}"
        answer = await self._call("GET", path, seconds=KEPT_SECONDS)
        return answer.read(lambda found: bool(found["kept"]))

    # For the gateway.

    async def ssh_keys(self, user: str) -> tuple[SshKey | None, ...]:
        """Returns the registered keys of a user; ``None`` for an invalid row, so that one bad row locks no user out."""
        answer = await self._call("GET", f"/api/users/{_part(user)}/keys")
        return answer.read(lambda found: tuple(map(read_key, _list(found["keys"]))))

    async def key_used(self, user: str, key: int) -> None:
        await self._call("POST", f"/api/users/{_part(user)}/keys/{key}/used")

    async def start(self, user: str, server: str) -> StartStatus:
        """Starts a server for a login, unless it is starting already."""
        answer = await self._call("POST", _start_path(user, server), seconds=self.seconds + SSH_START_SECONDS)
        return answer.read(_start_status)

    async def start_status(self, user: str, server: str, job: str) -> StartStatus:
        """Returns the present status of the start that was requested as ``job``."""
        return (await self._call("GET", f"{_start_path(user, server)}?job={_part(job)}")).read(_start_status)

    async def ssh_access(self, keys: Sequence[tuple[str, str]]) -> AccessState:
        """Asks about these keys, of open sessions, by user and fingerprint."""
        answer = await self._call("POST", "/api/ssh-access", {"keys": [list(key) for key in keys]})
        return answer.read(
            lambda found: AccessState(
                frozenset(found["blocked"]), frozenset((str(user), str(fp)) for user, fp in found["gone"])
            )
        )

    async def open_notices(self, version: str, seconds: float) -> tuple[str, tuple[JobNotice | None, ...]]:
        """Returns version and list of open notices once it is not ``version``; ``None`` stands for an invalid row."""
        path = f"/api/notices?after={_part(version)}&wait={seconds:g}"
        answer = await self._call("GET", path, seconds=self.seconds + seconds)
        return answer.read(
            lambda found: (str(found.get("version", "")), tuple(map(read_notice, _list(found["notices"]))))
        )

    async def report_sessions(self, gateway: str, sessions: Sequence[Sequence[object]]) -> None:
        """Reports the servers with SSH sessions: user, server, seconds since the last byte, open."""
        answer = await self._call("PUT", "/api/ssh-sessions", {"gateway": gateway, "sessions": sessions})
        if answer.status != 204:
            raise ManagerRejected(answer.status, answer.content)

    def seconds_left(self, seconds: float) -> float:
        """Returns these seconds, or fewer if ``until`` comes before."""
        left = math.inf if self.until is None else max(0.0, self.until - asyncio.get_running_loop().time())
        return min(seconds, left)

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        seconds: float | None = None,
        longest_delay: float = LONGEST_DELAY,
    ) -> _Answer:
        left = self.seconds_left(self.seconds if seconds is None else seconds)
        try:
            return await _with_slow_loop(self._tries(method, path, body, longest_delay), left)
        except TimeoutError:
            raise ManagerUnavailable(f"no answer within {left:.3g} s to {method} {path}", "TimeoutError") from None

    async def _tries(self, method: str, path: str, body: Mapping[str, object] | None, longest_delay: float) -> _Answer:
        clock = asyncio.get_running_loop().time
        kept = True
        for delay in delays(FIRST_DELAY, longest_delay):
            sent, why = clock(), ""
            try:
                async with manager_session(kept=kept) as session, self._request(session, method, path, body) as answer:
                    if not self.repeats or answer.status not in RETRIED:
                        return _Answer(answer.status, await _json(answer), sent)
                    why = f"status {answer.status}"
                    answer.close()  # another service answers there: no second try
            except (aiohttp.ClientError, OSError) as problem:  # TimeoutError is an OSError
                why = type(problem).__name__
            if not self.repeats:
                raise ManagerUnavailable(f"no answer to {method} {path}: {why}", why)
            self.log.warning("manager=%s does not answer %s %s, asking again: %s", self.url, method, path, why)
            await asyncio.sleep(delay)
            kept = False
        raise AssertionError("delays never end")

    def _request(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Mapping[str, object] | None
    ) -> Any:
        url = URL(self.url.rstrip("/") + path, encoded=True)
        headers = {"Authorization": f"token {self.token}"}
        if request := request_log.request_id.get():
            headers[request_log.HEADER] = request
        tracing.inject(headers)
        limits = session.timeout if self.repeats else aiohttp.ClientTimeout()  # `_call` has the deadline
        return session.request(method, url, json=body, headers=headers, allow_redirects=False, timeout=limits)


def read_key(entry: Any) -> SshKey | None:
    """Returns a registered key in the Manager's format; ``None`` for an invalid one."""
    with contextlib.suppress(*_UNREADABLE):
        _, data, *_ = entry["key"].split(None, 2)
        return SshKey(int(entry["id"]), base64.b64decode(data, validate=True), str(entry["fingerprint"]))
    return None


def read_notice(entry: Any) -> JobNotice | None:
    """Returns a notice in the Manager's format; ``None`` for an invalid one."""
    with contextlib.suppress(*_UNREADABLE):
        until, ends = _moment(entry["until"]), _moment(entry.get("ends"))
        id_, user, server, text = (entry[name] for name in ("id", "user", "server", "text"))
        job = entry.get("job", "")
        if all(isinstance(one, str) for one in (id_, user, server, text, job)):
            return JobNotice(id_, user, server, text, until, bool(entry["seen"]), job, ends)
    return None


def _pending(entry: Any) -> PendingJobStatus:
    never = entry.get("never") is True
    return PendingJobStatus(str(entry["state"]), int(entry["position"]), str(entry["why"]), never)


def _admission(found: Any, sent: float) -> Admission:
    decision, sentences = found["decision"], tuple(map(str, found["sentences"]))
    if decision not in {"admit", "wait", "refuse"}:
        raise ValueError("an unknown decision")
    if decision != "admit":
        return Admission(decision, sentences, str(found["reason"]))
    nodes = tuple(str(node) if node else None for node in found["nodes"])  # none where nothing is packed
    ports = tuple(tuple(map(int, one)) for one in found.get("ports", ()))
    additions = tuple(map(dict, found.get("additions", ())))
    exist, until = bool(found.get("pods_exist")), sent + float(found["seconds"])
    return Admission(decision, sentences, "", until, nodes, ports, additions, exist)


def _start_status(found: Any) -> StartStatus:
    if not isinstance(found["state"], str):
        raise TypeError("text expected")
    return StartStatus(*(str(found.get(name) or "") for name in ("state", "sentence", "page", "job")))


def _unix_ids(found: Any) -> UnixIds:
    return UnixIds(int(found["uid"]), int(found["gid"]))


def _range(uids: UidRange) -> dict[str, object]:
    return {"first_uid": uids.first, "last_uid": uids.last}


def _list(entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise TypeError("a list expected")
    return entries


def _moment(text: str | None) -> datetime | None:
    found = datetime.fromisoformat(text) if text else None
    if found is not None and found.tzinfo is None:
        raise ValueError("a time zone expected")
    return found


def _part(name: str) -> str:
    return quote(name, safe="")


def _of_user(user: str) -> str:
    return f"/api/internal/users/{_part(user)}"


def _start_path(user: str, server: str) -> str:
    return f"/api/ssh-starts/{_part(user)}/{_part(server)}"


async def _with_slow_loop(answer: Coroutine[Any, Any, T], seconds: float) -> T:
    """The answer, or TimeoutError after so many seconds in which this process could have received it.

    When many users start servers, the Hub's event loop may be busy for longer than any deadline; the answer has then
    arrived unread.
    """
    asked = asyncio.ensure_future(answer)
    turns = max(1.0, seconds / _LISTENING_SECONDS)
    try:
        while turns >= 1:
            turns -= 1
            if (await asyncio.wait({asked}, timeout=_LISTENING_SECONDS))[0]:
                return asked.result()
        raise TimeoutError
    finally:
        if not asked.done():
            asked.cancel()
            await asyncio.wait({asked})


async def _json(answer: aiohttp.ClientResponse) -> Any:
    """It is read to its end in any case: a connection with something left in it is not kept."""
    content = await answer.read()
    try:
        return json.loads(content)
    except ValueError:
        return None


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
