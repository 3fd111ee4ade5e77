"""`kubectl exec`: a command inside a running container, connected to a client's channels.

The command enters the container's namespaces with the container's environment. A terminal comes from the container's
own /dev/pts, so that ``tty`` and everything that asks for its name finds it. As with the real kubelet a client that
goes away closes the command's input and output and leaves the rest to the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlspawner.devcluster.node.runner import NOTHING, Command, Process, StartError, start
from dlspawner.devcluster.node.streaming.channels import CHUNK, Channels, Disconnected

_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441
SUCCESS = {"metadata": {}, "status": "Success"}


@dataclass(frozen=True, slots=True)
class Request:
    """The client's request."""

    args: list[str]
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @property
    def streams(self) -> set[str]:
        wanted = {
            "stdin": self.stdin,
            "stdout": self.stdout,
            "stderr": self.stderr and not self.tty,
            "resize": self.tty,
        }
        return {"error"} | {name for name, here in wanted.items() if here}


async def execute(request: Request, container: Command, pid: int, channels: Channels) -> None:
    """Run the command to its end and tell the client how it ended."""
    session = _Session(request, channels)
    try:
        try:
            process = await session.start(container, pid)
        except (StartError, OSError) as error:
            message = f"error executing command in container: {error}"
            with contextlib.suppress(Disconnected):
                await channels.finish(_failure("InternalError", message, code=500))
            return
        code = await session.relay(process)
        with contextlib.suppress(Disconnected):
            await channels.finish(SUCCESS if code == 0 else _exit(code))
    finally:
        session.close()


class _Session:
    """The descriptors of one command and the tasks that move bytes."""

    def __init__(self, request: Request, channels: Channels) -> None:
        self._request = request
        self._channels = channels
        self._open: set[int] = set()
        self._stdin = -1
        self._master = -1
        self._outputs: dict[str, int] = {}
        self._exited = asyncio.Event()

    async def start(self, container: Command, pid: int) -> Process:
        ends = self._terminal(pid) if self._request.tty else self._pipes()
        environment = dict(container.env) | ({"TERM": "xterm"} if self._request.tty else {})
        inside = Command(self._request.args, environment, container.cwd, tty=self._request.tty, enter=pid)
        try:
            return await start(inside, stdin=ends[0], stdout=ends[1], stderr=ends[2])
        finally:
            for end in {end for end in ends if end >= 0}:
                self._close(end)

    async def relay(self, process: Process) -> int:
        """Until the command has ended and what it printed is delivered."""
        incoming = asyncio.create_task(self._receive(), name="exec input")
        outgoing = [
            asyncio.create_task(self._send(name, fd), name=f"exec {name}") for name, fd in self._outputs.items()
        ]
        try:
            code = await process.wait()
            self._exited.set()
            await asyncio.gather(*outgoing, return_exceptions=True)
            return code
        finally:
            for task in (incoming, *outgoing):
                task.cancel()
            await asyncio.gather(incoming, *outgoing, return_exceptions=True)

    def close(self) -> None:
        for fd in list(self._open):
            self._close(fd)

    def _pipes(self) -> tuple[int, int, int]:
        ends = [NOTHING, NOTHING, NOTHING]
        if self._request.stdin:
            ends[0], self._stdin = self._keep(*os.pipe())
            os.set_blocking(self._stdin, False)
        for number, name in ((1, "stdout"), (2, "stderr")):
            if name in self._request.streams:
                self._outputs[name], ends[number] = self._keep(*os.pipe())
                os.set_blocking(self._outputs[name], False)
        return ends[0], ends[1], ends[2]

    def _terminal(self, pid: int) -> tuple[int, int, int]:
        (master,) = self._keep(os.open(f"/proc/{pid}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        (slave,) = self._keep(fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        os.set_blocking(master, False)
        self._master = self._stdin = master
        self._outputs["stdout"] = master
        return slave, slave, slave

    async def _receive(self) -> None:
        with contextlib.suppress(Disconnected):
            while True:
                name, data = await self._channels.receive()
                if name == "stdin" and data:
                    await self._input(data)
                elif name == "stdin":
                    self._end_of_input()
                elif name == "resize":
                    self._resize(data)
        self._end_of_input(hang_up=True)

    async def _input(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._stdin in self._open:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await _writable(self._stdin)
            except OSError:
                self._end_of_input()
                return

    def _end_of_input(self, *, hang_up: bool = False) -> None:
        if self._request.tty and not hang_up:
            with contextlib.suppress(OSError):
                os.write(self._master, b"\x04")
        elif hang_up:
            self.close()
        else:
            self._close(self._stdin)

    def _resize(self, data: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError, struct.error):
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, packed)

    async def _send(self, name: str, fd: int) -> None:
        while fd in self._open:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                # Other holders of the open pipe after the command's end are not the client's concern.
                if self._exited.is_set():
                    return
                await self._readable(fd)
                continue
            except OSError:
                return
            if not data:
                return
            try:
                await self._channels.send(name, data)
            except Disconnected:
                self.close()
                return

    async def _readable(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        exited = asyncio.create_task(self._exited.wait())
        loop.add_reader(fd, _wake, future)
        try:
            waited: set[asyncio.Future[Any]] = {future, exited}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exited.cancel()
            if fd in self._open:
                loop.remove_reader(fd)

    def _keep(self, *fds: int) -> tuple[int, ...]:
        self._open.update(fds)
        return fds

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            asyncio.get_running_loop().remove_reader(fd)
            asyncio.get_running_loop().remove_writer(fd)
            os.close(fd)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _wake, future)
    try:
        await future
    finally:
        loop.remove_writer(fd)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _exit(code: int) -> Mapping[str, Any]:
    causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return _failure("NonZeroExitCode", f"command terminated with exit code {code}") | {"details": causes}


def _failure(reason: str, message: str, code: int = 0) -> dict[str, Any]:
    status = {"metadata": {}, "status": "Failure", "reason": reason, "message": message}
    return status | ({"code": code} if code else {})
