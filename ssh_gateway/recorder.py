"""What of one connection is recorded: terminals of a team whose terminals are, from the wish for one to its end.

Rules:

* Whether a terminal is recorded is decided when it is asked for. The request waits for that where nobody knows yet, and
  for its file, and so does everything that the client sends after it. A terminal that has to be recorded and cannot be
  is refused, and so is the shell or command that was meant to run in it; the connection ends with a sentence, as that
  is what every client shows.
* Whoever is recorded reads so before the first byte of the job's: a client that leaves no room for the line gets no
  terminal. What the gateway says is in the recording, too.
* A recording that ends early (a full disk, the size allowed) ends no session: the terminal says so, the log why, and a
  new terminal is judged anew.
* What fails while a request waits fails in a task of the client's connection (`run`), which ends it with words: nothing
  waits for ever, and nothing is counted that is not there.
* A connection and a person have only so many recordings at once, each of which is an open file, until that is closed.
  One more is refused; other recorded terminals of the connection say why, and it ends only where there are none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ssh_gateway import packets
from ssh_gateway.access import Crowd
from ssh_gateway.asciicast import Terminal
from ssh_gateway.notices import Line, as_line
from ssh_gateway.recordings import CannotRecord, Recording, Recordings
from ssh_gateway.terminals import MOST_CHANNELS, MOST_REPLIES, Screen

MOST_OF_CONNECTION = 16
MOST_OF_PERSON = 64

_RECORDED = "This terminal is recorded for your administrators: all that it shows, and nothing that it does not."
_RUNS = frozenset({b"shell", b"exec", b"subsystem"})
_REFUSED = "Terminals of your team are recorded, and this one cannot be: {why}."
_NO_ROOM = "your SSH client leaves no room for the line that says so"
_NOT_KNOWN = "nobody can tell right now whether they are still; try again in a moment"
_TOO_MANY = "this connection has {most} already: close some of them"
_OVER = "The recording of this terminal has ended: {why}. You can go on."


def _line(sentence: str) -> bytes:
    return as_line(sentence, None, datetime.now(UTC))


RECORDED = Line("this terminal is recorded", _line(_RECORDED))


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of a request: it goes on as ``forward``, or waits (None) until `Recorder.resume` is called.

    ``ends`` is the sentence with which the connection ends.
    """

    forward: bytes | None
    ends: str = ""


@dataclass(slots=True)
class Recorded:
    """A channel that a terminal was asked for on: its recording, or why there is none."""

    tape: Recording | None = None
    refused: str = ""
    asked: bool = False  # the request that waited for this has gone on
    lines: list[Line] = field(default_factory=list)


def new_crowd() -> Crowd:
    """How many recordings each person has."""
    return Crowd(MOST_OF_PERSON, of="recorded terminals")


