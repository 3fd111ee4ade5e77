"""The second namespace, of jobs with special permissions: it is seen, counted and tidied up like the first one."""

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
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.approval_request import ApprovalRequest, new_request
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import Recipient
from dlspawner.manager.model.records import JobRecord, PodRef, read_pods, write_pods
from dlspawner.manager.state.lifecycle import stop
from tests.component.manager.api_client import asked, decides, set_caps, standings, written
from tests.component.manager.manager_harness import NAMESPACE, Office, ask, make_namespace, settled, until, wants
from tests.component.manager.queue_helpers import hub_starts, started, state

SECOND = "jobs-special"


@pytest.fixture
async def second(office: Office) -> Office:
    """An office that knows a second namespace, with one node of 8 GPUs."""
    await make_namespace(office.cluster, SECOND)
    office.special_namespace = SECOND
    return office


def special(user: str = "alice", gpus: int = 1, **more: Any) -> AdmissionRequest:
    return wants(
        user, gpus, **{"namespace": SECOND, "special": (SpecialPermission.ROOT,), "image": "example.org/x:1", **more}
    )


def records(acting: LeaderElector) -> dict[str, JobRecord]:
    assert acting.admission is not None
    return acting.admission.store.records


async def staying(office: Office, namespace: str) -> set[str]:
    """The pods that nobody has asked to end; no node is there to end the others."""
    pods = await office.cluster.list(PODS, namespace)
    return {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}


async def test_what_a_pod_in_the_second_namespace_holds_is_counted_until_it_is_gone(second: Office) -> None:
    runs = replace(wants("alice", 8), namespace=SECOND)
    pod = await second.make_pod(runs)
    async with second.manager() as acting:
        (ref,) = records(acting)[runs.job].seen
        assert ref.namespace == SECOND
        waits = wants("bob", 1)
        assert (await ask(acting, waits)).decision == "wait"
        await second.cluster.delete(PODS, pod["metadata"]["name"], SECOND, grace=0)
        await until(lambda: runs.job not in records(acting), "its end")
        assert (await ask(acting, waits)).decision == "admit"


async def test_a_pod_there_that_nothing_covers_is_stopped_and_its_namesake_goes_on(second: Office) -> None:
    async with second.manager() as acting:
        mine = wants("alice", 1)
        assert (await ask(acting, mine)).decision == "admit"
        await second.make_pod(mine)
        await until(lambda: records(acting)[mine.job].seen, "its pod")
        assert records(acting)[mine.job].seen[0].namespace == ""
        await second.make_pod(replace(wants("alice", 1, server="b"), namespace=SECOND))

        async def swept() -> bool:
            return not await staying(second, SECOND)

        await until(swept, "the end of the stray")
        assert await staying(second, NAMESPACE) == {"jupyter-alice"}


async def test_a_job_there_is_stopped_by_a_manager_that_has_not_seen_it_start(second: Office) -> None:
    runs = replace(wants("alice", 1), namespace=SECOND)
    await second.make_pod(runs)
    async with second.manager() as acting:
        await until(lambda: runs.job in records(acting), "the job")
        await settled(acting)

    async def stopped(user: str, server: str = "") -> bool:
        return True

    second.hub.stop_server = stopped  # type: ignore[method-assign]  # the Hub has no such server
    async with second.manager() as acting:
        assert acting.admission is not None
        assert records(acting)[runs.job].seen[0].namespace == SECOND
        await acting.admission.store.transact(lambda turn: stop(turn, runs.job, EventReason.IDLE, "It is over."))

        async def swept() -> bool:
            return not await staying(second, SECOND)

        await until(swept, "its end")


async def test_pods_that_are_no_jobs_are_neighbours_there_as_well(second: Office) -> None:
    second.watch_all_namespaces = True
    system = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{"name": "agent", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        },
    }
    await second.cluster.create(PODS, system, SECOND)
    async with second.manager() as acting:
        assert (await ask(acting, wants("bob", 1))).decision == "wait"


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        pytest.param(special(namespace=NAMESPACE), NO_SPECIAL_NAMESPACE, id="special, where ordinary jobs are"),
        pytest.param(special(namespace="elsewhere"), NO_SPECIAL_NAMESPACE, id="special, where nobody looks"),
        pytest.param(wants(namespace=SECOND), WRONG_NAMESPACE, id="ordinary, where special jobs are"),
    ],
)
async def test_a_job_in_the_wrong_namespace_is_refused(
    second: Office, question: AdmissionRequest, sentence: str
) -> None:
    async with second.manager() as acting:
        answer = await ask(acting, question)
        assert (answer.decision, answer.reason, answer.sentences) == ("refuse", "other-namespace", (sentence,))


