"""Commands by OpenSSH's client: output, errors, exit status and signal, environment, ends of input, many at once."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import pytest

from tests.component.gateway.clients.ways import Rig, Way
from tests.component.gateway.peers import Done

MIB = 2**20


@dataclass(frozen=True)
class Row:
    """A command and what it must leave behind, directly and otherwise."""

    arguments: tuple[str, ...]
    out: bytes = b""
    err: str = ""
    status: int = 0
    feed: bytes = b""


COMMANDS = {
    "output and errors apart": Row(
        ("HOST", "echo out; echo err >&2; exit 7"), out=b"out\n", err="err\n", status=7
    ),
    "an error after the end of the output": Row(
        ("HOST", "exec >&-; echo late >&2; exit 3"), err="late\n", status=3
    ),
    "the environment that the server takes": Row(
        ("-o", "SetEnv=GREETING=hello", "HOST", "echo $GREETING"), out=b"hello\n"
    ),
    "the end of the input": Row(("HOST", "cat; echo after"), out=b"typedafter\n", feed=b"typed"),
    "an input that is not read": Row(
        ("HOST", "exec <&-; echo done; exit 4"), out=b"done\n", status=4, feed=b"x" * MIB
    ),
    "a reader that stops": Row(("HOST", "head -c 10"), out=b"x" * 10, feed=b"x" * 4 * MIB),
    "a process in the background": Row(
        ("HOST", "sleep 600 </dev/null >/dev/null 2>&1 & echo begun; kill %1"), out=b"begun\n"
    ),
    "a script on the input": Row(("-T", "HOST", "bash -s one"), out=b"one\n", status=6, feed=b"echo $1; exit 6\n"),
    "no command and no terminal": Row(("-T", "HOST"), out=b"shell\n", status=5, feed=b"echo shell; exit 5\n"),
    "every byte value": Row(("HOST", "cat"), out=bytes(range(256)) * 64, feed=bytes(range(256)) * 64),
    "a name with spaces and signs": Row(("HOST", "echo 'a b' \"c'd\" é ☃"), out="a b c'd é ☃\n".encode()),
    "a subsystem that does not exist": Row(
        ("-s", "HOST", "nonsense"), err="subsystem request failed on channel 0\r\n", status=255
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", COMMANDS.values(), ids=COMMANDS)
async def test_command_leaves_the_same_output_errors_and_status(rig: Rig, row: Row) -> None:
    done = await rig.each_runs("ssh", *row.arguments, feed=row.feed)
    assert (done.out, done.err, done.status) == (row.out, row.err, row.status)


async def test_signal_that_ended_a_command_is_told(rig: Rig) -> None:
    async def case(way: Way) -> tuple[int, list[str]]:
        done = await rig.run("ssh", "-v", way.value, "kill -KILL $$")
        return done.status, re.findall(r"rtype (exit-\S+) reply \d", done.err)

    assert await rig.each(case) == (255, ["exit-signal"])


async def test_output_and_errors_do_not_mix(rig: Rig) -> None:
    command = "for n in $(seq 2000); do printf '%0512d' $n; printf '%0256d' $n >&2; done"
    done = await rig.each_runs("ssh", "HOST", command)
    assert done.out == b"".join(b"%0512d" % n for n in range(1, 2001))
    assert done.err == "".join(f"{n:0256d}" for n in range(1, 2001))


async def test_broken_local_pipe_ends_the_remote_command(rig: Rig) -> None:
    async def case(way: Way) -> tuple[int, bytes]:
        line = f"timeout -s KILL 20 {rig.openssh} {way.value} 'yes; exit 3' | head -n 2"
        done = await rig.run("bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}")
        return done.status, done.out

    assert await rig.each(case) == (3, b"y\ny\n")


async def test_40_sessions_share_one_connection(rig: Rig) -> None:
    async def case(way: Way) -> list[tuple[bytes, str, int]]:
        async with rig.master(way) as control:
            commands = [f"cat; echo {n} >&2; exit {n}" for n in range(1, 41)]
            done: list[Done] = await asyncio.gather(
                *(rig.run("ssh", *control, way.value, one, feed=b"%d" % n * 9999) for n, one in enumerate(commands))
            )
        return [(one.out, one.err, one.status) for one in done]

    assert await rig.each(case) == [(b"%d" % n * 9999, f"{n + 1}\n", n + 1) for n in range(40)]
