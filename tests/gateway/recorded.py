"""Gateways that record alice's team, what their files say, and a disk that hangs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import asyncssh

from ssh_gateway.asciicast import Happening, Terminal
from ssh_gateway.keys import Keys
from ssh_gateway.recordings import Recording, Recordings
from tests.gateway.peers import Client, FakePeople, FakePlaces, Running, gateway, until

TEAM = frozenset({"vision"})
ENDED = b"\r\n*** The recording of this terminal has ended: %s. You can go on. ***\r\n"


@dataclass(frozen=True)
class Cast:
    """A recording, each of whose lines was read as what asciicast v2 allows."""

    header: dict[str, Any]
    events: list[tuple[float, str, str]]

    @property
    def shown(self) -> str:
        return "".join(text for _, kind, text in self.events if kind == "o")


def read(path: Path) -> Cast:
    lines = path.read_text("utf-8").split("\n")
    assert lines.pop() == "", "the last line is whole"
    header, events = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    assert header["version"] == 2
    assert all(type(header[name]) is int and header[name] > 0 for name in ("width", "height", "timestamp"))
    for event in events:
        assert [type(part) for part in event] == [float, str, str]
        assert event[1] in {"o", "r", "m"}
    times = [event[0] for event in events]
    assert times == sorted(times)
    return Cast(header, [(event[0], event[1], event[2]) for event in events])


@dataclass
class Recorded:
    """A gateway that records the team of alice's job, and her client."""

    running: Running
    client: Client
    folder: Path

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    async def written(self, many: int = 1) -> list[Cast]:
        """The recordings when all of them are finished."""
        await until(lambda: len(self.files) == many and not self.running.server.recordings.going_on)
        return [read(path) for path in self.files]

    async def ssh(self, *command: str) -> Any:
        return await self.client.ssh("-tt", "alice+train@gateway", *command)


@dataclass
class Around:
    """What recorded gateways are made of."""

    keys: Keys
    people: FakePeople
    places: FakePlaces
    key: asyncssh.SSHKey
    tmp_path: Path
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.tmp_path / "recordings"

    @contextlib.asynccontextmanager
    async def gateway(self, folder: Recordings | None = None) -> AsyncIterator[Recorded]:
        folder = folder or Recordings(self.folder)
        folder.check()
        async with gateway(self.keys, self.people, self.places, recordings=folder) as running:
            client = Client(self.tmp_path / "alice", running.port, self.key, self.keys.host)
            yield Recorded(running, client, self.folder)


async def begin(folder: Recordings, count: int = 1) -> Recording:
    whose = Terminal("alice", "train", "1-1", 0, count)
    return await folder.begin(whose, (80, 24), b"vt", lambda _why: None, lambda: None, lambda _tape: None)


@contextlib.contextmanager
def a_disk_that_hangs(recording: Recording) -> Iterator[Event]:
    """What is written to this recording blocks, as on a network drive whose server is away, until the end.

    The event: something is.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(65536))
    os.set_blocking(writes, True)
    os.dup2(writes, recording.file.descriptor)
    os.close(writes)
    begun, add = Event(), recording.file.add

    def begin_to_add(happenings: Sequence[Happening]) -> bool:
        begun.set()
        return add(happenings)

    setattr(recording.file, "add", begin_to_add)  # noqa: B010  (mypy knows it as a method)
    try:
        yield begun
    finally:
        os.close(reads)
