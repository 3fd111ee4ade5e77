"""Users, keys, tokens and starts: the gateway's requests to the Manager and the Hub. `cluster` has those to the
cluster.

Rules:

* Every answer is one of this package's own values; every failure is `BackendUnavailable` with a sentence for the user.
* A request costs the same for a name that exists and one that does not: one request, no shortcut.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from urllib.parse import quote

import aiohttp
from yarl import URL

from dlspawner.clients import hub as clients_hub
from ssh_gateway.core.proof import RegisteredKey, SshSessionState, TokenOwner
from ssh_gateway.core.routing import JobEndpoint
from ssh_gateway.log import say

KEYS_AT_ONCE = 1000
START_SECONDS = 30.0  # deadline of the Hub's answer to a start
NOES = frozenset({403, 404, 409, 422, 429})


class BackendUnavailable(Exception):
    """A backend does not answer now; the message is for the user."""


@dataclass(frozen=True, slots=True)
class SshEndpoint:
    """The address of a job's sshd, its host key, its login name, and the principal that it requires (``job``)."""

    job: str
    user: str
    server: str
    host: str
    port: int
    login: str
    host_key: str

    @property
    def address(self) -> str:
        """Host and port, joined by a colon."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class JobNotice:
    """A notice for the users on a server; ``until`` is the time of the announced event.

    It is about ``job``, or about every job of the server; after ``ends`` it is not shown any more.
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
class JobNotices:
    """All open notices, and the version of this list."""

    version: str
    notices: tuple[JobNotice, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessState:
    """The blocked users, and those of the requested keys that are no longer registered."""

    blocked: frozenset[str] = frozenset()
    gone_keys: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class StartStatus:
    """The status of a server's start, in the Manager's words, and the path of the page with details.

    ``state`` is ``off`` if logins start nothing, ``refused`` if the Manager refuses the start.
    """

    state: str
    sentence: str = ""
    page: str = ""
    job: str = ""


class AuthBackend(Protocol):
    """Answers about users, keys and tokens."""

    async def registered_keys(self, user: str) -> tuple[RegisteredKey, ...]:
        """Returns the public keys of a user; none for an unknown user."""

    async def key_used(self, user: str, key: RegisteredKey) -> None:
        """Notes that a key opened a session just now."""

    async def token_owner(self, token: str) -> TokenOwner | None:
        """Returns the owner of a token; ``None`` for a token unknown to the Hub."""

    async def servers(self, user: str) -> frozenset[str]:
        """Returns the servers of a user that the Hub knows, running or not; the Hub may not know yet that a pod is
        gone.
        """

    async def start(self, user: str, server: str) -> StartStatus:
        """Starts a server if its user permits that, unless it is starting already."""

    async def start_status(self, user: str, server: str, job: str) -> StartStatus:
        """Returns the present status of a requested start; ``job`` is the job of the request."""

    async def report_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        """Reports the last use of servers."""

    async def access_state(self, keys: Collection[tuple[str, str]]) -> AccessState:
        """Returns the blocked users, and which of these keys (user name and fingerprint) are no longer registered."""

    async def deleted_users(self, users: Collection[str]) -> frozenset[str]:
        """Returns those of these users that no longer exist."""


class JobDirectory(Protocol):
    """Answers about users' jobs."""

    async def jobs(self, user: str) -> tuple[JobEndpoint, ...]:
        """Returns the jobs of a user in the cluster."""

    async def endpoint(self, user: str, server: str) -> SshEndpoint | None:
        """Returns the sshd of a user's running job on exactly this server."""

    async def running(self, jobs: Collection[str]) -> frozenset[str]:
        """Returns those of these jobs that run and are not being stopped."""


class HubAndManager:
    """`AuthBackend` by the REST APIs of the Hub and the Manager; owns its connections to the Manager."""

    def __init__(
        self, hub: clients_hub.HubClient, manager_url: str, token: str, deadline_seconds: float = 10.0
    ) -> None:
        self._hub = hub
        self._url = manager_url.rstrip("/")
        self._token = token
        self._deadline = aiohttp.ClientTimeout(total=deadline_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def registered_keys(self, user: str) -> tuple[RegisteredKey, ...]:
        status, answer = await self._manager("GET", f"/api/users/{quote(user, safe='')}/keys")
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("keys"), list):
            raise BackendUnavailable("the keys service gave no usable answer: try again later")
        return tuple(key for entry in answer["keys"] if (key := read_key(entry)) is not None)

    async def key_used(self, user: str, key: RegisteredKey) -> None:
        await self._manager("POST", f"/api/users/{quote(user, safe='')}/keys/{key.id}/used")

    async def token_owner(self, token: str) -> TokenOwner | None:
        try:
            identity = await self._hub.whoami(token)
        except clients_hub.HubError as error:
            raise BackendUnavailable("the Hub does not answer: try again later") from error
        if identity is None:
            return None
        return TokenOwner(
            identity.name,
            lambda server: clients_hub.may_access_server(identity, identity.name, server),
            person=identity.kind is clients_hub.IdentityKind.USER,
            starts=lambda server: clients_hub.may_start_server(identity, identity.name, server),
        )

    async def servers(self, user: str) -> frozenset[str]:
        try:
            known = await self._hub.user(user)
        except clients_hub.HubError as error:
            raise BackendUnavailable("the Hub does not answer: try again later") from error
        return frozenset(known.servers) if known else frozenset()

    async def start(self, user: str, server: str) -> StartStatus:
        return await self._where("POST", _start_path(user, server), START_SECONDS)

    async def start_status(self, user: str, server: str, job: str) -> StartStatus:
        return await self._where("GET", f"{_start_path(user, server)}?job={quote(job, safe='')}")

    async def _where(self, method: str, path: str, waits: float = 0.0) -> StartStatus:
        status, answer = await self._manager(method, path, waits, reads=frozenset({200, *NOES}))
        given = answer if isinstance(answer, dict) else {}
        if status == 200 and isinstance(given.get("state"), str):
            return StartStatus(*(str(given.get(name) or "") for name in ("state", "sentence", "page", "job")))
        if status in {404, 501} or "scope" in given:  # a Manager that starts nothing, or not for this gateway
            say("directory", level=logging.WARNING, source="manager", result="starts-nothing", why=status)
            return StartStatus("off")
        if status in NOES and isinstance(given.get("detail"), str):
            return StartStatus("refused", given["detail"])
        raise BackendUnavailable(f"the Manager does not tell where a start stands (status {status})")

    async def report_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        try:
            await self._hub.post_activity(user, servers)
        except clients_hub.HubError as error:
            raise BackendUnavailable(str(error)) from error

    async def access_state(self, keys: Collection[tuple[str, str]]) -> AccessState:
        pairs = sorted(keys)
        parts = [pairs[at : at + KEYS_AT_ONCE] for at in range(0, len(pairs), KEYS_AT_ONCE)] or [[]]
        answers = [await self._standing(part) for part in parts]
        gone = frozenset[tuple[str, str]]().union(*(one.gone_keys for one in answers))
        return AccessState(answers[-1].blocked, gone)

    async def _standing(self, keys: Sequence[tuple[str, str]]) -> AccessState:
        status, answer = await self._manager("POST", "/api/ssh-access", body={"keys": [list(key) for key in keys]})
        try:
            if status != 200 or not isinstance(answer, dict):
                raise TypeError("an object expected")
            return AccessState(
                frozenset(answer["blocked"]),
                frozenset((str(user), str(fp)) for user, fp in answer["gone"]),
            )
        except (KeyError, TypeError, ValueError):
            raise BackendUnavailable(f"the Manager does not tell who may stay (status {status})") from None

    async def deleted_users(self, users: Collection[str]) -> frozenset[str]:
        if not users:
            return frozenset()
        try:
            one = len(set(users)) == 1  # one user is requested by name, not by the list of all users
            listed = set[str]() if one else {user.name for user in await self._hub.active_users()}
            return frozenset([name for name in set(users) - listed if await self._hub.user(name) is None])
        except clients_hub.HubRejected as error:
            raise BackendUnavailable("the Hub lists no users: this service lacks the scope list:users") from error
        except clients_hub.HubError as error:
            raise BackendUnavailable("the Hub does not answer: try again later") from error

    async def open_notices(self, version: str, seconds: float) -> JobNotices:
        """Returns all open notices once their list differs from ``version``, or after ``seconds``."""
        path = f"/api/notices?after={quote(version, safe='')}&wait={seconds:g}"
        try:
            status, answer = await self._manager("GET", path, seconds)
        except BackendUnavailable as problem:
            raise BackendUnavailable("the Manager does not answer") from problem
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("notices"), list):
            hint = ": this service lacks the scope custom:notices:read" if status == 403 else ""
            raise BackendUnavailable(f"the Manager gave no notices (status {status}){hint}")
        read = (read_notice(entry) for entry in answer["notices"])
        return JobNotices(str(answer.get("version", "")), tuple(notice for notice in read if notice is not None))

    async def report_sessions(self, gateway: str, sessions: Sequence[SshSessionState]) -> None:
        """Reports to the Manager which jobs have SSH sessions."""
        told = [[one.user, one.server, one.seconds, one.open] for one in sessions]
        status, _ = await self._manager("PUT", "/api/ssh-sessions", body={"gateway": gateway, "sessions": told})
        if status != 204:
            raise BackendUnavailable(f"the Manager does not take the report on sessions (status {status})")

    async def _manager(
        self,
        method: str,
        path: str,
        waits: float = 0.0,
        body: object = None,
        reads: frozenset[int] = frozenset({200}),
    ) -> tuple[int, object]:
        """Sends one request to the Manager; returns its status, and the JSON of answers with a status in ``reads``.

        ``waits`` are seconds that the Manager may wait before it answers, beyond the deadline.
        """
        deadline = aiohttp.ClientTimeout(total=(self._deadline.total or 0.0) + waits)
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=self._deadline)
        headers = {"Authorization": f"token {self._token}"}
        try:
            async with self._session.request(
                method,
                URL(self._url + path, encoded=True),
                json=body,
                headers=headers,
                allow_redirects=False,
                timeout=deadline,
            ) as response:
                content = await response.json(content_type=None) if response.status in reads else None
                return response.status, content
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            say("directory", level=logging.WARNING, source="manager", result="failed", why=type(error).__name__)
            raise BackendUnavailable("the keys service does not answer: try again later, or use a token") from error


