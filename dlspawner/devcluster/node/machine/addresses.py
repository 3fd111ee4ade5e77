"""Loopback addresses for nodes and pods.

Every address in 127.0.0.0/8 can be listened on without any permission. A cluster takes one block 127.B.0.0/16, holds
it by an abstract socket (which vanishes with the process), and writes it down so that it gets the same one again:
two clusters on one machine never share an address. Nodes are 127.B.0.x, pods 127.B.1.1 and up.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST_BLOCK, BLOCKS = 2, 250
# The embedded API gives Services cluster addresses from this one, where nothing may listen.
SERVICES_BLOCK = 96


class BlockTaken(Exception):
    """The addresses that this state's pods have are in use by another cluster on this machine."""


class Block:
    """The addresses of one cluster; `acquire` one, `release` it."""

    def __init__(self, number: int, lock: socket.socket) -> None:
        self._number = number
        self._lock = lock
        self._taken: dict[str, str] = {}

    @classmethod
    def acquire(cls, file: Path) -> Block:
        """The block in the file, else a free one, which is then written there."""
        if file.exists():
            number = int(file.read_text(encoding="ascii"))
            lock = _lock(number)
            if lock is None:
                raise BlockTaken(f"the addresses 127.{number}.0.0/16 are used by another cluster on this machine")
            return cls(number, lock)
        start = int.from_bytes(hashlib.sha256(str(file.absolute()).encode()).digest()[:4], "big")
        for step in range(BLOCKS):
            number = FIRST_BLOCK + (start + step) % BLOCKS
            if number == SERVICES_BLOCK:
                continue
            if (lock := _lock(number)) is not None:
                file.write_text(str(number), encoding="ascii")
                return cls(number, lock)
        raise BlockTaken("all address blocks of 127.0.0.0/8 are used by other clusters on this machine")

    def release(self) -> None:
        self._lock.close()

    def node(self, index: int) -> str:
        return f"127.{self._number}.0.{index + 1}"

    def take(self, uid: str, wanted: str = "") -> str:
        """The pod's address: the one it has, else the wanted one if it is ours and free, else a free one."""
        if uid in self._taken:
            return self._taken[uid]
        used = set(self._taken.values())
        if wanted in used or not self._is_ours(wanted):
            wanted = next(address for address in self._all() if address not in used)
        self._taken[uid] = wanted
        return wanted

    def free(self, uid: str) -> None:
        self._taken.pop(uid, None)

    def taken(self) -> dict[str, str]:
        return dict(self._taken)

    def restore(self, taken: dict[str, str]) -> None:
        for uid, address in taken.items():
            if self._is_ours(address):
                self._taken[uid] = address

    def _is_ours(self, address: str) -> bool:
        with contextlib.suppress(ValueError):
            parsed = ipaddress.IPv4Address(address)
            return parsed.packed[:2] == bytes([127, self._number]) and parsed.packed[2] > 0
        return False

    def _all(self) -> Iterator[str]:
        # The highest are never needed: a node has 250 pods.
        return (f"127.{self._number}.{third}.{fourth}" for third in range(1, 255) for fourth in range(1, 255))


def _lock(number: int) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0dlspawner-devcluster-127.{number}")
    except OSError:
        lock.close()
        return None
    return lock
