"""Decayed usage: how much a team has used lately, of which half is forgotten after every half-life.

While a team holds ``rate`` milli-GPUs its usage *u* obeys *du/dt = rate − λu*, which has a closed solution; so nothing
needs to run in the background, and how often somebody asks changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Milli-GPU-seconds that were left at the time ``since``, and what the team has held since then."""

    amount: float
    since: datetime
    rate: int = 0

    def at(self, now: datetime, half_life: timedelta) -> float:
        """The usage at ``now``; a clock that went back counts as one that stood still."""
        seconds = max(0.0, (now - self.since).total_seconds())
        decay = math.log(2) / half_life.total_seconds()
        left = math.exp(-decay * seconds)
        return self.amount * left + self.rate / decay * (1 - left)

    def advanced_to(self, now: datetime, half_life: timedelta, rate: int) -> DecayedUsage:
        """The same usage from ``now`` on, with another rate."""
        return DecayedUsage(self.at(now, half_life), now, rate)
