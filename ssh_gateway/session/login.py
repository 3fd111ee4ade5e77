"""Authentication of one client, from the first byte until a credential is proven.

Until then every failure is the same answer after the same time: names that do not exist, names that cannot exist, and
wrong credentials all cost one look-up. The credential of the present request is proven, never an earlier one. On a
stream of ``ssh -J`` the user is known already: the credential on the inside must be the same user's, and the login's
name, which OpenSSH fills in from the local account, opens nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace

import asyncssh

from ssh_gateway.auth.rate_limit import AuthAttempts
from ssh_gateway.auth.revalidation import UNTOLD
from ssh_gateway.auth.trust import UNKNOWN
from ssh_gateway.backends.directory import BackendUnavailable
from ssh_gateway.core import certificates, routing
from ssh_gateway.core import proof as core_proof
from ssh_gateway.core.certificates import UNBOUND, SessionBounds, UserCertificate
from ssh_gateway.core.proof import Identity
from ssh_gateway.log import say
from ssh_gateway.session.context import GatewayContext, JumpStream
from ssh_gateway.session.session import Session, SessionRefused
from ssh_gateway.transport import server as transport_server
from ssh_gateway.transport.login_handler import LoginHandler

# An invalid name is looked up like any other, under a name that no Hub gives.
NOBODY = routing.LoginName("..nobody..", "")
PROMPT = "Hub API token as password: "  # lftp and sshpass answer only a prompt that ends in "password:"
LONGEST_TOKEN = 4096
TOO_MANY = "too many failed attempts: connect again with one key (ssh -o IdentitiesOnly=yes -i FILE) or a token"


class AuthHandler(LoginHandler):
    """Answers asyncssh's calls about one client; made by `GatewayServer.make_leg`."""

    leg: transport_server.Downstream

    def __init__(self, server: GatewayContext, jump: JumpStream | None, source: str) -> None:
        self._server = server
        self._jump = jump
        self._number = server.next_number()
        self._login = NOBODY
        self._written = ""
        self._attempts = AuthAttempts(server.limits.attempts)
        self._keys: dict[str, tuple[core_proof.RegisteredKey, ...]] = {}
        self._source = jump.source if jump else source
        self._introduced = False
        self._at_door = False
        self._tried = False
        self._untold = False  # the keys or the blocked users could not be read
        self._unjudged = False  # this attempt was not judged, and costs nothing
        self._sent_home = False
        self._method = ""
        self._key = ""
        self._late = False
        self._in_crowd = ""
        self._since = time.monotonic()
        self.session: Session | None = None
        self.waiting: Session | None = None  # the session that waits for its job

    # Begin and end of the connection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        if not isinstance(conn, transport_server.Downstream):
            raise TypeError("only Server.make_leg makes visitors")
        self.leg = conn
        conn.number = self._number
        self._server.connections.add(self)
        if self._jump is None or self._jump.budget.take(self._server.now()):
            self._introduce()
        # Connections from the network were admitted by `accept`.
        refusal = self._server.unauthenticated.enter(self._place()) if self._jump else None
        self._at_door = refusal is None
        if refusal is None:
            self._server.counters.connected()
        else:
            self._server.counters.refused("login")
            if self._introduced:
                say("refused", level=logging.WARNING, conn=self._number, source=self._source, what="login", why=refusal)
            # asyncssh sends its version after this call, and clients read no reason before it.
            asyncio.get_running_loop().call_soon(conn.end, asyncssh.DISC_TOO_MANY_CONNECTIONS, refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_unauthenticated()
        if self._in_crowd:
            self._server.session_limit.leave(self._in_crowd)
        elif self._late or not (self._tried or self._untold):
            self._server.penalties.left(self._source, late=self._late, now=self._server.now())
        self._server.gone(self)
        if self.session is not None:
            self.session.client_gone()
        if self._introduced:
            self._say_farewell(exc)

    def _introduce(self) -> None:
        """Logs the first line about this connection, once; a stream without a login attempt may have none."""
        if not self._introduced:
            self._introduced = True
            say("connect", conn=self._number, source=self._source, through=self._jump.outer if self._jump else None)

    def _say_farewell(self, exc: Exception | None) -> None:
        visit = self.session
        say(
            "close",
            conn=self._number,
            user=visit.proof.user if visit else None,
            server=visit.server_name if visit else None,
            seconds=time.monotonic() - self._since,
            up=visit.bytes_up if visit else None,
            down=visit.bytes_down if visit else None,
            unlogged=(visit.budget.suppressed or None) if visit else None,
            why=self._why_it_ended(exc),
        )

    def _why_it_ended(self, exc: Exception | None) -> object:
        """Returns the gateway's own reason if it ended the connection, else the client's or the transport's."""
        if self.leg.last_words is not None:
            return self.leg.last_words
        return self.leg.disconnect_reason[1] if self.leg.disconnect_reason else exc

    def _place(self) -> str:
        return self._server.penalties.source_of(self._source)

    def _leave_unauthenticated(self) -> None:
        if self._at_door:
            self._at_door = False
            self._server.unauthenticated.leave(self._place())

    def too_late(self) -> str:
        self._late = True
        return f"no login within {self._server.limits.login_seconds:g} seconds"

    # User and credentials

    def begin_auth(self, username: str) -> bool:
        self._written = username
        self._login = self._read_login(username)
        return True

    def _read_login(self, username: str) -> routing.LoginName:
        login = routing.parse_login(username)
        if self._jump is None:
            return login or NOBODY
        # The name of a local account counts for nothing; one with a server's name in it is meant.
        if login is not None and login.server is not None:
            return login if login.user == self._jump.user else NOBODY
        return routing.LoginName(self._jump.user, self._jump.server)

    def public_key_auth_supported(self) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def kbdint_auth_supported(self) -> bool:
        return True

    def stream_refused(self, why: str) -> None:
        if self.session is not None:
            self.session.note_refused_stream(why)

    def unreadable_key(self) -> None:
        self._method, self._key = "publickey", ""

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """True if this key is acceptable; also called without a signature, so it must have no effects."""
        self._method, self._key = "publickey", key.get_fingerprint()
        if not self._attempts.may_ask():
            return False
        registered = await self._registered(self._login.user)
        return core_proof.verify_key(self._login.user, key.public_data, registered) is not None

    async def proven(self, username: str, key: asyncssh.SSHKey) -> bool:
        user = self._login.user
        found = core_proof.verify_key(user, key.public_data, await self._registered(user))
        if found is None:
            return False
        proof, registered = found
        self._server.run_in_background("key used", self._note_use(user, registered))
        return await self._enter(proof)

    def trusts(self, ca: asyncssh.SSHKey, certificate: UserCertificate) -> bool:
        """As `validate_public_key`, for a certificate. The log has its key until the CA is trusted: an untrusted
        certificate may claim any serial and key id.
        """
        self._method, self._key = "publickey", certificate.key
        if not (self._attempts.may_ask() and self._server.authorities.trusts(ca)):
            return False
        self._key = certificate.name
        return True

    async def proven_by_certificate(self, username: str, certificate: UserCertificate) -> bool:
        user = self._login.user
        problem = certificates.certificate_refusal(certificate, user, self._source, time.time())
        problem = problem or self._server.revocations.refusal(certificate.badge)
        if problem == UNKNOWN:  # users do not pay for an administrator's mistake
            self._untold = self._unjudged = True
        if problem is not None or self._login is NOBODY:
            self._tell(problem or "this is no login name")
            return False
        return await self._enter(certificates.verify_certificate(certificate, user), certificate.bounds)

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

    def attempt_failed(self) -> str | None:
        if self._sent_home:  # after a proven credential, which is no failed attempt
            return None
        exhausted = not self._unjudged and self._attempts.exhausted()
        self._unjudged = False
        method, key = self._method, self._key
        self._method = self._key = ""
        self._server.counters.judged(method, proven=False)
        self._introduce()
        say(
            "auth",
            conn=self._number,
            login=self._written,
            result="failed",
            method=method or None,
            key=key or None,
            attempt=self._attempts.failed,
        )
        return TOO_MANY if exhausted else self._server.penalties.refusal(self._source, self._server.now())

    async def _token(self, method: str, token: str) -> bool:
        """Judges a token."""
        self._method, self._key = method, ""
        if not token:  # a script without an answer guesses nothing
            return await self._unanswered()
        self._tried = True
        if (why := self._no_more_guesses()) is not None:
            self.leg.end(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, why)
            return False
        proof = await self._judged(method, token)
        return proof is not None and await self._enter(proof)

    async def _unanswered(self) -> bool:
        """Refuses an empty answer, which is no failed attempt: its connection costs as much as one without an attempt.
        A number of them count as guesses.
        """
        one_more = self._attempts.may_guess()
        await asyncio.sleep(self._server.limits.failure_seconds)
        self._unjudged = one_more  # after the pause: else a client that drops this attempt would have the next one free
        if not one_more:
            self.leg.end(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, TOO_MANY)
        return False

    def _no_more_guesses(self) -> str | None:
        """Counts a guess; returns the sentence that ends the connection if no guess is left.

        Counted here and not in `attempt_failed`: a client that drops an attempt for the next never gets there.
        """
        if not self._attempts.may_guess():
            return TOO_MANY
        return self._server.penalties.refusal(self._source, self._server.now())

    async def _judged(self, method: str, token: str) -> Identity | None:
        """Returns the identity that a token proves; a refusal comes after the same time for every reason.

        A token that proves nothing is charged, also if its client does not wait for the answer.
        """
        server, user, started = self._server, self._login.user, time.monotonic()
        refusal = server.penalties.token_refusal(self._source, user, server.now())
        charged, bearer = True, None
        try:
            if refusal is not None:
                self._tell(refusal)
            elif len(token) <= LONGEST_TOKEN:
                bearer = await server.auth_backend.token_owner(token)
            proof = core_proof.verify_token(user, method, bearer)
            charged = proof is None
        except BackendUnavailable as problem:
            charged, proof = False, None
            self._tell(str(problem))
        finally:
            if charged:
                server.penalties.token_failed(self._source, user, server.now(), judged=refusal is None)
        if proof is None or self._login is NOBODY:
            await asyncio.sleep(max(0.0, started + server.limits.failure_seconds - time.monotonic()))
            return None
        return replace(proof, token=token)

    async def _registered(self, user: str) -> tuple[core_proof.RegisteredKey, ...]:
        """Returns the user's keys, looked up once per connection and name."""
        if user not in self._keys:
            try:
                found = await self._server.auth_backend.registered_keys(user)
            except BackendUnavailable as problem:
                self._untold, found = True, ()
                self._tell(str(problem))
            self._keys[user] = () if user == NOBODY.user else found
        return self._keys[user]

    def _tell(self, sentence: str) -> None:
        with contextlib.suppress(OSError):
            self.leg.send_auth_banner(f"{sentence}\r\n")

    async def _note_use(self, user: str, key: core_proof.RegisteredKey) -> None:
        with contextlib.suppress(BackendUnavailable):
            await self._server.auth_backend.key_used(user, key)

    async def _enter(self, proof: Identity, bounds: SessionBounds = UNBOUND) -> bool:
        """Begins the session for a proven credential, before SUCCESS is sent: the last moment at which a reason can be
        shown.
        """
        self._introduce()
        say(
            "auth",
            conn=self._number,
            login=self._written,
            result="accepted",
            user=proof.user,
            method=proof.method,
            key=proof.credential,
        )
        self._server.counters.judged(proof.method, proven=True)
        self._server.penalties.proven(self._source, proof.user, self._server.now())
        visit = Session(self._server, self.leg, proof, self._number, self._source, bounds)
        server = self._login.server
        try:
            await self._server.fetch_blocked()
            if (why := self._server.refusal(proof.user)) is not None:
                self._untold = why == UNTOLD
                raise SessionRefused(why)
            self._count_session(proof.user)
            if self._jump is not None and server != self._jump.server:
                raise SessionRefused(f"this connection leads to {self._jump.server or 'your default server'} only")
            if server is None:
                await visit.announce()
                visit.defer_connect()
            else:
                self._leave_unauthenticated()  # the client is authenticated, and the job may take minutes to start
                self.waiting = visit
                await visit.connect(server)
        except SessionRefused as refusal:
            self._sent_home = True
            visit.disconnect(refusal)
            return False
        self.session = visit
        self._leave_unauthenticated()
        return True

    def _count_session(self, user: str) -> None:
        """Counts this connection as the user's; SessionRefused above the limit."""
        refusal = None if self._in_crowd else self._server.session_limit.enter(user)
        if refusal is not None:
            raise SessionRefused(refusal)
        self._in_crowd = user

    # Requests after authentication

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]] | bool:
        """Answers a stream that the gateway serves itself."""
        return self.session.serve_stream(dest_host, dest_port) if self.session else False
