"""Where people are in logs that they follow, so that what is asked for again goes on with the very next line. PURE.

Only this process remembers it, and not for long: who comes later, or to another Manager, begins with the last lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dlspawner.manager.logs.rows import Key
from dlspawner.manager.logs.tail import LogMark

MOST = 200


@dataclass(slots=True)
class FollowCursor:
    """Up to where a log was followed; without a ``mark`` it has ended, or nothing of it was read."""

    key: Key
    mark: LogMark | None = None


@dataclass(frozen=True, slots=True)
class FollowCursors:
    """The places by reader and name; names are the readers' own."""

    _places: dict[tuple[str, str], FollowCursor] = field(default_factory=dict)

    def keep(self, who: str, name: str, place: FollowCursor) -> None:
        """The oldest is forgotten when there are too many."""
        self._places.pop((who, name), None)
        self._places[who, name] = place
        if len(self._places) > MOST:
            del self._places[next(iter(self._places))]

    def find(self, who: str, name: str) -> FollowCursor | None:
        """Where a log goes on, if it does."""
        place = self._places.get((who, name))
        return place if place is not None and place.mark is not None else None
