"""Terminals: the channels of a relayed connection with a terminal, and room for lines on them.

The gateway writes a line by sending data unknown to the pod, so it must not use room in the client's window that the
pod counts as its own. Of the window with which a client opens a session a small part is reserved, and the pod receives
the rest; the room used for lines is reserved again out of the client's later additions. At every moment the client's
window is the pod's view of it plus the reserve. The pod's own packets are never changed or delayed.

A terminal is a channel with a ``pty-req`` that the pod has granted; lines are never written on another one.

The lines are the Manager's open notices, kept up to date.

One request at a time waits at the Manager for a change. While the Manager is unreachable the known notices stay,
sessions continue, and requests are repeated at growing intervals; a gateway without a Manager shows no notices.
"""

from __future__ import annotations

import asyncio
import logging
import random
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dlspawner.clients.manager import JobNotice
from dlspawner.core.text import with_time
from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager
from ssh_gateway.core import packets
from ssh_gateway.log import say

MOST_CHANNELS = 4096
MOST_REPLIES = 64
RESERVE = 4096
LEAST = 256  # bytes of room that a line needs
SHARE = 16  # of a small window at most this part is reserved

FROM_CLIENT = frozenset(
    {packets.CHANNEL_OPEN, packets.CHANNEL_WINDOW_ADJUST, packets.CHANNEL_CLOSE, packets.CHANNEL_REQUEST}
)
FROM_POD = frozenset(
    {
        packets.CHANNEL_OPEN_CONFIRMATION,
        packets.CHANNEL_OPEN_FAILURE,
        packets.CHANNEL_EOF,
        packets.CHANNEL_CLOSE,
        packets.CHANNEL_SUCCESS,
        packets.CHANNEL_FAILURE,
    }
)


@dataclass(slots=True)
class Screen:
    """One session's channel; ``most`` is the room reserved of its window, ``used`` the part that lines have taken."""

    most: int
    longest: int  # the client's limit for one packet
    used: int = 0
    shows: bool = False  # it has a terminal that is still writable
    told: set[str] = field(default_factory=set)
    # Requests without the pod's reply so far, in order: True for a terminal.
    asked: deque[bool] = field(default_factory=deque)

    @property
    def room(self) -> int:
        return min(self.most - self.used, self.longest)


