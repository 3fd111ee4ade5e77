"""Forwards of every kind by OpenSSH's client: ports, sockets, SOCKS, standard input, agents, X11, keepalives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component.gateway.clients.forwarding import answer_over, echo_server, echo_socket
from tests.component.gateway.clients.ways import Rig, Way
from tests.component.gateway.peers import DEADLINE, Done, listens, until
from tests.harness.ports import free_port

DATA = os.urandom(300_000)


async def test_local_and_remote_ports_carry_many_streams_at_once(rig: Rig) -> None:
    async def case(way: Way) -> list[bool]:
        here, there = free_port(), free_port()
        async with echo_server() as port:
            forwards = ("-L", f"{here}:127.0.0.1:{port}", "-R", f"{there}:127.0.0.1:{port}")
            async with rig.master(way, *forwards):
                answers = await asyncio.gather(*(answer_over(where, DATA) for where in (here, there) * 8))
        return [answer == DATA for answer in answers]

    assert await rig.each(case) == [True] * 16


@pytest.mark.slow
async def test_unix_sockets_are_forwarded_in_both_directions(rig: Rig) -> None:
    async def case(way: Way) -> tuple[bytes, bytes, bytes]:
        one, two, three, real = (rig.sockets / f"{way.value}{n}" for n in range(4))
        async with echo_socket(real), echo_server() as port:
            forwards = ("-L", f"{one}:{real}", "-R", f"{two}:{real}", "-R", f"{three}:127.0.0.1:{port}")
            async with rig.master(way, *forwards):
                return await answer_over(one, b"1"), await answer_over(two, b"2"), await answer_over(three, b"3")

    assert await rig.each(case) == (b"1", b"2", b"3")


async def test_standard_input_is_forwarded_to_a_port(rig: Rig) -> None:
    async def case(way: Way) -> tuple[Done, Done]:
        async with echo_server() as port:
            there = await rig.run("ssh", "-W", f"127.0.0.1:{port}", way.value, feed=DATA)
        return there, await rig.run("ssh", "-W", "127.0.0.1:1", way.value)

    there, nobody = await rig.each(case)
    assert there.out == DATA
    assert nobody.status == 255
    assert "open failed: connect failed: Connection refused" in nobody.err


@contextlib.asynccontextmanager
async def agent(rig: Rig, of: str = "all") -> AsyncIterator[Path]:
    """An agent that holds one key."""
    path = rig.sockets / f"agent-{of}"
    async with rig.background("ssh-agent", "-D", "-a", str(path)):
        await until(lambda: listens(path))
        done = await rig.run("ssh-add", "-q", str(rig.identity), env={"SSH_AUTH_SOCK": str(path)})
        assert done.status == 0, done.err
        yield path


@pytest.mark.slow
async def test_agent_signs_for_the_job(rig: Rig) -> None:
    """It lists its key, and signs; without -A there is none."""

    async def case(way: Way) -> tuple[Done, Done]:
        folder = rig.job_folder(way)
        (folder / "key.pub").write_text(Path(f"{rig.identity}.pub").read_text())
        command = (
            f'test -n "$SSH_AUTH_SOCK" || exit 9; ssh-add -l; cd {folder}; echo text > text; '
            "ssh-keygen -q -Y sign -f key.pub -n file text 2>/dev/null; "
            "ssh-keygen -Y check-novalidate -n file -s text.sig < text"
        )
        options = ("-o", f"IdentityAgent={path}")
        return (
            await rig.run("ssh", *options, "-A", way.value, command),
            await rig.run("ssh", *options, "-a", way.value, command),
        )

    async with agent(rig) as path:
        forwarded, without = await rig.each(case)
    assert forwarded.status == 0
    assert 'Good "file" signature with ED25519 key SHA256:' in forwarded.text
    assert without.status == 9


@contextlib.asynccontextmanager
async def x_server(rig: Rig, cookie: str) -> AsyncIterator[str]:
    """A display that accepts clients with the cookie, and answers nothing after the greeting."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            hello = await reader.readexactly(12)
            name, size = (int.from_bytes(hello[at : at + 2], "little") for at in (6, 8))
            rest = await reader.readexactly(-(-name // 4) * 4 + -(-size // 4) * 4)
            right = rest[-16:].hex() == cookie
            writer.write((b"\1" if right else b"\0") + b"\0\x0b\0\0\0\0\0")
            await writer.drain()
        writer.close()

    number = next(n for n in range(60, 400) if not Path(f"/tmp/.X11-unix/X{n}").exists())
    Path("/tmp/.X11-unix").mkdir(mode=0o1777, exist_ok=True)
    path = Path(f"/tmp/.X11-unix/X{number}")
    server = await asyncio.start_unix_server(greet, str(path))
    display = f":{number}"
    done = await rig.run("xauth", "-q", "add", display, "MIT-MAGIC-COOKIE-1", cookie)
    assert done.status == 0, done.err
    try:
        yield display
    finally:
        server.close()
        path.unlink(missing_ok=True)


# An X client in a few lines: greets the display of its environment, with the cookie that xauth holds for it.
X_CLIENT = """\
n=${DISPLAY#*:}; n=${n%%.*}
cookie=$(xauth list "$DISPLAY" | sed 's/.* //')
exec 3<>/dev/tcp/127.0.0.1/$((6000 + n))
printf 'l\\0\\013\\0\\0\\0\\022\\0\\020\\0\\0\\0MIT-MAGIC-COOKIE-1\\0\\0' >&3
printf "$(echo $cookie | sed 's/../\\\\x&/g')" >&3
echo "$(head -c 1 <&3 | od -An -tx1)" "${DISPLAY%%:*}"
"""


async def test_x11_reaches_the_local_display_with_its_cookie(rig: Rig) -> None:
    cookie = secrets.token_hex(16)
    (rig.sshd.home / ".Xauthority").touch()  # xauth says so when it makes it
    async with x_server(rig, cookie) as display:
        trusted = await rig.each_runs("ssh", "-Y", "HOST", X_CLIENT, env={"DISPLAY": display})
        without = await rig.each_runs("ssh", "-x", "HOST", "echo $DISPLAY.", env={"DISPLAY": display})
    assert (trusted.text.split(), without.text) == (["01", "localhost"], ".\n"), trusted.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "configured", [("ClientAliveInterval 1", "ClientAliveCountMax 3")], ids=["asks"], indirect=True
)
async def test_client_that_the_job_does_not_hear_is_dropped(configured: Rig) -> None:
    """The job's sshd asks every second; a client that is stopped does not answer, and reads that it ended."""

    async def case(way: Way) -> tuple[int, bool]:
        alive = await configured.run("ssh", way.value, "sleep 4.5; echo alive")
        assert alive.text == "alive\n", alive.err
        gone = configured.job_folder(way) / "gone"
        command = f"echo ready; cat; touch {gone}"
        async with configured.background("ssh", way.value, command) as ssh:
            assert await asyncio.wait_for(ssh.stdout.readline(), DEADLINE) == b"ready\n"
            ssh.send_signal(signal.SIGSTOP)
            await until(gone.exists)
            ssh.send_signal(signal.SIGCONT)
            _, err = await asyncio.wait_for(ssh.communicate(), DEADLINE)
        return ssh.returncode or 0, bool(err.strip())  # the gateway's words are others than the kernel's

    assert await configured.each(case) == (255, True)


@pytest.mark.parametrize("way", [Way.GATEWAY, Way.JUMP], ids=lambda way: way.value)
async def test_agent_and_x11_are_refused_unless_the_policy_allows_them(strict: Rig, way: Way) -> None:
    """The command runs all the same. Directly both work, so that nothing but the gateway can be the reason."""
    command = 'echo "<$SSH_AUTH_SOCK>" "<$DISPLAY>"'
    (strict.sshd.home / ".Xauthority").touch()
    async with agent(strict) as path, x_server(strict, secrets.token_hex(16)) as display:
        options, env = ("-o", f"IdentityAgent={path}", "-A", "-Y"), {"DISPLAY": display}
        direct = await strict.run("ssh", *options, Way.DIRECT.value, command, env=env)
        refused = await strict.run("ssh", *options, way.value, command, env=env)
    assert "<>" not in direct.text
    assert (refused.status, refused.text) == (0, "<> <>\n")
    assert "X11 forwarding request failed on channel 0" in refused.err
