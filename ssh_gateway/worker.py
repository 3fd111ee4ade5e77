"""One of several processes that serve on one port: `python -m ssh_gateway.worker FD SETTING…`, started by `workers`.

Keys and port come over the channel. What ends it is the other end's word, or that the other end is gone, and no signal:
those that mean the gateway reach all of its processes, or the first only, as whoever sends them likes.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from ssh_gateway.channel import Channel
from ssh_gateway.drain import Stop
from ssh_gateway.penalties import Debts
from ssh_gateway.server import Server
from ssh_gateway.together import Message, Tally, Together

MOST_UNREAD = 8 * 2**20  # bytes that the other end may leave unread before nothing more is told


@dataclass(slots=True)
class Worker:
    """This process, as one of several."""

    channel: Channel
    stop: Stop = field(default_factory=Stop)
    _untold: bool = False

    def join(self, tallies: Mapping[str, Tally], debts: Mapping[str, Debts]) -> Together:
        """Count together with the others from now on."""
        together = Together(tallies, debts, lambda message: self._tell(message, together))
        return together

    def _tell(self, message: Message, together: Together) -> None:
        """Tell the others. While nobody passes it on, nothing: afterwards they hear what is counted here by then."""
        if self.channel.unread() > MOST_UNREAD:
            self._untold = True
            return
        if self._untold:
            self._untold = False
            self.channel.send("others", together.state())
        else:
            self.channel.send("others", message)

    async def follow(self, server: Server) -> None:
        """Serve together with the others, until whoever started this process is gone: then it ends at once."""
        together = self.join(server.tallies, server.penalties.tables())
        self.channel.send("ready")
        async for message in self.channel.messages():
            match message:
                case ["stop"]:
                    self.stop.ask()
                case ["alive"]:
                    self.channel.send("alive")
                case ["metrics"]:
                    self.channel.send("metrics", server.meters.text().decode())
                case ["came"]:
                    self.channel.send("others", together.state())
                case ["left", number]:
                    together.left(number)
                case ["other", number, told]:
                    together.hear(number, told)
        self.stop.begin.set()
        self.stop.hurry.set()


def main() -> None:
    """Settings are those of the gateway."""
    from ssh_gateway.app import Gateway  # which starts workers

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    gateway = Gateway()
    gateway.initialize(sys.argv[2:])
    gateway.work(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
