"""Another way to be a gateway, with nothing but asyncssh's public API, to hold the relay against.

It does only what a transfer needs, without policy, audit or anything else: what comes for a command of one side is
redirected to a process of the other, and back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh


async def be_redirection(folder: str, port: str, job: str, done: Callable[[], Awaitable[object]]) -> None:
    """Serve whoever has the client's key until ``done``."""
    key = f"{folder}/client/id"

    async def redirected(process: asyncssh.SSHServerProcess[bytes]) -> None:
        conn = await asyncssh.connect(
            *("127.0.0.1", int(job)),
            username="person",
            client_keys=[key],
            known_hosts=None,
            config=None,
            agent_path=None,
        )
        pipes: dict[str, Any] = {"stdin": process.stdin, "stdout": process.stdout, "stderr": process.stderr}
        there = await conn.create_process(process.command, encoding=None, **pipes)
        process.exit((await there.wait()).exit_status or 0)

    server = await asyncssh.listen(
        *("127.0.0.1", int(port)),
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        authorized_client_keys=f"{folder}/client/id.pub",
        process_factory=redirected,
        encoding=None,
        config=None,
    )
    async with server:
        print("listening", flush=True)
        await done()
