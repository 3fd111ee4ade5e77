"""The login of one client: `log_in` has its steps; `ClientConnection` collects the credentials, and counts the client.

Until a credential is proven every failure is the same answer after the same time: names that do not exist, names that
cannot exist, and wrong credentials all cost the same look-ups. The credential of the present request is proven, never
an earlier one. On a stream of ``ssh -J`` the user is known already: the credential on the inside must be the same
user's, and the login's name, which OpenSSH fills in from the local account, opens nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace

import asyncssh

from dlspawner import tracing
from ssh_gateway.auth.rate_limit import AuthAttempts
from ssh_gateway.auth.revalidation import LOST
from ssh_gateway.auth.trust import UNKNOWN
from ssh_gateway.backends.directory import BackendUnavailable
from ssh_gateway.core import certificates, proof, routing
from ssh_gateway.core.certificates import UserCertificate
from ssh_gateway.core.proof import Identity, OpenSession, RegisteredKey
from ssh_gateway.log import say
from ssh_gateway.session.context import Client, GatewayContext, JumpStream, SessionRefused
from ssh_gateway.session.session import Session
from ssh_gateway.session.terminals import escaped
from ssh_gateway.session.upstream import Access, enter
from ssh_gateway.transport.server import Downstream, LoginHandler

# An invalid name is looked up like any other, under a name that no Hub gives.
NO_LOGIN = routing.LoginName("..none..", "")
PROMPT = "Hub API token as password: "  # lftp and sshpass answer only a prompt that ends in "password:"
LONGEST_TOKEN = 4096
TOO_MANY_LOGINS = "too many logins are going on: try again in a moment"
TOO_MANY = "too many failed attempts: connect again with one key (ssh -o IdentitiesOnly=yes -i FILE) or a token"


@dataclass(frozen=True, slots=True)
class SignedKey:
    """A public key whose signature was verified just now."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and the SSH method by which it was sent."""

    method: str
    text: str


Credential = SignedKey | UserCertificate | Token  # of a certificate the signatures were verified just now


@dataclass(frozen=True, slots=True)
class Attempt:
    """The present authentication attempt: the login as written and its meanings, and the credential for the log.

    The first meaning that the credential proves holds; the last one is the folded name, and owes for wrong tokens.
    ``judged`` is False if the attempt costs nothing; ``proven`` is True after a proven credential that was refused.
    """

    written: str = ""
    logins: tuple[routing.LoginName, ...] = (NO_LOGIN,)
    method: str = ""
    key: str = ""
    judged: bool = True
    proven: bool = False

    @property
    def login(self) -> routing.LoginName:
        return self.logins[-1]


async def log_in(connection: ClientConnection, credential: Credential) -> Session | None:
    """Returns the session that a credential opens; None if it proves nothing.

    Raises SessionRefused for a proven user; the reason can be shown, because SUCCESS is not sent yet. A login with a
    server connects before SUCCESS. One without connects when its first packets show what the client wants.
    """
    client = connection.client
    with tracing.span("ssh login", {"dlspawner.connection": client.number}):
        with tracing.span("authenticate", {"dlspawner.method": connection.attempt.method}):
            identity = await authenticate(connection, credential)
        if identity is None:
            tracing.add({"dlspawner.outcome": "not proven"})
            return None
        tracing.add({"dlspawner.user": identity.user})
        access = await authorise(connection, identity)
        session = Session(client, access)
        if access.deferred:
            await session.defer()
        else:
            session.relay(*await enter(client, access))
        return session


async def authenticate(connection: ClientConnection, credential: Credential) -> Identity | None:
    """Returns the identity that a credential proves for the present login, whose meaning is known then."""
    client, attempt = connection.client, connection.attempt
    match credential:
        case SignedKey():
            identity = await _verify_key(connection, credential)
        case UserCertificate():
            identity = await _verify_certificate(connection, credential)
        case Token():
            identity = await _verify_token(connection, credential)
    if identity is not None:
        meant = tuple(login for login in attempt.logins if login.user == identity.user)
        connection.attempt = replace(connection.attempt, logins=meant)
        connection.count_judged(identity.method, identity.credential, identity)
        client.gateway.penalties.proven(client.source, attempt.login.user, client.gateway.now())
    return identity


