"""One way to a job, as the command of OpenSSH's client, and what is measured on it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

SETUPS = 6


@dataclass(frozen=True)
class Way:
    """The ssh command up to the destination's end."""

    name: str
    command: tuple[str, ...]

    def setup(self, times: int = SETUPS) -> float:
        """Seconds for `ssh … true`, the median of a few."""
        return median(self._timed(["true"]) for _ in range(times))

    def up(self, mib: int, at_once: int = 1) -> float:
        return self._timed(["cat >/dev/null"], mib, at_once)

    def down(self, mib: int, at_once: int = 1) -> float:
        return self._timed([f"head -c {mib << 20} /dev/zero"], 0, at_once)

    def echo(self, times: int) -> list[float]:
        """Seconds from each key that is typed on a terminal to its echo."""
        seconds = []
        with self._started("-tt", "stty raw -echo; echo ready; exec cat") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while not process.stdout.readline().startswith(b"ready"):
                assert process.poll() is None, process.args
            for _ in range(times):
                started = time.perf_counter()
                process.stdin.write(b"x")
                assert process.stdout.read(1) == b"x"
                seconds.append(time.perf_counter() - started)
        return seconds

    @contextlib.contextmanager
    def downloading(self) -> Iterator[None]:
        """While somebody downloads without end; what comes is thrown away."""
        with self._started("cat /dev/zero") as process:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"\0"
            with subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL) as sink:
                yield
                sink.kill()

    @contextlib.contextmanager
    def _started(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(
            [*self.command, *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield process
            finally:
                process.kill()  # OpenSSH sometimes ignores SIGTERM

    def _timed(self, command: list[str], feed: int = 0, at_once: int = 1) -> float:
        """Seconds until all of them have ended, each fed with so many MiB of zeros."""
        with contextlib.ExitStack() as stack:
            sources = []
            for _ in range(at_once):
                zeros = ["head", "-c", str(feed << 20), "/dev/zero"]
                sources.append(stack.enter_context(subprocess.Popen(zeros, stdout=subprocess.PIPE)))
            started = time.perf_counter()
            clients = [
                subprocess.Popen(
                    [*self.command, *command],
                    stdin=source.stdout,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
                for source in sources
            ]
            said = [client.communicate()[1].decode() for client in clients]
            seconds = time.perf_counter() - started
        assert not any(client.returncode for client in clients), said
        return seconds
