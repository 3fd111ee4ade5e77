"""Many streams of `ssh -J` in one connection with a slow network: none is cut off, and memory stays bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncssh
import pytest

from ssh_gateway import transport
from ssh_gateway.transport import fastpath
from ssh_gateway.transport import server as transport_server
from ssh_gateway.transport.streams import SHORTEST, JumpChannel
from tests.component.gateway.hostile import Listener, drop, logged_in
from tests.component.gateway.peers import Client, Running, until

MANY = 14  # with a window of 2 MiB each, far more than one connection may leave unsent
MIB = 2**20
# What waits in the gateway for them and for their connection: the buffer of each, and what was read at once.
MOST = (MANY + 1) * (transport.connection.WRITE_BUFFER + fastpath.READ)


def outer(running: Running) -> transport_server.Downstream:
    (leg,) = {one.client.leg for one in running.server.connections if one.client.jump is None}
    return leg


def unsent(leg: transport_server.Downstream) -> int:
    """Bytes that wait in the gateway for one connection, those of its streams included."""
    deferred = sum(len(part) for _, parts in leg._deferred_packets for part in parts)
    streams = sum(one.get_write_buffer_size() for one in leg._channels.values())
    return int(leg._transport.get_write_buffer_size()) + deferred + streams


def down(running: Running) -> int:
    return sum(one.session.bytes_down for one in running.server.connections if one.session)


async def stands_still(running: Running) -> int:
    """The most that waited for the outer connection until nothing comes from any job any more."""
    most, before, loop = 0, -1, asyncio.get_running_loop()
    deadline = loop.time() + 30
    await until(lambda: down(running) > 0 and outer(running).blocked)
    while down(running) != before:
        assert loop.time() < deadline, "it never stands still"
        before, again = down(running), loop.time() + 0.3
        while loop.time() < again:
            most = max(most, unsent(outer(running)))
            await asyncio.sleep(0.01)
    return most


class Downloads:
    """Downloads over one outer connection of asyncssh's, which reads only when it is told to."""

    def __init__(self, conn: asyncssh.SSHClientConnection, listener: Listener) -> None:
        self.conn, self.listener = conn, listener
        self.inner: list[asyncssh.SSHClientConnection] = []
        self.done: list[asyncio.Task[bytes]] = []
        self.starts: list[asyncssh.SSHWriter[bytes]] = []

    async def begin(self, key: asyncssh.SSHKey, count: int, command: str) -> None:
        """Have all of them wait to be told to start, so that none is over before the last one is there."""
        for _ in range(count):
            self.inner.append(
                await asyncssh.connect(
                    "train", tunnel=self.conn, username="alice", client_keys=[key], known_hosts=None, config=None,
                    agent_path=None,
                )
            )  # fmt: skip
        for one in self.inner:
            process = await one.create_process(f"read line; {command}", encoding=None)
            self.starts.append(process.stdin)
            self.done.append(asyncio.create_task(process.stdout.read()))

    def start(self) -> None:
        """Start all; what comes is not read."""
        self.read(False)
        for one in self.starts:
            one.write(b"\n")

    def read(self, reading: bool) -> None:
        if reading:
            self.conn._transport.resume_reading()
        else:
            self.conn._transport.pause_reading()


@asynccontextmanager
async def downloads(running: Running, key: asyncssh.SSHKey) -> AsyncIterator[Downloads]:
    listener = Listener()
    found = Downloads(await logged_in(running, key, "alice", listener), listener)
    try:
        yield found
    finally:
        for task in found.done:
            task.cancel()
        await asyncio.gather(*found.done, return_exceptions=True)
        drop(found.conn)
        await until(lambda: not running.server.connections and not running.server.upstreams)


@pytest.mark.parametrize("rekeying", [False, True], ids=["", "within a key exchange"])
async def test_client_that_stops_reading_many_streams_costs_little_and_loses_none(
    running: Running, alices_key: asyncssh.SSHKey, mallory: Client, *, rekeying: bool
) -> None:
    """Streams keep their data during the exchange: asyncssh would keep a window of each for its end."""
    running.job_directory.targets["mallory", "train"] = running.job_directory.targets["alice", "train"]
    async with downloads(running, alices_key) as found:
        await found.begin(alices_key, MANY, "head -c 4000000 /dev/zero")
        leg = outer(running)
        found.start()
        if rekeying:
            leg._send_kexinit()
            leg._kexinit_sent = True
        assert transport.connection.WRITE_BUFFER < await stands_still(running) < MOST
        assert sum(len(part) for _, parts in leg._deferred_packets for part in parts) < MIB
        assert (await mallory.ssh("mallory+train@gateway", "echo works")).text == "works\n"
        assert found.listener.why == ""
        found.read(True)
        got = await asyncio.wait_for(asyncio.gather(*found.done), 30)
        assert [len(one) for one in got] == [4_000_000] * MANY
        assert not leg.rekeying


async def test_abandoned_stream_keeps_no_data(
    running: Running, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else streams that are opened and left one after the other would add up in memory."""
    monkeypatch.setattr(transport.connection, "STREAM_FAREWELL_SECONDS", 0.1)
    async with downloads(running, alices_key) as found:
        await found.begin(alices_key, 4, "cat /dev/zero")
        leg = outer(running)
        found.start()
        await stands_still(running)
        streams = [one for one in leg._channels.values() if isinstance(one, JumpChannel)]
        assert any(one.get_write_buffer_size() for one in streams)
        for one in running.server.connections:
            if one.client.jump is not None:
                one.client.leg.end(asyncssh.DISC_BY_APPLICATION, "left")
        await until(lambda: not any(one.get_write_buffer_size() for one in streams))
        assert not leg.ended


async def test_stream_of_tiny_packets_is_refused_and_logged(
    running: Running, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody else would wait for thousands of them in one turn."""
    conn = await logged_in(running, alices_key, "alice", Listener())
    with pytest.raises(asyncssh.ChannelOpenError, match="may not be limited to less than 1024 bytes"):
        await conn.open_connection("train", 22, max_pktsize=SHORTEST - 1)
    (refused,) = [line for line in caplog.messages if "event=refused" in line]
    assert refused.endswith('what=stream why="a stream\'s packets may not be limited to less than 1024 bytes"')
    reader, _ = await conn.open_connection("train", 22, max_pktsize=SHORTEST)
    assert await reader.read(4) == b"SSH-"
    drop(conn)
    await until(lambda: not running.server.connections)
