"""Jobs with special permissions: their second namespace, and the approval that each of them needs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dlspawner.clients.kubernetes import PODS
from dlspawner.core import naming
from dlspawner.core.config import SpecialPermission
from dlspawner.core.job import Job, JobState, Permissions
from dlspawner.core.scheduling.limits import ApprovalKind, RequiredApproval
from dlspawner.manager.admission.approvals import ONLY_HUB, may_decide
from dlspawner.manager.admission.service import NO_SPECIAL_NAMESPACE, WRONG_NAMESPACE, AdmissionRequest
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.approval_request import new_request
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.records import PodRef, read_pods, write_pods
from tests.component.manager.api_client import decides, set_caps, standings, wait_for_approval, written
from tests.component.manager.manager_harness import (
    NAMESPACE,
    Leader,
    ManagerHarness,
    make_namespace,
    until,
    wants,
)

SECOND = "jobs-special"


@pytest.fixture
async def second(harness: ManagerHarness) -> ManagerHarness:
    """A Manager that knows a second namespace, with one node of 8 GPUs."""
    await make_namespace(harness.cluster, SECOND)
    harness.special_namespace = SECOND
    return harness


def special(user: str = "alice", gpus: int = 1, **more: Any) -> AdmissionRequest:
    return wants(
        user, gpus, **{"namespace": SECOND, "special": (SpecialPermission.ROOT,), "image": "example.org/x:1", **more}
    )


async def staying(harness: ManagerHarness, namespace: str) -> set[str]:
    """The pods whose deletion was not requested; no node is there to end the others."""
    pods = await harness.cluster.list(PODS, namespace)
    return {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}


async def until_empty(harness: ManagerHarness, namespace: str) -> None:
    async def empty() -> bool:
        return not await staying(harness, namespace)

    await until(empty, f"all pods in {namespace} are stopped")


async def test_pod_in_the_second_namespace_is_counted_until_it_is_gone(second: ManagerHarness) -> None:
    runs, waits = wants("alice", 8, namespace=SECOND), wants("bob", 1)
    pod = await second.make_pod(runs)
    async with second.manager() as leader:
        (ref,) = leader.record(runs).seen
        assert ref.namespace == SECOND
        assert (await leader.ask(waits)).decision == "wait"
        await second.cluster.delete(PODS, pod["metadata"]["name"], SECOND, grace=0)
        await leader.until_state(runs, JobState.ENDED)
        assert (await leader.ask(waits)).decision == "admit"


async def test_stray_in_the_second_namespace_is_stopped_and_its_namesake_goes_on(
    second: ManagerHarness, leader: Leader
) -> None:
    mine = wants("alice", 1)
    assert (await leader.ask(mine)).decision == "admit"
    await second.make_pod(mine)
    await until(lambda: leader.record(mine).seen, "its pod is seen")
    assert leader.record(mine).seen[0].namespace == ""
    await second.make_pod(wants("alice", 1, server="b", namespace=SECOND))
    await until_empty(second, SECOND)
    assert await staying(second, NAMESPACE) == {"jupyter-alice"}


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        pytest.param(special(namespace=NAMESPACE), NO_SPECIAL_NAMESPACE, id="special, where ordinary jobs are"),
        pytest.param(special(namespace="elsewhere"), NO_SPECIAL_NAMESPACE, id="special, in no namespace of ours"),
        pytest.param(wants(namespace=SECOND), WRONG_NAMESPACE, id="ordinary, where special jobs are"),
    ],
)
async def test_job_in_the_wrong_namespace_is_refused(
    second: ManagerHarness, leader: Leader, request_: AdmissionRequest, sentence: str
) -> None:
    answer = await leader.ask(request_)
    assert (answer.decision, answer.reason, answer.sentences) == ("refuse", "other-namespace", (sentence,))


async def test_without_a_second_namespace_there_are_no_special_permissions(leader: Leader) -> None:
    for namespace in (SECOND, NAMESPACE, ""):
        answer = await leader.ask(special(namespace=namespace))
        assert (answer.decision, answer.sentences) == ("refuse", (NO_SPECIAL_NAMESPACE,))


def test_stored_pods_of_the_first_namespace_do_not_name_it() -> None:
    where = JobNamespaces("jobs", "jobs-special")
    assert [where.to_key(one) for one in where.all] == ["", "jobs-special"]
    assert [where.from_key(kept) for kept in ("", "jobs-special")] == ["jobs", "jobs-special"]
    assert (where.elsewhere, JobNamespaces("jobs").elsewhere) == (
        "metadata.namespace!=jobs,metadata.namespace!=jobs-special",
        "metadata.namespace!=jobs",
    )
    pods = (PodRef("u", "p", True), None, PodRef("v", "q", False, "jobs-special"))
    assert read_pods(write_pods(pods)) == pods
    assert "namespace" not in write_pods(pods[:1])
    assert read_pods('[{"uid": "u", "name": "p", "running": true}]') == pods[:1]


# Approval


def switch_on(harness: ManagerHarness, *permissions: SpecialPermission) -> None:
    """Special permissions in cluster.yaml."""
    text = (harness.folder / "cluster.yaml").read_text().partition("special_permissions:")[0]
    names = ", ".join(one.value for one in permissions)
    (harness.folder / "cluster.yaml").write_text(f"{text}special_permissions: [{names}]\n")


@pytest.fixture
def permitting(second: ManagerHarness) -> ManagerHarness:
    """The same Manager where root and host paths are switched on."""
    switch_on(second, SpecialPermission.ROOT, SpecialPermission.HOST_PATHS)
    return second


async def test_special_job_waits_for_an_approval_that_outlives_a_restart(
    permitting: ManagerHarness, db_url: str
) -> None:
    job = special(gpus=8)
    async with permitting.manager() as leader:
        text = " ".join((await leader.ask(job)).sentences)
        assert "It needs special permissions (root): an administrator of the Hub approves each such job." in text
        (request,) = await written(leader, job)
        assert (request.user, request.job) == ("alice", job.job)
        assert request.what == "Special permissions (root) for the image example.org/x:1"
        assert await decides(leader, request, by="root-admin")
        await leader.settled()
    async with permitting.manager() as leader:
        assert leader.record(job).job.special == Permissions((SpecialPermission.ROOT,), "example.org/x:1", True)
        leader.hub_starts(job)
        await until(lambda: leader.started(job), "the Hub was asked")
        await permitting.make_pod(job)
        await until(lambda: leader.record(job).seen, "its pod is seen")
        assert await standings(leader, job) == ["approved"]


async def test_copy_of_a_special_pod_in_the_ordinary_namespace_is_stopped(
    permitting: ManagerHarness, leader: Leader
) -> None:
    copied = special(gpus=0)
    job = replace(copied, nonce=naming.sign(copied.nonce, f"{SECOND}/jupyter-alice"))
    request = await wait_for_approval(leader, job)
    leader.hub_starts(job)
    assert await decides(leader, request, by="root-admin")
    await until(lambda: leader.started(job), "it may have a pod")
    await permitting.make_pod(replace(copied, namespace=NAMESPACE))
    await until_empty(permitting, NAMESPACE)
    await permitting.make_pod(copied)
    await until(lambda: leader.record(job).seen, "its pod is seen")
    assert await staying(permitting, SECOND) == {"jupyter-alice"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="the same"),
        pytest.param({"image": "example.org/other:1"}, id="another image"),
        pytest.param({"special": (SpecialPermission.ROOT, SpecialPermission.HOST_PATHS)}, id="one permission more"),
        pytest.param({"special": (SpecialPermission.HOST_PATHS,)}, id="another permission"),
    ],
)
@pytest.mark.parametrize("decided", [False, True], ids=["while it waits", "when it was approved"])
async def test_approval_is_for_image_and_permissions_that_were_asked_for(
    permitting: ManagerHarness, leader: Leader, change: dict[str, Any], decided: bool
) -> None:
    assert (await leader.ask(wants("holder", gpus=8))).decision == "admit"
    request = await wait_for_approval(leader, job := special())
    if decided:
        assert await decides(leader, request, by="root-admin")
        assert leader.state(job) is JobState.QUEUED
    if decided and not change:
        assert (await leader.ask(job)).reason != "approval"
        assert leader.state(job) is JobState.QUEUED
        return
    again = await wait_for_approval(leader, replace(job, **change))
    assert (again == request) == (not change)
    if change:
        assert not await decides(leader, request, by="root-admin"), "that was for something else"
        assert leader.state(job) is JobState.PENDING_APPROVAL


async def test_one_denial_of_two_ends_the_job(permitting: ManagerHarness) -> None:
    set_caps(permitting)
    async with permitting.manager() as leader:
        await leader.ask(job := special(gpus=3))
        first, second = leader.service.store.requests[job.job]
        await decides(leader, first, by="root-admin")
        await decides(leader, second, yes=False, by="root-admin")
        assert leader.state(job) is JobState.ENDED
        assert sorted(await standings(leader, job)) == ["approved", "denied"]
        assert (await leader.ask(job)).decision == "refuse"


async def test_permission_that_is_switched_off_is_refused(permitting: ManagerHarness) -> None:
    switch_on(permitting, SpecialPermission.HOST_PATHS)
    async with permitting.manager() as leader:
        answer = await leader.ask(special())
        assert (answer.decision, answer.reason) == ("refuse", "not-allowed")
        assert "Special permissions (root) are not switched on any more" in answer.sentences[0]


async def test_special_job_beyond_the_soft_cap_needs_both_approvals(permitting: ManagerHarness) -> None:
    set_caps(permitting)
    async with permitting.manager() as leader:
        await leader.ask(job := special(gpus=3))
        waiting = leader.service.store.requests[job.job]
        assert {one.kind for one in waiting} == {ApprovalKind.SOFT_CAP, ApprovalKind.SPECIAL}
        for one in waiting:
            assert leader.state(job) is JobState.PENDING_APPROVAL
            await decides(leader, one, by="root-admin")
        assert leader.state(job) is not JobState.PENDING_APPROVAL


async def test_without_any_quota_special_permissions_need_an_approval(permitting: ManagerHarness) -> None:
    (permitting.folder / "teams.yaml").write_text("teams:\n  default: {title: Everybody}\n")
    async with permitting.manager() as leader:
        assert (await wait_for_approval(leader, special())).kind is ApprovalKind.SPECIAL


@pytest.mark.parametrize(
    ("viewer", "may"),
    [
        pytest.param(Viewer("root-admin", all=True), True, id="a Hub admin may"),
        pytest.param(Viewer("vera", frozenset({"default"})), False, id="a team admin may not"),
        pytest.param(Viewer("alice"), False, id="the own user may not"),
        pytest.param(Viewer("", all=True), False, id="a service may not, whatever it may do"),
    ],
)
def test_special_permissions_are_decided_by(viewer: Viewer, may: bool) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    needed = RequiredApproval(ApprovalKind.SPECIAL, "Special permissions (root)", "", "")
    request = new_request(Job("j", "alice", "default", now), needed, now)
    assert may_decide(viewer, request) == (None if may else ONLY_HUB)
