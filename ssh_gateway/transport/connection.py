"""One of the two connections of a relay: asyncssh's, with flow control and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh
from asyncssh.constants import MSG_DISCONNECT, MSG_IGNORE
from asyncssh.packet import SSHPacket

from ssh_gateway.core.packets import CHANNEL_WINDOW_ADJUST, FIRST_RELAYED, Payload, text
from ssh_gateway.log import say_failed
from ssh_gateway.transport import sockets
from ssh_gateway.transport.fastpath import FastConnection
from ssh_gateway.transport.reading import is_unreadable, read_disconnect
from ssh_gateway.transport.streams import JumpChannel

# The gateway's own channels are numbered from here, the sshd's from 0: both may live on one relayed connection.
FIRST_OWN_CHANNEL = 0x8000_0000

WRITE_BUFFER = 256 * 1024
# Bytes sent to a peer that the peer does not read: twice as many as a relay may keep for a key exchange. Relayed data
# is held back long before, so only the gateway's own answers reach this limit.
MOST_UNSENT = 16 * 2**20
MOST_DEFERRED = 100_000  # packets kept for the end of a key exchange
UNREAD = "too much was not read of what it was sent"
UNFINISHED = "a key exchange was not finished"
FAREWELL_SECONDS = 1.0
ANSWER_SECONDS = 5.0
STREAM_FAREWELL_SECONDS = 10.0  # on a stream of `ssh -J`, which takes turns with the others
FAILED = "the gateway failed: try again, and tell your administrator"
UNREADABLE = "what was sent cannot be read"


class RelayConnection(FastConnection):
    """One of the two connections of a relay: asyncssh's, with packets of type 80 and above handed to the relay."""

    # Called whenever `blocked` or `rekeying` may have changed.
    flow_changed: Callable[[], None] | None = None
    # Code and reason of the DISCONNECT from the other end, or of the one sent because of an error here.
    disconnect_reason: tuple[int, str] | None = None
    # The reason with which the gateway ended the connection by `end`.
    last_words: str | None = None
    # The connection's name in the log.
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
        """True if the connection is closed, or closing."""
        return self._transport is None

    @property
    def rekeying(self) -> bool:
        """True during a key exchange: nothing can be sent, and reading must continue to finish it."""
        return not self._kex_complete

    @property
    def blocked(self) -> bool:
        """True if more packets for this leg would be buffered in memory."""
        return self._write_paused or not self._kex_complete

    @property
    def arrived(self) -> bool:
        """True if the other end's kernel has all that was sent: no slow network or full buffer explains a delay."""
        link = self._transport
        if link is None or link.get_write_buffer_size():
            return False
        if isinstance(link, JumpChannel):
            outer = link.get_connection()
            # The outer connection may be paused just now, with the answer in it.
            return isinstance(outer, RelayConnection) and outer._reading and outer.arrived
        unsent = fcntl.ioctl(link.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unsent, sys.byteorder) == 0

    @property
    def lost(self) -> bool:
        """True if the other end was sent data, and its computer has not answered for a minute or two."""
        link = self._transport
        return isinstance(link, asyncio.Transport) and sockets.is_lost(link.get_extra_info("socket"))

    async def answers(self) -> bool:
        """True once the other end's kernel has answered what it is sent now; False after `ANSWER_SECONDS`."""
        since, link = self._loop.time(), self._transport
        if isinstance(link, JumpChannel):
            outer = link.get_connection()
            return not isinstance(outer, RelayConnection) or await outer.answers()
        super().send_packet(MSG_IGNORE, text(b""))
        while link is not None and not link.is_closing():
            waited = self._loop.time() - since
            if sockets.silence(link.get_extra_info("socket")) < waited:
                break
            if waited > ANSWER_SECONDS:
                return False
            await asyncio.sleep(0.02)
        return True

    def read_on(self, reading: bool) -> None:
        """Resumes reading, or pauses it: further bytes stay in the kernel and hold the sender back."""
        if self._transport is None or reading is self._reading:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def end(self, code: int, reason: str) -> None:
        """Closes with a reason; does nothing if the connection is closed already."""
        if self._transport is not None:
            self.last_words = reason
            self.disconnect(code, reason)

    def drop(self) -> None:
        """Closes at once and without a reason."""
        if self._link is not None:
            self._link.abort()

    # asyncssh's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link = self._transport
        if self._transport is not None:
            self._transport.set_write_buffer_limits(WRITE_BUFFER)
        sockets.keep_alive(transport.get_extra_info("socket"))

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        if pkttype < FIRST_RELAYED:
            if pkttype == MSG_DISCONNECT:
                self.disconnect_reason = read_disconnect(packet.get_full_payload())
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
                self.end_unfinished()

    def end_unfinished(self) -> None:
        """Ends an unfinished key exchange, with a reason for the other end and for the owner."""
        if self._transport is not None:
            self._send_disconnect(asyncssh.DISC_KEY_EXCHANGE_FAILED, UNFINISHED, "en-US")
            self._force_close(asyncssh.KeyExchangeFailed(UNFINISHED))

    def log_sent_packet(self, *_args: object, **_kwargs: object) -> None:
        """Does nothing: asyncssh formats its log strings for every packet, also without a handler."""

    def log_received_packet(self, *_args: object, **_kwargs: object) -> None:
        """See `log_sent_packet`."""

    def write(self, data: Payload) -> None:
        super().write(data)
        link = self._transport
        if self._write_paused and link is not None and link.get_write_buffer_size() > MOST_UNSENT:
            self._force_close(asyncssh.ProtocolError(UNREAD))

    def pause_writing(self) -> None:
        self._write_paused = True
        if not self._auth_complete:  # before authentication, a peer that reads is never sent so much
            self._force_close(asyncssh.ProtocolError(UNREAD))
        self._flow()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._flow()

    def _send_kexinit(self) -> None:
        super()._send_kexinit()
        self._flow()

    def _send_deferred_packets(self) -> None:
        """Installs the own ciphers; asyncssh calls this, among others, as soon as there are new keys."""
        self.use_own_ciphers()
        super()._send_deferred_packets()
        self._flow()

    def _flow(self) -> None:
        if self.flow_changed is not None:
            self.flow_changed()

    def internal_error(self, exc_info: tuple[Any, ...] | None = None, error_logger: Any = None) -> None:
        """Ends this connection alone, with a reason, for an error in one of its tasks or packets.

        An internal error is logged with its traceback. A packet that asyncssh cannot read is the peer's error.
        """
        problem: BaseException = (exc_info or sys.exc_info())[1]
        if is_unreadable(problem):
            code, reason = asyncssh.DISC_PROTOCOL_ERROR, UNREADABLE
        else:
            code, reason = asyncssh.DISC_BY_APPLICATION, FAILED
            say_failed(problem, conn=self.number)
        if not self.ended:
            self.disconnect_reason = code, reason
        try:
            self._send_disconnect(code, reason, "en")
        finally:  # sending itself may fail
            self._force_close(asyncssh.DisconnectError(code, reason))

    def _force_close(self, exc: Exception | None) -> None:
        """Closes after writing the buffered bytes, which asyncssh drops, including the DISCONNECT and its reason.

        A TCP connection is closed in one direction first: if the peer's next bytes met a closed socket, the kernel
        would reset the connection, and the peer might never read the reason.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._parting = exc
        self._inpbuf = b""  # asyncssh would process the bytes after the packet that ended the connection
        if isinstance(transport, asyncio.Transport) and not transport.is_closing():
            self._loop.call_later(FAREWELL_SECONDS, transport.abort)
            with contextlib.suppress(OSError):  # the peer may have reset the connection already
                transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()
            if isinstance(transport, JumpChannel):  # a peer that reads nothing would keep it open
                self._loop.call_later(STREAM_FAREWELL_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None = None) -> None:
        """Begins to close; once the transport itself is closed, lets asyncssh clean up."""
        super().connection_lost(exc)
        if self._link is not None and self._link.is_closing():
            self._link = None
            self._loop.call_soon(self._cleanup, self._parting)

    def _cleanup(self, exc: Exception | None) -> None:
        """Cleans up as asyncssh does, but logs an error of the owner, which asyncssh would hide."""
        owner, self._owner = self._owner, None
        super()._cleanup(exc)
        if owner is not None:
            try:
                owner.connection_lost(exc)
            except Exception as problem:  # noqa: BLE001  (the root of the owner's calls)
                say_failed(problem, conn=self.number)


class _Channels(dict[int, Any]):
    """asyncssh's table of channels; a channel that asyncssh does not know belongs to the leg."""

    def __init__(self, leg: RelayConnection) -> None:
        super().__init__()
        self._leg = leg

    def __missing__(self, number: int) -> RelayConnection:
        return self._leg
