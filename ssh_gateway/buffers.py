"""The buffers that all relayed connections of an event loop share, and how a socket reads into one.

They are used within one call of the loop only, so an idle connection has none: what is left of a read is kept by the
connection, what is to be written leaves at the end of the read that it came with.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ssh_gateway.ciphers import LENGTH, SPARE

LONGEST = 256 * 1024  # a packet that asyncssh takes
READ = 512 * 1024
MOST_HELD = LENGTH + LONGEST + SPARE
_MUCH = 32 * 1024
_LEAST, _LONGEST_TURN = 32 * 1024, 0.01
_PACKET = MOST_HELD + SPARE
_RANDOM = 4096
_SAMPLED = 64


class PacketWriter(Protocol):
    """A connection whose packets may wait here."""

    def write(self, data: memoryview) -> None:
        """Send it; it holds until this returns."""


class SharedBuffers:
    """``plain`` holds one packet as it is between being opened and being sealed again: its length of padding, what it
    says, its padding. ``sealed`` holds packets of one connection, its owner.
    """

    def __init__(self) -> None:
        self.received = memoryview(bytearray(_PACKET + READ))
        self.plain = memoryview(bytearray(_PACKET))
        self.sealed = memoryview(bytearray(2 * READ + _PACKET))
        self.filled = 0
        self.reading = False
        # Told for one read of `_SAMPLED` how many seconds went by until the kernel had all that came of it.
        self.relayed: Callable[[float], object] = lambda _seconds: None
        self._reads, self._since = 0, 0.0
        self.writing = False  # a connection that cannot take more says so at once, and others may want to send then
        self._owner: PacketWriter | None = None
        self._random, self._spent = b"", 0

    def begin(self) -> None:
        """Something was read; what is sent because of it waits until its `end`."""
        self.reading = True
        self._reads += 1
        self._since = time.perf_counter() if self._reads % _SAMPLED == 1 else 0.0

    def end(self) -> None:
        """All of it has been looked at."""
        self.reading = False
        self.flush()
        if self._since:
            self.relayed(time.perf_counter() - self._since)

    def random(self, size: int) -> bytes:
        """So many random bytes, 255 at most, which nobody else gets; the kernel is asked for many at one time."""
        if self._spent + size > len(self._random):
            self._random, self._spent = os.urandom(_RANDOM), 0
        start, self._spent = self._spent, self._spent + size
        return self._random[start : self._spent]

    def make_room(self, owner: PacketWriter, size: int) -> None:
        """For the owner's next packet; what belongs to another, or leaves no room, is sent first."""
        if self._owner is not owner or self.left() < size:
            self.flush()
            self._owner = owner

    def left(self) -> int:
        """For how many more bytes there is room."""
        return len(self.sealed) - self.filled

    def flush_of(self, owner: PacketWriter) -> None:
        if self._owner is owner:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
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
    """Those of this thread: an event loop has one."""
    return _of_thread.buffers


class BufferedSink(Protocol):
    """What `Reader` reads for."""

    def held(self) -> bytes:
        """What is there of a packet that is not complete."""

    def take(self, received: memoryview) -> None:
        """What was held and what came."""

    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class BufferedReader(asyncio.BufferedProtocol):
    """Reads into the shared buffer, behind what is held.

    Of whom much comes, more has come in a moment: where processors are short, senders go on before the next read, so
    that it is a larger one. Many small ones would cost more, each of them a turn of the loop, a write and a waking. Of
    whom what comes takes long, in tiny packets for one, less is read at once: everybody else waits meanwhile.
    """

    def __init__(self, leg: BufferedSink) -> None:
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
