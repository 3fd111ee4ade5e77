"""Recordings with OpenSSH's clients and a real sshd: what is in them, what is not, and who gets no terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import asyncssh
import pytest

from ssh_gateway import rechecks, recorder, recordings
from ssh_gateway.asciicast import TRUNCATED, Happening, Terminal
from ssh_gateway.directory import Standing, Unavailable
from ssh_gateway.keys import Keys
from ssh_gateway.recorder import RECORDED
from ssh_gateway.recordings import Recording, Recordings
from tests.gateway.peers import Client, FakePeople, FakePlaces, Running, finish, gateway, until
from tests.gateway.test_audit import logged, of
from tests.gateway.test_notices import seen

__all__ = ["logged"]

TEAM = frozenset({"vision"})
ENDED = b"\r\n*** The recording of this terminal has ended: %s. You can go on. ***\r\n"


@dataclass(frozen=True)
class Cast:
    """A recording, each of whose lines was read as what asciicast v2 allows."""

    header: dict[str, Any]
    events: list[tuple[float, str, str]]

    @property
    def shown(self) -> str:
        return "".join(text for _, kind, text in self.events if kind == "o")


def read(path: Path) -> Cast:
    lines = path.read_text("utf-8").split("\n")
    assert lines.pop() == "", "the last line is whole"
    header, events = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    assert header["version"] == 2
    assert all(type(header[name]) is int and header[name] > 0 for name in ("width", "height", "timestamp"))
    for event in events:
        assert [type(part) for part in event] == [float, str, str]
        assert event[1] in {"o", "r", "m"}
    times = [event[0] for event in events]
    assert times == sorted(times)
    return Cast(header, [(event[0], event[1], event[2]) for event in events])


@dataclass
class Recorded:
    """A gateway that records the team of alice's job, and her client."""

    running: Running
    client: Client
    folder: Path

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    async def written(self, many: int = 1) -> list[Cast]:
        """The recordings when all of them are finished."""
        await until(lambda: len(self.files) == many and not self.running.server.recordings.going_on)
        return [read(path) for path in self.files]

    async def ssh(self, *command: str) -> Any:
        return await self.client.ssh("-tt", "alice+train@gateway", *command)


@dataclass
class World:
    """What recorded gateways are made of."""

    keys: Keys
    people: FakePeople
    places: FakePlaces
    key: asyncssh.SSHKey
    tmp_path: Path
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.tmp_path / "recordings"

    @contextlib.asynccontextmanager
    async def gateway(self, folder: Recordings | None = None) -> AsyncIterator[Recorded]:
        folder = folder or Recordings(self.folder)
        folder.check()
        async with gateway(self.keys, self.people, self.places, recordings=folder) as running:
            client = Client(self.tmp_path / "alice", running.port, self.key, self.keys.host)
            yield Recorded(running, client, self.folder)


@pytest.fixture
def around(keys: Keys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey, tmp_path: Path) -> World:
    people.recorded = TEAM
    return World(keys, people, places, alices_key, tmp_path)


@pytest.fixture
async def recorded(around: World) -> AsyncIterator[Recorded]:
    async with around.gateway() as found:
        yield found


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


async def test_teams_that_are_not_recorded_and_what_has_no_terminal_leave_nothing(around: World) -> None:
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


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.mark.parametrize("how", ["no folder", "a folder that is gone"])
async def test_a_terminal_that_cannot_be_recorded_is_refused_in_words_and_files_are_not(
    around: World, how: str, logged: list[dict[str, str]]
) -> None:
    async with around.gateway(Recordings() if how == "no folder" else None) as recorded:
        await until(lambda: recorded.running.server.records("vision") is True)
        if how != "no folder":
            recorded.folder.rmdir()
        done = await recorded.ssh("echo it ran")
        assert done.status == 255
        assert b"it ran" not in done.out
        assert "Terminals of your team are recorded, and this one cannot be: tell your administrator." in done.err
        assert (await recorded.client.ssh("alice+train@gateway", "cat", feed=b"a file")).out == b"a file"
    (refusal,) = of(logged, "refused")
    assert refusal["what"] == "terminal"
    assert "Gateway.recordings_dir" in refusal["why"]


class SilentPeople(FakePeople):
    """A Manager that says nothing about access; the keys are known."""

    async def standing(self, keys: Collection[tuple[str, str]]) -> Standing:
        raise Unavailable("the Manager does not answer")


