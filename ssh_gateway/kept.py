"""What a client asks for before its pod is connected: kept in order, few packets and few bytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssh_gateway.packets import GLOBAL_REQUEST, open_failure, opener, read_direct_tcpip, wants_reply

MOST_PACKETS = 64
TOO_MANY_STREAMS = "too many streams wait for your default server: try again when it runs"
MOST_BYTES = 256 * 1024  # a client has a few hundred to say; a packet of its own may be as large as all of this


@dataclass(slots=True)
class PacketBuffer:
    """Packets with their types."""

    _packets: list[tuple[int, bytes]] = field(default_factory=list)
    _size: int = 0

    @property
    def owes_answer(self) -> bool:
        """Whether a request that is to be answered is among them."""
        return any(kind == GLOBAL_REQUEST and wants_reply(payload) for kind, payload in self._packets)

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


def overflow_answer(payload: bytes) -> bytes | None:
    """The answer to what is not kept, where it has one that leaves the connection as it is: a browser behind ``-D``."""
    return None if read_direct_tcpip(payload) is None else open_failure(opener(payload), TOO_MANY_STREAMS)
