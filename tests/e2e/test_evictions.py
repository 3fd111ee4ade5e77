"""Pods that the kubelet evicts: the job that fills its node's disk, and the product's own.

Needs a cluster of ours, whose kubelet may be told that its disk is full.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import requests

from tests.e2e.deployed import Deployed
from tests.e2e.people import Person, Stack, answers, wait_for
from tests.kubernetes.cluster import restart_kubelet
from tests.kubernetes.conftest import run_kubectl as kubectl
from tests.kubernetes.deploy import ready
from tests.kubernetes.instance import ENVIRONMENT
from tests.kubernetes.manifests import JOBS, PRODUCT

pytestmark = pytest.mark.kubernetes

GIB = 1 << 30


@pytest.fixture(autouse=True)
def answering(stack: Stack) -> None:
    """The test before may have ended with a proxy that is on its way."""
    wait_for(lambda: answers(f"{stack.url}/hub/health"), "the product answers", 180)


@contextmanager
def nearly_full(available: int) -> Iterator[None]:
    """One GiB more, and the kubelet evicts. Not at once: a kubelet that starts on a full node admits no pod again."""
    restart_kubelet(
        evictionHard={"nodefs.available": str(available - GIB)},
        evictionPressureTransitionPeriod="0s",
        imageMinimumGCAge="24h",  # nothing could be pulled again
    )
    try:
        yield
    finally:
        restart_kubelet()


def listed(namespace: str, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl("get", *what, f"--namespace={namespace}", "-o", "json"))["items"]
    return found


def evicted() -> list[str]:
    """The pods that were, in this order."""
    events = [
        one for namespace in (JOBS, PRODUCT) for one in listed(namespace, "events", "--field-selector=reason=Evicted")
    ]
    return [one["involvedObject"]["name"] for one in sorted(events, key=lambda one: str(one["firstTimestamp"]))]


def disk(pod: str) -> tuple[int, int]:
    """How much of its node's disk the kubelet knows a job to use, and how much is available."""
    node = listed(JOBS, "pods", f"--field-selector=metadata.name={pod}")[0]["spec"]["nodeName"]
    known = json.loads(kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
    used = (one["ephemeral-storage"].get("usedBytes", 0) for one in known["pods"] if one["podRef"]["name"] == pod)
    return sum(used), known["node"]["fs"]["availableBytes"]


def alice_reads(alice: Person, sentence: str) -> bool:
    """False also while nobody answers: a kubelet that starts takes its pods for not ready now and then."""
    with suppress(requests.RequestException):
        return not alice.ready("filling") and sentence in alice.get("/services/jobs/").text
    return False


def is_stopped(alice: Person, server: str) -> bool:
    with suppress(requests.RequestException):
        return alice.api("DELETE", alice.server_path(server)).ok or not alice.ready(server)
    return False


@pytest.mark.slow  # what else writes to the machine's disk is part of the experiment: it wants the machine for itself
@pytest.mark.skipif(ENVIRONMENT not in os.environ, reason="the cluster's kubelet is not ours to start again")
def test_of_a_node_without_disk_the_job_that_filled_it_goes_first(alice: Person) -> None:
    before = evicted()
    for server in ("modest", "filling"):
        alice.launch(server, template="ssh")
    pod = "jupyter-alice--filling"
    shell = (f"--namespace={JOBS}", "exec", pod, "--", "/bin/sh", "-c")
    kubectl(*shell, "head -c 1200M /dev/zero >/tmp/big", timeout=300)
    wait_for(lambda: disk(pod)[0] > GIB, "the kubelet knows that it has more than it requested", 180)

    with nearly_full(disk(pod)[1]):
        kubectl(*shell, "head -c 3000M /dev/zero >/tmp/more 2>/dev/null &")
        wait_for(lambda: evicted()[len(before) :], "a pod is evicted", 180)
        there = ("pods", f"--field-selector=metadata.name={pod},status.phase=Running")
        wait_for(lambda: not listed(JOBS, *there), "its end is written", 60)
        gone = evicted()[len(before) :]

    assert gone[0] == pod
    assert [one for one in gone if not one.startswith("jupyter-")] == [], gone
    wait_for(lambda: alice_reads(alice, "ran out of disk space"), "the Hub says why it has ended", 180)
    wait_for(lambda: is_stopped(alice, "modest"), "the other one is stopped", 180)


def test_a_rollout_after_an_eviction_replaces_every_pod(stack: Stack) -> None:
    """Left-over pods of an eviction or a node's shutdown stand in no rollout's way."""
    assert isinstance(stack, Deployed)
    names = ("hub", "manager", "proxy")
    left = "status.phase!=Running,status.phase!=Pending"  # Failed, or Succeeded where a process ended well
    labels = "app.kubernetes.io/name in (hub, manager, proxy)"

    def pods(phases: str) -> dict[str, str]:
        found = listed(PRODUCT, "pods", "-l", labels, f"--field-selector={phases}")
        return {
            one["metadata"]["labels"]["app.kubernetes.io/name"]: one["metadata"]["name"]
            for one in found
            if "deletionTimestamp" not in one["metadata"]
        }

    for name in names:
        fills = "head -c 300M /dev/zero >/tmp/big"
        kubectl(f"--namespace={PRODUCT}", "exec", f"deployment/{name}", "--", "/bin/sh", "-c", fills, timeout=120)
    wait_for(lambda: set(pods(left)) == {*names} and ready(kubectl), "all are evicted and replaced", 240)
    replaced = pods("status.phase=Running")

    kubectl(f"--namespace={PRODUCT}", "rollout", "restart", *(f"deployment/{name}" for name in names))
    kubectl(f"--namespace={PRODUCT}", "rollout", "status", "--timeout=180s", "deployment/hub", timeout=200)
    wait_for(lambda: ready(kubectl), "all are ready", 180)
    wait_for(lambda: not set(replaced.values()) & set(pods("status.phase=Running").values()), "all are replaced", 180)
    for path in ("/hub/login", "/services/jobs/health"):
        wait_for(lambda path=path: answers(stack.url + path), "pages", 120)
    kubectl(f"--namespace={PRODUCT}", "delete", "pods", f"--field-selector={left}")
