"""The only client of the Hub's REST API, for the gateway and the Manager, on JupyterHub 5.5 and 6.x.

It returns its own values (`HubIdentity`, `HubUser`, `HubServer`) and raises two exceptions: `HubUnavailable` (the
result is unknown; try later; `HubFailed` if the Hub itself reports that a start failed) and `HubRejected` (the Hub
refused, with its sentence). An unknown user and an unknown token are answers, not exceptions: `None`.

Rules: every call has a deadline over all its tries; requests that are harmless to repeat (reading, posting activity)
are repeated with jittered back-off; a start is repeated only if the Hub cannot have received it, a stop never; names go
into paths percent-encoded, so no name can reach another resource; no token and no body is ever in an exception or log
line.

aiohttp and not tornado's client, because it keeps connections alive: the gateway sends a request at every login.
Refused: `jupyterhub.services.auth.HubAuth` for this (a singleton with a token of its own, cached for minutes);
`dlspawner.manager` uses it for OAuth, which needs it.

The functions for paths of users, servers and groups are pure. ``None`` stands for an impossible name, so that no
request is made for it; every name is one segment, with any characters.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from dlspawner import tracing
from dlspawner.backoff import FIRST_DELAY, LONGEST_DELAY, RETRIED, delays

_PAGE = 200  # users; the Hub may be configured to give fewer at once


class HubError(Exception):
    """The Hub did not carry out a request; the message may be shown to users."""


class HubUnavailable(HubError):
    """No trustworthy answer within the deadline."""


class HubFailed(HubUnavailable):
    """The Hub answered 500 to a request that is not repeated: the fault may concern this request alone."""


class HubRejected(HubError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def wants_login(self) -> bool:
        """True if a start was refused because the user's login is too old (``Authenticator.refresh_pre_spawn``)."""
        return self.status in {400, 403} and bool(re.search(r"auth(entication)? has expired", str(self)))

    @property
    def is_there(self) -> bool:
        """True if a start was refused because the server runs, starts or stops."""
        return self.status == 400 and bool(re.search(r" is (already running|pending \w+)\W*$", str(self)))


class IdentityKind(Enum):
    USER = "user"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class HubIdentity:
    """The owner of a token, and the Hub's expanded scopes of this token (not of its owner)."""

    name: str
    kind: IdentityKind
    scopes: frozenset[str]
    admin: bool = False
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HubServer:
    """One of a user's servers, as the Hub sees it; `name` is "" for the default one."""

    name: str
    ready: bool
    pending: str | None
    stopped: bool
    url: str
    user_options: Mapping[str, object]
    last_activity: datetime | None


@dataclass(frozen=True, slots=True)
class HubUser:
    name: str
    servers: Mapping[str, HubServer]
    admin: bool = False
    groups: frozenset[str] = frozenset()


# Scopes: pure functions over the Hub's *expanded* scopes (https://jupyterhub.readthedocs.io → RBAC → scopes).


def has_scope(
    scopes: Iterable[str], base: str, *, user: str = "", server: str | None = None, service: str = ""
) -> bool:
    """True if `base` is held for everything, or for the named user, server of that user, or service.

    Filters by group are not followed: token owners never need them for their own servers, and a filter that cannot be
    checked here grants nothing.
    """
    wanted = {base}
    if user:
        wanted.add(f"{base}!user={user}")
    if user and server is not None:
        wanted.add(f"{base}!server={user}/{server}")
    if service:
        wanted.add(f"{base}!service={service}")
    return not wanted.isdisjoint(scopes)


def may_access_server(identity: HubIdentity, user: str, server: str) -> bool:
    """True if the token may enter this server, which SSH and the browser both need."""
    return has_scope(identity.scopes, "access:servers", user=user, server=server)


def may_start_server(identity: HubIdentity, user: str, server: str) -> bool:
    """True if the token may start this server; JupyterHub 5.5 has no scope for that alone."""
    return any(has_scope(identity.scopes, base, user=user, server=server) for base in ("start:servers", "servers"))


def own_server(identity: HubIdentity) -> str | None:
    """Returns the name of the server that owns this token; None for every other token.

    A server's token may enter that one server and no other of its user. A token that a user narrowed to one server
    looks the same and is treated the same.
    """
    prefix = f"access:servers!server={identity.name}/"
    servers = [scope.removeprefix(prefix) for scope in identity.scopes if scope.startswith(prefix)]
    if identity.kind is not IdentityKind.USER or len(servers) != 1 or may_access_server(identity, identity.name, "*"):
        return None
    return servers[0]


# The Hub's JSON. Other content counts as HubUnavailable, from the Hub or from a proxy in its place.


