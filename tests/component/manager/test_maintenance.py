"""Maintenance of nodes: cordon and uncordon by administrators, and drains that people are told of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dlspawner.clients.kubernetes import NODES
from dlspawner.core.job import JobState
from dlspawner.core.nodes import DRAIN_ANNOTATION
from dlspawner.manager.cluster import maintenance, termination
from dlspawner.manager.cluster.maintenance import NodeMaintenance
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager.manager_harness import Leader, ManagerHarness, StoppingHub, until, wants
from tests.component.manager.portals import Portal

SOON = timedelta(minutes=10)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)


def nodes_of(leader: Leader) -> NodeMaintenance:
    assert leader.maintenance is not None
    return leader.maintenance


def kinds(leader: Leader, user: str) -> list[NoticeKind]:
    return [notice.kind for notice in leader.notices(user)]


async def test_drained_node_is_free_after_its_people_were_told(harness: ManagerHarness) -> None:
    harness.hub = StoppingHub(cluster=harness.cluster)
    waits, ends, after = wants("alice", requeue=True), wants("bob"), wants("carol")
    async with harness.manager() as leader:
        for request in (waits, ends):
            await leader.run_job(request)
        await nodes_of(leader).cordon("gpu-1", "New kernel.", "vera", harness.clock() + SOON)
        for user in ("alice", "bob"):
            await until(lambda user=user: kinds(leader, user) == [NoticeKind.MAINTENANCE], f"{user} is told")
        (told,) = leader.notices("alice")
        assert told.text.startswith(
            "Node gpu-1 goes into maintenance {when}: New kernel. This job will be stopped then."
        )
        assert (await leader.ask(after)).decision == "wait", "nothing new starts there"
        assert leader.state(waits) is JobState.RUNNING
    async with harness.manager() as leader:
        assert kinds(leader, "bob") == [NoticeKind.MAINTENANCE]
        harness.clock.moved += SOON
        await leader.until_state(waits, JobState.QUEUED)
        await leader.until_state(ends, JobState.ENDED)
        assert (await leader.reasons(waits))[-2:] == ["maintenance", "requeued"]
        assert (await leader.stop_of(ends)).message == (
            "It was stopped because node gpu-1 goes into maintenance: New kernel. "
            "It does not restart automatically; files are kept."
        )
        assert kinds(leader, "alice") == []


async def test_uncordon_by_another_program_ends_the_drain(harness: ManagerHarness, leader: Leader) -> None:
    request = wants("alice")
    await leader.run_job(request)
    await nodes_of(leader).cordon("gpu-1", "New kernel", "vera", harness.clock() + SOON)
    await until(lambda: kinds(leader, "alice") == [NoticeKind.MAINTENANCE], "alice is told")
    await harness.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": None}})
    await until(lambda: kinds(leader, "alice") == [NoticeKind.PREEMPTION_CANCELLED], "the job goes on")

    async def forgotten() -> bool:
        node = await harness.cluster.get(NODES, "gpu-1")
        return DRAIN_ANNOTATION not in (node["metadata"].get("annotations") or {})

    await until(forgotten, "a later cordon does not drain")
    harness.clock.moved += SOON
    await nodes_of(leader).cordon("gpu-1", "Later", "vera")
    await until(lambda: leader.service.store.nodes["gpu-1"].reason == "Later", "the node is closed")
    await leader.settled()
    assert leader.state(request) is JobState.RUNNING


async def test_administrators_cordon_and_uncordon_with_a_reason(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    await portal.runs(wants("alice"))
    for user in ("bob", "vera"):  # vera is an admin of a team
        assert "Reason, for everyone to read" not in (await portal.read(user, "cluster")).text
        assert (await portal.ask(user, "nodes/gpu-1/cordon", "POST", {"reason": "No."}))[0] == 403
    assert "Reason, for everyone to read" in (await portal.read("root-admin", "cluster")).text
    refused = await portal.read("root-admin", "cluster/cordon", "POST", {"node": "gpu-1", "reason": " "})
    assert (refused.status, "Say why" in refused.text) == (422, True)
    with caplog.at_level("INFO", logger="dlspawner.manager"):
        done = await portal.read(
            "root-admin", "cluster/cordon", "POST", {"node": "gpu-1", "reason": "A fan <b>is</b> loud."}
        )
    assert (done.status, done.location) == (303, "/services/jobs/cluster")
    assert "node=gpu-1 cordoned by=root-admin drain_at=- reason=A fan <b>is</b> loud." in caplog.text
    await until(lambda: portal.served.store.nodes["gpu-1"].cordoned, "the node is closed")
    page = await portal.read("bob", "cluster")
    assert "what runs goes on. Reason: A fan <b>is</b> loud." in page.text
    assert "/uncordon" not in page.body
    (node,) = (await portal.ask("bob", "cluster"))[1]["nodes"]
    assert (node["state"], node["reason"], node["drain_at"], node["jobs"]) == (
        "cordoned",
        "A fan <b>is</b> loud.",
        None,
        1,
    )
    assert (await portal.read("root-admin", "cluster/gpu-1/uncordon", "POST", {})).status == 303
    await until(lambda: portal.served.store.nodes["gpu-1"].open, "the node is open")
    body = {"reason": "New kernel", "drain_at": "2031-05-04T12:00:00+02:00"}
    assert (await portal.ask("root-admin", "nodes/gpu-1/cordon", "POST", body))[0] == 204
    await until(lambda: portal.served.store.nodes["gpu-1"].drain_at, "the drain is known")
    text = (await portal.read("bob", "cluster")).text
    assert "maintenance at 10:00 UTC on 04 May : 1 job is stopped then. Reason: New kernel" in text, text