@pytest.mark.parametrize("namespace", [SECOND, NAMESPACE, ""])
async def test_without_a_second_namespace_there_are_no_special_permissions(office: Office, namespace: str) -> None:
    async with office.manager() as acting:
        answer = await ask(acting, special(namespace=namespace))
        assert (answer.decision, answer.sentences) == ("refuse", (NO_SPECIAL_NAMESPACE,))


def test_what_is_kept_of_a_pod_reads_as_before_there_was_a_second_namespace() -> None:
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


def switch_on(office: Office, *permissions: SpecialPermission) -> None:
    """Special permissions in cluster.yaml."""
    text = (office.folder / "cluster.yaml").read_text().partition("special_permissions:")[0]
    names = ", ".join(one.value for one in permissions)
    (office.folder / "cluster.yaml").write_text(f"{text}special_permissions: [{names}]\n")


@pytest.fixture
def hub_admin(second: Office) -> Office:
    """The same office where root and host paths are switched on."""
    switch_on(second, SpecialPermission.ROOT, SpecialPermission.HOST_PATHS)
    return second


async def waits_for_word(acting: LeaderElector, question: AdmissionRequest) -> ApprovalRequest:
    answer = await ask(acting, question)
    assert (answer.decision, answer.reason) == ("wait", "approval"), answer
    assert state(acting, question) is JobState.PENDING_APPROVAL
    request = asked(acting, question)
    assert request is not None
    assert request.kind is ApprovalKind.SPECIAL
    return request


async def test_a_job_with_special_permissions_waits_for_the_word_of_a_hub_admin_and_holds_nothing(
    hub_admin: Office, db_url: str
) -> None:
    async with hub_admin.manager() as acting:
        answer = await ask(acting, question := special(gpus=8))
        assert "It needs special permissions (root): an administrator of the Hub approves each such job." in " ".join(
            answer.sentences
        )
        (request,) = await written(acting, question)
        assert (request.user, request.job, request.what) == (
            "alice",
            question.job,
            "Special permissions (root) for the image example.org/x:1",
        )
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit", "it holds nothing"


async def test_what_a_hub_admin_approves_starts_and_who_when_and_why_is_kept(hub_admin: Office, db_url: str) -> None:
    async with hub_admin.manager() as acting:
        request = await waits_for_word(acting, question := special())
        hub_starts(hub_admin, acting, question)
        assert await decides(acting, request, by="root-admin", why="To install a driver.")
        await until(lambda: started(acting, question), "the Hub was told")
        await hub_admin.make_pod(question)
        await until(lambda: records(acting)[question.job].seen, "its pod")
        (kept,) = await written(acting, question)
        assert (kept.standing.value, kept.by, kept.reason) == ("approved", "root-admin", "To install a driver.")
        assert kept.at is not None
        assert acting.admission is not None
        shown = acting.admission.store.notices.read(Recipient("alice"), hub_admin.clock())
        assert [one.kind.value for one in shown] == ["approved"]


async def test_a_copy_in_the_ordinary_namespace_of_a_pod_there_is_stopped(hub_admin: Office) -> None:
    copied = special(gpus=0)
    question = replace(copied, nonce=naming.sign(copied.nonce, f"{SECOND}/jupyter-alice"))
    async with hub_admin.manager() as acting:
        request = await waits_for_word(acting, question)
        hub_starts(hub_admin, acting, question)
        assert await decides(acting, request, by="root-admin")
        await until(lambda: started(acting, question), "it may have a pod")
        await hub_admin.make_pod(replace(copied, namespace=NAMESPACE))

        async def swept() -> bool:
            return not await staying(hub_admin, NAMESPACE)

        await until(swept, "the end of the copy")
        await hub_admin.make_pod(copied)
        await until(lambda: records(acting)[question.job].seen, "its pod")
        assert await staying(hub_admin, SECOND) == {"jupyter-alice"}


async def test_what_is_denied_makes_nothing(hub_admin: Office, db_url: str) -> None:
    async with hub_admin.manager() as acting:
        request = await waits_for_word(acting, question := special())
        assert await decides(acting, request, yes=False, by="root-admin", why="Use the image with the driver.")
        assert state(acting, question) is JobState.ENDED
        assert await standings(acting, question) == ["denied"]
        assert (await ask(acting, question)).decision == "refuse"
        assert await staying(hub_admin, SECOND) == set()


