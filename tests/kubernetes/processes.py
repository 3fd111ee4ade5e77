"""Starting a cluster's programs: each in a session of its own, with a log, written down at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.instance import PROJECT, CannotRun, Instance
from tests.kubernetes.record import Record, start_time, wait

# The shell joins the cgroup before the program starts, so that all children of the program are in it as well.
_JOIN = 'file=$1; shift; echo $$ >"$file"; exec "$@"'


@dataclass(frozen=True, slots=True)
class Started:
    """A program that runs, or ran."""

    name: str
    pid: int
    start: str
    log: Path

    def alive(self) -> bool:
        return start_time(self.pid) == self.start

    def until(self, ready: Callable[[], bool], seconds: float, what: str = "") -> None:
        """Wait until it is ready; when it ends or takes too long, say what it said last."""
        if wait(lambda: not self.alive() or ready(), seconds) and self.alive():
            return
        outcome = "did not become ready" if self.alive() else "ended at once"
        said = self.log.read_text(errors="replace").splitlines()[-5:] if self.log.exists() else []
        raise CannotRun("\n  ".join([f"{self.name} {outcome}{what and f' ({what})'}; {self.log} says:", *said]))


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts the programs of one instance."""

    instance: Instance
    record: Record
    cgroup: Path | None = None  # of the programs, not of the pods

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> tuple[Started, subprocess.Popen[bytes]]:
        log = self.instance.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = list(map(str, command))
        if self.cgroup:
            argv = ["sh", "-c", _JOIN, "sh", str(self.cgroup / "cgroup.procs"), *argv]
        with log.open("ab") as file:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file if stdout is None else stdout,
                stderr=file,
                env=os.environ | dict(env or {}),
                cwd=PROJECT,
                start_new_session=True,  # a person's Ctrl-C is for the runner, which stops these in order
            )
        process.returncode = 0  # reaped by the record, by pid; Popen shall not warn that it still runs
        started = Started(name, process.pid, start_time(process.pid) or "", log)
        self.record.add("process", pid=started.pid, start=started.start, name=name)
        return started, process
