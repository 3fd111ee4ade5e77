"""Whether a worker lives: it is asked again and again, and one that does not answer is dead sooner or later. Pure.

Counted are questions and not seconds: whoever asks may have been stopped as well (a debugger, a suspended machine), and
has not waited then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BEATS = 6  # questions without an answer after which a worker is dead
BEATS_AT_START = 60  # the same of one that has not served yet: it answers nothing before
SILENT = 2  # questions without an answer that are worth a line of the log


class Finding(Enum):
    """What is known of a worker when it is asked."""

    ALIVE = "alive"
    SILENT = "silent"  # for a while now; found once
    DEAD = "dead"


@dataclass(slots=True)
class Pulse:
    """One worker's; `ask` goes with each question, `answered` with each answer."""

    missed: int = 0

    def ask(self, *, ready: bool) -> Finding:
        """What the questions so far have shown."""
        missed, self.missed = self.missed, self.missed + 1
        if missed >= (BEATS if ready else BEATS_AT_START):
            return Finding.DEAD
        return Finding.SILENT if ready and missed == SILENT else Finding.ALIVE

    def answered(self) -> bool:
        """Whether it had been silent."""
        missed, self.missed = self.missed, 0
        return missed > SILENT
