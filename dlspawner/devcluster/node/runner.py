"""Starts commands in sandboxes, and knows when and how they ended.

Owns the child processes of the node. `start` returns when the command has been executed or raises `StartError` with
the sentence for the container's status; a `Process` is reaped through its pidfd, so its number cannot be re-used
while we hold it. Everything is started from the thread that runs the event loop: PDEATHSIG follows that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# From reading the specification to the command's first instruction; only a very loaded machine needs seconds.
START_SECONDS = 60.0
# As a descriptor: the null device.
NOTHING = subprocess.DEVNULL
_unwanted: set[asyncio.Task[Process]] = set()  # being started, not needed any more
_PROGRAM = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import sandbox; sandbox.main()"


class StartError(Exception):
    """The command could not be executed; the message is what a container runtime would say."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the machine at a path inside the container, or memory with so many bytes."""

    source: str
    target: str
    readonly: bool = False
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Root:
    """The file system and identity of a container."""

    base: str  # an empty directory that lends its name to the new root
    tmp: str
    hostname: str
    uid: int
    gid: int
    mounts: tuple[Mount, ...] = ()
    hide: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()  # of the machine's temporary directory


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its place: in a new container (`root`) or in that of process `enter`."""

    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    tty: bool = False
    no_new_privileges: bool = False
    root: Root | None = None
    enter: int = 0


class Process:
    """A running command; `wait` may be awaited by any number of tasks."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> int:
        """The exit code as a container runtime reports it: 128 + the signal's number for one that was killed."""
        return await asyncio.shield(self._ended)

    def signal(self, number: signal.Signals) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = 255
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
        if not self._ended.done():
            self._ended.set_result(128 - code if code < 0 else code)


async def start(command: Command, *, stdin: int, stdout: int, stderr: int) -> Process:
    """Execute a command; the three descriptors stay the caller's to close.

    A cancelled start leaves no process: it is killed and reaped as soon as it is known. An unreaped zombie
    would keep its container from ever ending.
    """
    source = os.memfd_create("sandbox")
    reader, writer = os.pipe()
    try:
        with os.fdopen(source, "wb", closefd=False) as file:
            marshal.dump(_specification(command), file)
        os.lseek(source, 0, os.SEEK_SET)
        helper = subprocess.Popen(  # noqa: ASYNC220  (vfork and exec of a small interpreter: 2 ms)
            [sys.executable, "-I", "-S", "-E", "-c", _PROGRAM, str(source), str(writer)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(source, writer),
        )
    except OSError as error:
        os.close(reader)
        raise StartError(f"cannot start the sandbox: {error}") from error
    finally:
        os.close(source)
        os.close(writer)
    started = asyncio.create_task(_started(helper, reader), name=f"start of {' '.join(command.args)[:100]}")
    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        _unwanted.add(started)
        started.add_done_callback(_end_unwanted)
        raise


async def _started(helper: subprocess.Popen[bytes], reader: int) -> Process:
    try:
        async with asyncio.timeout(START_SECONDS):
            report = await _read_all(reader)
    except asyncio.CancelledError:  # the loop itself ends
        helper.kill()
        raise
    except TimeoutError:
        helper.kill()
        raise StartError(f"the sandbox did not come up within {START_SECONDS:.0f} s") from None
    finally:
        os.close(reader)
        _reap_helper(helper)
    return await _process(report)


def _end_unwanted(started: asyncio.Task[Process]) -> None:
    _unwanted.discard(started)
    if not started.cancelled() and started.exception() is None:
        started.result().kill()


async def _process(report: bytes) -> Process:
    words = dict(line.split(" ", 1) for line in report.decode(errors="replace").splitlines() if " " in line)
    process = Process(int(words["pid"])) if "pid" in words else None
    if "error" not in words and process is not None:
        return process
    if process is not None:
        await process.wait()
    raise StartError(words.get("error", "the sandbox died while it was being made"))


def _reap_helper(helper: subprocess.Popen[bytes]) -> None:
    # It has closed its end of the pipe, so it is at its last instruction or was killed.
    helper.wait()


def _specification(command: Command) -> dict[str, object]:
    spec: dict[str, object] = {
        "node": os.getpid(),
        "enter": command.enter,
        "args": list(command.args),
        "env": dict(command.env),
        "cwd": command.cwd,
        "tty": command.tty,
        "no_new_privileges": command.no_new_privileges,
    }
    if command.root is not None:
        root = command.root
        mounts = sorted(root.mounts, key=lambda mount: len(Path(mount.target).parts))
        spec |= {
            "base": root.base,
            "tmp": root.tmp,
            "hostname": root.hostname,
            "uid": root.uid,
            "gid": root.gid,
            "hide": list(root.hide),
            "visible": list(root.visible),
            "mounts": [asdict(mount) for mount in mounts],
        }
    return spec


async def _read_all(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    parts: list[bytes] = []

    def readable() -> None:
        part = os.read(fd, 8192)
        parts.append(part)
        if not part and not done.done():
            done.set_result(None)

    loop.add_reader(fd, readable)
    try:
        await done
    finally:
        loop.remove_reader(fd)
    return b"".join(parts)