@dataclass(slots=True)
class Terminals:
    """Tracks terminals by the packets that pass; the two methods receive those of `FROM_CLIENT` and `FROM_POD`."""

    client_number: dict[int, int] = field(default_factory=dict)  # by the pod's number of the channel
    shown_on: set[int] = field(default_factory=set)  # channels with a requested terminal, by the client's number
    screens: dict[int, Screen] = field(default_factory=dict)  # by the client's number

    def from_client(self, kind: int, payload: bytes) -> bytes | None:
        """Returns the packet as the pod receives it; ``None`` if the pod must not receive it."""
        if kind == packets.CHANNEL_OPEN:
            return self._open(payload)
        number = packets.number_at(payload, 1)
        screen = self.screens.get(self.client_number.get(number, -1))
        if kind == packets.CHANNEL_WINDOW_ADJUST:
            return payload if screen is None or not screen.used else _kept_back(payload, screen)
        if kind == packets.CHANNEL_CLOSE:
            if screen is not None:
                screen.shows = False
            self.client_number.pop(number, None)
            return payload
        wants_terminal = packets.request_name(payload) == b"pty-req"
        if wants_terminal and number in self.client_number and len(self.shown_on) < MOST_CHANNELS:
            self.shown_on.add(self.client_number[number])
        if screen is not None and packets.wants_reply(payload) and len(screen.asked) < MOST_REPLIES:
            screen.asked.append(wants_terminal)
        return payload

    def from_pod(self, kind: int, payload: bytes) -> bool | None:
        """True if the pod grants a requested terminal, False if it refuses one; None for every other packet."""
        number = packets.number_at(payload, 1)
        if kind == packets.CHANNEL_OPEN_CONFIRMATION:
            if len(self.client_number) < MOST_CHANNELS:
                self.client_number[packets.number_at(payload, 5)] = number
            return None
        if kind in {packets.CHANNEL_CLOSE, packets.CHANNEL_OPEN_FAILURE}:
            self.shown_on.discard(number)
            self.screens.pop(number, None)
            return None
        screen = self.screens.get(number)
        if screen is None:
            return None
        if kind == packets.CHANNEL_EOF:
            screen.shows = False
            screen.asked.clear()
        elif screen.asked and screen.asked.popleft():
            granted = kind == packets.CHANNEL_SUCCESS
            screen.shows = screen.shows or granted
            return granted
        return None

    def _open(self, payload: bytes) -> bytes:
        """Returns a session's CHANNEL_OPEN with a smaller window; any other one unchanged."""
        name, rest = packets.text_at(payload, 1)
        if name != b"session" or len(payload) < rest + 12 or len(self.screens) >= MOST_CHANNELS:
            return payload
        number, window, longest = (packets.number_at(payload, rest + offset) for offset in (0, 4, 8))
        most = min(RESERVE, window // SHARE)
        if min(most, longest) < LEAST:
            return payload
        self.screens[number] = Screen(most, longest)
        return payload[: rest + 4] + (window - most).to_bytes(4, "big") + payload[rest + 8 :]


def _kept_back(payload: bytes, screen: Screen) -> bytes | None:
    """Returns a client's addition to its window without the room to reserve again; None if nothing is left."""
    added = packets.number_at(payload, 5)
    kept = min(added, screen.used)
    screen.used -= kept
    return payload[:5] + (added - kept).to_bytes(4, "big") + payload[9:] if added > kept else None


WAIT_SECONDS = 240.0
PAUSE_SECONDS = 1.0  # between two lists: a hundred changes in a moment are one
LONGEST_PAUSE = 60.0
LONGEST_LINE = 800
STALE = timedelta(minutes=10)  # for so long after its time a notice is shown
_TYPOGRAPHY = str.maketrans({"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "ß": "ss"})
_SHUTDOWN = "The SSH gateway is restarting: this connection ends {when}. Your job goes on; connect again in a moment."


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """A notice as a terminal shows it; a line with the same ``id`` is shown once."""

    id: str
    content: bytes


class NoticeFollower:
    """The open notices of all jobs; `run` is the one task that requests them."""

    def __init__(self, source: HubAndManager, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._source = source
        self._now = now
        self._open: dict[tuple[str, str], list[JobNotice]] = {}
        self.changed: Callable[[], None] = lambda: None

    def lines(self, user: str, server: str, job: str | None = None) -> list[TerminalLine]:
        """Returns the lines for the terminals of a server's job, without notices about another job of the server."""
        now = self._now()
        found = [one for one in self._open.get((user, server), ()) if not _over(one, now)]
        return [TerminalLine(one.id, line(one, now)) for one in found if not (job and one.job) or one.job == job]

    async def run(self) -> None:
        """Follows the Manager's notices for ever."""
        version, pause = "", PAUSE_SECONDS
        while True:
            try:
                found = await self._source.open_notices(version, WAIT_SECONDS)
            except BackendUnavailable as problem:
                if pause == PAUSE_SECONDS:  # once, not at every try
                    say("notices", level=logging.WARNING, result="failed", why=problem)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                pause = PAUSE_SECONDS
                if found.version != version:
                    version = found.version
                    self._take(found.notices)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _take(self, notices: Sequence[JobNotice]) -> None:
        self._open = {}
        for notice in notices:
            if not notice.seen:
                self._open.setdefault((notice.user, notice.server), []).append(notice)
        self.changed()


def line(notice: JobNotice, now: datetime) -> bytes:
    """Returns a notice as a terminal shows it."""
    return as_line(notice.text, notice.until, now)


def as_line(sentence: str, until: datetime | None, now: datetime) -> bytes:
    """Returns a line of its own below the present screen: visible ASCII only, cut to the longest length."""
    text = escaped(with_time(sentence, until, now))
    shown = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}..."
    return f"\r\n*** {shown} ***\r\n".encode("ascii")


def shutdown_message(seconds: float, now: datetime) -> TerminalLine:
    """Returns the line for every terminal of a gateway that ends its connections ``seconds`` after ``now``."""
    return TerminalLine("the gateway stops", as_line(_SHUTDOWN, now + timedelta(seconds=seconds), now))


def escaped(text: str) -> str:
    """Makes text fit for any terminal: letters lose their accents, and other characters become question marks."""
    plain = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHY))
    return "".join(char if " " <= char <= "~" else "?" for char in plain if not unicodedata.combining(char))


def _over(notice: JobNotice, now: datetime) -> bool:
    late = notice.until is not None and now > notice.until + STALE
    return late or (notice.ends is not None and now >= notice.ends)
