"""Puts known faults into a copy of the product, one at a time; the tests beside each must fail.

    python -m tests.mutations

Part of `make test-nightly`. A fault that no test notices, or whose place is gone, ends the run with status 1. New rows
are welcome wherever a rule has one proof only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = ("dlspawner", "ssh_gateway", "hub_config", "templates", "tests", "pyproject.toml")
PREEMPTION, QUEUE = "dlspawner/core/scheduling/preemption.py", "dlspawner/core/scheduling/queue.py"
REPOSITORY = "dlspawner/manager/db/repository.py"
UNIT, MANAGER, GATEWAY = "tests/unit/core", "tests/component/manager", "tests/component/gateway"


class Fault(NamedTuple):
    """A fault: the text in a file, its replacement, and the test file that has to fail."""

    path: str
    right: str
    wrong: str
    tests: str


FAULTS = {
    "equal priorities of the own team are victims": Fault(
        PREEMPTION,
        "job.priority < request.priority\n    )",
        "job.priority <= request.priority\n    )",
        f"{UNIT}/test_preemption.py",
    ),
    "idle jobs are not the first victims": Fault(
        PREEMPTION,
        "(not job.preemptible, not job.idle, job.priority,",
        "(not job.preemptible, job.priority,",
        f"{UNIT}/test_preemption.py",
    ),
    "teams with equal usage are told the same position": Fault(
        QUEUE,
        "            before += bisect_left(keys, own)\n        else:",
        "            before += 1\n        else:",
        f"{UNIT}/test_queue.py",
    ),
    "any Manager releases the leader's lease": Fault(
        REPOSITORY, "_LEASE & (leases.c.identity == holder)", "_LEASE", f"{MANAGER}/test_repository.py"
    ),
    "changes such as activities are written without the leader's term": Fault(
        REPOSITORY,
        "            _check(connection, term)\n            return change(connection)",
        "            return change(connection)",
        f"{MANAGER}/test_repository.py",
    ),
    "a job's own token sees jobs": Fault(
        "dlspawner/manager/model/access.py",
        "if own_server(identity) is not None:",
        "if False:",
        f"{MANAGER}/test_access.py",
    ),
    "certificates permit agent forwarding against the policy": Fault(
        "ssh_gateway/session/upstream.py", "policy.agent_forwarding and ", "", f"{GATEWAY}/test_upstream.py"
    ),
    "logins wait for ever for words about the default server": Fault(
        "ssh_gateway/session/session.py",
        "asyncio.timeout(LOOK_SECONDS)",
        "asyncio.timeout(None)",
        f"{GATEWAY}/test_session.py",
    ),
    "blocked users log in to the gateway": Fault(
        "ssh_gateway/session/context.py",
        "return BLOCKED if user in self.revalidator.blocked else None",
        "return None",
        f"{GATEWAY}/test_revalidation.py",
    ),
    "packets deferred by a key exchange have no limit": Fault(
        "ssh_gateway/transport/connection.py",
        "len(self._deferred_packets) > MOST_DEFERRED",
        "False",
        f"{GATEWAY}/test_server.py",
    ),
    "silent clients keep the health port": Fault(
        "ssh_gateway/metrics.py",
        "idle_connection_timeout=SECONDS",
        "idle_connection_timeout=600.0",
        f"{GATEWAY}/test_metrics.py",
    ),
}


def is_noticed(fault: Fault, copy: Path) -> bool:
    """True if the tests fail with the fault; raises ValueError if its place is gone."""
    path = copy / fault.path
    right = path.read_text(encoding="utf-8")
    if right.count(fault.right) != 1:
        raise ValueError(f"{fault.path} does not contain {fault.right!r} once")
    path.write_text(right.replace(fault.right, fault.wrong), encoding="utf-8")
    try:
        return run_tests(copy, fault.tests) == 1
    finally:
        path.write_text(right, encoding="utf-8")


def run_tests(copy: Path, *files: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--reruns", "0", "-p", "no:cacheprovider", *files]
    output = subprocess.DEVNULL
    return subprocess.run(command, cwd=copy, check=False, stdout=output, stderr=output).returncode


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        if run_tests(copy, *sorted({fault.tests for fault in FAULTS.values()})):
            print("The tests fail without any fault.")
            return 2
        for name, fault in FAULTS.items():
            noticed = is_noticed(fault, copy)
            missed += not noticed
            print(f"{'noticed' if noticed else 'MISSED '}  {name}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
