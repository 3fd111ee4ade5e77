"""Real control planes for tests with a Hub that starts a cluster, where `DLSPAWNER_TESTS_CLUSTER=kubernetes` asks for
them.

Each worker of pytest starts its own when a test first wants one, and hands it, emptied, from Hub to Hub until pytest
ends: a start takes ten seconds. It has no node; the embedded ones of the Hub's test join it. What cannot be emptied in
time is stopped, and the next Hub gets a new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.contract.client import RESTRICTED, Client
from tests.kubernetes import build, cluster, machine
from tests.kubernetes.instance import MOST, Instance
from tests.kubernetes.record import GRACE, stop_process, wait

WANTED = os.environ.get("DLSPAWNER_TESTS_CLUSTER", "") == "kubernetes"
NAMESPACE = "jobs"
SYSTEM = {"default", "kube-system", "kube-public", "kube-node-lease"}
# Pods first: what they use goes when they are gone.
KINDS = ("pods", "services", "secrets", "persistentvolumeclaims", "resourcequotas", "limitranges", "events")
PATIENCE = 60.0

_stops = contextlib.ExitStack()
_free: list[ControlPlane] = []


def take() -> ControlPlane:
    """One without nodes and with an empty namespace for jobs."""
    return _free.pop() if _free else _stops.enter_context(_started())


def give_back(plane: ControlPlane) -> None:
    """After its test's nodes have ended."""
    if plane.emptied():
        _free.append(plane)
    else:
        discard(plane)


def discard(plane: ControlPlane) -> None:
    """After a test that has installed what cannot be emptied."""
    cluster.stop(plane.instance.number)


def stop_all() -> None:
    """At the end of pytest; where that was killed, each one's guard stops it."""
    _free.clear()
    _stops.close()


def kubectl() -> str:
    """One that is not too old for it."""
    return str(build.binaries(cluster.quiet).path("kubectl"))


@contextlib.contextmanager
def _started() -> Iterator[ControlPlane]:
    cluster.sweep(range(1, MOST + 1), cluster.quiet)
    cluster.instances().mkdir(parents=True, exist_ok=True)
    unused = (number for number in range(1, MOST + 1) if machine.free(Instance(number, Path(), node=False)))
    state = Path(tempfile.mkdtemp(prefix="plane-", dir=cluster.instances()))
    try:
        with cluster.held(unused) as (number, lock), cluster.guarded(number, lock):
            try:
                plane = ControlPlane(Instance(number, state, node=False))
                plane.start()
                plane.make_namespace()
                yield plane
            finally:
                cluster.stop(number)
    finally:
        shutil.rmtree(state, ignore_errors=True)


class ControlPlane:
    """etcd, API server, controllers and scheduler."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    @property
    def kubeconfig(self) -> Path:
        return self.instance.kubeconfig()

    def start(self) -> None:
        """Once more after `kill`, with what it kept."""
        cluster.start(self.instance, [], cluster.quiet)

    def kill(self) -> None:
        """All of it at once, as by a machine that loses power."""
        for entry in cluster.record(self.instance.number).entries():
            if entry.pop("kind") == "process":
                stop_process(**entry, at_once=True)
        # A program of several threads has its ports until the last of them has ended, which is after its own end.
        assert wait(lambda: machine.free(self.instance), GRACE)

    def make_namespace(self) -> None:
        client = Client(self.kubeconfig)
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
        client.until(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default", lambda account: True)

    def emptied(self) -> bool:
        """True if all objects of tests have gone in time."""
        client = Client(self.kubeconfig)
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(OSError):
            while left := _delete_all(client):
                if time.monotonic() > end:
                    return False
                time.sleep(0.05 * min(len(left), 4))
            return True
        return False


def _delete_all(client: Client) -> list[str]:
    """The paths of what is still there."""
    found = list(_made(client))
    for path in found:
        client.request("DELETE", path, query={"gracePeriodSeconds": 0})
    return found


def _made(client: Client) -> Iterator[str]:
    for kind in ("nodes", "persistentvolumes"):
        yield from (f"/api/v1/{kind}/{name}" for name in _names(client, f"/api/v1/{kind}"))
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    yield from (f"{classes}/{name}" for name in _names(client, classes) if not name.startswith("system-"))
    for namespace in set(_names(client, "/api/v1/namespaces")) - SYSTEM:
        path = f"/api/v1/namespaces/{namespace}"
        if namespace == NAMESPACE:
            yield from (f"{path}/{kind}" for kind in KINDS if _names(client, f"{path}/{kind}"))
        else:
            yield path


def _names(client: Client, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in client.get(path)["items"]]
