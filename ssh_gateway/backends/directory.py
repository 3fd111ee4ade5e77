"""Users, keys, tokens and starts: the gateway's requests to the Manager and the Hub. `cluster` has those to the
cluster.

Rules:

* Every answer is one of this package's own values; every failure is `BackendUnavailable` with a sentence for the user.
* A request costs the same for a name that exists and one that does not: one request, no shortcut.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from dlspawner.clients import hub as clients_hub
from dlspawner.clients.manager import (
    SECONDS,
    AccessState,
    JobNotice,
    ManagerClient,
    ManagerRejected,
    ManagerUnavailable,
    StartStatus,
)
from ssh_gateway.core.proof import RegisteredKey, SshSessionState, TokenOwner
from ssh_gateway.log import log, say

KEYS_AT_ONCE = 1000
NOES = frozenset({403, 404, 409, 422, 429})
T = TypeVar("T")


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
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class JobNotices:
    version: str
    notices: tuple[JobNotice, ...] = ()


class HubAndManager:
    """Answers about users, keys, tokens and starts, by the REST APIs of the Hub and the Manager."""

    def __init__(
        self, hub: clients_hub.HubClient, manager_url: str, token: str, deadline_seconds: float = SECONDS
    ) -> None:
        self._hub = hub
        self._manager = ManagerClient(manager_url, token, log, deadline_seconds, repeats=False)

    async def registered_keys(self, user: str) -> tuple[RegisteredKey, ...]:
        """Returns the public keys of a user; none for an unknown user."""
        try:
            keys = await _answered(self._manager.ssh_keys(user))
        except ManagerRejected:
            raise BackendUnavailable("the keys service gave no usable answer: try again later") from None
        _report_unreadable(keys, "unreadable-key")
        return tuple(RegisteredKey(key.id, key.data, key.fingerprint) for key in keys if key is not None)

    async def key_used(self, user: str, key: RegisteredKey) -> None:
        """Notes that a key opened a session just now."""
        await _answered(self._manager.key_used(user, key.id))

    async def token_owner(self, token: str) -> TokenOwner | None:
        """Returns the owner of a token; ``None`` for a token unknown to the Hub."""
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
        """Returns the servers of a user that the Hub knows, running or not; their pods may be gone already."""
        try:
            known = await self._hub.user(user)
        except clients_hub.HubError as error:
            raise BackendUnavailable("the Hub does not answer: try again later") from error
        return frozenset(known.servers) if known else frozenset()

    async def start(self, user: str, server: str) -> StartStatus:
        """Starts a server if its user permits that, unless it is starting already.

        The state is ``off`` if logins start nothing, ``refused`` if the Manager refuses the start.
        """
        return await self._status(self._manager.start(user, server))

    async def start_status(self, user: str, server: str, job: str) -> StartStatus:
        """Returns the present status of a requested start; ``job`` is the job of the request."""
        return await self._status(self._manager.start_status(user, server, job))

    async def _status(self, answer: Awaitable[StartStatus]) -> StartStatus:
        try:
            return await _answered(answer)
        except ManagerRejected as no:
            given = no.answer or {}
            readable = no.answer is not None or no.status not in NOES
            if (no.status in {404, 501} and readable) or "scope" in given:  # it starts nothing, or not for this gateway
                say("directory", level=logging.WARNING, source="manager", result="starts-nothing", why=no.status)
                return StartStatus("off")
            if no.status in NOES and isinstance(given.get("detail"), str):
                return StartStatus("refused", given["detail"])
            raise BackendUnavailable(f"the Manager does not tell where a start stands (status {no.status})") from None

    async def report_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        try:
            await self._hub.post_activity(user, servers)
        except clients_hub.HubError as error:
            raise BackendUnavailable(str(error)) from error

    async def access_state(self, keys: Collection[tuple[str, str]]) -> AccessState:
        """Returns the blocked users, and which of these keys (user name and fingerprint) are no longer registered."""
        pairs = sorted(keys)
        parts = [pairs[at : at + KEYS_AT_ONCE] for at in range(0, len(pairs), KEYS_AT_ONCE)] or [[]]
        try:
            answers = [await _answered(self._manager.ssh_access(part)) for part in parts]
        except ManagerRejected as no:
            raise BackendUnavailable(f"the Manager does not tell who may stay (status {no.status})") from None
        gone = frozenset[tuple[str, str]]().union(*(one.gone_keys for one in answers))
        return AccessState(answers[-1].blocked, gone)

    async def deleted_users(self, users: Collection[str]) -> frozenset[str]:
        """Returns those of these users that no longer exist."""
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
        try:
            current, notices = await _answered(self._manager.open_notices(version, seconds))
        except BackendUnavailable as problem:
            raise BackendUnavailable("the Manager does not answer") from problem
        except ManagerRejected as no:
            hint = ": this service lacks the scope custom:notices:read" if no.status == 403 else ""
            raise BackendUnavailable(f"the Manager gave no notices (status {no.status}){hint}") from None
        _report_unreadable(notices, "unreadable-notice")
        return JobNotices(current, tuple(one for one in notices if one is not None and one.user))

    async def report_sessions(self, gateway: str, sessions: Collection[SshSessionState]) -> None:
        rows = [[one.user, one.server, one.seconds, one.open] for one in sessions]
        try:
            await _answered(self._manager.report_sessions(gateway, rows))
        except ManagerRejected as no:
            raise BackendUnavailable(f"the Manager does not take the report on sessions (status {no.status})") from None


async def _answered(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except ManagerUnavailable as problem:
        say("directory", level=logging.WARNING, source="manager", result="failed", why=problem.why)
        raise BackendUnavailable("the keys service does not answer: try again later, or use a token") from problem


def _report_unreadable(rows: Collection[object], result: str) -> None:
    for row in rows:
        if row is None:
            say("directory", level=logging.WARNING, source="manager", result=result)