@dataclass(slots=True)
class Recorder:
    """The recordings of one connection; channels go by the client's numbers."""

    recordings: Recordings
    must: Callable[[], bool | None]  # whether terminals are recorded now; None: nobody can tell before `learn`
    whose: Callable[[int, int], Terminal]  # by channel and count
    note: Callable[..., None]  # writes a line of the log
    learn: Callable[[], Awaitable[None]]  # asks, within a deadline
    user: str = ""
    crowd: Crowd = field(default_factory=new_crowd)
    run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = asyncio.create_task
    resume: Callable[[], None] = lambda: None
    eased: Callable[[], None] = lambda: None
    tell: Callable[[], None] = lambda: None
    channels: dict[int, Recorded] = field(default_factory=dict)
    _count: int = 0
    _going_on: int = 0  # recordings whose files are not closed

    @property
    def behind(self) -> bool:
        """The disk is slower than the job, whose output is to wait."""
        return any(one.tape is not None and one.tape.behind for one in self.channels.values())

    def lines(self, channel: int) -> list[Line]:
        """What is to be said of a terminal's recording."""
        found = self.channels.get(channel)
        return found.lines if found else []

    def show(self, channel: int, content: bytes) -> None:
        """This goes to the client."""
        found = self.channels.get(channel)
        if found is not None and found.tape is not None:
            found.tape.show(content)

    def close(self, channel: int) -> None:
        """A channel is no terminal any more."""
        found = self.channels.pop(channel, None)
        if found is not None and found.tape is not None:
            found.tape.end()

    def leave(self) -> None:
        """The connection is over."""
        for channel in list(self.channels):
            self.close(channel)

    def request(self, payload: bytes, channel: int | None, screen: Screen | None) -> Answer:
        """Judge a client's CHANNEL_REQUEST."""
        name = packets.request_name(payload)
        found = self.channels.get(channel) if channel is not None else None
        if name == b"pty-req":
            return self._terminal(payload, channel, screen) if found is None else self._again(payload, found)
        if found is not None and found.refused and name in _RUNS:
            return Answer(packets.refused(payload))
        if name == b"window-change" and found is not None and found.tape is not None:
            found.tape.resize(packets.screen_size(payload) or (0, 0))
        return Answer(payload)

    def _terminal(self, payload: bytes, channel: int | None, screen: Screen | None) -> Answer:
        must = self.must()
        if must is False:
            return Answer(payload)
        if must is None:
            return self._ask(payload, channel)
        size = packets.screen_size(payload)
        if channel is None or screen is None or size is None or len(screen.asked) >= MOST_REPLIES:
            return self._refuse(payload, channel, _NO_ROOM)
        if (full := self._enter()) is not None:
            return self._refuse_one(payload, channel, full)
        self.channels[channel] = found = Recorded()
        begin = self._begin(channel, found, size, packets.terminal_type(payload))
        self.run(begin).set_name("begin a recording")
        return Answer(None)

    def _ask(self, payload: bytes, channel: int | None) -> Answer:
        if channel is None:
            return self._refuse(payload, channel, _NOT_KNOWN)
        self.channels[channel] = found = Recorded()
        self.run(self._learn(channel, found)).set_name("ask who is recorded")
        return Answer(None)

    async def _learn(self, channel: int, found: Recorded) -> None:
        await self.learn()
        if self.must() is None:
            self.note("refused", level=logging.WARNING, channel=channel, what="terminal", why=_NOT_KNOWN)
            found.refused = _REFUSED.format(why=_NOT_KNOWN)
        elif self.channels.get(channel) is found:
            del self.channels[channel]  # the request comes again, and is judged as the first
        self.resume()

    def _again(self, payload: bytes, found: Recorded) -> Answer:
        """The request that waited; a second one is refused, because it must not end the first one's recording."""
        first, found.asked = not found.asked, True
        if found.refused:
            return Answer(packets.refused(payload), found.refused if first else "")
        return Answer(payload if first else packets.refused(payload))

    def _refuse(self, payload: bytes, channel: int | None, why: str) -> Answer:
        sentence = _REFUSED.format(why=why)
        self.note("refused", level=logging.WARNING, channel=channel, what="terminal", why=why)
        if channel is not None and len(self.channels) < MOST_CHANNELS:
            self.channels[channel] = Recorded(refused=sentence, asked=True)
        return Answer(packets.refused(payload), sentence)

    def _refuse_one(self, payload: bytes, channel: int, why: str) -> Answer:
        """As `_refuse`, but whoever has other recorded terminals here reads it on those, and keeps them."""
        answer = self._refuse(payload, channel, why)
        others = [one for one in self.channels.values() if one.tape is not None]
        line = Line("too many are recorded", _line(answer.ends))
        for one in others:
            if line.id not in {said.id for said in one.lines}:
                one.lines.append(line)
        self.tell()
        return Answer(answer.forward) if others else answer

    def _enter(self) -> str | None:
        """Count one more recording, which must `_leave` once; or why there can be none."""
        if self._going_on >= MOST_OF_CONNECTION:
            return _TOO_MANY.format(most=MOST_OF_CONNECTION)
        why = self.crowd.enter(self.user)
        if why is None:
            self._going_on += 1
        return why

    def _leave(self) -> None:
        self._going_on -= 1
        self.crowd.leave(self.user)

    async def _begin(self, channel: int, found: Recorded, size: tuple[int, int], term: bytes) -> None:
        self._count += 1
        over, done = partial(self._over, channel, self._count), partial(self._done, channel)
        try:
            whose = self.whose(channel, self._count)
            found.tape = await self.recordings.begin(whose, size, term, over, self._ease, done)
        except CannotRecord as problem:
            self._leave()
            self.note("refused", level=logging.WARNING, channel=channel, what="terminal", why=problem)
            found.refused = _REFUSED.format(why=problem.told)
        except BaseException:
            self._leave()
            raise
        else:
            if self.channels.get(channel) is not found:  # gone meanwhile
                found.tape.end()
            self.note("recording", level=logging.INFO, channel=channel, path=found.tape.path)
            found.lines.append(RECORDED)
        self.resume()

    def _ease(self) -> None:
        self.eased()

    def _over(self, channel: int, count: int, why: str) -> None:
        """A recording has ended before its terminal."""
        found = self.channels.get(channel)
        if found is not None:
            found.lines.append(Line(f"recording {count} is over", _line(_OVER.format(why=why))))
            self.tell()

    def _done(self, channel: int, tape: Recording) -> None:
        self._leave()
        level = logging.INFO if tape.result == "complete" else logging.WARNING
        self.note(
            "recorded",
            level=level,
            channel=channel,
            path=tape.path,
            result=tape.result,
            bytes=tape.file.size,
            why=tape.why,
        )