async def authorise(connection: ClientConnection, identity: Identity) -> Access:
    """Returns the access of a proven identity, counted among the user's connections; SessionRefused if it has none."""
    client, wanted = connection.client, connection.attempt.login.server
    if (why := await client.gateway.refusal(identity.user)) is not None:
        raise SessionRefused(why)
    connection.count_session(identity)
    if client.jump is not None and wanted != client.jump.server:
        raise SessionRefused(f"this connection leads to {client.jump.server or 'your default server'} only")
    if wanted is None:
        return Access(identity, "", deferred=True)
    connection.leave_unauthenticated()  # the job may take minutes to start
    return Access(identity, wanted)


async def _verify_key(connection: ClientConnection, credential: SignedKey) -> Identity | None:
    gateway = connection.client.gateway
    found = await connection.key_owner(credential.data)
    if found is None:
        return None
    identity, key = found
    gateway.run_in_background("key used", gateway.auth_backend.key_used(identity.user, key))
    return identity


async def _verify_certificate(connection: ClientConnection, certificate: UserCertificate) -> Identity | None:
    client, attempt, login, problem = connection.client, connection.attempt, NO_LOGIN, None
    foldable = {name for name in certificate.principals if name != certificates.folded(name) == attempt.login.user}
    try:
        unknown = await client.gateway.auth_backend.deleted_users(foldable)
        for login in attempt.logins:
            problem = certificates.certificate_refusal(certificate, login.user, client.source, time.time(), unknown)
            if problem is None:
                break
        problem = problem or client.gateway.revalidator.revocations.refusal(certificate.id)
        judged = problem != UNKNOWN
    except BackendUnavailable as unavailable:
        problem, judged = str(unavailable), False
    if not judged:  # users do not pay for an administrator's mistake, nor for a Hub that is away
        connection.attempt = replace(attempt, judged=False)
    if problem is not None or login is NO_LOGIN:
        client.show(problem or "this is no login name")
        return None
    return certificates.verify_certificate(certificate, login.user)


async def _verify_token(connection: ClientConnection, token: Token) -> Identity | None:
    """Judges a token; a refusal comes after the same time for every reason.

    A token that proves nothing is charged, also if its client does not wait for the answer.
    """
    client, attempt, started = connection.client, connection.attempt, time.monotonic()
    gateway, user = client.gateway, attempt.login.user
    refusal = gateway.penalties.token_refusal(client.source, user, gateway.now())
    charged, owner = True, None
    try:
        if refusal is not None:
            client.show(refusal)
        elif len(token.text) <= LONGEST_TOKEN:
            owner = await gateway.auth_backend.token_owner(token.text)
        proofs = [proof.verify_token(login.user, token.method, owner) for login in attempt.logins]
        identity = next(filter(None, proofs), None)
        charged = identity is None
    except BackendUnavailable as problem:
        charged, identity = False, None
        client.show(str(problem))
    finally:
        if charged:
            gateway.penalties.token_failed(client.source, user, gateway.now(), judged=refusal is None)
    if identity is None or attempt.login is NO_LOGIN:
        await asyncio.sleep(max(0.0, started + gateway.limits.failure_seconds - time.monotonic()))
        return None
    return replace(identity, token=token.text)


