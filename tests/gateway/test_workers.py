"""Several gateways behind one port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway import listening
from ssh_gateway.keys import Keys
from ssh_gateway.penalties import Rules
from ssh_gateway.server import Limits
from tests.gateway.peers import Client, FakePeople, FakePlaces, finish, gateway, until
from tests.gateway.test_notices import seen
from tests.ports import free_port


async def test_they_share_the_port_and_the_host_key_and_one_may_stop(
    keys: Keys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey, tmp_path: Path
) -> None:
    port = free_port()
    limits = Limits(drain_seconds=0.0, rules=Rules(penalty_seconds=0.0, connections_per_second=0.0))
    async with (
        gateway(keys, people, places, limits=limits, shared_port=port) as one,
        gateway(keys, people, places, limits=limits, shared_port=port) as other,
    ):
        client = Client(tmp_path / "alice", port, alices_key, keys.host)
        open_ = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        await until(lambda: len(one.server.visitors) + len(other.server.visitors) == 64)
        assert one.server.visitors, "64 connections do not all fall to one of two"
        assert other.server.visitors
        for _, writer in open_:
            writer.close()
        await until(lambda: not one.server.visitors and not other.server.visitors)
        process = await client.start("ssh", "-tt", "alice+train@gateway", "echo ready; read x; echo over")
        await seen(process, b"ready")
        stays, goes = (one, other) if one.server.visitors else (other, one)
        assert stays.server.name != goes.server.name, "the log tells their connections apart"
        await goes.server.stop()
        for _ in range(8):
            done = await client.ssh("alice+train@gateway", "echo in")
            assert done.text == "in\n", done.err
        assert b"over" in (await finish(process, b"x\n")).out


def test_a_port_is_not_shared_with_who_does_not_share() -> None:
    with listening.listen("127.0.0.1", 0) as alone, pytest.raises(OSError, match="in use"):
        listening.listen("127.0.0.1", alone.getsockname()[1], shared=True)
    with listening.listen("127.0.0.1", 0, shared=True) as first:
        listening.listen("127.0.0.1", first.getsockname()[1], shared=True).close()
