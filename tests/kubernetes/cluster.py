"""One cluster's life: start, stop, and cleaning up after a run that was killed.

`held()` takes an instance's lock for as long as its cluster is in use; the record beside the lock lists what
the next run has to undo. For tests, stop_node() and start_node() play a machine that is lost and comes back.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.client import Client
from tests.kubernetes import build, certificates, controlplane, images, machine, packages, provisioner
from tests.kubernetes.build import Binaries, Say
from tests.kubernetes.images import Image
from tests.kubernetes.instance import ENVIRONMENT, HERE, PROJECT, CannotRun, Instance, cache
from tests.kubernetes.node import Node
from tests.kubernetes.processes import Starter
from tests.kubernetes.record import Record


def instances() -> Path:
    """The directory of locks and records, the same for every state directory."""
    return cache() / "instances"


def record(number: int) -> Record:
    return Record(instances() / f"{number}.json")


@contextmanager
def held(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Returns the first free instance and its lock, which the kernel releases at any end."""
    for number in numbers:
        with _locked(number) as lock:
            if lock and not record(number).left():
                yield number, lock
                return
    raise CannotRun("The instance is in use: choose another --instance, or take it `down`.")


@contextmanager
def _locked(number: int) -> Iterator[int]:
    """The descriptor of an instance's lock, or 0 when another process has it."""
    instances().mkdir(parents=True, exist_ok=True)
    with (instances() / f"{number}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield 0
        else:
            yield file.fileno()


def sweep(numbers: Iterable[int], say: Say, *, left: bool = False) -> None:
    """Clean up what killed runs left behind, and with `left` what `up` left running."""
    for number in numbers:
        if record(number):
            with _locked(number) as lock:
                if lock and (left or not record(number).left()):
                    say(f"Cleaning up instance {number} …")
                    stop(number)


def start(instance: Instance, wanted: Iterable[Image], say: Say, *, keep: bool = False) -> None:
    """Everything, until pods can run; without `keep` the cluster's state goes when it stops."""
    began = time.monotonic()
    say(f"Starting Kubernetes ({instance.name}) …")
    kept = record(instance.number)
    machine.check(instance)
    binaries = build.binaries(say)
    for folder in ("containerd", "volumeplugins") if keep else ("",):
        kept.add("folder", path=str(instance.run / folder))
    (instance.run / "log").mkdir(parents=True, exist_ok=True)
    certificates.make(instance)
    instance.save()
    if instance.node:
        _start_with_node(instance, binaries, [*images.of_programs(binaries), *wanted], kept, say)
    else:
        _start_control_plane(instance, binaries, Starter(instance, kept))
    say(f"Kubernetes is up after {time.monotonic() - began:.1f} s: export KUBECONFIG={instance.kubeconfig()}")


def _start_control_plane(instance: Instance, binaries: Binaries, starter: Starter) -> Client:
    controlplane.start_storage(instance, binaries, starter)
    api = controlplane.start_api(instance, binaries, starter)
    controlplane.wait_for_api(instance, api)
    controlplane.start_controllers(instance, binaries, starter)
    client = Client(instance.kubeconfig())
    client.until("/api/v1/namespaces/default/serviceaccounts/default", lambda account: True)
    return client


def _start_with_node(instance: Instance, binaries: Binaries, wanted: list[Image], kept: Record, say: Say) -> None:
    node = Node(instance, binaries, packages.programs(say), kept)
    node.prepare()  # the API server listens on the link to the node
    node.start_runtime()
    images.load(node, wanted, say)
    client = _start_control_plane(instance, binaries, node.starter)
    folder = instance.run / "volumes"
    command = [sys.executable, "-m", "tests.kubernetes.provisioner", instance.kubeconfig(), folder]
    node.starter.start("provisioner", command)
    node.start_kubelet()
    client.request("POST", "/apis/storage.k8s.io/v1/storageclasses", provisioner.CLASS)
    names = (HERE / "coredns.yaml").read_text().replace("DNS_IP", instance.dns_ip)
    kubectl = [binaries.path("kubectl"), "--kubeconfig", instance.kubeconfig()]
    build.run([*kubectl, "apply", "--filename", "-"], given=names)
    client.until(
        "/apis/apps/v1/namespaces/kube-system/deployments/coredns",
        lambda deployment: deployment.get("status", {}).get("readyReplicas") == 1,
        "the cluster's names",
    )


def stop(number: int) -> None:
    """Undoes the last run of this instance."""
    record(number).undo()


@contextmanager
def guarded(number: int, lock: int) -> Iterator[None]:
    """A process of its own that does nothing but stop the cluster when we were killed: our end closes its pipe."""
    command = [sys.executable, "-m", "tests.kubernetes", "--instance", str(number), "guard"]
    # with the lock, so that no run takes the instance before it is clean
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[lock], cwd=PROJECT):
        yield


def _node() -> Node:
    """The node of the cluster that the tests were started with."""
    if not (state := os.environ.get(ENVIRONMENT)):
        raise CannotRun(f"Only the cluster of `python -m tests.kubernetes with` can lose its node ({ENVIRONMENT}).")
    instance = Instance.load(Path(state))
    return Node(instance, build.binaries(quiet), packages.programs(quiet), record(instance.number))


def quiet(text: str) -> None:
    """Says nothing."""


def import_images(wanted: Iterable[Image]) -> None:
    """Import more images into the node of the cluster that the tests were started with."""
    images.load(_node(), wanted, quiet)


def stop_node() -> None:
    """Kill the kubelet and containerd; the pods' processes continue, unknown to the API server."""
    _node().kill("kubelet", "containerd")


def restart_kubelet(**other: object) -> None:
    """The same kubelet, with `other` settings for as long as it runs."""
    node = _node()
    node.kill("kubelet")
    node.start_kubelet(**other)
    path = f"/api/v1/nodes/{node.instance.node_name}/proxy/pods"  # its own: the API server's are Ready all the while
    Client(node.instance.kubeconfig()).until(path, lambda known: known["items"], "the kubelet knows its pods")


def start_node() -> None:
    """Start them again, and wait until the node is Ready."""
    node = _node()
    node.start_runtime()
    node.start_kubelet()