class ClientConnection(LoginHandler):
    """One client from its first byte to its end: limits, counts and the log; made by `GatewayServer.make_leg`.

    ``identity`` is the proven one that is counted among its user's connections.
    """

    def __init__(self, gateway: GatewayContext, leg: Downstream, source: str, jump: JumpStream | None) -> None:
        self.client = Client(gateway, leg, source, jump, gateway.next_number())
        self.attempt = Attempt()
        self.identity: Identity | None = None
        self.session: Session | None = None
        self._attempts = AuthAttempts(gateway.limits.attempts)
        self._keys: dict[str, tuple[RegisteredKey, ...]] = {}
        self._introduced = False

    # Begin and end of the connection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        client, gateway = self.client, self.client.gateway
        client.leg.number = client.number
        gateway.connections.add(self)
        if client.jump is None or client.jump.outer.budget.take(gateway.now()):
            self._introduce()
        gateway.counters.connected()
        leaves = gateway.unauthenticated.enter(self, gateway.penalties.source_of(client.source))
        if leaves is not None:
            leaves.make_room()

    @property
    def begun(self) -> bool:
        return bool(self.attempt.written)

    def make_room(self) -> None:
        client, gateway = self.client, self.client.gateway
        gateway.counters.refused("login")
        if gateway.penalties.worth_a_line(client.source, gateway.now()):
            why = {"what": "login", "why": TOO_MANY_LOGINS}
            say("refused", level=logging.WARNING, conn=client.number, source=client.source, **why)
        client.leg.end(asyncssh.DISC_TOO_MANY_CONNECTIONS, TOO_MANY_LOGINS)
        if not self.begun:  # a flood leaves nothing behind
            client.leg.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        gateway = self.client.gateway
        self.leave_unauthenticated()
        if self.identity is not None:
            gateway.session_limit.leave(self.identity.user)
        gateway.gone(self)
        if self.session is not None:
            self.session.client_gone()
        if self._introduced:
            self._say_farewell(exc)

    def _introduce(self) -> None:
        """Logs the first line about this connection, once; a stream without a login attempt may have none."""
        if not self._introduced:
            self._introduced = True
            client = self.client
            through = client.jump.outer.number if client.jump else None
            say("connect", conn=client.number, source=client.source, through=through)

    def _say_farewell(self, exc: Exception | None) -> None:
        """Logs the end, with the gateway's own reason if it has one, else the client's or the transport's."""
        client, session = self.client, self.session
        why: object = client.leg.disconnect_reason[1] if client.leg.disconnect_reason else exc
        say(
            "close",
            conn=client.number,
            user=session.user if session else None,
            server=session.server if session else None,
            seconds=time.monotonic() - client.since,
            up=session.bytes_up if session else None,
            down=session.bytes_down if session else None,
            unlogged=client.budget.suppressed or None,
            why=why if client.leg.last_words is None else client.leg.last_words,
        )

    def leave_unauthenticated(self) -> None:
        self.client.gateway.unauthenticated.leave(self)

    def count_session(self, identity: Identity) -> None:
        """Counts this connection as the user's; SessionRefused above the limit."""
        limit = self.client.gateway.session_limit
        before, self.identity = self.identity, None
        if before is not None:  # of an attempt that the client dropped for this one
            limit.leave(before.user)
        if (refusal := limit.enter(identity.user)) is not None:
            raise SessionRefused(refusal)
        self.identity = identity

    def too_late(self) -> str:
        return f"no login within {self.client.gateway.limits.login_seconds:g} seconds"

    # Revalidation

    def open_session(self) -> OpenSession:
        if self.identity is None:
            raise ValueError("a connection without an identity has no session")
        return OpenSession(self.identity, *(self.session.server, self.session.job) if self.session else ())

    @property
    def lost(self) -> bool:
        return self.client.leg.lost

    async def end_if_lost(self) -> None:
        if not await self.client.leg.answers():
            self.end(LOST)
            self.client.leg.drop()
            if self.session is not None:
                await self.session.over.wait()

    def end(self, why: str) -> None:
        """Ends the connection because access has ended; does nothing if the client is gone already."""
        client, held = self.client, self.open_session()
        if not client.leg.ended:
            say("ended", conn=client.number, user=held.proof.user, server=held.server, job=held.job, why=why)
            client.leg.end(asyncssh.DISC_BY_APPLICATION, escaped(why))

    # User and credentials

    def begin_auth(self, username: str) -> bool:
        typed = self.client.leg.login_name
        self.attempt = Attempt(typed, self._read_logins(typed, username) or (NO_LOGIN,))
        return True

    def _read_logins(self, typed: str, folded: str) -> tuple[routing.LoginName, ...]:
        logins, jump = routing.parse_logins(typed, folded), self.client.jump
        if jump is None:
            return logins
        # The name of a local account counts for nothing; one with a server's name in it is meant.
        named = [login for login in logins if login.server is not None]
        if named:
            return tuple(login for login in named if login.user == jump.user)
        return (routing.LoginName(jump.user, jump.server),)

    def public_key_auth_supported(self) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def kbdint_auth_supported(self) -> bool:
        return True

    def unreadable_key(self) -> None:
        self._begin_attempt("publickey")

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """True if this key is acceptable; also called without a signature, so it must have no effects."""
        self._begin_attempt("publickey", key.get_fingerprint())
        if not self._attempts.may_ask():
            return False
        return await self.key_owner(key.public_data) is not None

    def trusts(self, ca: asyncssh.SSHKey, certificate: UserCertificate) -> bool:
        """As `validate_public_key`, for a certificate. The log has its key until the CA is trusted: an untrusted
        certificate may claim any serial and key id.
        """
        self._begin_attempt("publickey", certificate.key)
        if not (self._attempts.may_ask() and self.client.gateway.authorities.trusts(ca)):
            return False
        self._begin_attempt("publickey", certificate.name)
        return True

    async def proven(self, credential: asyncssh.SSHKey | UserCertificate) -> bool:
        if isinstance(credential, UserCertificate):
            return await self._log_in(credential)
        return await self._log_in(SignedKey(credential.public_data))

    async def validate_password(self, username: str, password: str) -> bool:
        return await self._token("password", password)

    async def change_password(self, username: str, old_password: str, new_password: str) -> bool:
        return False  # tokens are made on the Hub's pages

    def get_kbdint_challenge(
        self, username: str, lang: str, submethods: str
    ) -> tuple[str, str, str, list[tuple[str, bool]]]:
        return "", "", "", [(PROMPT, False)]

    async def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> bool:
        return await self._token("keyboard-interactive", responses[0] if len(responses) == 1 else "")

    def _begin_attempt(self, method: str, key: str = "") -> None:
        self.attempt = Attempt(self.attempt.written, self.attempt.logins, method, key)

    async def key_owner(self, key: bytes) -> tuple[Identity, RegisteredKey] | None:
        """Returns the identity that a signature of this key proves for the present login; all names are looked up."""
        found = [proof.verify_key(login.user, key, await self._registered(login.user)) for login in self.attempt.logins]
        return next(filter(None, found), None)

    async def _registered(self, user: str) -> tuple[RegisteredKey, ...]:
        """Returns the user's keys, looked up once per connection and name."""
        if user not in self._keys:
            try:
                found = await self.client.gateway.auth_backend.registered_keys(user)
            except BackendUnavailable as problem:
                found = ()
                self.client.show(str(problem))
            self._keys[user] = () if user == NO_LOGIN.user else found
        return self._keys[user]

    async def _token(self, method: str, text: str) -> bool:
        """Counts a guess, and judges it. A number of empty answers, from scripts without one, are counted as well.

        Counted here and not in `attempt_failed`: a client that drops an attempt for the next never gets there.
        """
        client, gateway, text = self.client, self.client.gateway, text.strip()
        self._begin_attempt(method)
        may_guess = self._attempts.may_guess()
        if text:
            refusal = gateway.penalties.refusal(client.source, gateway.now()) if may_guess else TOO_MANY
            if refusal is None:
                return await self._log_in(Token(method, text))
        else:  # guesses nothing
            await asyncio.sleep(gateway.limits.failure_seconds)
            # After the pause: else a client that drops this attempt would have the next one free.
            self.attempt = replace(self.attempt, judged=not may_guess)
            refusal = None if may_guess else TOO_MANY
        if refusal is not None:
            client.leg.end(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, refusal)
        return False

    async def _log_in(self, credential: Credential) -> bool:
        try:
            self.session = await log_in(self, credential)
        except SessionRefused as refusal:
            self.attempt = replace(self.attempt, proven=True)
            self.client.disconnect(self.attempt.login.user, refusal)
        if self.session is None:
            return False
        self.leave_unauthenticated()
        return True

    def count_judged(self, method: str, credential: str, identity: Identity | None = None) -> None:
        """Counts and logs a judged credential; ``identity`` is the one that it proved."""
        self._introduce()
        self.client.gateway.counters.judged(method, proven=identity is not None)
        say(
            "auth",
            conn=self.client.number,
            login=self.attempt.written,
            result="accepted" if identity else "failed",
            user=identity.user if identity else None,
            method=method or None,
            key=credential or None,
            attempt=None if identity else self._attempts.failed,
        )

    def attempt_failed(self) -> str | None:
        gateway, attempt = self.client.gateway, self.attempt
        if attempt.proven:  # after a proven credential, which is no failed attempt
            return None
        exhausted = attempt.judged and self._attempts.exhausted()
        self._begin_attempt("")
        self.count_judged(attempt.method, attempt.key)
        return TOO_MANY if exhausted else gateway.penalties.refusal(self.client.source, gateway.now())

    # Requests after authentication

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]] | bool:
        """Answers a stream that the gateway serves itself."""
        return self.session.serve_stream(dest_host, dest_port) if self.session else False

    def stream_refused(self, why: str) -> None:
        if self.session is not None:
            self.session.note_refused_stream(why)
