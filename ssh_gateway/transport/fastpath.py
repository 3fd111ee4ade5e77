"""The fast path for data: from a shared buffer through the gateway's own ciphers to another shared buffer.

asyncssh's packet layer copies the bytes of a read once for every packet in them, and makes its ciphers again for each.
Here data packets, and additions to windows, are opened in the buffer where the other leg seals them, and leave in one
write for all packets of a read. Data that needs no inspection takes the `FastPath`. asyncssh handles everything else,
and all packets during a key exchange: it receives incomplete packets, and opened packets of other types, through
ciphers that share one state with this module.

Private names of asyncssh are in this package only; tests/component/gateway/test_asyncssh_contract.py watches them.

`SharedBuffers` are the buffers that all relayed connections of an event loop share, and `BufferedReader` reads a socket
into one.

They are used within one call of the loop only, so an idle connection has none: the connection keeps the rest of a read,
and data to write leaves at the end of the read that it came with.

`PacketCipher` are the ciphers of the packet layer, for whole packets in existing buffers.

A cipher is one direction of one connection between two key exchanges; it keeps the state for both of its users, this
module (`seal`, `opens`) and asyncssh (`encrypt_packet` …), one packet after the other. The formats are those of RFC
4253 §6, RFC 5647 and OpenSSH's PROTOCOL (``-etm`` MACs) and PROTOCOL.chacha20poly1305; in all of them the length is
readable before the packet is complete, and does not count for the padding.

Refused: MACs over plain packets (without ``-etm``), which only few clients need. Ciphers without a class here use
asyncssh's own layer.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from asyncssh.connection import SSHConnection
from asyncssh.encryption import ChachaEncryption, ETMEncryption, GCMEncryption
from asyncssh.mac import _HMAC
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.poly1305 import Poly1305

from ssh_gateway.core.packets import CHANNEL_DATA, CHANNEL_EXTENDED_DATA, CHANNEL_WINDOW_ADJUST, Payload, number_at

_DATA = frozenset({CHANNEL_DATA, CHANNEL_EXTENDED_DATA})
_BULK = _DATA | {CHANNEL_WINDOW_ADJUST}
_HEAD = struct.Struct(">BBI")  # the length of padding, the type, the channel
_LEAST_PADDING = 4
_LEAST_FAST = 1 + 5  # the length of padding, the type, the channel
# asyncssh copies all unread bytes for every packet, so it receives small pieces.
_PIECE = 32 * 1024

Receive = Callable[[int, Any], bool]


class FastConnection(SSHConnection):
    """asyncssh's connection; data packets are sealed and opened without asyncssh once there is a `lane`."""

    # Receives each packet's type and whole payload; False leaves the packet to asyncssh. With a lane, payloads of types
    # in `_BULK` are views, valid until the call returns.
    receive: Receive | None = None
    lane: FastPath | None = None

    _link: asyncio.Transport | None = None
    _lent = False  # asyncssh's part of a packet is in the buffer of the next read
    _rest = b""  # the beginning of a packet, opened here when it is complete

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers = shared_buffers()

    def use_own_ciphers(self) -> None:
        """Replaces asyncssh's ciphers by those of this module, where there is one."""
        self._send_encryption = _own(self._send_encryption)
        self._next_recv_encryption = _own(self._next_recv_encryption)

    def send_payload(self, payload: Payload) -> None:
        """Sends a packet to this leg's peer; kept during authentication and key exchanges."""
        cipher, shared = self._send_encryption, self._buffers
        if isinstance(cipher, PacketCipher) and not shared.writing:
            shared.make_room(self, len(payload) + MOST_AROUND)  # first, because this may send something
            if self._may_seal():
                self._seal(cipher, payload)
                return
        self.send_packet(payload[0], bytes(payload[1:]))

    def data_received(self, data: bytes, datatype: Any = None) -> None:
        if self.lane is not None and self._opens_itself():
            if isinstance(self._link, asyncio.Transport):
                self._link.set_protocol(BufferedReader(self))
            self.take(memoryview(self.held() + data))
        else:
            self._leave_to_asyncssh(data)

    def held(self) -> bytes:
        """Returns the present part of an incomplete packet."""
        held = self._rest or (self._packet + self._inpbuf if self._opens_itself() else b"")
        self._lent = len(held) <= MOST_HELD
        return held if self._lent else b""

    def take(self, received: memoryview) -> None:
        """Processes the held bytes and the received ones: relays complete data packets at once, asyncssh receives all
        others.
        """
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
                self.lane.leave()  # counts the relayed bytes
        finally:
            if outermost:
                self._buffers.end()

    def write(self, data: Payload) -> None:
        """Writes everything that this leg's peer is sent; ``data`` is valid until the call returns."""
        sent = self._sent_at_once(data)
        if sent < len(data):
            super()._send(bytes(data[sent:]))

    def _sent_at_once(self, data: Payload) -> int:
        """Returns the number of bytes that the kernel took directly; they need no copy, which a transport may keep."""
        link = self._link
        # For a stream of `ssh -J` the socket would be the outer connection's.
        if not isinstance(link, asyncio.Transport) or link is not self._transport or link.get_write_buffer_size():
            return 0
        try:
            return os.write(link.get_extra_info("socket").fileno(), data)
        except OSError:  # full, or closed: the transport will notice
            return 0

    def _leave_to_asyncssh(self, data: bytes) -> None:
        for at in range(0, len(data), _PIECE):
            if self._transport is not None:  # else the connection is closing
                super().data_received(data[at : at + _PIECE])

    def _opens_itself(self) -> bool:
        """True if asyncssh is between two packets, and all packets come in the agreed cipher."""
        if not self._auth_complete or not isinstance(self._recv_encryption, PacketCipher):
            return False
        return self._recv_handler in (self._recv_pkthdr, self._recv_packet)

    def _open_all(self, received: memoryview) -> int:
        """Opens the packets and keeps the beginning of the last one; returns the number of bytes that are done.

        Each packet is relayed, or handed to asyncssh. Beside the ciphers, calls are most of a packet's cost, so there
        are few.
        """
        self._packet = self._inpbuf = self._rest = b""
        self._recv_handler = self._recv_pkthdr
        cipher: Any = self._recv_encryption
        plain, lane, at, end = self._buffers.plain, self.lane, 0, len(received)
        while at < end and self._transport is not None:
            body = at + LENGTH
            size = cipher.length(self._recv_seq, received, at) if body <= end else 1
            if not 0 < size <= LONGEST:
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
            cipher = self._recv_encryption  # the packet may have installed a new cipher
        return at

    def _relays(self, plain: memoryview, size: int) -> bool:
        """Relays an opened packet at once, if it can be; True if the packet is done."""
        padding = plain[0]
        if self.lane is not None:
            self.lane.leave()  # the next bytes sent may belong to another connection
        return (
            # A wrong length of padding could reach beyond the packet, into earlier data of other connections.
            _LEAST_PADDING <= padding <= size - _LEAST_FAST
            and plain[1] in _BULK
            and not (self._channels and number_at(plain, 2) in self._channels)
            and self.receive is not None
            and self.receive(plain[1], plain[1 : size - padding])
        )

    def _may_seal(self) -> bool:
        """True if a packet can be sent now, and before the next key exchange."""
        if not (self._kex_complete and self._auth_complete) or self._transport is None:
            return False
        late = self._rekey_seconds and time.monotonic() >= self._rekey_time
        return not late and self._rekey_bytes_sent < self._rekey_bytes

    def _seal(self, cipher: PacketCipher, payload: Payload) -> None:
        """Seals a payload, which may be in the buffer already; it is sent after all packets of the same read."""
        shared, plain, size = self._buffers, self._buffers.plain, len(payload) + 1
        padding = _padding(size, cipher.block)
        whole = size + padding
        opened = isinstance(payload, memoryview) and payload.obj is plain.obj
        # A packet opened here keeps its padding if the length fits.
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
    """The shortest way of data from one leg to the other, for packets that need no inspection.

    Checks that give the same result for all packets of a channel in one read are made once, at the first packet;
    `leave` ends that, and reports the relayed bytes. Call it before anything else is sent.
    """

    def __init__(
        self,
        source: FastConnection,
        sink: FastConnection,
        opens: Callable[[], bool],
        passed: Callable[[int, int], None],
    ) -> None:
        """``opens``: may data pass without inspection now? ``passed`` receives a channel and its relayed bytes."""
        self._source = source
        self._sink = sink
        self._opens = opens
        self._passed = passed
        self._shared = shared_buffers()
        self._most = len(self._shared.sealed) - MOST_AROUND
        self._cipher: Any = None
        self._channel = -1
        self._bytes = 0

    def takes(self, plain: memoryview, size: int) -> bool:
        """Seals an opened packet for the other leg; False if the packet needs inspection."""
        padding, kind, channel = _HEAD.unpack_from(plain)
        end = size - padding
        if kind not in _DATA or padding < _LEAST_PADDING or end < _LEAST_FAST:
            return False
        if channel != self._channel and not self._turn_to(channel):
            return False
        cipher, sink, shared = self._cipher, self._sink, self._shared
        if shared.filled + size > self._most or sink._rekey_bytes_sent >= sink._rekey_bytes:
            return False
        # The packet keeps its padding if the length fits.
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
        """Ends the present run of packets: the next packet is checked again."""
        channel, size = self._channel, self._bytes
        self._channel, self._bytes = -1, 0
        if size:
            self._passed(channel, size)

    def _turn_to(self, channel: int) -> bool:
        """True if data of this channel can be relayed unchanged until `leave`."""
        self.leave()
        sink, cipher = self._sink, self._sink._send_encryption
        own = self._source._channels
        if self._shared.writing or not isinstance(cipher, PacketCipher) or (own and channel in own):
            return False
        self._shared.make_room(sink, 0)  # first, because this may send something
        if not (sink._may_seal() and self._opens()):
            return False
        self._cipher, self._channel = cipher, channel
        return True


