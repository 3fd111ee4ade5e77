"""Recordings on disks that are full, or hang as a network drive does whose server is away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

from ssh_gateway import recordings
from ssh_gateway.asciicast import TRUNCATED
from ssh_gateway.recordings import Recordings
from tests.gateway.peers import finish, until
from tests.gateway.recorded import ENDED, Around, Recorded, a_disk_that_hangs, begin
from tests.gateway.test_audit import logged, of
from tests.gateway.test_notices import seen

__all__ = ["logged"]


async def test_a_recording_that_is_full_says_so_everywhere_and_the_session_goes_on(
    around: Around, logged: list[dict[str, str]]
) -> None:
    async with around.gateway(Recordings(around.folder, most_bytes=65536)) as recorded:
        process = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "seq 50000; read x; echo over")
        shown = await seen(process, ENDED % b"it has reached the size that the gateway allows")
        done = await finish(process, b"x\n")
        assert b"50000" in shown + done.out
        assert b"over" in done.out
        (cast,) = await recorded.written()
        assert recorded.files[0].stat().st_size <= 65536
    assert cast.events[-1][1:] == ("m", TRUNCATED)
    assert (shown + done.out).decode().startswith(cast.shown)
    assert [one["result"] for one in of(logged, "recorded")] == ["truncated"]


async def test_a_full_disk_ends_the_recording_with_whole_lines_and_the_session_goes_on(
    recorded: Recorded, logged: list[dict[str, str]]
) -> None:
    process = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "echo ready; read x; echo $x; read y")
    assert process.stdin is not None
    await seen(process, b"ready")
    await until(lambda: "ready" in recorded.files[0].read_text())
    (recording,) = recorded.running.server.recordings.going_on
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recording.file.descriptor)
    os.close(full)
    process.stdin.write(b"again\n")
    await seen(process, ENDED % b"No space left on device")
    done = await finish(process, b"x\n")
    assert done.status == 0
    (cast,) = await recorded.written()
    assert "ready" in cast.shown
    (end,) = of(logged, "recorded")
    assert (end["result"], end["why"]) == ("failed", "No space left on device")


async def test_while_the_folder_hangs_new_terminals_are_refused_in_words_and_the_gateway_stops(
    around: Around, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, str]]
) -> None:
    with contextlib.ExitStack() as disk:
        async with around.gateway() as recorded:
            process = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "echo ready; read x; echo more")
            assert process.stdin is not None
            await seen(process, b"ready")
            await until(lambda: "ready" in recorded.files[0].read_text())
            (recording,) = recorded.running.server.recordings.going_on
            begun = disk.enter_context(a_disk_that_hangs(recording))
            process.stdin.write(b"x\n")
            await seen(process, b"more")
            await until(begun.is_set)
            monkeypatch.setattr(recordings, "ANSWER_SECONDS", 0.5)
            monkeypatch.setattr(recordings, "CLOSE_SECONDS", 0.5)
            for _ in range(2):
                done = await recorded.ssh("echo it ran")
                assert (done.status, b"it ran" in done.out) == (255, False)
                assert "the folder for recordings does not answer" in done.err
            assert (await recorded.client.ssh("alice+train@gateway", "cat", feed=b"a file")).out == b"a file"
        await finish(process)
        assert [one["why"] for one in of(logged, "refused")] == ["Gateway.recordings_dir: no answer"] * 2
        assert [(one["result"], one["why"]) for one in of(logged, "recorded")] == [("failed", "the gateway ended")]


async def test_a_file_that_is_made_after_all_is_gone_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Recordings(tmp_path / "recordings")
    folder.check()
    first = await begin(folder)
    with a_disk_that_hangs(first) as begun:
        first.show(b"x" * recordings.FLUSH_BYTES)
        await until(begun.is_set)
        monkeypatch.setattr(recordings, "ANSWER_SECONDS", 0.1)
        with pytest.raises(recordings.NoAnswer):
            await begin(folder, 2)
    monkeypatch.setattr(recordings, "ANSWER_SECONDS", 30.0)
    await until(lambda: not folder._hangs())
    second = await begin(folder, 3)
    assert sorted(folder.folder.iterdir() if folder.folder else []) == sorted([first.path, second.path])
    await folder.aclose()


async def test_a_file_that_nobody_waits_for_any_more_is_gone_again(tmp_path: Path) -> None:
    folder = Recordings(tmp_path / "recordings")
    folder.check()
    first = await begin(folder)
    with a_disk_that_hangs(first) as begun:
        first.show(b"x" * recordings.FLUSH_BYTES)
        await until(begun.is_set)
        waiting = asyncio.create_task(begin(folder, 2))
        await asyncio.sleep(0)  # it has begun to wait
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
    third = await begin(folder, 3)  # made after it, by the same hand
    assert sorted(folder.folder.iterdir() if folder.folder else []) == sorted([first.path, third.path])
    await folder.aclose()


ENDS = """
import asyncio, sys
from pathlib import Path
from ssh_gateway import recordings
from tests.gateway.peers import until
from tests.gateway.recorded import a_disk_that_hangs, begin

async def main():
    folder = recordings.Recordings(Path(sys.argv[1]))
    folder.check()
    tape = await begin(folder)
    disk = a_disk_that_hangs(tape)
    begun = disk.__enter__()
    tape.show(b"x" * recordings.FLUSH_BYTES)
    await until(begun.is_set)
    recordings.CLOSE_SECONDS = recordings.ANSWER_SECONDS = 0.1
    try:
        await begin(folder, 2)
    except recordings.NoAnswer:
        folder.check()
        await folder.aclose()
    return disk

disk = asyncio.run(main())
print("over", flush=True)
"""


async def test_a_process_whose_folder_hangs_ends_all_the_same(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ENDS, str(tmp_path / "recordings")),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    done = await finish(process)
    assert (done.status, done.text) == (0, "over\n"), done.err


async def test_a_gateway_begins_while_the_folder_hangs_and_refuses_terminals(
    around: Around, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, str]]
) -> None:
    monkeypatch.setattr(recordings, "ANSWER_SECONDS", 0.1)
    fifo = around.tmp_path / "fifo"
    os.mkfifo(fifo)
    folder = Recordings(around.folder)
    opened = folder._hand.submit(lambda: os.open(fifo, os.O_WRONLY))  # nobody reads: it waits
    async with around.gateway(folder) as recorded:
        done = await recorded.ssh("echo it ran")
        assert "the folder for recordings does not answer" in done.err
        assert [one["result"] for one in of(logged, "recordings")] == ["no-answer"]
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        await until(lambda: not folder._hangs())
        monkeypatch.setattr(recordings, "ANSWER_SECONDS", 30.0)
        assert b"it ran" in (await recorded.ssh("echo it ran")).out
    os.close(opened.result())
    os.close(reader)
