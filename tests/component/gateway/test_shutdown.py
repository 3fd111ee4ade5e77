"""A gateway that stops, as OpenSSH's client sees it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from ssh_gateway.session.context import STOPPING, GatewayLimits
from ssh_gateway.session.terminals import shutdown_message
from tests.component.gateway.peers import Lab, finish, seen


async def test_session_ends_at_the_deadline_with_the_reason(lab: Lab) -> None:
    async with lab.gateway(limits=GatewayLimits(drain_seconds=0.2)) as running:
        ssh = await lab.client(running).begin("alice+train@gateway", "echo in; cat")
        await asyncio.wait_for(running.server.stop(), 30)
        done = await finish(ssh)
        assert (done.status, STOPPING in done.err) == (255, True), done.err
        assert not running.server.upstreams


async def test_jump_while_draining_is_refused(lab: Lab) -> None:
    async with lab.gateway(limits=GatewayLimits(drain_seconds=600.0)) as running:
        client, shared = lab.client(running), ("-o", f"ControlPath={lab.folder / 'c'}")
        outer = await client.start(
            "ssh", *shared, "-o", "ControlMaster=yes", "-tt", "alice+train@gateway", "echo ready; read x"
        )
        await seen(outer, b"ready")
        stop = asyncio.create_task(running.server.stop())
        await seen(outer, b"in a moment. ***\r\n")
        proxy = f"ssh -F {client.config} -o ControlPath={lab.folder / 'c'} -W train:22 alice+train@gateway"
        done = await client.ssh("-o", f"ProxyCommand={proxy}", "alice@train", "echo in")
        assert (done.status, done.out) == (255, b"")
        await finish(outer, b"x\n")
        await asyncio.wait_for(stop, 30)


def test_notice_has_the_time_of_the_end() -> None:
    line = shutdown_message(600.0, datetime(2026, 5, 4, 12, 0, tzinfo=UTC))
    sentence = "this connection ends at 12:10 UTC, in 10 minutes. Your job goes on; connect again in a moment."
    assert line.content == f"\r\n*** The SSH gateway is restarting: {sentence} ***\r\n".encode()