def _padding(size: int, block: int) -> int:
    """Returns the length of the padding after ``size`` bytes."""
    padding = -size % block
    return padding if padding >= _LEAST_PADDING else padding + block


def _own(theirs: Any) -> Any:
    """Returns the gateway's own cipher in place of asyncssh's; asyncssh's if there is none."""
    cipher: Any = getattr(theirs, "_cipher", None)
    if not AVAILABLE:
        return theirs
    if isinstance(theirs, GCMEncryption):
        return Gcm(cipher._key, cipher._iv)
    if isinstance(theirs, ChachaEncryption):
        return Chacha(cipher._key + cipher._adkey)
    if isinstance(theirs, ETMEncryption) and isinstance(theirs._mac, _HMAC):
        stream = cipher._encryptor or cipher._decryptor or cipher._cipher.encryptor()
        return Ctr(stream, theirs._mac._key, theirs._mac._hash_size, theirs._mac._hash_alg)
    return theirs


# True if this version of cryptography can write into buffers; else asyncssh does everything.
AVAILABLE = hasattr(AESGCM, "decrypt_into")
LENGTH = 4
SPARE = 64  # free bytes that some ciphers need behind their output
MOST_AROUND = 160  # bytes of buffer that a packet takes beside its payload: lengths, padding, proof, and `SPARE`
_FIRST_BLOCK = bytes(64)
_UINT32 = struct.Struct(">I")
_COUNTER_0 = bytes(8)


