"""What people are told when the gateway stops."""

from __future__ import annotations

from datetime import datetime, timedelta

from ssh_gateway.notices import Line, as_line

STOPPING = "the gateway is stopping: connect again in a moment"
_SENTENCE = "The SSH gateway is restarting: this connection ends {when}. Your job goes on; connect again in a moment."


def farewell(seconds: float, now: datetime) -> Line:
    """What every terminal shows of a gateway that ends its connections so many seconds from ``now``."""
    return Line("the gateway stops", as_line(_SENTENCE, now + timedelta(seconds=seconds), now))
