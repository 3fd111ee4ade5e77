"""What goes between the process that starts workers and each of them, when one end does not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ssh_gateway import channel, worker
from ssh_gateway.channel import Channel, encoded
from ssh_gateway.together import Tally
from ssh_gateway.worker import Worker
from ssh_gateway.workers import Process, Workers

MIB = 2**20


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, Channel]]:
    pair = await asyncio.gather(*map(Channel.on, socket.socketpair()))
    yield pair[0], pair[1]
    for end in pair:
        end.close()


async def test_a_worker_that_nobody_listens_to_keeps_little_and_tells_all_afterwards(
    ends: tuple[Channel, Channel],
) -> None:
    ours, theirs = ends
    crowd = Tally()
    Worker(ours).join({"crowd": crowd}, {})
    for _ in range(2000):
        crowd.add("a" * 16384, 1)
    assert worker.MOST_UNREAD < ours.unread() < worker.MOST_UNREAD + MIB
    while ours.unread():
        assert await theirs.receive() == ["others", ["count", "crowd", "a" * 16384, 1]]
    crowd.add("alice", 1)
    ours.send("over")
    heard: list[Any] | None = []
    while heard != ["over"]:
        last, heard = heard, await theirs.receive()
    assert last == ["others", ["state", {"crowd": {"a" * 16384: 2000, "alice": 1}}]]


async def test_what_all_workers_are_told_is_written_once(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []

    def dumps(message: object) -> str:
        written.append(message)
        return json.JSONEncoder().encode(message)

    workers = Workers(3, {}, [], 0.0, 60.0)
    ours, theirs = ends
    process = await asyncio.create_subprocess_exec("true")
    workers._running = {number: Process(process, ours) for number in (1, 2, 3)}
    monkeypatch.setattr(channel.json, "dumps", dumps)
    workers._tell("other", 1, ["count", "crowd", "alice", 1], but=1)
    assert written == [("other", 1, ["count", "crowd", "alice", 1])]
    for _ in range(2):
        assert encoded(*(await theirs.receive() or [])) == encoded(*written[0])
    await process.wait()
