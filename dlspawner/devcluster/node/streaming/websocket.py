"""WebSocket framing, server side (pure: bytes in, messages out; RFC 6455 without extensions)."""

from __future__ import annotations

import base64
import hashlib
import struct
from dataclasses import dataclass

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
LONGEST_MESSAGE = 2**24


class ProtocolError(Exception):
    """The peer broke the rules; the connection ends."""


@dataclass(frozen=True, slots=True)
class Message:
    """A complete message or control frame."""

    opcode: int
    data: bytes


def accept(key: str) -> str:
    """The value of Sec-WebSocket-Accept."""
    digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode(), usedforsecurity=False)
    return base64.b64encode(digest.digest()).decode()


def frame(opcode: int, data: bytes) -> bytes:
    """One unmasked frame, as servers send them."""
    if len(data) < 126:
        return struct.pack(">BB", 0x80 | opcode, len(data)) + data
    if len(data) < 2**16:
        return struct.pack(">BBH", 0x80 | opcode, 126, len(data)) + data
    return struct.pack(">BBQ", 0x80 | opcode, 127, len(data)) + data


class Parser:
    """Collects frames into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parts = bytearray()
        self._opcode = 0

    def receive(self, data: bytes) -> list[Message]:
        """Everything that is complete now; raises `ProtocolError`."""
        self._buffer += data
        messages: list[Message] = []
        while (taken := self._take()) is not None:
            fin, opcode, payload = taken
            if opcode >= CLOSE:
                messages.append(Message(opcode, payload))
                continue
            self._opcode = opcode or self._opcode
            self._parts += payload
            if len(self._parts) > LONGEST_MESSAGE:
                raise ProtocolError("message too long")
            if fin:
                messages.append(Message(self._opcode, bytes(self._parts)))
                self._parts.clear()
        return messages

    def _take(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, at = buffer[1] & 0x7F, 2
        if not buffer[1] & 0x80:
            raise ProtocolError("a client's frames must be masked")
        if length >= 126:
            size, form = (2, ">H") if length == 126 else (8, ">Q")
            if len(buffer) < 2 + size:
                return None
            (length,), at = struct.unpack_from(form, buffer, 2), 2 + size
        if length > LONGEST_MESSAGE:
            raise ProtocolError("frame too long")
        if len(buffer) < at + 4 + length:
            return None
        mask = bytes(buffer[at : at + 4])
        payload = bytes(buffer[at + 4 : at + 4 + length])
        fin, opcode = bool(buffer[0] & 0x80), buffer[0] & 0x0F
        del buffer[: at + 4 + length]
        return fin, opcode, _unmask(payload, mask)


def _unmask(payload: bytes, mask: bytes) -> bytes:
    # One big exclusive-or is a hundred times faster than a loop over the bytes.
    pattern = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(len(payload), "big")