class PacketCipher:
    """One direction of a connection; ``tag`` is the length of the proof (tag or MAC) behind a packet, ``block`` the
    unit of padding.

    Not an `ABC`: `isinstance` is called for every packet, and would take five times as long.
    """

    tag: int
    block: int
    # The opened packet for asyncssh's next call; empty: the proof was wrong.
    opened: bytes | None = None

    def seal(self, seq: int, plain: memoryview, size: int, out: memoryview, at: int) -> int:
        """Writes the packet of the first ``size`` bytes, with its length and proof, to ``out`` from ``at`` on, and
        returns its end.

        ``out`` must have `SPARE` more bytes behind the packet.
        """
        raise NotImplementedError

    def length(self, seq: int, sealed: Payload, at: int) -> int:
        """Returns the length in the first four bytes of the packet at ``at``, which is not authenticated yet."""
        raise NotImplementedError

    def opens(self, seq: int, sealed: memoryview, at: int, size: int, plain: memoryview) -> bool:
        """Writes the content of the packet of ``size`` bytes at ``at`` to ``plain``; False if the proof is wrong.

        ``plain`` must have `SPARE` more bytes behind the content.
        """
        raise NotImplementedError

    # asyncssh's interface of ciphers

    def encrypt_packet(self, seq: int, header: bytes, packet: bytes) -> tuple[bytes, bytes]:
        out = memoryview(bytearray(len(header) + len(packet) + self.tag + SPARE))
        end = self.seal(seq, memoryview(packet), len(packet), out, 0)
        return bytes(out[: end - self.tag]), bytes(out[end - self.tag : end])

    def decrypt_header(self, seq: int, first: bytes, header_size: int) -> tuple[bytes, bytes]:
        return first, self.length(seq, first, 0).to_bytes(header_size, "big")

    def decrypt_packet(self, seq: int, first: bytes, rest: bytes, header_size: int, mac: bytes) -> bytes | None:
        opened, self.opened = self.opened, None
        if opened is None:
            sealed = memoryview(first + rest + mac)
            plain = bytearray(len(sealed) + SPARE)
            size = len(sealed) - header_size - self.tag
            opened = bytes(plain[:size]) if self.opens(seq, sealed, 0, size, memoryview(plain)) else b""
        return opened or None


