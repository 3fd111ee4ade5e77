"""Supervision of a few child processes; none outlives the launcher.

Rules: a child has a session of its own, so Ctrl-C in a terminal reaches only the launcher, which chooses the order of
stopping; the kernel sends the child SIGTERM when the launcher dies for any reason (`setpriv --pdeathsig`, util-linux);
a child that ends by itself is started again after a growing delay. Children are started in the order in which they are
added and stopped in reverse.

Refused: supervisord and honcho (neither starts in order on readiness nor survives its own SIGKILL without orphans), and
systemd user units (not on a bare machine).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlspawner.backoff import delays

STOP_SECONDS = 15.0  # between SIGTERM and SIGKILL


class ChildFailed(Exception):
    """A child ended before it was ready; the message ends with the last lines it wrote."""


@dataclass(frozen=True, slots=True)
class Child:
    """One process; `ready` is called repeatedly until it returns True."""

    name: str
    command: Sequence[str]
    ready: Callable[[], Awaitable[bool]]
    env: Mapping[str, str] = field(default_factory=dict)
    deadline_seconds: float = 60.0
    restarted: Callable[[], Awaitable[str | None]] | None = None  # after a restart; returns a sentence on failure


class Supervisor:
    """Owns the processes of its children; use it as an async context manager."""

    def __init__(self, log_dir: Path, say: Callable[[str], None]) -> None:
        self.log_dir = log_dir
        self._say = say
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Supervisor:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in reversed(list(self._watchers)):
            await self._stop(name)

    async def start(self, child: Child) -> None:
        """Starts one child and returns when it is ready; raises ChildFailed if it ends first or takes too long."""
        await self._launch(child)
        self._watchers[child.name] = asyncio.create_task(self._watch(child), name=f"watch {child.name}")

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    async def _launch(self, child: Child) -> None:
        log = self.log_dir / f"{child.name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                "setpriv",
                "--pdeathsig",
                "TERM",
                "--",
                *child.command,
                env={**os.environ, **child.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes[child.name] = process
        try:
            async with asyncio.timeout(child.deadline_seconds):
                while not await child.ready():
                    if process.returncode is not None:
                        raise ChildFailed(f"{child.name} ended with status {process.returncode}:\n{tail(log)}")
                    await asyncio.sleep(0.05)
        except BaseException as error:
            await _end(process)
            if isinstance(error, TimeoutError):
                raise ChildFailed(
                    f"{child.name} was not ready after {child.deadline_seconds:.0f} s:\n{tail(log)}"
                ) from None
            raise

    async def _watch(self, child: Child) -> None:
        pauses = delays(0.2, 10.0)
        while True:
            status = await self._processes[child.name].wait()
            pause = next(pauses)
            self._say(f"{child.name} ended with status {status}; starting it again in {pause:.1f} s")
            await asyncio.sleep(pause)
            try:
                await self._launch(child)
                pauses = delays(0.2, 10.0)
                problem = await child.restarted() if child.restarted else None
                if problem:
                    self._say(problem)
            except (ChildFailed, OSError) as error:
                self._say(str(error))

    async def _stop(self, name: str) -> None:
        watcher = self._watchers.pop(name)
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        if not await _end(self._processes.pop(name)):
            self._say(f"{name} did not stop within {STOP_SECONDS:.0f} s and was killed")


async def _end(process: asyncio.subprocess.Process) -> bool:
    """Stops one process and its whole process group; True if the process ended by itself."""
    graceful = True
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            graceful = False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    return graceful


def tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in text) + f"\n    (all of it: {log})"


@contextlib.asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """Yields an event that SIGINT, SIGTERM and SIGHUP set while the block runs."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
