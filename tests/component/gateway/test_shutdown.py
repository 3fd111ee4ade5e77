"""A gateway that stops, as OpenSSH's client sees it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.session.context import STOPPING, GatewayLimits
from ssh_gateway.session.terminals import shutdown_message
from tests.component.gateway.peers import Client, Lab, Running, finish, seen, until
from tests.component.gateway.test_faults import lives, transfer, under_way


@dataclass
class Stopping:
    """A gateway that can be told to stop, and a person's computer."""

    running: Running
    client: Client
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.running.server.stop(self.hurry))

    async def terminal(self, *how: str, remote: str = "echo ready; read x; echo over") -> asyncio.subprocess.Process:
        process = await self.client.start("ssh", *how, "-tt", "alice+train@gateway", remote)
        await seen(process, b"ready")
        return process


@pytest.fixture
async def stopping(lab: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Stopping]:
    """With ten minutes to drain, or what the test's parameter says."""
    seconds = getattr(request, "param", 600.0)
    limits = GatewayLimits(failure_seconds=0.1, drain_seconds=seconds, rules=PenaltyRules(penalty_seconds=0.0))
    async with lab.gateway(limits=limits) as running:
        yield Stopping(running, lab.client(running, "alice"))
        running.server.limits = GatewayLimits(drain_seconds=0.0)


async def test_copy_continues_without_a_notice_in_its_data(stopping: Stopping) -> None:
    big = os.urandom(8 * 2**20)
    process = await stopping.client.begin("alice+train@gateway", "echo in; cat")
    stop = stopping.begin()
    await until(lambda: stopping.running.server.stopping)
    done = await finish(process, big)
    assert (done.status, done.out == big, done.err) == (0, True, "")
    await asyncio.wait_for(stop, 30)


@pytest.mark.parametrize("stopping", [0.2], indirect=True, ids=["soon"])
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
async def test_transfer_ends_at_the_deadline_with_the_reason(lab: Lab, stopping: Stopping, *, up: bool) -> None:
    ssh = await stopping.client.start("ssh", "alice+train@gateway", transfer(up=up))
    inside, moving = await under_way(ssh, up=up)
    await asyncio.wait_for(stopping.begin(), 30)
    said = await asyncio.wait_for(moving, 30)
    assert await asyncio.wait_for(ssh.wait(), 30) == 255
    assert STOPPING.encode() in said
    await until(lambda: not lives(inside))
    async with lab.gateway() as running:
        client = replace(stopping.client, port=running.port)
        assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_jump_while_draining_is_refused(stopping: Stopping, tmp_path: Path) -> None:
    shared = ("-o", f"ControlPath={tmp_path / 'c'}")
    outer = await stopping.terminal(*shared, "-o", "ControlMaster=yes")
    stop = stopping.begin()
    await seen(outer, b"in a moment. ***\r\n")
    proxy = f"ssh -F {stopping.client.config} -o ControlPath={tmp_path / 'c'} -W train:22 alice+train@gateway"
    done = await stopping.client.ssh("-o", f"ProxyCommand={proxy}", "alice@train", "echo in")
    assert (done.status, done.out) == (255, b"")
    await finish(outer, b"x\n")
    await asyncio.wait_for(stop, 30)


def test_notice_has_the_time_of_the_end() -> None:
    line = shutdown_message(600.0, datetime(2026, 5, 4, 12, 0, tzinfo=UTC))
    sentence = "this connection ends at 12:10 UTC, in 10 minutes. Your job goes on; connect again in a moment."
    assert line.content == f"\r\n*** The SSH gateway is restarting: {sentence} ***\r\n".encode()
