"""A node that is lost and comes back: kubelet and containerd are killed, and started again a minute later.

Needs a node that may be lost: the cluster of `python -m tests.kubernetes with`, and nothing else that runs on it. A
second node stays Ready meanwhile: where no node answers any more, Kubernetes takes it for its own fault and evicts
nothing.
"""

from __future__ import annotations

import contextlib
import html
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person
from tests.kubernetes.cluster import start_node, stop_node
from tests.kubernetes.conftest import Image
from tests.kubernetes.failing import left, reason, running_hub, start, wait_until_gone
from tests.kubernetes.instance import ENVIRONMENT

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(ENVIRONMENT not in os.environ, reason="the cluster's nodes are not ours to stop"),
]

# Kubernetes gives a pod up 300 seconds after its node; this one after five.
IMPATIENT = {
    "spec": {
        "tolerations": [
            {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
            for taint in ("unreachable", "not-ready")
        ]
    }
}


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[Hub]:
    with running_hub(tmp_path, jobs_namespace, image("job"), kubernetes.kubeconfig, seconds=60) as made:
        yield made


@contextlib.contextmanager
def lost_node() -> Iterator[None]:
    stop_node()
    try:
        yield
    finally:
        start_node()


def says(person: Person, server: str, words: str, seconds: float) -> str:
    """The home page's sentence, once it has these words."""

    def found() -> str:
        text = html.unescape(reason(person, server))
        return text if words in text else ""

    return wait_for(found, f"the home page says of {server}: {words}", seconds)


def lose(person: Person) -> None:
    """The users' view of their jobs while the node is away."""
    began = time.monotonic()
    says(person, "stays", "does not answer", 120)
    print(f"the node's silence was on the home page after {time.monotonic() - began:.0f} s")
    for server in ("stays", "stopped"):
        assert person.server(server)["ready"], "a silent node may come back"

    # The cluster gives a job up: it has ended for its owner, and holds what it holds.
    said = says(person, "given-up", "has given the job up", 60)
    assert "start it under another name" in said
    assert not person.server("given-up").get("ready")
    assert f"pod/{person.pod_name('given-up')}" in left(person, "given-up")
    again = start(person, "given-up", IMPATIENT)  # a start may be over before a client can follow it
    why = "An earlier job of this server is on a node that does not answer"
    assert why in again.refused or says(person, "given-up", why, 60)
    assert again.seconds < 40

    # No stop waits for a node that does not answer.
    before = time.monotonic()
    person.stop("stopped")
    assert time.monotonic() - before < 40
    assert f"pod/{person.pod_name('stopped')}" in left(person, "stopped")


@pytest.mark.usefixtures("healthy_node")
def test_a_node_that_is_lost_and_comes_back(hub: Hub) -> None:
    alice = Person(hub, "alice")
    for server, patch in (("stays", None), ("stopped", None), ("given-up", IMPATIENT)):
        assert start(alice, server, patch).ready

    with lost_node():
        lose(alice)

    for server in ("given-up", "stopped"):
        wait_until_gone(alice, server, 60)
    assert alice.get("/user/alice/stays/").text == "served by the job"
    wait_for(lambda: not reason(alice, "stays"), "the home page has nothing to say of a job that goes on", 30)
    alice.stop("stays")
    wait_until_gone(alice, "stays")
