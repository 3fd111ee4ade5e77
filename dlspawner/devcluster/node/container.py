"""One container of a pod: started, probed, watched, started again, stopped.

`Container.life` is its task. It owns the process and changes the container's `Run`; what it needs of the pod (volumes,
environment, events) it asks its `Housing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from dlspawner.devcluster.node import probes, status
from dlspawner.devcluster.node.env import ConfigError
from dlspawner.devcluster.node.runner import NOTHING, Command, Process, StartError, start
from dlspawner.devcluster.node.status import Run, timestamp
from dlspawner.devcluster.node.streaming import logs
from dlspawner.devcluster.node.streaming.logs import LogFile

LONGEST_MESSAGE = 4096
MESSAGE_FROM_LOGS = {"lines": 80, "size": 2048}
FORGET_CRASHES_SECONDS = 600.0
# A container without grace left after its preStop hook still gets a moment for SIGTERM, as the kubelet gives it.
LEAST_GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Returns the pause before a crashing container is started again; none the first time."""

    first: float = 10.0
    most: float = 300.0

    def delays(self) -> Iterator[float]:
        yield 0.0
        wait = self.first
        while True:
            yield wait
            wait = min(wait * 2, self.most)


class Housing(Protocol):
    """The values that a pod offers its containers."""

    backoff: Backoff
    ip: str
    patience: float  # the pod's own grace period in seconds

    async def command(self, container: Mapping[str, Any], directory: Path) -> Command: ...
    def directory(self, container: str) -> Path: ...
    def log_path(self, container: str, restarts: int) -> Path: ...
    def note(self, type: str, reason: str, message: str, container: str) -> None: ...
    def changed(self) -> None: ...


def now() -> str:
    return timestamp(datetime.now(UTC))


