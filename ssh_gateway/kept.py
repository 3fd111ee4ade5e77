"""What a client asks for before its pod is connected: kept in order, few packets and few bytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_PACKETS = 64
MOST_BYTES = 256 * 1024  # a client has a few hundred to say; a packet of its own may be as large as all of this


@dataclass(slots=True)
class Kept:
    """Packets with their types."""

    _packets: list[tuple[int, bytes]] = field(default_factory=list)
    _size: int = 0

    def add(self, kind: int, payload: bytes) -> bool:
        """Keep one more; False, and nothing is kept of it, when that is too much."""
        if len(self._packets) >= MOST_PACKETS or self._size + len(payload) > MOST_BYTES:
            return False
        self._packets.append((kind, payload))
        self._size += len(payload)
        return True

    def take(self) -> list[tuple[int, bytes]]:
        """All of them, in order; none is left."""
        taken, self._packets, self._size = self._packets, [], 0
        return taken