async def test_an_approval_is_for_one_job_and_a_restart_asks_again(hub_admin: Office) -> None:
    async with hub_admin.manager() as acting:
        request = await waits_for_word(acting, first := special())
        hub_starts(hub_admin, acting, first)
        await decides(acting, request, by="root-admin")
        await until(lambda: started(acting, first), "the Hub was told")
        assert acting.admission is not None
        await acting.admission.release_reservation(first.job, "alice")
        second = await waits_for_word(acting, special())
        assert second.id != request.id


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"image": "example.org/other:1"}, id="another image"),
        pytest.param({"special": (SpecialPermission.ROOT, SpecialPermission.HOST_PATHS)}, id="one permission more"),
        pytest.param({"special": (SpecialPermission.HOST_PATHS,)}, id="another permission"),
    ],
)
@pytest.mark.parametrize("decided", [False, True], ids=["while it waits", "when it was approved"])
async def test_who_asks_for_something_else_needs_another_word(
    hub_admin: Office, change: dict[str, Any], decided: bool
) -> None:
    async with hub_admin.manager() as acting:
        assert (await ask(acting, wants("holder", gpus=8))).decision == "admit"
        request = await waits_for_word(acting, question := special())
        if decided:
            assert await decides(acting, request, by="root-admin")
            assert state(acting, question) is JobState.QUEUED
        changed = replace(question, **change)
        again = await waits_for_word(acting, changed)
        assert again.id != request.id
        assert not await decides(acting, request, by="root-admin"), "that was for something else"
        assert state(acting, question) is JobState.PENDING_APPROVAL


async def test_whoever_asks_again_for_the_same_keeps_request_and_approval(hub_admin: Office) -> None:
    async with hub_admin.manager() as acting:
        assert (await ask(acting, wants("holder", gpus=8))).decision == "admit"
        request = await waits_for_word(acting, question := special())
        assert await waits_for_word(acting, question) == request
        await decides(acting, request, by="root-admin")
        assert (await ask(acting, question)).reason != "approval"
        assert state(acting, question) is JobState.QUEUED


async def test_it_survives_a_restart_of_the_manager_at_every_step(hub_admin: Office, db_url: str) -> None:
    question = special()
    async with hub_admin.manager() as acting:
        request = await waits_for_word(acting, question)
        before = records(acting)[question.job]
        await settled(acting)
    async with hub_admin.manager() as acting:
        assert records(acting)[question.job] == before
        assert asked(acting, question) == request
        await decides(acting, request, by="root-admin")
        await settled(acting)
    async with hub_admin.manager() as acting:
        assert records(acting)[question.job].job.special == Permissions(
            (SpecialPermission.ROOT,), "example.org/x:1", True
        )
        hub_starts(hub_admin, acting, question)
        await until(lambda: started(acting, question), "the Hub was told")


async def test_what_is_switched_off_is_approved_for_nobody(hub_admin: Office) -> None:
    switch_on(hub_admin, SpecialPermission.HOST_PATHS)
    async with hub_admin.manager() as acting:
        answer = await ask(acting, special())
        assert (answer.decision, answer.reason) == ("refuse", "not-allowed")
        assert "Special permissions (root) are not switched on any more" in answer.sentences[0]


async def test_a_soft_cap_and_a_special_permission_need_both_words(hub_admin: Office) -> None:
    set_caps(hub_admin)
    async with hub_admin.manager() as acting:
        assert acting.admission is not None
        await ask(acting, question := special(gpus=3))
        waiting = acting.admission.store.requests[question.job]
        assert {one.kind for one in waiting} == {ApprovalKind.SOFT_CAP, ApprovalKind.SPECIAL}
        for one in waiting:
            assert state(acting, question) is JobState.PENDING_APPROVAL
            await decides(acting, one, by="root-admin")
        assert state(acting, question) is not JobState.PENDING_APPROVAL


async def test_without_any_limit_special_permissions_are_approved_all_the_same(hub_admin: Office) -> None:
    (hub_admin.folder / "teams.yaml").write_text("teams:\n  default: {title: Everybody}\n")
    async with hub_admin.manager() as acting:
        await waits_for_word(acting, special())


SOMEBODY = new_request(
    Job("j", "alice", "default", datetime(2026, 1, 1, tzinfo=UTC)),
    RequiredApproval(ApprovalKind.SPECIAL, "Special permissions (root)", "", ""),
    datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("viewer", "may"),
    [
        pytest.param(Viewer("root-admin", all=True), True, id="a Hub admin may"),
        pytest.param(Viewer("vera", frozenset({"default"})), False, id="a team admin may not"),
        pytest.param(Viewer("alice"), False, id="its person may not"),
        pytest.param(Viewer("", all=True), False, id="a service may not, whatever it may do"),
    ],
)
def test_who_decides_about_special_permissions(viewer: Viewer, may: bool) -> None:
    assert may_decide(viewer, SOMEBODY) == (None if may else ONLY_HUB)
