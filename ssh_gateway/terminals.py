"""Terminals: which channels of a relayed connection are somebody's terminal, and room to say a line on them.

The gateway says a line by sending data that the pod knows nothing of, so it must not use room in the client's window
that the pod believes to be its own. From the window with which a client opens a session a little is kept back, and the
pod is told of the rest; what was used for lines is kept back again from what the client adds later. At every moment the
client's window is what the pod believes it to be, and the reserve. What the pod sends is never touched or held.

A terminal is a channel whose ``pty-req`` the pod has granted; nothing is ever said on another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ssh_gateway import packets

MOST_CHANNELS = 4096
MOST_REPLIES = 64
RESERVE = 4096
LEAST = 256  # bytes of room without which nothing is ever said
SHARE = 16  # of a small window no more than this part is kept back

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
    """One session's channel; ``most`` is what was kept back of its window, ``used`` how much of that lines took."""

    most: int
    longest: int  # the client takes no more in one packet
    used: int = 0
    shows: bool = False  # it has a terminal, and may still be written on
    told: set[str] = field(default_factory=set)
    # Requests that the pod has not answered yet, in their order: whether each is for a terminal.
    asked: deque[bool] = field(default_factory=deque)

    @property
    def room(self) -> int:
        return min(self.most - self.used, self.longest)


@dataclass(slots=True)
class Terminals:
    """What the packets that pass by tell; both methods are given those of `FROM_CLIENT` and `FROM_POD`."""

    client_number: dict[int, int] = field(default_factory=dict)  # of the channel that the pod knows as …
    shown_on: set[int] = field(default_factory=set)  # channels for which a terminal was asked, by the client's number
    screens: dict[int, Screen] = field(default_factory=dict)  # by the client's number

    def from_client(self, kind: int, payload: bytes) -> bytes | None:
        """The packet as the pod is to get it; ``None``: it needs to know nothing of it."""
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
        """Whether the pod has granted a terminal that was asked for; None: it says nothing of one."""
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
        """A session's opening with a smaller window; any other one as it is."""
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
    """A client's addition to its window without what lines have used of it."""
    added = packets.number_at(payload, 5)
    kept = min(added, screen.used)
    screen.used -= kept
    return payload[:5] + (added - kept).to_bytes(4, "big") + payload[9:] if added > kept else None
