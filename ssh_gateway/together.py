"""What the workers of one gateway count together, so that a limit holds for all of them and not for each. Pure.

Every worker has all of the counts and tells the others what it adds, through the process that started it; nobody asks
anybody, so no login waits for it. What is added in two workers within the same millisecond or two is seen by neither in
time: that much a limit can be overrun. A worker that comes later is told what others count now, and begins without the
debts of before; what one that died had counted is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssh_gateway.penalties import Debts

Message = list[Any]


def _nobody(_name: str, _by: int) -> None:
    """Who is told by a gateway without workers."""


@dataclass(slots=True)
class Tally:
    """How many there are of each name: here, and elsewhere as far as others have told."""

    tell: Callable[[str, int], None] = _nobody
    own: Counter[str] = field(default_factory=Counter)
    others: dict[int, Counter[str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.own[name] + sum(there[name] for there in self.others.values())

    def total(self) -> int:
        return self.own.total() + sum(there.total() for there in self.others.values())

    def add(self, name: str, by: int) -> None:
        """Count so many more, or with a negative number fewer."""
        _add(self.own, name, by)
        self.tell(name, by)

    def hear(self, worker: int, name: str, by: int) -> None:
        """Another worker did."""
        _add(self.others.setdefault(worker, Counter()), name, by)


class Together:
    """The counts of one worker, joined with the others'; ``tell`` sends a message to all of them."""

    def __init__(
        self, tallies: Mapping[str, Tally], debts: Mapping[str, Debts], tell: Callable[[Message], None]
    ) -> None:
        self._tallies = tallies
        self._debts = debts
        for table, tally in tallies.items():
            tally.tell = partial(_tell, tell, "count", table)
        for table, owed in debts.items():
            owed.tell = partial(_tell, tell, "owe", table)

    def state(self) -> Message:
        """What this worker counts by itself; who hears it forgets what was heard of this worker before."""
        return ["state", {table: dict(tally.own) for table, tally in self._tallies.items()}]

    def hear(self, worker: int, message: Message) -> None:
        """Another worker's message."""
        match message:
            case ["count", table, name, by]:
                self._tallies[table].hear(worker, name, by)
            case ["owe", table, name, seconds, at]:
                self._debts[table].hear(name, seconds, at)
            case ["state", tables]:
                for table, counts in tables.items():
                    self._tallies[table].others[worker] = Counter(counts)

    def left(self, worker: int) -> None:
        """Another worker has ended, and everybody in it."""
        for tally in self._tallies.values():
            tally.others.pop(worker, None)


def _add(counts: Counter[str], name: str, by: int) -> None:
    counts[name] += by
    if counts[name] <= 0:
        del counts[name]


def _tell(tell: Callable[[Message], None], *message: Any) -> None:
    tell(list(message))
