"""Through the real Hub: jobs get the nodes that the Manager has admitted them for, whichever is scheduled first.

Kubernetes' scheduler would spread the small ones, and the embedded one takes the first node by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.manager.quota import CLUSTER, GPU, TEMPLATE, QuotaHub, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]
NODES = [
    {"name": "a-node", "cpu": 8, "gpus": {GPU: 8}},
    {"name": "b-node", "cpu": 8, "gpus": {GPU: 8}},
    {"name": "holder-node", "cpu": 8, "gpus": {GPU: 16}},
]
WAITING = {"eight": 8, "four-1": 4, "four-2": 4}
LATE = """
import asyncio
from pathlib import Path

async def late(spawner, pod):
    while spawner.user.name == "eight" and Path({file!r}).exists():
        await asyncio.sleep(0.05)
    return pod
c.KubeSpawner.modify_pod_hook = late
c.KubeSpawner.node_affinity_preferred = [{preferred!r}]
"""
CONFIGURED = {
    "weight": 1,
    "preference": {"matchExpressions": [{"key": "example.org/quiet", "operator": "In", "values": ["yes"]}]},
}


class NodesHub(QuotaHub):
    """The same Hub on two nodes of eight GPUs, and one where all that its team may hold can be held."""

    def prepare(self) -> None:
        super().prepare()
        self.nodes = self.state / "nodes.json"
        self.nodes.write_text(json.dumps({"nodes": NODES}))
        (self.config / "cluster.yaml").write_text((CLUSTER % GPU).replace("max_per_job: 8", "max_per_job: 16"))
        options = {**TEMPLATE["options"], "gpus": {"default": 1, "max": 16}}
        (self.templates / "jobs" / "tiny.yaml").write_text(json.dumps({**TEMPLATE, "options": options}))


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """While this file is there the pod of the largest job is not made, so that the small ones are scheduled first."""
    return tmp_path / "late"


@pytest.fixture
def hub(late: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("nodes")
    made = NodesHub(
        folder,
        db_url=f"sqlite:///{folder / 'manager.sqlite'}",
        gpus=16,
        settings=("--Manager.lease_seconds=3",),
        extra=LATE.format(file=str(late), preferred=CONFIGURED),
    )
    with running(made):
        yield made


def spec(hub: QuotaHub, user: str) -> dict[str, Any]:
    return dict(json.loads(hub.kubectl("get", "pod", f"jupyter-{user}", "-o", "json"))["spec"])


def test_a_job_gets_the_whole_node_that_was_kept_for_it_although_others_are_scheduled_first(
    hub: QuotaHub, late: Path
) -> None:
    hub.add_users(["holder", *WAITING])
    assert hub.start_server("holder", gpus=16).status_code in {201, 202}
    wait_for(lambda: hub.ready() == ["holder/"], "one has all that there is", 60)
    hub.kubectl("cordon", "holder-node")
    for user, gpus in WAITING.items():
        assert "16 of its 16 GPUs" in hub.refusal(user, hub.start_server(user, gpus=gpus))

    late.touch()
    assert hub.api("DELETE", "/users/holder/server").status_code in {202, 204}
    wait_for(lambda: sorted(hub.ready()) == ["four-1/", "four-2/"], "the small ones run", 120)
    late.unlink()
    wait_for(lambda: len(hub.ready()) == 3, "the large one has the node that they left", 60)

    found = {user: spec(hub, user) for user in WAITING}
    places = {user: one["nodeName"] for user, one in found.items()}
    assert places == {"eight": "a-node", "four-1": "b-node", "four-2": "b-node"}, "none is where the first fit was"
    for one in found.values():
        configured, ours = one["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        named = {"key": "metadata.name", "operator": "In", "values": [one["nodeName"]]}
        assert (configured, ours) == (CONFIGURED, {"weight": 100, "preference": {"matchFields": [named]}})