async def test_while_nobody_can_tell_whether_a_team_is_recorded_only_a_gateway_that_records_nobody_grants_terminals(
    around: World,
) -> None:
    around.people = SilentPeople(around.people.keys)
    async with around.gateway() as recorded:
        done = await recorded.ssh("echo it ran")
        assert (done.status, b"it ran" in done.out) == (255, False)
        assert "nobody can tell right now" in done.err
    async with around.gateway(Recordings()) as recorded:
        assert (await recorded.ssh("echo it ran")).out == b"it ran\r\n"


class LatePeople(FakePeople):
    """A Manager that says nothing about access until it is told to."""

    def __init__(self, people: FakePeople) -> None:
        super().__init__(people.keys)
        self.recorded = TEAM
        self.asking = 0
        self.speaks = asyncio.Event()

    async def standing(self, keys: Collection[tuple[str, str]]) -> Standing:
        self.asking += 1
        await self.speaks.wait()
        return await super().standing(keys)


@pytest.mark.parametrize("folder", [True, False], ids=["and is recorded", "and is refused where there is no folder"])
async def test_a_terminal_waits_until_it_is_known_whether_it_is_recorded_and_files_do_not(
    around: World, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rechecks, "LEARN_SECONDS", 30.0)
    around.people = people = LatePeople(around.people)
    async with around.gateway(None if folder else Recordings()) as recorded:
        assert (await recorded.client.ssh("alice+train@gateway", "cat", feed=b"a file")).out == b"a file"
        terminal = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "echo it ran")
        await until(lambda: people.asking >= 2 or terminal.returncode is not None)  # a round, and the terminal
        people.speaks.set()
        done = await finish(terminal)
        assert (done.status, b"it ran" in done.out, RECORDED.content in done.out) == (
            0 if folder else 255,
            folder,
            folder,
        )
        assert ("this one cannot be: tell your administrator" in done.err) is not folder
        if folder:
            (cast,) = await recorded.written()
            assert "it ran" in cast.shown


@pytest.mark.parametrize("folder", [True, False], ids=["a gateway that records", "a gateway without a folder"])
@pytest.mark.parametrize("silence", ["no answer", "an answer without the teams"])
async def test_what_nobody_tells_in_time_is_refused_by_a_gateway_that_records(
    around: World, folder: bool, silence: str, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, str]]
) -> None:
    monkeypatch.setattr(rechecks, "LEARN_SECONDS", 0.3)
    around.people = people = LatePeople(around.people)
    people.recorded = None
    if silence != "no answer":
        people.speaks.set()
    async with around.gateway(None if folder else Recordings()) as recorded:
        done = await recorded.ssh("echo it ran")
        assert (b"it ran" in done.out, "nobody can tell right now" in done.err) == (not folder, folder)
        assert [one["what"] for one in of(logged, "refused")] == ["terminal"] * folder
        assert recorded.files == [] if folder else True


async def test_a_recording_that_is_full_says_so_everywhere_and_the_session_goes_on(
    around: World, logged: list[dict[str, str]]
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


@contextlib.contextmanager
def a_disk_that_hangs(recording: Recording) -> Iterator[Event]:
    """What is written to this recording blocks, as on a network drive whose server is away, until the end.

    The event: something is.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(65536))
    os.set_blocking(writes, True)
    os.dup2(writes, recording.file.descriptor)
    os.close(writes)
    begun, add = Event(), recording.file.add

    def begin_to_add(happenings: Sequence[Happening]) -> bool:
        begun.set()
        return add(happenings)

    setattr(recording.file, "add", begin_to_add)  # noqa: B010  (mypy knows it as a method)
    try:
        yield begun
    finally:
        os.close(reads)


async def test_while_the_folder_hangs_new_terminals_are_refused_in_words_and_the_gateway_stops(
    around: World, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, str]]
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


async def begin(folder: Recordings, count: int = 1) -> Recording:
    whose = Terminal("alice", "train", "1-1", 0, count)
    return await folder.begin(whose, (80, 24), b"vt", lambda _why: None, lambda: None, lambda _tape: None)


ENDS = """
import asyncio, sys
from pathlib import Path
from ssh_gateway import recordings
from tests.gateway.peers import until
from tests.gateway.test_recordings import a_disk_that_hangs, begin

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
    around: World, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, str]]
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


async def test_a_gateway_that_stops_has_written_everything(around: World) -> None:
    async with around.gateway() as recorded:
        process = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "echo ready; read x")
        shown = await seen(process, b"ready\r\n")
    shown += (await finish(process)).out
    assert read(recorded.files[0]).shown == shown.decode()
