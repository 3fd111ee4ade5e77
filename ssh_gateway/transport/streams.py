"""Streams of ``ssh -J``: channels that keep their unsent data while the connection takes no more.

asyncssh's own channels know only their window. Many with a window each would put all of their data into the
connection's write buffer at once, however slow the network is. Here unsent data stays in the channel, which is full
soon, so that the leg served on it counts as `blocked` and its job is not read. When there is room again, the streams
take turns.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import asyncssh
from asyncssh.channel import SSHTCPChannel
from asyncssh.connection import _DEFAULT_MAX_PKTSIZE, _DEFAULT_WINDOW, SSHConnection

LONGEST = _DEFAULT_MAX_PKTSIZE
TURN = 32 * 1024  # bytes of one stream per turn; a keystroke waits for one turn of each other stream
# The least that a client may take in one packet of a stream. Clients take 16 KiB and more; with a limit of
# one byte a turn would be as many packets as bytes, and all other connections would wait for them.
SHORTEST = 1024
TOO_SHORT = f"a stream's packets may not be limited to less than {SHORTEST} bytes"


class StreamScheduler:
    """The streams of one connection with data that the connection cannot take."""

    def __init__(self, blocked: Callable[[], bool]) -> None:
        self.blocked = blocked
        self._waiting: dict[JumpChannel, None] = {}

    def wait(self, stream: JumpChannel) -> None:
        self._waiting[stream] = None

    def go_on(self) -> None:
        """Sends while the connection has room; the stream that waits longest is first."""
        while self._waiting and not self.blocked():
            stream = next(iter(self._waiting))
            del self._waiting[stream]
            stream.take_turn()


class JumpChannel(SSHTCPChannel[bytes]):
    """One stream; the leg of the outer connection makes it."""

    def __init__(
        self,
        leg: SSHConnection,
        loop: asyncio.AbstractEventLoop,
        turns: StreamScheduler,
        refused: Callable[[str], None] = lambda _why: None,
    ) -> None:
        super().__init__(leg, loop, None, "strict", _DEFAULT_WINDOW, LONGEST)
        self._turns = turns
        self._refused = refused

    def process_open(self, send_chan: int, send_window: int, send_pktsize: int, session: Any) -> None:
        """Opens as asyncssh does, but refuses a client with too small packets."""
        if send_pktsize < SHORTEST:
            if inspect.iscoroutine(session):
                session.close()
            self._refused(TOO_SHORT)
            session = _too_short()
        super().process_open(send_chan, send_window, send_pktsize, session)

    def take_turn(self) -> None:
        """Sends one turn of the waiting data, as if the window were no larger."""
        if not self._send_buf:  # closed meanwhile
            return
        later = max(0, self._send_window - TURN)
        self._send_window -= later
        super()._flush_send_buf()
        self._send_window += later
        if self._send_buf and later:
            self._turns.wait(self)

    def abort(self) -> None:
        """Closes without the unsent data; asyncssh's method would keep it after a `close`."""
        if self._send_state == "close_pending":
            self._close_send()
        super().abort()

    def _flush_send_buf(self) -> None:
        if self._send_buf and self._turns.blocked():
            self._turns.wait(self)
            self._pause_resume_writing()
        else:
            super()._flush_send_buf()


async def _too_short() -> NoReturn:
    raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, TOO_SHORT)
