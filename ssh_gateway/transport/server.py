"""The client's leg: calls of its `LoginHandler` during a login, and the time limit of key exchanges."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable

import asyncssh
from asyncssh.constants import MSG_KEXINIT, MSG_USERAUTH_REQUEST
from asyncssh.packet import PacketDecodeError, SSHPacket
from asyncssh.public_key import SSHOpenSSHCertificate, decode_ssh_public_key

from ssh_gateway.core.certificates import UserCertificate
from ssh_gateway.core.packets import PROVE_HOST_KEYS, REQUEST_SUCCESS, text, text_at
from ssh_gateway.transport.connection import RelayConnection
from ssh_gateway.transport.keys import SIGNATURE_ALGS, is_strong
from ssh_gateway.transport.reading import certificate_in, certificate_of, is_key, is_signed_well, signed_with
from ssh_gateway.transport.streams import LONGEST, JumpChannel, StreamScheduler

# The time for a client to finish a key exchange that it began itself, counted while everything sent to it has arrived.
# A client needs a second; the minutes are for a suspended client, which costs no more than an idle one.
EXCHANGE_SECONDS = 600.0
EXCHANGE_LOOK_SECONDS = 20.0


class LoginHandler(asyncssh.SSHServer):
    """The login of one client, from the greeting on."""

    @abstractmethod
    async def proven(self, credential: asyncssh.SSHKey | UserCertificate) -> bool:
        """Tells if the user may enter; SUCCESS follows on True. The signature of the key was verified just now, and
        that of the trusted CA; this handler judges the certificate's content.
        """

    @abstractmethod
    def unreadable_key(self) -> None:
        """Notes that the attempt refused next had no valid key, or a signature of an unaccepted algorithm."""

    @abstractmethod
    def trusts(self, ca: asyncssh.SSHKey, certificate: UserCertificate) -> bool:
        """True if a certificate signed by ``ca`` may be checked; also called without the client's signature."""

    @abstractmethod
    def attempt_failed(self) -> str | None:
        """Notes a refused attempt; a returned sentence ends the connection, ``None`` lets the client try again."""

    @abstractmethod
    def stream_refused(self, why: str) -> None:
        """Notes a stream of ``ssh -J`` that was refused before this handler was called for it."""

    @abstractmethod
    def too_late(self) -> str:
        """Returns the sentence for a client that exceeded the time for a login."""


