"""The packet layer: every private name of asyncssh that the gateway leans on is in this package.

asyncssh does key exchange, authentication and re-keying on both legs. What it lacks for a relay is added here, by
subclassing its connections: a way to take over packets of type 80 and above (`Leg.receive`), to send them
(`Leg.send_payload`), to know when a leg cannot take more (`Leg.blocked`), a close that first writes what is buffered,
bounds on what a peer makes it keep, words for errors of our own (`Leg.internal_error`), and the moment between a proven
credential and SUCCESS (`Door.proven`). A shorter way for data is in `bulk`, what holds the streams of `ssh -J` back in
`streams`, and what a peer's bytes say in `reading`.

Rules: nothing outside imports asyncssh's modules or underscored names; tests/gateway/test_wire.py fails loudly when a
name moved or changed its meaning; asyncssh is pinned to one minor version.

Refused: asyncssh's channels on both legs (they lose exit statuses, agent and unix-socket forwards, and everything that
is not implemented twice), and its keepalives (a leg that is paused on purpose would look dead; TCP's own do it).

There is no fallback to asyncssh's public API alone, because it would cost more than it saves: redirected processes
failed 12, and spliced channels 7, of 35 things that clients do (agents, X11, `-R`, sockets, failed subsystems among
them), at 1.9 seconds of a processor for each GiB in place of 0.7, and all of it would have to be tested a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh
from asyncssh.constants import MSG_DISCONNECT, MSG_IGNORE, MSG_KEXINIT
from asyncssh.packet import PacketDecodeError, SSHPacket
from asyncssh.public_key import SSHOpenSSHCertificate, decode_ssh_public_key

from ssh_gateway import listening
from ssh_gateway.algorithms import SIGNATURE_ALGS, is_strong
from ssh_gateway.door import Door
from ssh_gateway.logs import say_failed
from ssh_gateway.packets import (
    CHANNEL_WINDOW_ADJUST,
    FIRST_RELAYED,
    PROVE_HOST_KEYS,
    REQUEST_SUCCESS,
    Payload,
    text,
    text_at,
)
from ssh_gateway.wire.bulk import BulkConnection
from ssh_gateway.wire.bulk import Lane as Lane
from ssh_gateway.wire.reading import (
    certificate_in,
    certificate_of,
    is_key,
    is_signed_well,
    is_unreadable,
    read_disconnect,
    signed_with,
)
from ssh_gateway.wire.reading import read_certificate as read_certificate
from ssh_gateway.wire.streams import LONGEST, Stream, Turns

# The gateway's own channels are numbered from here, the sshd's from 0: both may live on one relayed connection.
FIRST_OWN_CHANNEL = 0x8000_0000

WRITE_BUFFER = 256 * 1024
# Bytes that a peer lets lie which it is sent, twice what a relay may keep for a key exchange. What is relayed is held
# back long before, so it is answers of the gateway's own that come to this.
MOST_UNSENT = 16 * 2**20
MOST_DEFERRED = 100_000  # packets kept for the end of a key exchange
UNREAD = "too much was not read of what it was sent"
UNFINISHED = "a key exchange was not finished"
# How long a client may leave a key exchange that it began itself, counted while all that it was sent has arrived. A
# client needs a second; minutes are for one that is stopped just then. It costs no more than one that is idle.
EXCHANGE_SECONDS = 600.0
EXCHANGE_LOOK_SECONDS = 20.0
FAREWELL_SECONDS = 1.0
STREAM_FAREWELL_SECONDS = 10.0  # on a stream of `ssh -J`, which has to wait for its turn
FAILED = "the gateway failed: try again, and tell your administrator"
UNREADABLE = "what was sent cannot be read"


class Leg(BulkConnection):
    """One of the two connections of a relay: asyncssh's, with its packets of type 80 and above for the taking."""

    # Called whenever `blocked` or `rekeying` may have changed.
    flow_changed: Callable[[], None] | None = None
    # Code and reason of the DISCONNECT with which the other end left, or was left because of an error here.
    farewell: tuple[int, str] | None = None
    # The reason with which the gateway ended it by `end`.
    last_words: str | None = None
    # What its connection is called in the log.
    number: str | None = None

    _parting: Exception | None = None
    _write_paused = False
    _reading = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channels = _Channels(self)
        self._next_recv_chan = FIRST_OWN_CHANNEL

    # The relay's side

    @property
    def ended(self) -> bool:
        """Closed, or about to be."""
        return self._transport is None

    @property
    def rekeying(self) -> bool:
        """A key exchange is going on: nothing can be sent, and only reading on can finish it."""
        return not self._kex_complete

    @property
    def blocked(self) -> bool:
        """More packets for this leg would pile up in memory."""
        return self._write_paused or not self._kex_complete

    @property
    def arrived(self) -> bool:
        """Whether the other end's kernel has all that was sent: there is no slow network or full buffer to wait for."""
        link = self._transport
        if link is None or link.get_write_buffer_size():
            return False
        if isinstance(link, Stream):
            outer = link.get_connection()
            # The gateway may not read that one just now, with the answer in it.
            return isinstance(outer, Leg) and outer._reading and outer.arrived
        unsent = fcntl.ioctl(link.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unsent, sys.byteorder) == 0

    def read_on(self, reading: bool) -> None:
        """Go on reading, or leave further bytes in the kernel, where they hold the sender back."""
        if self._transport is None or reading is self._reading:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def end(self, code: int, reason: str) -> None:
        """Close with words; nothing when it is closed already."""
        if self._transport is not None:
            self.last_words = reason
            self.disconnect(code, reason)

    def drop(self) -> None:
        """Close at once and without words."""
        if self._link is not None:
            self._link.abort()

    # asyncssh's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link = self._transport
        if self._transport is not None:
            self._transport.set_write_buffer_limits(WRITE_BUFFER)
        listening.keep_alive(transport.get_extra_info("socket"))

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        if pkttype < FIRST_RELAYED:
            if pkttype == MSG_DISCONNECT:
                self.farewell = read_disconnect(packet.get_full_payload())
            return super().process_packet(pkttype, pktid, packet)
        if self.receive is not None and self.receive(pkttype, packet.get_full_payload()):
            return True
        if pkttype >= CHANNEL_WINDOW_ADJUST:
            raise asyncssh.ProtocolError(f"Packet {pkttype} for a channel that is not open")
        return super().process_packet(pkttype, pktid, packet)

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        # asyncssh puts an IGNORE before every packet, against an attack on CBC ciphers, which are not offered.
        if pkttype != MSG_IGNORE:
            super().send_packet(pkttype, *args, handler=handler)
            if len(self._deferred_packets) > MOST_DEFERRED and pkttype != MSG_DISCONNECT:
                self._end_unfinished()

    def _end_unfinished(self) -> None:
        """End with words for the other end, and for whoever is told why it ended."""
        if self._transport is not None:
            self._send_disconnect(asyncssh.DISC_KEY_EXCHANGE_FAILED, UNFINISHED, "en-US")
            self._force_close(asyncssh.KeyExchangeFailed(UNFINISHED))

    def log_sent_packet(self, *_args: object, **_kwargs: object) -> None:
        """Not for every packet: asyncssh formats its log strings even when nobody reads them."""

    def log_received_packet(self, *_args: object, **_kwargs: object) -> None:
        """See `log_sent_packet`."""

    def write(self, data: Payload) -> None:
        super().write(data)
        link = self._transport
        if self._write_paused and link is not None and link.get_write_buffer_size() > MOST_UNSENT:
            self._force_close(asyncssh.ProtocolError(UNREAD))

    def pause_writing(self) -> None:
        self._write_paused = True
        if not self._auth_complete:  # nobody is told that much before, who reads it
            self._force_close(asyncssh.ProtocolError(UNREAD))
        self._flow()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._flow()

    def _send_kexinit(self) -> None:
        super()._send_kexinit()
        self._flow()

    def _send_deferred_packets(self) -> None:
        """Called as soon as there are new keys, among others."""
        self.use_own_ciphers()
        super()._send_deferred_packets()
        self._flow()

    def _flow(self) -> None:
        if self.flow_changed is not None:
            self.flow_changed()

    def internal_error(self, exc_info: tuple[Any, ...] | None = None, error_logger: Any = None) -> None:
        """Whatever fails in a task or on a packet of this leg ends up here, and ends this connection alone, with words.

        An error of the gateway's own is in the log with its traceback. What asyncssh cannot read is the peer's.
        """
        problem: BaseException = (exc_info or sys.exc_info())[1]
        if is_unreadable(problem):
            code, reason = asyncssh.DISC_PROTOCOL_ERROR, UNREADABLE
        else:
            code, reason = asyncssh.DISC_BY_APPLICATION, FAILED
            say_failed(problem, conn=self.number)
        if not self.ended:
            self.farewell = code, reason
        try:
            self._send_disconnect(code, reason, "en")
        finally:  # it may be sending that fails
            self._force_close(asyncssh.DisconnectError(code, reason))

    def _force_close(self, exc: Exception | None) -> None:
        """Close after what is buffered was written, which asyncssh drops, DISCONNECT and its reason included.

        A TCP connection is closed in one direction first: if the peer's next bytes met a closed socket, the kernel
        would reset the connection, and the peer might never read why.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._parting = exc
        self._inpbuf = b""  # asyncssh would go on with what came behind the packet that ended it
        if isinstance(transport, asyncio.Transport) and not transport.is_closing():
            self._loop.call_later(FAREWELL_SECONDS, transport.abort)
            with contextlib.suppress(OSError):  # the peer may have reset the connection already
                transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()
            if isinstance(transport, Stream):  # else who reads nothing has the gateway keep it
                self._loop.call_later(STREAM_FAREWELL_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None = None) -> None:
        """Begin to close; or, when the transport itself says so, it is over: only then asyncssh may clean up."""
        super().connection_lost(exc)
        if self._link is not None and self._link.is_closing():
            self._link = None
            self._loop.call_soon(self._cleanup, self._parting)

    def _cleanup(self, exc: Exception | None) -> None:
        """asyncssh's, but it would keep to itself what fails in its owner."""
        owner, self._owner = self._owner, None
        super()._cleanup(exc)
        if owner is not None:
            try:
                owner.connection_lost(exc)
            except Exception as problem:  # noqa: BLE001  (the root of the owner's calls)
                say_failed(problem, conn=self.number)


