"""The shorter way for data: from a shared buffer through the gateway's own ciphers to another one.

asyncssh's packet layer copies what was read once for every packet in it, and makes its ciphers anew for each. Here
packets of data, and additions to windows, are opened where the next leg seals them, and leave in one write for all that
was read at once. Data that nobody has to look at takes the `Lane`. Everything else, and what comes during a key
exchange, is asyncssh's: it is handed what is not complete, and packets that were opened and turned out to be none of
these, with ciphers that keep one state for both.

Private names of asyncssh are in this package only; tests/gateway/test_wire.py watches them.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from asyncssh.connection import SSHConnection
from asyncssh.encryption import ChachaEncryption, ETMEncryption, GCMEncryption
from asyncssh.mac import _HMAC

from ssh_gateway import buffers, ciphers
from ssh_gateway.packets import CHANNEL_DATA, CHANNEL_EXTENDED_DATA, CHANNEL_WINDOW_ADJUST, Payload, number_at

_DATA = frozenset({CHANNEL_DATA, CHANNEL_EXTENDED_DATA})
_BULK = _DATA | {CHANNEL_WINDOW_ADJUST}
_HEAD = struct.Struct(">BBI")  # the length of padding, the type, the channel
_LEAST_PADDING = 4
_LEAST_FAST = 1 + 5  # the length of padding, the type, the channel
# asyncssh copies all that it has not read yet for every packet: of many small ones it is to have little.
_PIECE = 32 * 1024

Receive = Callable[[int, Any], bool]


class FastConnection(SSHConnection):
    """asyncssh's connection, on which packets of data are sealed and opened without it once it has a `lane`."""

    # Given each packet's type and whole payload; False leaves the packet to asyncssh. With a lane, payloads of packets
    # that `_BULK` has are views, which hold until it returns.
    receive: Receive | None = None
    lane: FastPath | None = None

    _link: asyncio.Transport | None = None
    _lent = False  # what asyncssh had of a packet is in the buffer that is read into
    _rest = b""  # the beginning of a packet that is opened here when the rest of it comes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers = buffers.shared_buffers()

    def use_own_ciphers(self) -> None:
        """Replace asyncssh's wherever there is one of ours."""
        self._send_encryption = _own(self._send_encryption)
        self._next_recv_encryption = _own(self._next_recv_encryption)

    def send_payload(self, payload: Payload) -> None:
        """Send a packet to this leg's peer; kept while authentication or a key exchange is going on."""
        cipher, shared = self._send_encryption, self._buffers
        if isinstance(cipher, ciphers.PacketCipher) and not shared.writing:
            shared.make_room(self, len(payload) + ciphers.MOST_AROUND)  # which may send something, so first
            if self._may_seal():
                self._seal(cipher, payload)
                return
        self.send_packet(payload[0], bytes(payload[1:]))

    def data_received(self, data: bytes, datatype: Any = None) -> None:
        if self.lane is not None and self._opens_itself():
            if isinstance(self._link, asyncio.Transport):
                self._link.set_protocol(buffers.BufferedReader(self))
            self.take(memoryview(self.held() + data))
        else:
            self._leave_to_asyncssh(data)

    def held(self) -> bytes:
        held = self._rest or (self._packet + self._inpbuf if self._opens_itself() else b"")
        self._lent = len(held) <= buffers.MOST_HELD
        return held if self._lent else b""

    def take(self, received: memoryview) -> None:
        """Relay the whole packets of data at once; asyncssh gets all others."""
        if self._transport is None:
            return
        outermost = not self._buffers.reading
        if outermost:
            self._buffers.begin()
        try:
            at = self._open_all(received) if self._lent and self._opens_itself() else 0
            if at < len(received):
                self._leave_to_asyncssh(bytes(received[at:]))
            if self.lane is not None:
                self.lane.leave()
        except Exception:  # noqa: BLE001  (the root of what packets do; asyncssh has the same for those that it reads)
            self.internal_error()
            if self.lane is not None:
                self.lane.leave()  # what has gone counts
        finally:
            if outermost:
                self._buffers.end()

    def write(self, data: Payload) -> None:
        """All that this leg's peer is sent goes this way; ``data`` holds until this returns."""
        sent = self._sent_at_once(data)
        if sent < len(data):
            super()._send(bytes(data[sent:]))

    def _sent_at_once(self, data: Payload) -> int:
        """How much of it the kernel has taken: it needs no copy, which a transport may keep."""
        link = self._link
        # A stream of `ssh -J` would name the socket that it goes through.
        if not isinstance(link, asyncio.Transport) or link is not self._transport or link.get_write_buffer_size():
            return 0
        try:
            return os.write(link.get_extra_info("socket").fileno(), data)
        except OSError:  # it is full, or closed, which the transport will find out
            return 0

    def _leave_to_asyncssh(self, data: bytes) -> None:
        for at in range(0, len(data), _PIECE):
            if self._transport is not None:  # else it is closed, and only the end is waited for
                super().data_received(data[at : at + _PIECE])

    def _opens_itself(self) -> bool:
        """Whether asyncssh is between two packets, and nothing but packets of the agreed cipher comes."""
        if not self._auth_complete or not isinstance(self._recv_encryption, ciphers.PacketCipher):
            return False
        return self._recv_handler in (self._recv_pkthdr, self._recv_packet)

    def _open_all(self, received: memoryview) -> int:
        """Open the packets, and keep the beginning of the last one; how much of it all is done with.

        Each is relayed, or handed to asyncssh. Calls are most of what a packet costs beside its ciphers: few are made.
        """
        self._packet = self._inpbuf = self._rest = b""
        self._recv_handler = self._recv_pkthdr
        cipher: Any = self._recv_encryption
        plain, lane, at, end = self._buffers.plain, self.lane, 0, len(received)
        while at < end and self._transport is not None:
            body = at + ciphers.LENGTH
            size = cipher.length(self._recv_seq, received, at) if body <= end else 1
            if not 0 < size <= buffers.LONGEST:
                break
            after = body + size + cipher.tag
            if after > end:
                self._rest = bytes(received[at:])
                return end
            if cipher.opens(self._recv_seq, received, at, size, plain):
                if (lane is not None and lane.takes(plain, size)) or self._relays(plain, size):
                    self._recv_seq = (self._recv_seq + 1) & 0xFFFFFFFF
                    at = after
                    continue
                cipher.opened = bytes(plain[:size])
            else:
                cipher.opened = b""
            sealed, at = received[at:after], after
            super().data_received(bytes(sealed))
            if not self._opens_itself():
                break
            cipher = self._recv_encryption  # that packet may have brought another
        return at

    def _relays(self, plain: memoryview, size: int) -> bool:
        """Whether the packet is one that goes on at once, and has gone."""
        padding = plain[0]
        if self.lane is not None:
            self.lane.leave()  # what is sent now may belong to anybody
        return (
            # What the other end says of its padding could reach beyond its packet, into others' of before.
            _LEAST_PADDING <= padding <= size - _LEAST_FAST
            and plain[1] in _BULK
            and not (self._channels and number_at(plain, 2) in self._channels)
            and self.receive is not None
            and self.receive(plain[1], plain[1 : size - padding])
        )

    def _may_seal(self) -> bool:
        """Whether a packet can be sent now, and without new keys."""
        if not (self._kex_complete and self._auth_complete) or self._transport is None:
            return False
        late = self._rekey_seconds and time.monotonic() >= self._rekey_time
        return not late and self._rekey_bytes_sent < self._rekey_bytes

    def _seal(self, cipher: ciphers.PacketCipher, payload: Payload) -> None:
        """Seal what may be in the buffer already; it leaves when everything that was read with it is done."""
        shared, plain, size = self._buffers, self._buffers.plain, len(payload) + 1
        padding = _padding(size, cipher.block)
        whole = size + padding
        opened = isinstance(payload, memoryview) and payload.obj is plain.obj
        # What was opened here goes on with the padding it came with, where that is what it would get.
        if not (opened and plain[0] == padding):
            if not opened:
                plain[1:size] = payload
            plain[0] = padding
            plain[size:whole] = shared.random(padding)
        shared.filled = cipher.seal(self._send_seq, plain, whole, shared.sealed, shared.filled)
        self._send_seq = (self._send_seq + 1) & 0xFFFFFFFF
        self._rekey_bytes_sent += whole
        if not shared.reading:
            shared.flush()

    def _send(self, data: bytes) -> None:
        self._buffers.flush_of(self)
        self.write(data)


