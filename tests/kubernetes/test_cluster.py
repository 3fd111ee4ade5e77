"""A cluster of ours leaves nothing behind, however it ends: every program, mount, network, route and cgroup is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.client import Client
from tests.kubernetes import cluster
from tests.kubernetes.instance import ENVIRONMENT, PROJECT, Instance
from tests.kubernetes.record import all_cgroup_folders, start_time, wait

pytestmark = pytest.mark.kubernetes

NUMBER = 60  # not used elsewhere
PATIENCE = 60


@dataclass(frozen=True)
class Runner:
    """`python -m tests.kubernetes with` that runs a command which waits."""

    process: subprocess.Popen[str]
    instance: Instance
    namespaces: frozenset[str]

    def guard(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_text().endswith("guard\0"))

    def left(self) -> list[str]:
        """Everything of this cluster that can be found on the machine."""
        found = [str(folder) for folder in all_cgroup_folders(self.instance.name) if folder.exists()]
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended
                spaces = {str((process / "ns" / kind).readlink()) for kind in ("net", "mnt")}
                command = (process / "cmdline").read_text()
                if spaces & self.namespaces or str(self.instance.state) in command:
                    found.append(f"{process.name}: {command}")
        for command in ("ip link", "ip route", "ip rule", "ip netns", "cat /proc/self/mounts"):
            printed = subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout
            marks = (self.instance.link, str(self.instance.state), f".{NUMBER}.0/24", f"10.{96 + NUMBER}.0.0")
            found += [line for line in printed.splitlines() if any(mark in line for mark in marks)]
        return found

    def wait_for_nothing(self) -> None:
        assert wait(lambda: not self.left(), PATIENCE), self.left()
        assert wait(lambda: not cluster.record(NUMBER), PATIENCE), "the record comes last"
        assert wait(lambda: not self.instance.run.exists(), PATIENCE)


def command(state: Path, *words: str) -> list[str]:
    options = ["--instance", str(NUMBER), "--state", str(state), "--no-images"]
    return [sys.executable, "-m", "tests.kubernetes", *options, "with", *words]


@contextmanager
def running(state: Path) -> Iterator[Runner]:
    waiting = command(state, "sh", "-c", "echo running; exec sleep 600")
    with subprocess.Popen(waiting, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert any(line == "running\n" for line in process.stdout)
            holder = next(each for each in cluster.record(NUMBER).entries() if each.get("name") == "holder")
            spaces = frozenset(str(Path(f"/proc/{holder['pid']}/ns/{kind}").readlink()) for kind in ("net", "mnt"))
            runner = Runner(process, Instance.load(state), spaces)
            assert len(runner.left()) > 10
            yield runner
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def state(tmp_path: Path) -> Iterator[Path]:
    if ENVIRONMENT not in os.environ:
        pytest.skip("about the clusters of `python -m tests.kubernetes with`")
    yield tmp_path
    shutil.rmtree(tmp_path / "containerd", ignore_errors=True)


def test_a_lost_node_comes_back_with_its_pods_and_gpus(kubernetes: Client) -> None:
    pods = "/api/v1/namespaces/kube-system/pods"
    [before] = kubernetes.get(pods)["items"]
    [node] = [each["metadata"]["name"] for each in kubernetes.get("/api/v1/nodes")["items"]]
    cluster.stop_node()
    try:
        assert kubernetes.request("GET", f"/api/v1/nodes/{node}/proxy/healthz").code == 503
    finally:
        cluster.start_node()
    [after] = kubernetes.get(pods)["items"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert kubernetes.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    # kube-proxy stays, or Services would lead nowhere from then on.
    assert kubernetes.request("GET", f"/api/v1/nodes/{node}:10256/proxy/healthz").code == 200


def test_a_runner_that_is_told_to_stop_leaves_nothing(state: Path) -> None:
    with running(state) as runner:
        runner.process.send_signal(signal.SIGTERM)
        assert runner.process.wait(PATIENCE) == 130
        runner.wait_for_nothing()


def test_a_killed_runner_is_cleaned_up_after_at_once(state: Path) -> None:
    with running(state) as runner:
        runner.process.kill()
        runner.wait_for_nothing()


def test_what_a_killed_runner_left_is_cleaned_up_by_the_next_run(state: Path) -> None:
    with running(state) as runner:
        guard = runner.guard()
        os.kill(guard, signal.SIGKILL)
        runner.process.kill()
        runner.process.wait()
        assert wait(lambda: start_time(guard) is None, PATIENCE)
        assert len(runner.left()) > 10
        done = subprocess.run(
            command(state, "echo", "it runs"), check=False, cwd=PROJECT, capture_output=True, text=True
        )
        assert "it runs\n" in done.stdout, done.stderr
        runner.wait_for_nothing()