class Gcm(PacketCipher):
    """``aes…-gcm@openssh.com``."""

    tag = block = 16

    def __init__(self, key: bytes, iv: bytes) -> None:
        self._aead = AESGCM(key)
        self._fixed, self._count = iv[:4], int.from_bytes(iv[4:], "big")

    def seal(self, seq: int, plain: memoryview, size: int, out: memoryview, at: int) -> int:
        head, body = size.to_bytes(LENGTH, "big"), at + LENGTH
        end = body + size + 16
        out[at:body] = head
        self._aead.encrypt_into(self._nonce(), plain[:size], head, out[body:end])
        return end

    def length(self, seq: int, sealed: Payload, at: int) -> int:
        return int(_UINT32.unpack_from(sealed, at)[0])

    def opens(self, seq: int, sealed: memoryview, at: int, size: int, plain: memoryview) -> bool:
        body = at + LENGTH
        try:
            self._aead.decrypt_into(
                self._nonce(), sealed[body : body + size + 16], size.to_bytes(LENGTH, "big"), plain[:size]
            )
        except InvalidTag:
            return False
        return True

    def _nonce(self) -> bytes:
        count, self._count = self._count, (self._count + 1) & 0xFFFFFFFFFFFFFFFF
        return self._fixed + count.to_bytes(8, "big")


class Chacha(PacketCipher):
    """``chacha20-poly1305@openssh.com``; the second half of the key is for lengths."""

    tag, block = 16, 8

    def __init__(self, key: bytes) -> None:
        self._body: Any = ciphers.Cipher(ChaCha20(key[:32], bytes(16)), None).encryptor()
        self._head: Any = ciphers.Cipher(ChaCha20(key[32:], bytes(16)), None).encryptor()

    def seal(self, seq: int, plain: memoryview, size: int, out: memoryview, at: int) -> int:
        body = at + LENGTH
        end = body + size
        out[at:body] = self._whole_head(seq, size.to_bytes(LENGTH, "big"))
        proof = self._proof_key(seq)
        self._body.update_into(plain[:size], out[body:])
        out[end : end + 16] = Poly1305.generate_tag(proof, out[at:end])
        return end + 16

    def length(self, seq: int, sealed: Payload, at: int) -> int:
        return int.from_bytes(self._whole_head(seq, sealed[at : at + LENGTH]), "big")

    def opens(self, seq: int, sealed: memoryview, at: int, size: int, plain: memoryview) -> bool:
        body = at + LENGTH
        end = body + size
        try:
            Poly1305.verify_tag(self._proof_key(seq), sealed[at:end], bytes(sealed[end : end + 16]))
        except InvalidSignature:
            return False
        self._body.update_into(sealed[body:end], plain)
        return True

    def _whole_head(self, seq: int, head: Payload) -> bytes:
        self._head.reset_nonce(_COUNTER_0 + seq.to_bytes(8, "big"))
        changed: bytes = self._head.update(head)
        return changed

    def _proof_key(self, seq: int) -> bytes:
        """Returns the first half of the stream's first block; the packet's own bytes begin at the second block."""
        self._body.reset_nonce(_COUNTER_0 + seq.to_bytes(8, "big"))
        block: bytes = self._body.update(_FIRST_BLOCK)
        return block[:32]


class Ctr(PacketCipher):
    """``aes…-ctr`` with an ``-etm`` MAC; ``stream`` is the cipher at its position, the same in both directions."""

    block = 16

    def __init__(self, stream: Any, key: bytes, tag: int, digest: Callable[..., Any]) -> None:
        self.tag = tag
        self._stream = stream
        self._mac = hmac.new(key, digestmod=digest)

    def seal(self, seq: int, plain: memoryview, size: int, out: memoryview, at: int) -> int:
        body = at + LENGTH
        end = body + size
        out[at:body] = size.to_bytes(LENGTH, "big")
        self._stream.update_into(plain[:size], out[body:])
        out[end : end + self.tag] = self._proof(seq, out[at:end])
        return end + self.tag

    def length(self, seq: int, sealed: Payload, at: int) -> int:
        return int(_UINT32.unpack_from(sealed, at)[0])

    def opens(self, seq: int, sealed: memoryview, at: int, size: int, plain: memoryview) -> bool:
        body = at + LENGTH
        end = body + size
        if not hmac.compare_digest(self._proof(seq, sealed[at:end]), sealed[end : end + self.tag]):
            return False
        self._stream.update_into(sealed[body:end], plain)
        return True

    def _proof(self, seq: int, packet: memoryview) -> bytes:
        mac = self._mac.copy()
        mac.update(seq.to_bytes(4, "big"))
        mac.update(packet)
        return mac.digest()[: self.tag]