class ServerLeg(Leg, asyncssh.SSHServerConnection):
    """The leg to the person."""

    _exchange_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: asyncssh.SSHServerConnectionOptions,
        make_door: Callable[[], Door],
    ) -> None:
        super().__init__(loop, options)
        self._turns = Turns(lambda: self.blocked)
        self._protocol_factory = make_door
        self._asked_for_methods = False

    async def reload_config(self) -> None:
        """Options are the same for everybody here; asyncssh would build them anew for every login."""

    async def validate_public_key(self, username: str, key_data: bytes, msg: bytes, signature: bytes) -> bool:
        """asyncssh's judgement, and for a verified signature the door's: on the key of this very request.

        A request without signature only asks whether a key would do: nothing is decided there (CVE-2024-45337).
        """
        if not is_key(key_data) or (msg and signed_with(signature) not in SIGNATURE_ALGS):
            self._door().unreadable_key()
            return False
        if not await super().validate_public_key(username, key_data, msg, signature):
            return False
        if not msg:
            return True
        certificate = certificate_in(key_data)
        if certificate is not None:
            return await self._door().proven_by_certificate(username, certificate)
        return await self._door().proven(username, decode_ssh_public_key(key_data))

    async def _validate_openssh_certificate(self, username: str, cert: SSHOpenSSHCertificate) -> asyncssh.SSHKey | None:
        """The key of a certificate that a trusted CA signed well; asyncssh would also judge it, and say nothing."""
        ca = cert.signing_key
        trusted = self._door().trusts(ca, certificate_of(cert))
        if not (trusted and is_strong(ca) and is_strong(cert.key) and is_signed_well(cert)):
            return None
        cert.key.set_touch_required(True)
        key: asyncssh.SSHKey = cert.key
        return key

    def send_userauth_failure(self, partial_success: bool) -> None:
        # The first request with a method that does not exist is how clients ask for the list ("none").
        if self._auth is None and not self._asked_for_methods:
            self._asked_for_methods = True
        elif reason := self._door().attempt_failed():
            self.end(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, reason)
            return
        super().send_userauth_failure(partial_success)

    def create_tcp_channel(self, *_args: object, **_kwargs: object) -> Stream:
        """asyncssh's, for a stream that was asked for."""
        self._update_recv_pktlen(LONGEST)
        return Stream(self, self._loop, self._turns, lambda why: self._door().stream_refused(why))

    def take_longer(self, seconds: float) -> None:
        """Give a login that goes on so much more time from now."""
        if self._login_timer is not None:
            self._cancel_login_timer()
            self._login_timer = self._loop.call_later(seconds, self._login_timer_callback)

    def prove_host_keys(self, asked: bytes) -> bytes | None:
        """The answer to PROVE_HOST_KEYS (OpenSSH's PROTOCOL, 2.5); ``None`` when other keys than ours are asked for."""
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
        # New keys cost the gateway more than the client, who needs none for a login: no client of ours asks for any.
        if pkttype == MSG_KEXINIT and self._session_id and not self._auth_complete:
            raise asyncssh.ProtocolError("new keys are for after the login")
        # One that the gateway began waits for a client that is stopped, as everything else does.
        if pkttype == MSG_KEXINIT and self._auth_complete and not self.rekeying:
            self._look_for_keys(self._loop.time())
        return super().process_packet(pkttype, pktid, packet)

    def _look_for_keys(self, since: float) -> None:
        """End when the client has left an exchange that it began, or look again; ``since`` it has all that it needs."""
        now = self._loop.time()
        if not self.arrived:
            since = now
        if now - since >= EXCHANGE_SECONDS:
            self._end_unfinished()
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
        self.end(asyncssh.DISC_BY_APPLICATION, self._door().too_late())

    def _flow(self) -> None:
        super()._flow()
        self._turns.go_on()

    def _door(self) -> Door:
        owner = self._owner
        if not isinstance(owner, Door):
            raise asyncssh.ConnectionLost("The connection is closed")
        return owner


class ClientLeg(Leg, asyncssh.SSHClientConnection):
    """The leg to a job's sshd."""


class _Channels(dict[int, Any]):
    """asyncssh's table of channels, in which every channel it does not know is the leg's to deal with."""

    def __init__(self, leg: Leg) -> None:
        super().__init__()
        self._leg = leg

    def __missing__(self, number: int) -> Leg:
        return self._leg


async def connect(options: asyncssh.SSHClientConnectionOptions) -> ClientLeg:
    """Connect and log in; OSError or asyncssh.Error when that fails. The caller sets the deadline."""
    loop = asyncio.get_running_loop()
    options.waiter = loop.create_future()
    _, leg = await loop.create_connection(
        lambda: ClientLeg(loop, options, wait="auth"), options.host, options.port, flags=socket.AI_NUMERICHOST
    )
    try:
        await options.waiter
    except BaseException:
        leg.drop()
        raise
    return leg