class FastPath:
    """The straight way of data from one leg to the other, for packets that nobody has to look at.

    What is the same for all packets of a channel that were read at once is asked once, when the first of them comes;
    `leave` ends that, and tells how much has gone. It has to come before anything else is sent.
    """

    def __init__(
        self,
        source: FastConnection,
        sink: FastConnection,
        opens: Callable[[], bool],
        passed: Callable[[int, int], None],
    ) -> None:
        """``opens`` says whether data may pass unseen now; ``passed`` is told of which channel how many bytes did."""
        self._source = source
        self._sink = sink
        self._opens = opens
        self._passed = passed
        self._shared = buffers.shared_buffers()
        self._most = len(self._shared.sealed) - ciphers.MOST_AROUND
        self._cipher: Any = None
        self._channel = -1
        self._bytes = 0

    def takes(self, plain: memoryview, size: int) -> bool:
        """Seal an open packet for the other leg; False: somebody has to look at it."""
        padding, kind, channel = _HEAD.unpack_from(plain)
        end = size - padding
        if kind not in _DATA or padding < _LEAST_PADDING or end < _LEAST_FAST:
            return False
        if channel != self._channel and not self._turn_to(channel):
            return False
        cipher, sink, shared = self._cipher, self._sink, self._shared
        if shared.filled + size > self._most or sink._rekey_bytes_sent >= sink._rekey_bytes:
            return False
        # It goes on with the padding it came with, where that is what it would get.
        if padding >= cipher.block + _LEAST_PADDING or size % cipher.block:
            plain[0] = padding = _padding(end, cipher.block)
            plain[end : end + padding] = shared.random(padding)
        whole = end + padding
        shared.filled = cipher.seal(sink._send_seq, plain, whole, shared.sealed, shared.filled)
        sink._send_seq = (sink._send_seq + 1) & 0xFFFFFFFF
        sink._rekey_bytes_sent += whole
        self._bytes += end - 1
        return True

    def leave(self) -> None:
        """Whatever comes next asks again."""
        channel, size = self._channel, self._bytes
        self._channel, self._bytes = -1, 0
        if size:
            self._passed(channel, size)

    def _turn_to(self, channel: int) -> bool:
        """Whether data of a channel can go on as it is until `leave`."""
        self.leave()
        sink, cipher = self._sink, self._sink._send_encryption
        own = self._source._channels
        if self._shared.writing or not isinstance(cipher, ciphers.PacketCipher) or (own and channel in own):
            return False
        self._shared.make_room(sink, 0)  # which may send something, so first
        if not (sink._may_seal() and self._opens()):
            return False
        self._cipher, self._channel = cipher, channel
        return True


def _padding(size: int, block: int) -> int:
    """How long the padding of a packet is which has so many bytes before it."""
    padding = -size % block
    return padding if padding >= _LEAST_PADDING else padding + block


def _own(theirs: Any) -> Any:
    """The gateway's own cipher that goes on where asyncssh's is; asyncssh's for what there is none for."""
    cipher: Any = getattr(theirs, "_cipher", None)
    if not ciphers.AVAILABLE:
        return theirs
    if isinstance(theirs, GCMEncryption):
        return ciphers.Gcm(cipher._key, cipher._iv)
    if isinstance(theirs, ChachaEncryption):
        return ciphers.Chacha(cipher._key + cipher._adkey)
    if isinstance(theirs, ETMEncryption) and isinstance(theirs._mac, _HMAC):
        stream = cipher._encryptor or cipher._decryptor or cipher._cipher.encryptor()
        return ciphers.Ctr(stream, theirs._mac._key, theirs._mac._hash_size, theirs._mac._hash_alg)
    return theirs