class Container:
    """Its `spec`, its `run` (what the status says) and, while it runs, its process and log."""

    def __init__(self, pod: Housing, spec: Mapping[str, Any], run: Run, *, policy: str) -> None:
        self.spec = spec
        self.run = run
        self.log: LogFile | None = None
        self.command: Command | None = None
        self.up = asyncio.Event()  # has started (and passed its startup probe) at least once
        self._pod = pod
        self._policy = policy
        self._attempt = run.restarts  # the status learns it when this attempt runs or has failed to
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._settled = asyncio.Event()  # not between deciding to start and having started
        self._settled.set()
        self._kill_at = float("inf")
        self._hurry = asyncio.Event()
        self._pumps: list[asyncio.Future[None]] = []
        self._killer: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def process(self) -> Process | None:
        return self._process if self._process and not self._process.ended else None

    async def life(self) -> None:
        """Until the container will not be started again."""
        delays = self._pod.backoff.delays()
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            began = clock()
            code = await self._run_once()
            if code is None or self._stopping.is_set() or not status.restarts_again(self._policy, code):
                break
            if clock() - began > FORGET_CRASHES_SECONDS:
                delays = self._pod.backoff.delays()
            await self._back_off(next(delays))
            if not self._stopping.is_set():
                self._attempt += 1
        self.run.final = True
        self.run.ready = False
        self._pod.changed()

    async def stop(self, grace: float, why: str = "") -> None:
        """preStop, SIGTERM, and SIGKILL when the grace is over; returns when the process is gone."""
        self._stopping.set()
        await self._settled.wait()
        await self._terminate(grace, why or f"Stopping container {self.name}")

    def shorten(self, grace: float) -> None:
        """The pod was deleted again, with a shorter grace period."""
        self._kill_at = min(self._kill_at, asyncio.get_running_loop().time() + grace)
        self._hurry.set()

    async def execute(self, args: list[str], timeout: float) -> tuple[int, str]:
        """Run a probe's or hook's command inside; its output is cut to what an event can hold."""
        process, command = self.process, self.command
        if process is None or command is None:
            return 1, "container is not running"
        reader, writer = os.pipe()
        output = bytearray()
        try:
            inside = Command(args, command.env, command.cwd, enter=process.pid)
            child = await start(inside, stdin=NOTHING, stdout=writer, stderr=writer)
        except StartError as error:
            os.close(reader)
            return 126, str(error)
        except asyncio.CancelledError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        done = logs.pump(reader, lambda data: output.extend(data[: max(0, 10240 - len(output))]))
        try:
            async with asyncio.timeout(timeout):
                code = await child.wait()
                await done
        finally:
            child.kill()
        return code, output.decode(errors="replace")

    async def _run_once(self) -> int | None:
        """One run from configuration to exit code; None when it was stopped before it began."""
        self._settled.clear()
        try:
            command = await self._configured()
            if command is None:
                return None
            started = now()
            process = await self._start(command)
        except StartError as error:
            message = f"failed to create containerd task: {error}"
            self._ended(
                status.terminated(128, started=status.NEVER, finished=now(), reason="StartError", message=message)
            )
            self._pod.note("Warning", "Failed", f"Error: {message}", self.name)
            return 128
        finally:
            self._settled.set()
        if "postStart" not in (self.spec.get("lifecycle") or {}):
            self._is_running(started)
        watching = asyncio.create_task(self._come_up(started), name=f"probes of {self.name}")
        try:
            code = await process.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await asyncio.gather(*self._pumps)
        if self.log:
            self.log.close()
        message = self._termination_message(code)
        self._ended(status.terminated(code, started=started, finished=now(), message=message, id=self.run.id))
        return code

    async def _configured(self) -> Command | None:
        waits = iter(self._pod.backoff.delays())
        while not self._stopping.is_set():
            directory = self._pod.directory(self.name)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            try:
                return await self._pod.command(self.spec, directory)
            except ConfigError as error:
                self._move(status.waiting("CreateContainerConfigError", str(error)))
                self._pod.changed()
                self._pod.note("Warning", "Failed", f"Error: {error}", self.name)
                await self._sleep(min(max(next(waits), 1.0), 10.0))
        return None

    async def _start(self, command: Command) -> Process:
        image = self.run.image
        self._pod.note("Normal", "Pulled", f'Container image "{image}" already present on machine', self.name)
        self._pumps = []
        log = self.log = LogFile(self._pod.log_path(self.name, self._attempt))
        self._pod.log_path(self.name, self._attempt - 2).unlink(missing_ok=True)
        ends: list[int] = []
        for stream in ("stdout", "stderr"):
            reader, writer = os.pipe()
            self._pumps.append(logs.pump(reader, _to(log, stream)))
            ends.append(writer)
        self._pod.note("Normal", "Created", f"Created container: {self.name}", self.name)
        try:
            process = await start(command, stdin=NOTHING, stdout=ends[0], stderr=ends[1])
        finally:
            for end in ends:
                os.close(end)
        self.command, self._process = command, process
        return process

    async def _come_up(self, started: str) -> None:
        """Wait for the postStart hook, then probe the container for as long as it lives."""
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook:
            result = await probes.attempt(hook, self._target(), 3600.0)
            if not result.ok:
                self._pod.note("Warning", "FailedPostStartHook", f"PostStartHook failed: {result.text}", self.name)
                await self._terminate(LEAST_GRACE_SECONDS, f"Container {self.name} failed its postStart hook")
                return
            self._is_running(started)
        await self._probe()

    def _is_running(self, started: str) -> None:
        self._move({"running": {"startedAt": started}})
        self.run.restarts = self._attempt
        self.run.id = f"node://{secrets.token_hex(32)}"
        self.run.started = "startupProbe" not in self.spec
        self.run.ready = self.run.started and "readinessProbe" not in self.spec
        self._pod.changed()
        self._pod.note("Normal", "Started", f"Started container {self.name}", self.name)
        if self.run.started:
            self.up.set()

    async def _probe(self) -> None:
        if "startupProbe" in self.spec:
            await self._watch_until_ok("startupProbe")
            self.run.started = True
            self.run.ready = "readinessProbe" not in self.spec
            self.up.set()
            self._pod.changed()
        async with asyncio.TaskGroup() as group:
            for kind, verdict in (
                ("readinessProbe", self._is_ready),
                ("livenessProbe", self._is_alive("livenessProbe")),
            ):
                if kind in self.spec:
                    group.create_task(self._watch(kind, verdict), name=f"{kind} of {self.name}")

    async def _watch_until_ok(self, kind: str) -> None:
        passed = asyncio.Event()
        alive = self._is_alive(kind)

        def verdict(ok: bool) -> None:
            if ok:
                passed.set()
            alive(ok)

        task = asyncio.create_task(self._watch(kind, verdict), name=f"{kind} of {self.name}")
        try:
            await passed.wait()
        finally:
            task.cancel()

    async def _watch(self, kind: str, verdict: Callable[[bool], None]) -> None:
        title = kind.removesuffix("Probe").capitalize()

        def failed(text: str) -> None:
            if not self._stopping.is_set():
                self._pod.note("Warning", "Unhealthy", f"{title} probe failed: {text}", self.name)

        await probes.watch(self.spec[kind], self._target(), verdict, failed)

    def _is_ready(self, ok: bool) -> None:
        self.run.ready = ok and self.process is not None
        self._pod.changed()

    def _is_alive(self, kind: str) -> Callable[[bool], None]:
        """The verdict of a probe that ends the container when it fails."""
        grace = float(self.spec.get(kind, {}).get("terminationGracePeriodSeconds", self._pod.patience))
        message = f"Container {self.name} failed {kind.removesuffix('Probe')} probe, will be restarted"

        def verdict(ok: bool) -> None:
            if not ok and not self._stopping.is_set():
                self._killer = asyncio.create_task(self._terminate(grace, message), name=f"restart of {self.name}")

        return verdict

    async def _terminate(self, grace: float, message: str) -> None:
        process = self.process
        if process is None:
            return
        clock = asyncio.get_running_loop().time
        self._kill_at = min(self._kill_at, clock() + grace)
        self._pod.note("Normal", "Killing", message, self.name)
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if hook and grace > 0:
            result = await probes.attempt(hook, self._target(), grace)
            if not result.ok:
                self._pod.note("Warning", "FailedPreStopHook", f"PreStopHook failed: {result.text}", self.name)
            self._kill_at = max(self._kill_at, clock() + LEAST_GRACE_SECONDS)
        process.signal(signal.SIGTERM)
        ended = asyncio.ensure_future(process.wait())
        while not ended.done() and clock() < self._kill_at:
            hurry = asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait({ended, hurry}, timeout=self._kill_at - clock(), return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            self._hurry.clear()
        process.kill()
        await ended
        if not self._stopping.is_set():
            self._kill_at = float("inf")

    async def _back_off(self, delay: float) -> None:
        if delay <= 0:
            return
        message = f"back-off {delay:g}s restarting failed container={self.name}"
        self._move(status.waiting("CrashLoopBackOff", message))
        self._pod.changed()
        self._pod.note("Warning", "BackOff", f"Back-off restarting failed container {self.name}", self.name)
        await self._sleep(delay)

    async def _sleep(self, delay: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    def _move(self, state: dict[str, Any]) -> None:
        if "terminated" in self.run.state:
            self.run.last_state = self.run.state
        self.run.state = state

    def _ended(self, state: dict[str, Any]) -> None:
        self._move(state)
        self.run.restarts = self._attempt
        self.run.ready = self.run.started = False
        self._pod.changed()

    def _termination_message(self, code: int) -> str:
        path = self._pod.directory(self.name) / "termination-log"
        text = ""
        with contextlib.suppress(OSError):
            text = path.read_bytes()[:LONGEST_MESSAGE].decode(errors="replace")
        if not text and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            with contextlib.suppress(OSError):
                text = logs.tail(self._pod.log_path(self.name, self._attempt), **MESSAGE_FROM_LOGS)
        return text

    def _target(self) -> probes.Target:
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports") or [] if "name" in port}
        return probes.Target(self._pod.ip, ports, self.execute)


def _to(log: LogFile, stream: str) -> Callable[[bytes], None]:
    return lambda data: log.write(stream, data)