def _start_path(user: str, server: str) -> str:
    return f"/api/ssh-starts/{quote(user, safe='')}/{quote(server, safe='')}"


def read_key(entry: object) -> RegisteredKey | None:
    """Returns a key in the Manager's format; ``None`` for an invalid one, so that one bad row locks no user out."""
    try:
        if not isinstance(entry, dict):
            raise TypeError("an object expected")
        number, (_, data, *_) = entry["id"], entry["key"].split(None, 2)
        return RegisteredKey(int(number), base64.b64decode(data, validate=True), str(entry["fingerprint"]))
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        say("directory", level=logging.WARNING, source="manager", result="unreadable-key")
        return None


def read_notice(entry: object) -> JobNotice | None:
    """Returns a notice in the Manager's format; ``None`` for an invalid one, and for notices to administrators."""
    try:
        if not isinstance(entry, dict):
            raise TypeError("an object expected")
        until, ends = _moment(entry["until"]), _moment(entry.get("ends"))
        id_, user, server, text = (entry[name] for name in ("id", "user", "server", "text"))
        job = entry.get("job", "")
        if not all(isinstance(one, str) for one in (id_, user, server, text, job)):
            raise TypeError("text expected")
        return JobNotice(id_, user, server, text, until, bool(entry["seen"]), job, ends) if user else None
    except (KeyError, TypeError, ValueError):
        say("directory", level=logging.WARNING, source="manager", result="unreadable-notice")
        return None


def _moment(told: str | None) -> datetime | None:
    found = datetime.fromisoformat(told) if told else None
    if found is not None and found.tzinfo is None:
        raise ValueError("a time zone expected")
    return found
