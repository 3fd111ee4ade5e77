"""Terminals: shell, modes, sizes, signals typed, escapes, what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.component.gateway.clients.ways import LIBRARIES, Rig, Way, program, without_names
from tests.component.gateway.peers import DEADLINE, until


@dataclass
class Terminal:
    """A terminal with a client in it."""

    master: int
    process: asyncio.subprocess.Process
    seen: bytearray = field(default_factory=bytearray)

    def read(self) -> bytes:
        """All that was shown so far."""
        with contextlib.suppress(BlockingIOError):
            while shown := os.read(self.master, 65536):
                self.seen.extend(shown)
        return bytes(self.seen)

    def write(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def shows(self, text: str) -> None:
        await until(lambda: text.encode() in self.read())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 640, 480))
        self.process.send_signal(signal.SIGWINCH)

    async def ends(self) -> int:
        """The client's status, after everything it showed."""
        deadline = asyncio.get_running_loop().time() + DEADLINE
        while self.process.returncode is None and asyncio.get_running_loop().time() < deadline:
            self.read()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.process.wait()), 0.05)
        self.read()
        assert self.process.returncode is not None, self.seen[-1000:]
        return self.process.returncode


@contextlib.asynccontextmanager
async def terminal(rig: Rig, *arguments: str, change: str = "sane", client: str = "ssh") -> AsyncIterator[Terminal]:
    """A client, OpenSSH's or another, in a terminal of 24 lines of 80, with modes set by `stty`."""
    options = ("-F", str(rig.config)) if client == "ssh" else ()
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = await asyncio.create_subprocess_exec("stty", *change.split(), stdin=slave)
        assert await process.wait() == 0
        os.set_blocking(master, False)
        process = await asyncio.create_subprocess_exec(
            program(client), *options, *arguments, stdin=slave, stdout=slave, stderr=slave,
            env={
                **os.environ, "HOME": str(rig.home), "TERM": "vt220", "SSH_AUTH_SOCK": "",
                "LD_LIBRARY_PATH": LIBRARIES,
            },
        )  # fmt: skip
        found = Terminal(master, process)
        try:
            yield found
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        os.close(slave)
        os.close(master)


def plain(shown: bytes) -> str:
    """What a terminal showed, without the names of hosts and of the terminal."""
    return re.sub(r"/dev/pts/\d+", "/dev/pts/N", without_names(shown.decode()))


async def test_terminal_has_type_size_and_modes_of_the_local_one(rig: Rig) -> None:
    modes = "sane -echoe -ixon -icrnl tabs erase ^H intr ^X kill ^K"

    async def case(way: Way) -> tuple[int, str]:
        async with terminal(rig, "-t", way.value, "tty; echo $TERM; stty -a; exit 7", change=modes) as screen:
            return await screen.ends(), plain(screen.seen)

    status, shown = await rig.each(case)
    assert status == 7
    words = "/dev/pts/N|vt220|rows 24; columns 80|intr = ^X|erase = ^H|kill = ^K| -ixon| -icrnl"
    assert [word for word in words.split("|") if word not in shown] == []


async def test_shell_follows_the_window_size_and_tells_its_exit_status(rig: Rig) -> None:
    async def case(way: Way) -> tuple[int, str]:
        async with terminal(rig, way.value) as screen:
            screen.write("PS1=; stty -echo; trap 'stty size' WINCH; echo re''ady\n")
            await screen.shows("ready\r\n")
            for rows, columns in ((50, 132), (1, 1), (300, 500)):
                screen.resize(rows, columns)
                screen.write(f"until stty size | grep -x '{rows} {columns}'; do :; done; echo si''ze {rows}\n")
                await screen.shows(f"size {rows}\r\n")
            screen.write("exit 5\n")
            return await screen.ends(), plain(screen.seen).split("size 300\r\n")[1]

    status, shown = await rig.each(case)
    assert status == 5
    assert shown.endswith("logout\r\nConnection to HOST closed.\r\r\n")


async def test_control_keys_interrupt_and_end_programs(rig: Rig) -> None:
    async def case(way: Way) -> tuple[int, str]:
        async with terminal(
            rig, "-t", way.value, "trap 'echo caught' INT; echo ready; cat; sleep 0.1; cat; exit 4"
        ) as screen:
            await screen.shows("ready")
            screen.write("typed\n")
            await screen.shows("typed\r\ntyped")
            screen.write("\x03")
            await screen.shows("caught")
            screen.write("\x04")
            return await screen.ends(), "caught" if b"caught" in screen.seen else ""

    assert await rig.each(case) == (4, "caught")


@pytest.mark.parametrize("configured", [()], ids=["as it is"], indirect=True)
async def test_typed_break_reaches_the_job_and_typed_end_closes_the_session(configured: Rig) -> None:
    for way in Way:
        before = configured.job_log.read_text()
        async with terminal(configured, "-t", way.value, "stty -echo; echo ready; cat") as screen:
            await screen.shows("ready")
            screen.write("\n~Bafter\n")
            await screen.shows("after")
            screen.write("~.")
            await screen.ends()
        assert (await configured.job_said(before)).count("request break reply 0") == 1, way


async def test_killed_client_hangs_up_the_job_shell(rig: Rig) -> None:
    """The job's shell gets SIGHUP when the client is killed."""

    async def case(way: Way) -> str:
        log = rig.job_folder(way) / "log"
        command = f"trap 'echo hung up > {log}; exit' HUP; echo ready; while :; do sleep 0.05; done"
        async with terminal(rig, "-t", way.value, command) as screen:
            await screen.shows("ready")
            screen.process.kill()
            await screen.process.wait()
        await until(lambda: log.exists() and log.read_text())
        return log.read_text()

    assert await rig.each(case) == "hung up\n"
