"""The stop of the gateway by signals, and the line that terminals show."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ssh_gateway.session.terminals import TerminalLine, as_line

STOPPING = "the gateway is stopping: connect again in a moment"
_SENTENCE = "The SSH gateway is restarting: this connection ends {when}. Your job goes on; connect again in a moment."


@dataclass(slots=True)
class Shutdown:
    """The first request begins the stop; the second one cuts the wait for sessions short."""

    begin: asyncio.Event = field(default_factory=asyncio.Event)
    force: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        (self.force if self.begin.is_set() else self.begin).set()

    def at_signals(self) -> Shutdown:
        """Requests the stop at each SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.ask)
        return self


def shutdown_message(seconds: float, now: datetime) -> TerminalLine:
    """Returns the line for every terminal of a gateway that ends its connections ``seconds`` after ``now``."""
    return TerminalLine("the gateway stops", as_line(_SENTENCE, now + timedelta(seconds=seconds), now))