def read_identity(model: Any) -> HubIdentity:
    """Reads the answer of GET /user (also the model that HubAuth returns)."""
    try:
        return HubIdentity(
            name=_text(model["name"]),
            kind=IdentityKind(model.get("kind", "user")),
            scopes=frozenset(map(_text, model["scopes"])),
            admin=bool(model.get("admin", False)),
            groups=frozenset(map(_text, model.get("groups") or ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HubUnavailable("The Hub's answer could not be understood.") from error


def read_user(model: Any) -> HubUser:
    """Reads the answer of GET /users/:name, which has servers, maybe none, if the token has read:servers."""
    try:
        if "servers" not in model:
            raise HubUnavailable("The Hub does not tell of servers: the token needs the scope read:servers.")
        servers = [_read_server(server) for server in model["servers"].values()]
        return HubUser(
            name=_text(model["name"]),
            servers={server.name: server for server in servers},
            admin=bool(model.get("admin", False)),
            groups=frozenset(map(_text, model.get("groups") or ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HubUnavailable("The Hub's answer could not be understood.") from error


def _read_server(model: Any) -> HubServer:
    options = model.get("user_options") or {}
    # JupyterHub 5.5 stores a body written for 6.x as it came: {"user_options": {…}}.
    if set(options) == {"user_options"} and isinstance(options["user_options"], dict):
        options = options["user_options"]
    seen = model.get("last_activity")
    return HubServer(
        name=_text(model["name"]),
        ready=bool(model.get("ready")),
        pending=model.get("pending") or None,
        stopped=bool(model.get("stopped", not (model.get("ready") or model.get("pending")))),
        url=_text(model.get("url") or ""),
        user_options=dict(options),
        last_activity=datetime.fromisoformat(seen) if seen else None,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value


class _RetryRule(Enum):
    ALWAYS = "always"
    IF_UNSENT = "if nothing was sent"
    NEVER = "never"


class HubClient:
    """The Hub's REST API with one token; an async context manager that owns its connections.

    `url` ends in /hub/api. `deadline_seconds` bounds a whole call with its retries.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        deadline_seconds: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._deadline = deadline_seconds
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._major: int | None = None
        # Called after each try, with True if the Hub answered.
        self.on_answer: Callable[[bool], None] = lambda answers: None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a later call would open them again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def whoami(self, token: str) -> HubIdentity | None:
        """Returns the identity of `token`; None if the Hub does not know it."""
        if not fits_header(token):
            return None
        status, body = await self._call("GET", "/user", token=token)
        if status in {401, 403}:
            return None
        return read_identity(_expect(status, body, 200))

    async def scopes(self) -> frozenset[str]:
        identity = await self.whoami(self._token)
        if identity is None:
            raise HubRejected(401, "The Hub does not know this token.")
        return identity.scopes

    async def user(self, name: str) -> HubUser | None:
        """Returns a user with all servers, stopped ones too; None if there is no user of that name."""
        path = user_path(name)
        if path is None:
            return None
        status, body = await self._call("GET", f"{path}?include_stopped_servers=1")
        if status == 404:
            return None
        return read_user(_expect(status, body, 200))

    async def group(self, name: str) -> frozenset[str] | None:
        """Returns the members of a group; None if unknown. HubRejected(403) without the scope read:groups."""
        path = group_path(name)
        if path is None:
            return None
        status, body = await self._call("GET", path)
        if status == 404:
            return None
        content = _expect(status, body, 200)
        try:
            return frozenset(map(_text, content["users"]))
        except (KeyError, TypeError) as error:
            raise HubUnavailable("The Hub's answer could not be understood.") from error

    async def active_users(self) -> list[HubUser]:
        """Returns all users with running servers, and those servers; in pages, a few requests for thousands.

        A user may be missing from one call if other servers stop between two pages.
        """
        found: list[HubUser] = []
        while True:
            query = f"state=active&limit={_PAGE}&offset={len(found)}"
            status, body = await self._call("GET", f"/users?{query}")
            page = _expect(status, body, 200)
            if not isinstance(page, list):
                raise HubUnavailable("The Hub's answer could not be understood.")
            if not page:
                return found
            found += [read_user(model) for model in page]

    async def post_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        """Reports the last use of servers; the Hub keeps the latest time.

        HubRejected(400) if a server no longer exists.
        """
        seen = {name: {"last_activity": at.astimezone(UTC).isoformat()} for name, at in servers.items()}
        status, body = await self._call("POST", f"{_known(user_path(user))}/activity", {"servers": seen})
        _expect(status, body, 200)

    async def start_server(self, user: str, server: str = "", options: Mapping[str, object] | None = None) -> bool:
        """Requests a start; True if the server is ready, False if it is starting.

        Without `options` the Hub uses those of the last start. HubRejected has the spawner's sentence.
        """
        content: Mapping[str, object] | None = None
        if options is not None:
            content = {"user_options": options} if await self._major_version() >= 6 else options
        status, body = await self._call("POST", _known(server_path(user, server)), content, again=_RetryRule.IF_UNSENT)
        _expect(status, body, 201, 202)
        return status == 201

    async def stop_server(self, user: str, server: str = "") -> bool:
        """Requests a stop once; True if the server is stopped, False if it is stopping.

        HubUnavailable at the first failure, without another try: meanwhile another job may run on this server, and the
        caller must check that before it tries again.
        """
        status, body = await self._call("DELETE", _known(server_path(user, server)), again=_RetryRule.NEVER)
        _expect(status, body, 202, 204)
        return status == 204

    async def remove_server(self, user: str, server: str) -> None:
        """Removes a stopped named server from the user's list; HubRejected has the Hub's sentence."""
        path = _known(server_path(user, server))
        status, body = await self._call("DELETE", path, {"remove": True}, again=_RetryRule.NEVER)
        _expect(status, body, 204, 404)

    async def check_reachable(self) -> None:
        """Sends the Hub's cheapest request; HubUnavailable if it does not answer."""
        await self._call("GET", "/")

    async def _major_version(self) -> int:
        if self._major is None:
            status, body = await self._call("GET", "/")
            version = _expect(status, body, 200)
            try:
                self._major = int(_text(version["version"]).split(".")[0])
            except (KeyError, TypeError, ValueError) as error:
                raise HubUnavailable("The Hub does not tell its version.") from error
        return self._major

    async def _call(
        self,
        method: str,
        path: str,
        content: Mapping[str, object] | None = None,
        *,
        token: str | None = None,
        again: _RetryRule = _RetryRule.ALWAYS,
    ) -> tuple[int, bytes]:
        """Returns status and body of one request, repeated as the rule permits until the deadline."""
        try:
            async with asyncio.timeout(self._deadline):
                for delay in delays(FIRST_DELAY, LONGEST_DELAY):
                    answer = await self._try(method, path, content, token or self._token, again)
                    if answer is not None:
                        return answer
                    if again is _RetryRule.NEVER:
                        raise HubUnavailable("The Hub does not answer.")
                    await self._sleep(delay)
        except TimeoutError:
            if again is _RetryRule.ALWAYS:  # JupyterHub may wait as long before it answers 202 to a start or stop
                self.on_answer(False)
            raise HubUnavailable(f"The Hub did not answer within {self._deadline:g} seconds.") from None
        raise AssertionError("delays never end")

    async def _try(
        self, method: str, path: str, content: Mapping[str, object] | None, token: str, again: _RetryRule
    ) -> tuple[int, bytes] | None:
        """Makes one request; returns None if it may be repeated."""
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        tracing.inject(headers)
        try:
            async with self._client().request(
                method, URL(self._url + path, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as response:
                if again is _RetryRule.ALWAYS and response.status in RETRIED:
                    return None
                found = response.status, await response.read()
                self.on_answer(True)
                return found
        except aiohttp.ClientConnectorError:
            self.on_answer(False)
            return None  # nothing was sent
        except (aiohttp.ClientError, OSError) as error:
            self.on_answer(False)
            if again is _RetryRule.ALWAYS:
                return None
            raise HubUnavailable("The connection to the Hub broke; it may have begun what was asked.") from error

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._session


def _expect(status: int, body: bytes, *wanted: int) -> Any:
    """Returns the JSON of an expected answer; raises HubRejected or HubUnavailable for any other."""
    try:
        content = json.loads(body) if body.strip() else None
    except ValueError:
        content = None
    if status not in wanted:
        if status == 500:
            raise HubFailed(f"The Hub failed (status {status}).")
        if status > 500:
            raise HubUnavailable(f"The Hub failed (status {status}).")
        message = content.get("message") if isinstance(content, dict) else None
        raise HubRejected(status, str(message or f"The Hub refused (status {status}).")[:2000])
    return content


def fits_header(token: str) -> bool:
    """True if the token is short visible ASCII, as the Hub's are; no other text is sent, so none can break a header."""
    return 0 < len(token) <= 4096 and all("!" <= char <= "~" for char in token)


def _known(path: str | None) -> str:
    if path is None:
        raise HubRejected(404, "There is no such user or server.")
    return path


def user_path(name: str) -> str | None:
    """Returns the path of a user; None for an impossible name."""
    segment = _segment(name)
    return None if segment is None else f"/users/{segment}"


def server_path(user: str, server: str) -> str | None:
    """Returns the path of a user's server; the default one has an empty name."""
    path, segment = user_path(user), _segment(server)
    if path is None or server == "":
        return None if path is None else f"{path}/server"
    return None if segment is None else f"{path}/servers/{segment}"


def group_path(name: str) -> str | None:
    """Returns the path of a group; None for an impossible name."""
    segment = _segment(name)
    return None if segment is None else f"/groups/{segment}"


def _segment(name: str) -> str | None:
    if name in {"", ".", ".."} or len(name) > 255:
        return None
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        return None
