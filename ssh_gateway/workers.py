"""Several processes that serve on one port: this one starts them, starts them again, and speaks for all.

It has opened the keys, holds the port (without listening on it), answers probes and passes on what the workers count.
No connection goes through it: the kernel deals them out, each lives in one worker, and whichever worker dies takes only
its own along. One that hangs does not die by itself: each is asked whether it lives, and replaced when it does not
answer.

Refused: `fork`, which would share some memory and a running event loop; and a worker that listens for all, through
which every byte would go twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssh_gateway.channel import Channel, encoded
from ssh_gateway.drain import Stop
from ssh_gateway.logs import say
from ssh_gateway.meters import OfWorkers
from ssh_gateway.pulse import BEATS, Finding, Pulse

STEADY_SECONDS = 60.0  # who has lived so long is started again at once
LONGEST_PAUSE = 30.0
GRACE_SECONDS = 15.0  # beyond the drain
METRICS_SECONDS = 2.0
MOST_UNREAD = 64 * 2**20  # bytes that a worker may leave unread before it is taken for dead


class NotStarted(Exception):
    """The first worker ended before it served, and has said why."""


@dataclass(slots=True)
class Process:
    """A worker that runs."""

    process: asyncio.subprocess.Process
    channel: Channel
    ready: bool = False
    asked: list[asyncio.Future[str]] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)

    def metrics(self) -> asyncio.Future[str]:
        """What a Prometheus is to read of it."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        self.channel.send("metrics")
        return answer

    async def ended(self) -> int:
        """Its status, soon: it has nothing more to say."""
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                return await self.process.wait()
        except TimeoutError:
            self.kill()
            return await self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            self.process.kill()

    def answered(self, text: str) -> None:
        """It has told them, for whoever asked first."""
        answer = self.asked.pop(0)
        if not answer.done():
            answer.set_result(text)


class Workers:
    """``begin`` is what every worker is told first, ``settings`` are the command line's; ``dead_seconds`` is how long
    one may answer nothing.
    """

    def __init__(
        self,
        count: int,
        begin: Mapping[str, Any],
        settings: Sequence[str],
        drain_seconds: float,
        dead_seconds: float,
    ) -> None:
        self._numbers = range(1, count + 1)
        self._begin = begin
        self._settings = settings
        self._drain_seconds = drain_seconds
        self._beat_seconds = dead_seconds / BEATS
        self._running: dict[int, Process] = {}
        self._meters = OfWorkers()
        self._served = asyncio.Event()
        self._stop = Stop().at_signals()

    @property
    def ready(self) -> bool:
        """Whether somebody serves, and will go on."""
        return not self._stop.begin.is_set() and any(process.ready for process in self._running.values())

    async def run(self) -> None:
        """Until all have ended, as they were told; NotStarted when the first one does not serve.

        The first goes ahead: what is wrong for all of them is said once.
        """
        watching = asyncio.create_task(self._watch(), name="watch the workers")
        try:
            await self._run_all(watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _run_all(self, watching: asyncio.Task[None]) -> None:
        first, *others = self._numbers
        keeping = {asyncio.create_task(self._keep(first), name=f"worker {first}")}
        await _first_of({*keeping, watching}, self._served, self._stop.begin)
        keeping |= {asyncio.create_task(self._keep(number), name=f"worker {number}") for number in others}
        await _first_of({*keeping, watching}, self._stop.begin)
        say("stopping", workers=len(self._running))
        self._tell("stop")
        hurrying = asyncio.create_task(self._hurry(), name="second signal")
        _, stuck = await asyncio.wait(keeping, timeout=self._drain_seconds + GRACE_SECONDS)
        hurrying.cancel()
        for number, worker in self._running.items():
            say("worker", level=logging.ERROR, number=number, result="stuck")
            worker.kill()
        await asyncio.gather(*stuck, hurrying, return_exceptions=True)
        say("stopped")

    async def metrics(self) -> bytes:
        """Everybody's; without those of a worker that does not answer."""
        asked = {number: worker.metrics() for number, worker in self._running.items() if worker.ready}
        if asked:
            await asyncio.wait(asked.values(), timeout=METRICS_SECONDS)
        texts = {
            number: answer.result() for number, answer in asked.items() if answer.done() and not answer.cancelled()
        }
        return self._meters.text(texts)

    async def _watch(self) -> None:
        """Ask everybody for ever; who answers nothing is killed, and started again as whoever ends."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            for number, worker in self._running.items():
                finding = worker.pulse.ask(ready=worker.ready)
                if finding is not Finding.ALIVE:
                    say("worker", level=logging.ERROR, number=number, result=finding.value, pid=worker.process.pid)
                if finding is Finding.DEAD:
                    worker.kill()
                worker.channel.send("alive")

    async def _hurry(self) -> None:
        await self._stop.hurry.wait()
        self._tell("stop")

    async def _keep(self, number: int) -> None:
        """One worker after the other under this number."""
        clock, pauses = asyncio.get_running_loop().time, _pauses()
        while not self._stop.begin.is_set():
            began = clock()
            try:
                status: int | None = await self._run(number)
            except (OSError, ValueError) as problem:  # no room for one more now; the others go on
                say("worker", level=logging.ERROR, number=number, result="not-started", why=problem)
                status = None
            if self._stop.begin.is_set():
                return
            if not self._served.is_set():
                raise NotStarted
            if clock() - began >= STEADY_SECONDS:
                pauses = _pauses()
            pause = next(pauses)
            self._meters.restarted()
            say("worker", level=logging.WARNING, number=number, result="ended", status=status, pause=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.begin.wait(), pause)

    async def _run(self, number: int) -> int:
        """One worker, to its end; its status."""
        worker = await self._spawn()
        say("worker", number=number, result="started", pid=worker.process.pid)
        try:
            self._running[number] = worker
            self._tell("came")
            async for message in worker.channel.messages():
                self._hear(number, worker, message)
            return await worker.ended()
        finally:
            del self._running[number]
            worker.channel.close()
            for answer in worker.asked:
                answer.cancel()
            self._tell("left", number)

    async def _spawn(self) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                # -P: nothing is imported from the folder that the gateway happens to be started in.
                *(sys.executable, "-P", "-m", "ssh_gateway.worker", str(theirs.fileno()), *self._settings),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        channel = await Channel.on(ours)
        channel.send("begin", self._begin)
        if self._stop.begin.is_set():  # meanwhile
            channel.send("stop")
        return Process(process, channel)

    def _hear(self, number: int, worker: Process, message: Sequence[Any]) -> None:
        match message:
            case ["ready"]:
                worker.ready = True
                self._served.set()
            case ["alive"]:
                if worker.pulse.answered():
                    say("worker", number=number, result="answers", pid=worker.process.pid)
            case ["metrics", text]:
                worker.answered(text)
            case ["others", told]:
                self._tell("other", number, told, but=number)

    def _tell(self, *message: Any, but: int = 0) -> None:
        told = encoded(*message)
        for number, worker in self._running.items():
            if number == but:
                continue
            worker.channel.pass_on(told)
            if worker.channel.unread() > MOST_UNREAD:
                worker.kill()


async def _first_of(tasks: Iterable[asyncio.Task[None]], *events: asyncio.Event) -> None:
    """Wait for one of the events; a task that ends before raises what ended it."""
    waiting = {asyncio.ensure_future(event.wait()) for event in events}
    ended, _ = await asyncio.wait({*tasks, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
    for task in ended.intersection(tasks):
        await task


def _pauses() -> Iterator[float]:
    """Seconds before a worker is started again: at once, and longer and longer when it does not live."""
    yield 0.0
    pause = 1.0
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