class Downstream(RelayConnection, asyncssh.SSHServerConnection):
    """The leg to the client."""

    # The name of the present login as the client sent it; asyncssh's is folded by SASLprep.
    login_name = ""

    _exchange_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: asyncssh.SSHServerConnectionOptions,
        make_handler: Callable[[Downstream], LoginHandler],
    ) -> None:
        super().__init__(loop, options)
        self._turns = StreamScheduler(lambda: self.blocked)
        self._protocol_factory = lambda: make_handler(self)
        self._asked_for_methods = False

    async def reload_config(self) -> None:
        """Does nothing: options are the same for all clients; asyncssh would build them again for every login."""

    async def validate_public_key(self, username: str, key_data: bytes, msg: bytes, signature: bytes) -> bool:
        """Validates as asyncssh does; then `LoginHandler` judges a verified signature, of the key in this very request.

        A request without signature only asks if a key is acceptable: nothing is decided there (CVE-2024-45337).
        """
        if not is_key(key_data) or (msg and signed_with(signature) not in SIGNATURE_ALGS):
            self._handler().unreadable_key()
            return False
        if not await super().validate_public_key(username, key_data, msg, signature):
            return False
        if not msg:
            return True
        return await self._handler().proven(certificate_in(key_data) or decode_ssh_public_key(key_data))

    async def _validate_openssh_certificate(self, username: str, cert: SSHOpenSSHCertificate) -> asyncssh.SSHKey | None:
        """Returns the key of a certificate of a trusted CA; asyncssh would judge its content, without a reason."""
        ca = cert.signing_key
        trusted = self._handler().trusts(ca, certificate_of(cert))
        if not (trusted and is_strong(ca) and is_strong(cert.key) and is_signed_well(cert)):
            return None
        cert.key.set_touch_required(True)
        key: asyncssh.SSHKey = cert.key
        return key

    def send_userauth_failure(self, partial_success: bool) -> None:
        # Clients ask for the list of methods by a first request with a method that does not exist ("none").
        if self._auth is None and not self._asked_for_methods:
            self._asked_for_methods = True
        elif reason := self._handler().attempt_failed():
            self.end(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, reason)
            return
        super().send_userauth_failure(partial_success)

    def create_tcp_channel(self, *_args: object, **_kwargs: object) -> JumpChannel:
        """Makes the channel of a requested stream."""
        self._update_recv_pktlen(LONGEST)
        return JumpChannel(self, self._loop, self._turns, lambda why: self._handler().stream_refused(why))

    def take_longer(self, seconds: float) -> None:
        """Extends the time of a login: ``seconds`` from now."""
        if self._login_timer is not None:
            self._cancel_login_timer()
            self._login_timer = self._loop.call_later(seconds, self._login_timer_callback)

    def prove_host_keys(self, asked: bytes) -> bytes | None:
        """Returns the answer to PROVE_HOST_KEYS (OpenSSH's PROTOCOL, 2.5); ``None`` for a key of another server."""
        packet = SSHPacket(asked[text_at(asked, 1)[1] + 1 :])
        signed = text(PROVE_HOST_KEYS) + text(self._session_id)
        try:
            wanted = [packet.get_string() for _ in self._all_server_host_keys if packet]
            keys = [self._all_server_host_keys[key] for key in wanted]
        except (PacketDecodeError, KeyError):
            return None
        if packet:
            return None
        proofs = [text(key.sign(signed + text(key.public_data))) for key in keys]
        return bytes([REQUEST_SUCCESS]) + b"".join(proofs)

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        # New keys cost the gateway more than the client, and a login needs none: no known client asks for any.
        if pkttype == MSG_KEXINIT and self._session_id and not self._auth_complete:
            raise asyncssh.ProtocolError("new keys are for after the login")
        if pkttype == MSG_USERAUTH_REQUEST:
            packet = self._read_login(packet)
        # An exchange that the gateway began has no limit: a suspended client delays it like everything else.
        if pkttype == MSG_KEXINIT and self._auth_complete and not self.rekeying:
            self._look_for_keys(self._loop.time())
        return super().process_packet(pkttype, pktid, packet)

    def _read_login(self, request: SSHPacket) -> SSHPacket:
        """Notes the login's name; returns the request without white space around a password, which asyncssh refuses."""
        payload = request.get_full_payload()
        name, at = text_at(payload, 1)
        method, at = text_at(payload, text_at(payload, at)[1])
        self.login_name = (name or b"").decode("utf-8", "replace")
        password, end = text_at(payload, at + 1)
        if method == b"password" and password is not None:
            payload = payload[: at + 1] + text(password.strip()) + payload[end:]
        request = SSHPacket(payload)
        request.get_byte()
        return request

    def _look_for_keys(self, since: float) -> None:
        """Ends the connection if the client has abandoned its key exchange, else checks again later.

        ``since`` is the time from which the client has had everything that it needs.
        """
        now = self._loop.time()
        if not self.arrived:
            since = now
        if now - since >= EXCHANGE_SECONDS:
            self.end_unfinished()
        else:
            self._exchange_timer = self._loop.call_later(EXCHANGE_LOOK_SECONDS, self._look_for_keys, since)

    def _look_no_more(self) -> None:
        if self._exchange_timer is not None:
            self._exchange_timer.cancel()
            self._exchange_timer = None

    def _send_deferred_packets(self) -> None:
        if not self.rekeying:
            self._look_no_more()
        super()._send_deferred_packets()

    def _cleanup(self, exc: Exception | None) -> None:
        self._look_no_more()
        super()._cleanup(exc)

    def _login_timer_callback(self) -> None:
        self._login_timer = None
        self.end(asyncssh.DISC_BY_APPLICATION, self._handler().too_late())

    def _flow(self) -> None:
        super()._flow()
        self._turns.go_on()

    def _handler(self) -> LoginHandler:
        owner = self._owner
        if not isinstance(owner, LoginHandler):
            raise asyncssh.ConnectionLost("The connection is closed")
        return owner
