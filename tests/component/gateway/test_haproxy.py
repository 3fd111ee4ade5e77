"""Behind a real HAProxy with `send-proxy-v2`. All of 127.0.0.0/8 is this machine: it and its clients have addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.component.gateway.clients.ways import DEBIAN, LIBRARIES
from tests.component.gateway.peers import HELD_UP, Lab, Running, guesses
from tests.component.gateway.test_accept import BALANCER, LIMITS
from tests.harness.ports import free_port

CONFIG = """
defaults
    mode tcp
    timeout connect 30s
    timeout check 30s
    timeout client 120s
    timeout server 120s
listen ssh
    bind 127.0.0.1:{port}
    source {source}
    server gateway 127.0.0.1:{gateway} send-proxy-v2 check inter 100ms
"""


@contextlib.asynccontextmanager
async def haproxy(running: Running, folder: Path) -> AsyncIterator[Running]:
    """The gateway as seen through it."""
    found = shutil.which("haproxy", path=f"{os.environ['PATH']}:{DEBIAN}/usr/sbin")
    if found is None:
        pytest.skip("no haproxy: `make test` unpacks it")
    port, file = free_port(), folder / "haproxy.cfg"
    file.write_text(CONFIG.format(port=port, source=BALANCER, gateway=running.port))
    process = await asyncio.create_subprocess_exec(
        *(found, "-db", "-q", "-f", str(file)), env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES}
    )
    try:
        async with asyncio.timeout(60):
            while not await _greeted(port):
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield replace(running, port=port)
    finally:
        process.kill()
        await process.wait()


async def _greeted(port: int) -> bool:
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.4", 0))
        greeting = await reader.read(4)
        writer.close()
        return greeting == b"SSH-"
    return False


async def test_log_and_penalties_have_the_client_s_address_behind_haproxy(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab.gateway(limits=LIMITS) as running, haproxy(running, lab.folder) as through:
        client = lab.client(through, "alice")
        done = await client.ssh("-b", "127.0.0.5", "alice+train@gateway", "cat", feed=b"x" * 3_000_000)
        assert (done.status, len(done.out)) == (0, 3_000_000), done.err
        for name in ("alice+train", "bob+train"):
            assert "too many failed attempts" in await guesses(through, name, source="127.0.0.6")
        assert HELD_UP in await guesses(through, "carol+train", source="127.0.0.6")
        assert HELD_UP in (await client.ssh("-b", "127.0.0.6", "alice+train@gateway", "echo in")).err
        done = await client.ssh("-b", "127.0.0.5", "alice+train@gateway", "echo in")
        assert done.text == "in\n", done.err
    sources = set(re.findall(r"source=(\S+)", caplog.text))
    assert sources == {"127.0.0.4", "127.0.0.5", "127.0.0.6"}, "never the balancer's own"