LONGEST = 256 * 1024  # the longest packet that asyncssh takes
READ = 512 * 1024
MOST_HELD = LENGTH + LONGEST + SPARE
_MUCH = 32 * 1024
_LEAST, _LONGEST_TURN = 32 * 1024, 0.01
_PACKET = MOST_HELD + SPARE
_RANDOM = 4096
_SAMPLED = 64


class SharedBuffers:
    """The buffers of one event loop.

    ``plain`` holds one packet between being opened and being sealed again: its length of padding, payload, padding.
    ``sealed`` holds packets of one connection, its owner.
    """

    def __init__(self) -> None:
        self.received = memoryview(bytearray(_PACKET + READ))
        self.plain = memoryview(bytearray(_PACKET))
        self.sealed = memoryview(bytearray(2 * READ + _PACKET))
        self.filled = 0
        self.reading = False
        # Receives, for one read of `_SAMPLED`, the seconds until the kernel took everything relayed from it.
        self.relayed: Callable[[float], object] = lambda _seconds: None
        self._reads, self._since = 0, 0.0
        self.writing = False  # a full connection reports that during its write, and another one may want to send then
        self._owner: FastConnection | None = None
        self._random, self._spent = b"", 0

    def begin(self) -> None:
        """Begins the processing of a read; packets sent because of it wait until `end`."""
        self.reading = True
        self._reads += 1
        self._since = time.perf_counter() if self._reads % _SAMPLED == 1 else 0.0

    def end(self) -> None:
        """Ends the processing of a read, and sends the waiting packets."""
        self.reading = False
        self.flush()
        if self._since:
            self.relayed(time.perf_counter() - self._since)

    def random(self, size: int) -> bytes:
        """Returns random bytes, 255 at most, each used once; the kernel delivers many at one time."""
        if self._spent + size > len(self._random):
            self._random, self._spent = os.urandom(_RANDOM), 0
        start, self._spent = self._spent, self._spent + size
        return self._random[start : self._spent]

    def make_room(self, owner: FastConnection, size: int) -> None:
        """Makes room for the owner's next packet; packets of another owner, or too many, are sent first."""
        if self._owner is not owner or len(self.sealed) - self.filled < size:
            self.flush()
            self._owner = owner

    def flush_of(self, owner: FastConnection) -> None:
        if self._owner is owner:
            self.flush()

    def flush(self) -> None:
        """Sends the waiting packets."""
        owner, filled = self._owner, self.filled
        self._owner, self.filled = None, 0
        if owner is not None and filled:
            self.writing = True
            try:
                owner.write(self.sealed[:filled])
            finally:
                self.writing = False


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.buffers = SharedBuffers()


_of_thread = _OfThread()


def shared_buffers() -> SharedBuffers:
    """Returns the buffers of this thread, which has one event loop."""
    return _of_thread.buffers


class BufferedReader(asyncio.BufferedProtocol):
    """Reads into the shared buffer, behind the held bytes.

    After a large read the reader yields the processor first: with few processors, the sender then adds data, and the
    next read is larger. Many small reads would cost more, each of them a turn of the loop, a write and a wake-up. For a
    connection with slow processing, such as one with tiny packets, reads are smaller, because all other connections
    wait meanwhile.
    """

    def __init__(self, leg: FastConnection) -> None:
        self._leg = leg
        self._held = 0
        self._much = False
        self._most = READ
        self._buffer = shared_buffers().received

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._much:
            os.sched_yield()
        held = self._leg.held()
        self._held = len(held)
        self._buffer[: self._held] = held
        return self._buffer[self._held : self._held + self._most]

    def buffer_updated(self, nbytes: int) -> None:
        self._much = nbytes >= _MUCH
        started = time.perf_counter()
        self._leg.take(self._buffer[: self._held + nbytes])
        if self._much:
            share = _LONGEST_TURN / max(time.perf_counter() - started, 1e-6)
            self._most = max(_LEAST, min(READ, int(nbytes * share)))

    def eof_received(self) -> None:
        self._leg.eof_received()

    def pause_writing(self) -> None:
        self._leg.pause_writing()

    def resume_writing(self) -> None:
        self._leg.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leg.connection_lost(exc)
