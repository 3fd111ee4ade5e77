"""Everyday use through the gateway, by OpenSSH's own clients, into a real sshd."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import pty
import signal
import socket
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component.gateway.peers import DEADLINE, Client, Running, Sshd, finish, listens, until
from tests.harness.ports import free_port

MIB = 2**20
NEW_KEYS = "SSH2_MSG_NEWKEYS received"


@pytest.fixture(scope="session")
def big() -> bytes:
    return os.urandom(MIB) * 64


async def test_a_command_returns_its_output_its_errors_and_its_exit_status(alice: Client) -> None:
    done = await alice.ssh("alice+train@gateway", "echo out; echo err >&2; exit 7")
    assert (done.out, done.err, done.status) == (b"out\n", "err\n", 7)


async def test_the_default_server_is_user_plus_and_user_alone(alice: Client, running: Running, sshd: Sshd) -> None:
    running.places.targets["alice", ""] = sshd.target("")
    explicit, implicit = await asyncio.gather(
        alice.ssh("alice+@gateway", "echo here; exit 3"), alice.ssh("alice@gateway", "cat; exit 4", feed=b"typed")
    )
    assert (explicit.out, explicit.status) == (b"here\n", 3)
    assert (implicit.out, implicit.status) == (b"typed", 4)


async def test_a_signal_that_ends_a_command_is_told(alice: Client) -> None:
    done = await alice.ssh("-v", "alice+train@gateway", "kill -KILL $$")
    assert done.status == 255
    assert "exit-signal" in done.err


async def test_the_environment_is_passed_on(alice: Client) -> None:
    done = await alice.ssh("-o", "SetEnv=GREETING=hello", "alice+train@gateway", "echo $GREETING")
    assert done.text == "hello\n"


async def test_end_of_input_reaches_the_command_and_its_output_still_comes_back(alice: Client) -> None:
    done = await alice.ssh("alice+train@gateway", "cat >/dev/null; echo after", feed=b"x" * MIB)
    assert (done.text, done.status) == ("after\n", 0)


async def test_a_subsystem_that_does_not_exist_fails_as_it_does_directly(alice: Client) -> None:
    done = await alice.ssh("-s", "alice+train@gateway", "nonsense")
    assert "subsystem request failed on channel 0" in done.err


async def test_a_shell_has_a_terminal_that_follows_the_window(alice: Client) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = await asyncio.create_subprocess_exec(
        "ssh", "-F", str(alice.config), "-tt", "alice+train@gateway", stdin=slave, stdout=slave, stderr=slave
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)
    seen = bytearray()

    def shows(text: bytes) -> bool:
        with contextlib.suppress(BlockingIOError, OSError):
            seen.extend(os.read(master, 65536))
        return text in seen

    try:
        os.write(master, b"tty; stty size\n")
        await until(lambda: shows(b"24 80"))
        assert b"/dev/pts/" in seen
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
        process.send_signal(signal.SIGWINCH)
        os.write(master, b"until stty size | grep '50 132'; do :; done; echo si''ze\n")
        await until(lambda: shows(b"size\r\n"))
        os.write(master, b"exit 5\n")
        await until(lambda: shows(b"closed"))
        assert await asyncio.wait_for(process.wait(), DEADLINE) == 5
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)


@pytest.mark.parametrize("flags", [(), ("-o", "RekeyLimit=1M")], ids=["plain", "the client re-keys every MiB"])
async def test_64_mib_go_up_and_down_intact(alice: Client, big: bytes, flags: tuple[str, ...]) -> None:
    up = await alice.ssh("-v", *flags, "alice+train@gateway", "tee bulk | sha256sum", feed=big)
    assert up.text.split()[0] == hashlib.sha256(big).hexdigest(), up.err
    down = await alice.ssh("-v", *flags, "alice+train@gateway", "cat bulk")
    assert hashlib.sha256(down.out).digest() == hashlib.sha256(big).digest(), down.err
    for done in (up, down):
        assert (done.err.count(NEW_KEYS) > 32) is bool(flags)


async def test_both_directions_at_once_with_both_ends_rekeying(alice: Client, running: Running, rekeying: Sshd) -> None:
    running.places.targets["alice", "train"] = rekeying.target()
    data = os.urandom(16 * MIB)
    done = await alice.ssh("-v", "-o", "RekeyLimit=1M", "alice+train@gateway", "cat", feed=data)
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest(), done.err
    assert done.err.count(NEW_KEYS) > 15


async def test_the_gateway_itself_rekeys_in_the_middle(
    alice: Client, monkeypatch: pytest.MonkeyPatch, running: Running
) -> None:
    monkeypatch.setattr(running.server._options, "rekey_bytes", MIB)
    data = os.urandom(8 * MIB)
    done = await alice.ssh("-v", "alice+train@gateway", "cat", feed=data)
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest()
    assert done.err.count(NEW_KEYS) > 3


@pytest.mark.parametrize("cipher", ["aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes256-ctr"])
async def test_every_cipher_carries_data_over_a_rekey(alice: Client, cipher: str) -> None:
    data = os.urandom(4 * MIB)
    done = await alice.ssh("-v", "-c", cipher, "-o", "RekeyLimit=1M", "alice+train@gateway", "cat", feed=data)
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest(), done.err
    assert done.err.count(NEW_KEYS) > 3


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["sftp protocol", "scp protocol"])
async def test_scp_copies_there_and_back(alice: Client, tmp_path: Path, flags: tuple[str, ...]) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(2 * MIB))
    there = await alice.run("scp", "-q", *flags, str(sent), "alice+train@gateway:copied")
    back = await alice.run("scp", "-q", *flags, "alice+train@gateway:copied", str(tmp_path / "back"))
    assert (there.status, back.status) == (0, 0), there.err + back.err
    assert (tmp_path / "back").read_bytes() == sent.read_bytes()


async def test_sftp_puts_lists_and_gets(alice: Client, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(MIB))
    batch = f"put {sent} by-sftp\nls -l by-sftp\nget by-sftp {tmp_path}/back\nrm by-sftp\n".encode()
    done = await alice.run("sftp", "-q", "-b", "-", "alice+train@gateway", feed=batch)
    assert done.status == 0, done.err
    assert (tmp_path / "back").read_bytes() == sent.read_bytes()


async def test_rsync_copies_a_tree(alice: Client, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"file {number}").write_bytes(os.urandom(10_000))
    remote = ["rsync", "-a", "-e", f"ssh -F {alice.config}"]
    for source, sink in ((f"{tree}/", "alice+train@gateway:tree/"), ("alice+train@gateway:tree/", f"{tmp_path}/back/")):
        process = await asyncio.create_subprocess_exec(
            *remote, source, sink, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        done = await finish(process)
        assert done.status == 0, done.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == {
        path.name: path.read_bytes() for path in tree.iterdir()
    }


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """A server on the loopback (which the job's sshd shares) that sends everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def session(client: Client, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client in the background, killed at the end."""
    process = await client.start("ssh", *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port that is about to listen."""
    deadline = asyncio.get_running_loop().time() + 15
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            assert asyncio.get_running_loop().time() < deadline, f"nobody listens on {port}"
            await asyncio.sleep(0.02)


async def answer_over(port: int, payload: bytes) -> bytes:
    reader, writer = await connect(port)
    writer.write(payload)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), 15)
    writer.close()
    return answer


async def test_a_local_forward_reaches_a_port_of_the_job(alice: Client) -> None:
    async with echo_server() as port:
        local = free_port()
        async with session(alice, "-N", "-L", f"{local}:127.0.0.1:{port}", "alice+train@gateway"):
            assert await answer_over(local, b"there and back") == b"there and back"


async def test_a_remote_forward_reaches_the_persons_own_computer(alice: Client) -> None:
    async with echo_server() as port:
        remote = free_port()
        async with session(alice, "-N", "-R", f"{remote}:127.0.0.1:{port}", "alice+train@gateway"):
            assert await answer_over(remote, b"back and there") == b"back and there"


async def test_a_remote_forward_to_a_free_port_tells_its_number(alice: Client) -> None:
    async with echo_server() as port, session(alice, "-N", "-R", f"0:127.0.0.1:{port}", "alice+train@gateway") as ssh:
        assert ssh.stderr is not None
        line = (await asyncio.wait_for(ssh.stderr.readline(), 15)).decode()
        assert line.startswith("Allocated port ")
        assert await answer_over(int(line.split()[2]), b"x") == b"x"


async def test_a_dynamic_forward_speaks_socks(alice: Client) -> None:
    async with echo_server() as port:
        socks = free_port()
        async with session(alice, "-N", "-D", str(socks), "alice+train@gateway"):
            reader, writer = await connect(socks)
            writer.write(b"\x05\x01\x00")
            assert await asyncio.wait_for(reader.readexactly(2), 15) == b"\x05\x00"
            writer.write(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
            assert (await asyncio.wait_for(reader.readexactly(10), 15))[1] == 0
            writer.write(b"hello")
            assert await asyncio.wait_for(reader.readexactly(5), 15) == b"hello"
            writer.close()


async def test_a_unix_socket_forward_reaches_a_port_of_the_job(alice: Client, tmp_path: Path) -> None:
    async with echo_server() as port:
        path = tmp_path / "forward"
        async with session(alice, "-N", "-L", f"{path}:127.0.0.1:{port}", "alice+train@gateway"):
            await until(lambda: listens(path))
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"via a path")
            assert await asyncio.wait_for(reader.readexactly(10), 15) == b"via a path"
            writer.close()


async def test_standard_input_and_output_can_be_forwarded(alice: Client) -> None:
    async with echo_server() as port:
        done = await alice.ssh("-W", f"127.0.0.1:{port}", "alice+train@gateway", feed=b"through -W")
        assert done.out == b"through -W"


async def test_many_sessions_share_one_connection(alice: Client, running: Running, tmp_path: Path) -> None:
    control = tmp_path / "c"
    async with session(alice, "-M", "-S", str(control), "-N", "alice+train@gateway"):
        await until(control.exists)
        done = await asyncio.gather(
            *(alice.ssh("-S", str(control), "alice+train@gateway", f"echo {n}; exit {n}") for n in range(1, 21))
        )
        assert [(d.text, d.status) for d in done] == [(f"{n}\n", n) for n in range(1, 21)]
        assert len(running.server.connections) == 1


async def test_a_script_on_standard_input_and_a_socks_port_as_vs_code_does_it(alice: Client) -> None:
    async with echo_server() as port:
        socks = free_port()
        script = f"echo started; exec 3<>/dev/tcp/127.0.0.1/{port}; echo hi >&3; head -n1 <&3; exit 9\n".encode()
        done = await alice.ssh("-T", "-D", str(socks), "alice+train@gateway", "bash", feed=script)
        assert (done.text, done.status) == ("started\nhi\n", 9)


async def test_keepalives_are_answered_by_the_job_and_before_there_is_one_by_the_gateway(alice: Client) -> None:
    alive = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3")  # seconds: a busy machine takes its time
    outer = f"ProxyCommand=ssh -F {alice.config} {' '.join(alive)} -W %h:22 alice@gateway"
    direct, jumped = await asyncio.gather(
        alice.ssh(*alive, "alice+train@gateway", "sleep 4.5; echo alive"),
        alice.ssh("-o", outer, "alice@train", "sleep 4.5; echo alive"),
    )
    assert (direct.text, jumped.text) == ("alive\n", "alive\n"), direct.err + jumped.err
