"""Recordings with OpenSSH's clients and a real sshd: what is in them and what is not."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from pathlib import Path

import pytest

from ssh_gateway import recorder
from ssh_gateway.recorder import RECORDED
from tests.gateway.peers import DEADLINE, finish, until
from tests.gateway.recorded import Around, Cast, Recorded, read
from tests.gateway.test_audit import logged, of
from tests.gateway.test_notices import seen

__all__ = ["logged"]


async def test_what_is_recorded_is_what_the_client_saw_and_it_was_told_so_first(
    recorded: Recorded, logged: list[dict[str, str]]
) -> None:
    done = await recorded.ssh("seq 20000; printf 'Gr\\303\\274\\303\\237e \\342\\202\\254 \\377'; exit 3")
    assert done.status == 3
    assert done.out.startswith(RECORDED.content)
    assert b"20000" in done.out
    (cast,) = await recorded.written()
    assert cast.shown == done.out.decode("utf-8", "replace")
    assert "Grüße € \ufffd" in cast.shown
    (path,) = recorded.files
    assert path.stat().st_mode & 0o777 == 0o600
    assert recorded.folder.stat().st_mode & 0o777 == 0o700
    assert f"_alice_train_{recorded.running.server.name}-1_0_1.cast" in path.name
    who = {"user": "alice", "server": "train", "channel": "0", "path": str(path)}
    assert of(logged, "recording") == [who]
    assert of(logged, "recorded") == [{**who, "result": "complete", "bytes": str(path.stat().st_size)}]


async def test_a_recording_has_every_byte_of_its_own_terminal_beside_what_others_send(recorded: Recorded) -> None:
    shown, data = await asyncio.gather(
        recorded.ssh("seq 100000"), recorded.client.ssh("alice+train@gateway", "cat", feed=bytes(4 * 2**20))
    )
    assert data.out == bytes(4 * 2**20)
    (cast,) = await recorded.written()
    assert cast.shown == shown.text
    assert "100000" in cast.shown


async def test_what_is_typed_unseen_is_not_recorded_and_what_is_shown_is_on_the_disk_before_the_end(
    recorded: Recorded,
) -> None:
    command = "stty -echo; echo ready; read x; stty echo; echo got ${#x}; read y"
    process = await recorded.client.start("ssh", "-tt", "alice+train@gateway", command)
    assert process.stdin is not None
    await seen(process, b"ready")
    process.stdin.write(b"correct horse\n")
    await seen(process, b"got 13")
    await until(lambda: "got 13" in recorded.files[0].read_text())
    await finish(process, b"more\n")
    (cast,) = await recorded.written()
    assert "correct" not in recorded.files[0].read_text()
    assert "got 13" in cast.shown


async def test_teams_that_are_not_recorded_and_what_has_no_terminal_leave_nothing(around: Around) -> None:
    async with around.gateway() as recorded:
        done = await recorded.client.ssh("alice+train@gateway", "cat", feed=b"a file")
        assert done.out == b"a file"
        around.people.recorded = frozenset({"others"})
        await until(lambda: recorded.running.server.records("vision") is False)
        assert (await recorded.ssh("echo plain")).out == b"plain\r\n"
    assert recorded.files == []


async def test_every_terminal_of_a_shared_connection_has_a_recording_of_its_own(
    recorded: Recorded, tmp_path: Path
) -> None:
    shared = ["-o", f"ControlPath={tmp_path / 'c'}"]
    first = await recorded.client.start(
        "ssh", *shared, "-o", "ControlMaster=yes", "-tt", "alice+train@gateway", "echo one; read x; echo bye"
    )
    shown = await seen(first, b"one")
    others = await asyncio.gather(
        recorded.client.ssh(*shared, "-tt", "alice+train@gateway", "echo two"),
        recorded.client.ssh(*shared, "-tt", "alice+train@gateway", "echo three"),
        recorded.client.ssh(*shared, "alice+train@gateway", "echo no terminal"),
    )
    shown += (await finish(first, b"x\n")).out
    casts = await recorded.written(3)
    wanted = sorted([shown.decode(), others[0].text, others[1].text])
    assert sorted(cast.shown for cast in casts) == wanted


async def test_who_uses_up_the_lines_of_a_connection_hides_no_recording(
    recorded: Recorded, tmp_path: Path, logged: list[dict[str, str]]
) -> None:
    shared = ["-o", f"ControlPath={tmp_path / 'c'}"]
    first = await recorded.client.start(
        "ssh", *shared, "-o", "ControlMaster=yes", "-tt", "alice+train@gateway", "echo one; read x"
    )
    await seen(first, b"one")
    (visitor,) = recorded.running.server.visitors
    assert visitor.visit is not None
    visitor.visit.budget.left = -1e6
    assert b"two" in (await recorded.client.ssh(*shared, "-tt", "alice+train@gateway", "echo two")).out
    await finish(first, b"x\n")
    await recorded.written(2)
    assert [len(of(logged, event)) for event in ("recording", "recorded", "exec")] == [2, 2, 1]
    await until(lambda: of(logged, "close"))
    assert int(of(logged, "close")[0]["unlogged"]) >= 2


async def test_a_terminal_too_many_is_refused_and_those_that_are_open_say_why(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_OF_CONNECTION", 1)
    shared = ["-o", f"ControlPath={tmp_path / 'c'}"]
    first = await recorded.client.start(
        "ssh", *shared, "-o", "ControlMaster=yes", "-tt", "alice+train@gateway", "echo one; read x; echo bye"
    )
    await seen(first, b"one")
    second = await recorded.client.ssh(*shared, "-tt", "alice+train@gateway", "echo two")
    assert (second.status, b"two" in second.out) == (255, False)
    await seen(first, b"this connection has 1 already: close some of them")
    assert (await recorded.client.ssh(*shared, "alice+train@gateway", "echo plain")).out == b"plain\n"
    assert b"bye" in (await finish(first, b"x\n")).out
    (cast,) = await recorded.written()
    assert "bye" in cast.shown
    assert recorded.running.server.tallies["recorded"].total() == 0


async def test_a_window_that_changes_is_recorded(recorded: Recorded) -> None:
    ours, theirs = os.openpty()
    try:
        _resize(theirs, 30, 100)
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", str(recorded.client.config), "-tt", "alice+train@gateway"),
            "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.1; done",
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "TERM": "vt220", "SSH_AUTH_SOCK": ""},
        )
        await seen(process, b"30 100")
        _resize(theirs, 40, 132)
        process.send_signal(signal.SIGWINCH)
        await seen(process, b"40 132")
        await process.wait()
    finally:
        os.close(ours)
        os.close(theirs)
    (cast,) = await recorded.written()
    assert (cast.header["width"], cast.header["height"], cast.header["env"]) == (100, 30, {"TERM": "vt220"})
    (change,) = [at for at, (_, kind, _) in enumerate(cast.events) if kind == "r"]
    assert cast.events[change][2] == "132x40"
    assert "30 100" in Cast({}, cast.events[:change]).shown
    assert "40 132" in Cast({}, cast.events[change:]).shown


@pytest.mark.parametrize("how", [("cat",), ("play", "--speed=1000")], ids=["cat", "play"])
async def test_asciinema_shows_what_the_terminal_showed(
    recorded: Recorded, tmp_path: Path, how: tuple[str, ...]
) -> None:
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", str(recorded.client.config), "-tt", "alice+train@gateway"),
            "printf 'Gr\\303\\274\\303\\237e \\033[1mbold\\033[0m \\\\ \"\\t'; tty; seq 500; read line; echo $line",
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm", "SSH_AUTH_SOCK": ""},
        )
        os.write(ours, b"typed\n")
        shown, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.startswith(RECORDED.content)
    assert "Grüße \x1b[1mbold".encode() in shown
    assert b"/dev/pts/" in shown
    assert shown.count(b"typed") == 2, "as it was typed, and as it was said"
    await recorded.written()
    player = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "asciinema", *how, str(recorded.files[0])),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}, start_new_session=True,
    )  # fmt: skip
    done = await finish(player)
    assert (done.status, done.out) == (0, shown), done.err


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


async def test_a_gateway_that_stops_has_written_everything(around: Around) -> None:
    async with around.gateway() as recorded:
        process = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "echo ready; read x")
        shown = await seen(process, b"ready\r\n")
    shown += (await finish(process)).out
    assert read(recorded.files[0]).shown == shown.decode()
