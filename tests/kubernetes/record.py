"""What a cluster made outside of its directory, written down before it is made: an undo log.

One line of JSON each, undone in reverse. Undoing is idempotent, so the next run can do what a killed one did not: every
entry is found again by a name that only this instance uses, and a process by its pid *and* start time. Refused: asking
each program to clean up after itself, because the one that was killed never does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.instance import CannotRun

CGROUPS = Path("/sys/fs/cgroup")
GRACE = 10.0  # seconds a program may take to stop


class Record:
    """The entries of one instance."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __bool__(self) -> bool:
        return self._path.exists()

    def entries(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        # a line that was cut by a kill names something that was not made yet
        lines = [line for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in lines]

    def add(self, kind: str, **facts: Any) -> None:
        assert kind in UNDO
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, **facts}) + "\n")

    def left(self) -> bool:
        """True if `up` left the cluster running on purpose, and it still runs."""
        entries = self.entries()
        processes = [entry for entry in entries if entry["kind"] == "process" and entry["start"]]
        alive = any(start_time(entry["pid"]) == entry["start"] for entry in processes)
        return alive and any(entry["kind"] == "left" for entry in entries)

    def undo(self) -> None:
        """Undo everything, newest first; what cannot be undone is said in the end, and tried again by the next run."""
        problems = []
        for entry in reversed(self.entries()):
            try:
                UNDO[entry.pop("kind")](**entry)
            except CannotRun as problem:
                problems.append(str(problem))
        if problems:
            raise CannotRun("\n".join(problems))
        self._path.unlink(missing_ok=True)


def start_time(pid: int) -> str | None:
    """When a process started, in ticks since boot; None when there is no such process, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]


def stop_process(pid: int, start: str | None, name: str, *, at_once: bool = False) -> None:
    """TERM, then KILL (or KILL at once), and reap. Without a start it had ended before it was recorded."""
    if start is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL)[at_once:]:
        if start_time(pid) != start:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        wait(lambda: start_time(pid) != start, GRACE)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    if start_time(pid) == start:
        raise CannotRun(f"{name} (process {pid}) cannot be stopped.")


def cgroup_folders(name: str) -> list[Path]:
    """The cgroup of this name in every hierarchy: one in version 2, one per controller in version 1."""
    roots = [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else _hierarchies()
    return [root / name for root in roots]


def _hierarchies() -> list[Path]:
    """The cgroups of version 1; a controller may be there under two names."""
    found = {path.resolve() for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists()}
    return sorted(path for path in found if not (path / "cgroup.controllers").exists())


def all_cgroup_folders(name: str) -> list[Path]:
    """On a machine with both versions runc makes groups in version 2 as well, unasked."""
    folders = cgroup_folders(name)
    both = CGROUPS / "unified" / name
    return folders if both in folders else [*folders, both]


def cgroup_processes(name: str) -> set[int]:
    """Every process in the cgroup or below it."""
    found: set[int] = set()
    for folder in cgroup_folders(name):
        for path, _, _ in os.walk(folder):  # which passes over what goes while we look
            with contextlib.suppress(OSError):
                found.update(map(int, Path(path, "cgroup.procs").read_text().split()))
    return found


def kill_cgroup(name: str) -> None:
    """Kill what runs in it."""

    def emptied() -> bool:
        for pid in cgroup_processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return not cgroup_processes(name)

    wait(emptied, GRACE)


def remove_cgroup(name: str) -> None:
    """Kill what runs in it, pods and their shims too, and remove it."""
    kill_cgroup(name)
    wait(lambda: not [folder for folder in all_cgroup_folders(name) if not _removed(folder)], GRACE)
    if left := [str(folder) for folder in all_cgroup_folders(name) if folder.exists()]:
        raise CannotRun(f"These cgroups cannot be removed: {', '.join(left)} (processes {cgroup_processes(name)}).")


def _removed(folder: Path) -> bool:
    if folder.exists():
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                Path(path).rmdir()
            except OSError as error:
                if error.errno not in {errno.EBUSY, errno.ENOENT, errno.ENOTEMPTY}:
                    raise
    return not folder.exists()


def remove_link(name: str) -> None:
    """The link to the node goes with the node's network namespace; routes go with the link."""
    subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
    if Path("/sys/class/net", name).exists():
        raise CannotRun(f"The network link {name} cannot be removed.")


def write_setting(path: str, value: str) -> None:
    """A kernel setting that the kubelet changed for the whole machine."""
    with contextlib.suppress(OSError):  # gone, or a container that may not
        Path(path).write_text(value)


def remove_folder(path: str) -> None:
    """Sockets and volumes; a mount namespace that just died may hold on to it for a moment."""

    def gone() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return not Path(path).exists()

    if not wait(gone, GRACE):
        raise CannotRun(f"{path} cannot be removed.")


def wait(condition: Callable[[], bool], seconds: float, interval: float = 0.02) -> bool:
    """True if the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(interval)
    return True


UNDO: dict[str, Callable[..., None]] = {
    "left": lambda: None,
    "process": stop_process,
    "cgroup": remove_cgroup,
    "pods": kill_cgroup,
    "link": remove_link,
    "setting": write_setting,
    "folder": remove_folder,
}
