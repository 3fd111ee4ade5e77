"""SPDY/3.1 framing, as far as `kubectl exec` speaks it (pure: bytes in, events out).

kubectl opens one stream per channel (headers ``streamtype: stdin`` …), we acknowledge each. Like the library that
both kubectl and the kubelet use, we do no SPDY flow control: one TCP connection per command, its own
back-pressure is enough.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_WORDS = """
    options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
    authorization cache-control connection content-base content-encoding content-language content-length
    content-location content-md5 content-range content-type date etag expect expires from host if-match
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
    user-agent vary via warning www-authenticate method get status
""".split()  # noqa: SIM905  (sixty quoted words would hide the order that matters)
# The compression dictionary of SPDY/3, section 2.6.10.1 of its specification.
DICTIONARY = (
    b"".join(struct.pack(">I", len(word)) + word.encode() for word in [*_WORDS, "200 OK", "version", "HTTP/1.1"])
    + b"".join(struct.pack(">I", len(word)) + word.encode() for word in ("url", "public", "set-cookie", "keep-alive"))
    + struct.pack(">I", 6)
    + b"origin100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    b"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    b"403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    b"Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    b"chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    b"text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
LONGEST_FRAME = 2**20


class ProtocolError(Exception):
    """The peer does not speak SPDY/3."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream; answer with `Framer.reply`."""

    stream: int
    headers: dict[str, str]
    fin: bool


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream; ``fin`` is the peer's last word on it."""

    stream: int
    data: bytes
    fin: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """To be sent back as it is (`Framer.pong`)."""

    id: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The peer gave up a stream, or (0) the connection."""

    stream: int


Event = Opened | Data | Ping | Gone


class Framer:
    """The two compression states of one connection, and the bytes of an incomplete frame."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._buffer = bytearray()

    def receive(self, data: bytes) -> list[Event]:
        """Everything that is complete now; raises `ProtocolError`."""
        self._buffer += data
        events: list[Event] = []
        while len(self._buffer) >= 8:
            first, second = struct.unpack_from(">II", self._buffer)
            flags, length = second >> 24, second & 0xFFFFFF
            if length > LONGEST_FRAME:
                raise ProtocolError(f"a frame of {length} bytes")
            if len(self._buffer) < 8 + length:
                break
            payload = bytes(self._buffer[8 : 8 + length])
            del self._buffer[: 8 + length]
            if first & 0x80000000:
                events += self._control(first & 0xFFFF, flags, payload)
            else:
                events.append(Data(first, payload, bool(flags & FIN)))
        return events

    def reply(self, stream: int) -> bytes:
        return self._frame(SYN_REPLY, 0, struct.pack(">I", stream) + self._headers({}))

    def data(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        return struct.pack(">II", stream, (FIN if fin else 0) << 24 | len(data)) + data

    def pong(self, ping: Ping) -> bytes:
        return self._frame(PING, 0, struct.pack(">I", ping.id))

    def open(self, stream: int, headers: dict[str, str]) -> bytes:
        """A client's messages; here for tests."""
        return self._frame(SYN_STREAM, 0, struct.pack(">IIH", stream, 0, 0) + self._headers(headers))

    def goaway(self) -> bytes:
        return self._frame(GOAWAY, 0, struct.pack(">II", 0, 0))

    def _control(self, kind: int, flags: int, payload: bytes) -> list[Event]:
        try:
            if kind == SYN_STREAM:
                (stream,) = struct.unpack_from(">I", payload)
                return [Opened(stream & 0x7FFFFFFF, self._parse(payload[10:]), bool(flags & FIN))]
            if kind == PING:
                return [Ping(*struct.unpack_from(">I", payload))]
            if kind == RST_STREAM:
                return [Gone(struct.unpack_from(">I", payload)[0] & 0x7FFFFFFF)]
            if kind == GOAWAY:
                return [Gone(0)]
        except (struct.error, zlib.error) as error:
            raise ProtocolError(f"control frame {kind}: {error}") from error
        return []  # settings, window updates and the like change nothing for us

    def _parse(self, block: bytes) -> dict[str, str]:
        text = self._inflate.decompress(block, LONGEST_FRAME)
        (count,), at = struct.unpack_from(">I", text), 4
        words: list[str] = []
        for _ in range(min(count, 1000) * 2):
            (length,) = struct.unpack_from(">I", text, at)
            words.append(text[at + 4 : at + 4 + length].decode("latin-1"))
            at += 4 + length
        return dict(zip(words[::2], words[1::2], strict=True))

    def _headers(self, headers: dict[str, str]) -> bytes:
        text = struct.pack(">I", len(headers))
        for word in (word for pair in headers.items() for word in pair):
            text += struct.pack(">I", len(word)) + word.encode("latin-1")
        return self._deflate.compress(text) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    @staticmethod
    def _frame(kind: int, flags: int, payload: bytes) -> bytes:
        return struct.pack(">HHI", 0x8003, kind, flags << 24 | len(payload)) + payload
