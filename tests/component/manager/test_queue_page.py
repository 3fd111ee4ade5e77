"""The page of a job that may start while the Hub is away: it stays, because nothing else would answer.

And the queue with a job that waits in the cluster.
"""

from __future__ import annotations

import logging
import re

import pytest

from dlspawner.clients.kubernetes import PODS
from dlspawner.clients.manager import ManagerClient
from dlspawner.core import naming
from dlspawner.core.launch import pod_set
from tests.component.manager.manager_harness import NAMESPACE, until, wants
from tests.component.manager.portals import Portal
from tests.component.manager.test_reconciler import EACH, admit_several


@pytest.mark.parametrize(
    ("servers", "pending", "status"),
    [({("alice", "")}, {("alice", "")}, 302), (None, set(), 200), ({("alice", "")}, set(), 200)],
    ids=["the Hub starts it", "away", "restarted"],
)
async def test_page_leads_to_the_hub_only_where_it_starts_the_job(
    portal: Portal, servers: set[tuple[str, str]] | None, pending: set[tuple[str, str]], status: int
) -> None:
    async def never(user: str, server: str) -> None:
        raise AssertionError

    portal.hub.starts = never
    await portal.served.leader.ask(wants())
    portal.hub.servers, portal.hub.pending = servers, pending
    page = await portal.read("alice", "wait/alice/")
    assert page.status == status
    if status == 200:
        assert "is being started" in page.text
        assert "The job continues by itself, or returns to its place in the queue." in page.text
        assert "Cancel the request" in page.text


async def test_others_cannot_tell_a_waiting_job_from_none(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8))
    await portal.waits(wants("alice", server="secret"))
    foreign, missing = [await portal.read("bob", f"wait/{path}") for path in ("alice/secret", "nobody/x")]
    assert (foreign.status, foreign.text) == (missing.status, missing.text)
    assert foreign.status == 404
    assert "This is a job of alice" in (await portal.read("root-admin", "wait/alice/secret")).text


HIVED = """
scheduling: {priority_classes: {guaranteed: high, preemptible: low}}
scheduler: {name: hived, scheduler_name: tests}
"""
FULL = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "insufficient cells"}


async def test_queue_shows_a_gang_that_waits_in_the_cluster_with_the_engines_reason(portal: Portal) -> None:
    harness, leader, gang = portal.harness, portal.served.leader, wants(server="gang")
    file = harness.folder / "cluster.yaml"
    file.write_text(file.read_text() + HIVED)
    await until(
        lambda: leader.admission and not leader.admission.store.cluster_state.cluster.scheduler.is_native, "HiveD"
    )
    pods = pod_set.PodSet((pod_set.Role("chief", 1, EACH), pod_set.Role("worker", 2, EACH)))
    for manifest in await admit_several(leader, gang, pods):
        manifest["metadata"]["annotations"][naming.ENGINE_ANNOTATION] = "HiveD"
        manifest["spec"]["schedulerName"] = "tests"
        name = (await harness.cluster.create(PODS, manifest, NAMESPACE))["metadata"]["name"]
        await harness.cluster.patch(PODS, name, {"status": {"conditions": [FULL]}}, NAMESPACE, subresource="status")

    hub = ManagerClient(portal.served.url, portal.served.hubs_token, logging.getLogger(__name__))

    async def left() -> bool:
        return bool(await hub.leave_in_cluster(gang.job, gang.user))

    await until(left, "its start ends")
    looks = leader.service.explainer
    await until(lambda: "cells" in looks.why(leader.record(gang).job, harness.clock()), "the engine says why")
    page = await portal.read("alice", "queue")
    told = r"in the cluster .* HiveD has no place for it yet: insufficient cells\."
    assert re.search(rf"Your jobs gang {told} .* gang \(yours\) .* insufficient cells", page.text), page.text
    assert page.text.count("in the cluster") == 2
