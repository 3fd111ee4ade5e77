"""What stands in the way of a cluster is one sentence that names it; what a record says is undone, once or twice."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from tests.kubernetes import machine, provisioner
from tests.kubernetes.instance import CannotRun, Instance
from tests.kubernetes.record import Record, start_time

CLAIM = {
    "metadata": {
        "name": "home",
        "namespace": "jobs",
        "uid": "4711",
        "annotations": {provisioner.PROVISIONER: provisioner.NAME, provisioner.NODE: "node-1"},
    },
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


def problems(instance: Instance) -> str:
    with pytest.raises(CannotRun) as caught:
        machine.check(instance)
    return str(caught.value)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    instance = Instance(59, tmp_path, node=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", instance.etcd_port))
        taken.listen()
        assert problems(
            instance
        ) == f"Port {instance.etcd_port} of 127.0.0.1 cannot be used (Address already in use)" + (
            ": choose another --instance."
        )


def test_too_small_a_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1e9))
    assert (
        problems(Instance(59, tmp_path, node=False)) == f"A cluster needs 3 GB of disk at {tmp_path}; 1.0 GB are free."
    )


def test_a_node_needs_root_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert problems(Instance(59, tmp_path)).startswith("A node needs root")


def test_a_control_plane_needs_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine.check(Instance(59, tmp_path, node=False))


def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "nsenter" else program)
    assert problems(Instance(59, tmp_path)) == "A node needs programs that are missing: nsenter (package util-linux)."


def test_two_instances_share_no_name_address_or_port(tmp_path: Path) -> None:
    names = ("name", "link", "host_ip", "pod_cidr", "service_cidr", "api_port", "etcd_port", "etcd_peer_port")
    one, two = Instance(1, tmp_path), Instance(2, tmp_path)
    assert not {getattr(one, name) for name in names} & {getattr(two, name) for name in names}


def test_a_recorded_process_is_stopped_and_a_second_undoing_changes_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        record = Record(tmp_path / "record")
        record.add("folder", path=str(tmp_path / "gone"))
        record.add("process", pid=process.pid, start=start_time(process.pid), name="sleep")
        (tmp_path / "gone").mkdir()
        record.undo()
        assert start_time(process.pid) is None
        assert not (tmp_path / "gone").exists()
        record.undo()


def test_a_process_that_has_the_pid_of_a_recorded_one_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        record = Record(tmp_path / "record")
        record.add("process", pid=process.pid, start="1", name="sleep")
        record.undo()
        assert start_time(process.pid)
        process.kill()


def test_a_process_that_had_ended_before_it_was_written_down_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    record = Record(tmp_path / "record")
    record.add("process", pid=process.pid, start=start_time(process.pid), name="true")
    record.add("left")
    assert not record.left()
    record.undo()
    assert not record


def test_a_line_cut_by_a_kill_is_ignored(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.add("link", name="dlspawner59")
    with (tmp_path / "record").open("a") as file:
        file.write('{"kind": "cgr')
    assert record.entries() == [{"kind": "link", "name": "dlspawner59"}]


def test_a_process_that_ignores_term_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kubernetes.record.GRACE", 0.5)
    ignoring = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        Record(tmp_path / "record").add("process", pid=process.pid, start=start_time(process.pid), name="sh")
        Record(tmp_path / "record").undo()
        assert start_time(process.pid) is None
    assert process.returncode in {0, -signal.SIGKILL}  # 0: reaped by the record


def test_a_claim_whose_node_is_chosen_is_ours() -> None:
    assert provisioner.wanted(CLAIM)


@pytest.mark.parametrize("missing", [provisioner.PROVISIONER, provisioner.NODE])
def test_a_claim_of_another_class_or_without_a_node_waits(missing: str) -> None:
    annotations = {key: value for key, value in CLAIM["metadata"]["annotations"].items() if key != missing}  # type: ignore[index]
    assert not provisioner.wanted(CLAIM | {"metadata": CLAIM["metadata"] | {"annotations": annotations}})


def test_a_volume_is_on_the_node_that_the_scheduler_chose(tmp_path: Path) -> None:
    spec = provisioner.volume(CLAIM, tmp_path)["spec"]
    [term] = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]
    assert spec["claimRef"] == {
        **{"apiVersion": "v1", "kind": "PersistentVolumeClaim"},
        **{"name": "home", "namespace": "jobs", "uid": "4711"},
    }
