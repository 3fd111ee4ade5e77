"""The ciphers of the packet layer, for whole packets in buffers that are there already.

A `Cipher` is one direction of one connection between two key exchanges; it keeps the state, whoever uses it: `bulk`
(`seal`, `opens`) or asyncssh (`encrypt_packet` …), one packet after the other. The formats are those of RFC 4253 §6,
RFC 5647 and OpenSSH's PROTOCOL (``-etm`` MACs) and PROTOCOL.chacha20poly1305; in all of them the length is readable
before the packet is complete, and padding counts without it.

Refused: a MAC over what is not encrypted yet, which is not offered; asyncssh's own layer does whatever is not here.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.poly1305 import Poly1305

from ssh_gateway.packets import Payload

# Whether this version of cryptography can write into buffers; without, everything is asyncssh's.
AVAILABLE = hasattr(AESGCM, "decrypt_into")
LENGTH = 4
SPARE = 64  # bytes of a buffer behind what is written, which some ciphers want to be there
MOST_AROUND = 160  # bytes of buffer that a packet takes beside its payload: lengths, padding, proof, and `SPARE`
_FIRST_BLOCK = bytes(64)
_UINT32 = struct.Struct(">I")
_COUNTER_0 = bytes(8)


class PacketCipher:
    """One direction; ``tag`` is how long the proof behind a packet is, ``block`` what padding fills up to.

    No `ABC`: asked for every packet, whether something is one of those takes five times as long.
    """

    tag: int
    block: int
    # The plain packet that asyncssh is handed next, opened already; empty: the proof was wrong.
    opened: bytes | None = None

    def seal(self, seq: int, plain: memoryview, size: int, out: memoryview, at: int) -> int:
        """Write the packet of the first ``size`` bytes, with its length and proof, to a place of ``out``, where `SPARE`
        bytes more have to be; where it ends.
        """
        raise NotImplementedError

    def length(self, seq: int, sealed: Payload, at: int) -> int:
        """How long the packet at a place of ``sealed`` is, which four bytes say that nothing has proven yet."""
        raise NotImplementedError

    def opens(self, seq: int, sealed: memoryview, at: int, size: int, plain: memoryview) -> bool:
        """Write what the packet at a place of ``sealed`` holds, of that length, to ``plain``, which has `SPARE` bytes
        more; False when the proof is wrong.
        """
        raise NotImplementedError

    # As asyncssh calls them

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
        """The first half of the stream's first block; the packet's own bytes begin at the second."""
        self._body.reset_nonce(_COUNTER_0 + seq.to_bytes(8, "big"))
        block: bytes = self._body.update(_FIRST_BLOCK)
        return block[:32]


class Ctr(PacketCipher):
    """``aes…-ctr`` with an ``-etm`` MAC; ``stream`` is the cipher at its place, the same in both directions."""

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
