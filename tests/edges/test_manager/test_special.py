"""The second namespace, of jobs with special permissions: it is seen, counted and tidied up like the first one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlspawner.cluster import PODS
from dlspawner.core.model import Special
from dlspawner.manager.acting import Acting
from dlspawner.manager.desk import ELSEWHERE, NO_PLACE, Question
from dlspawner.manager.namespaces import Namespaces
from dlspawner.manager.records import PodRef, Record, read_pods, write_pods
from dlspawner.manager.stopping import stop
from tests.edges.test_manager.office import NAMESPACE, Office, ask, make_namespace, settled, until, wants

SECOND = "jobs-special"


@pytest.fixture
async def second(office: Office) -> Office:
    """An office that knows a second namespace, with one node of 8 GPUs."""
    await make_namespace(office.cluster, SECOND)
    office.special_namespace = SECOND
    return office


def special(user: str = "alice", gpus: int = 1, **more: Any) -> Question:
    return wants(user, gpus, **{"namespace": SECOND, "special": (Special.ROOT,), "image": "example.org/x:1", **more})


def records(acting: Acting) -> dict[str, Record]:
    assert acting.desk is not None
    return acting.desk.book.records


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
        assert acting.desk is not None
        assert records(acting)[runs.job].seen[0].namespace == SECOND
        await acting.desk.book.turn(lambda turn: stop(turn, runs.job, "test", "It is over."))

        async def swept() -> bool:
            return not await staying(second, SECOND)

        await until(swept, "its end")


async def test_pods_that_are_no_jobs_are_neighbours_there_as_well(second: Office) -> None:
    second.other_namespaces = True
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
        pytest.param(special(namespace=NAMESPACE), NO_PLACE, id="special, where ordinary jobs are"),
        pytest.param(special(namespace="elsewhere"), NO_PLACE, id="special, where nobody looks"),
        pytest.param(wants(namespace=SECOND), ELSEWHERE, id="ordinary, where special jobs are"),
    ],
)
async def test_a_job_in_the_wrong_namespace_is_refused(second: Office, question: Question, sentence: str) -> None:
    async with second.manager() as acting:
        answer = await ask(acting, question)
        assert (answer.decision, answer.reason, answer.sentences) == ("refuse", "other-namespace", (sentence,))


@pytest.mark.parametrize("namespace", [SECOND, NAMESPACE, ""])
async def test_without_a_second_namespace_there_are_no_special_permissions(office: Office, namespace: str) -> None:
    async with office.manager() as acting:
        answer = await ask(acting, special(namespace=namespace))
        assert (answer.decision, answer.sentences) == ("refuse", (NO_PLACE,))


def test_what_is_kept_of_a_pod_reads_as_before_there_was_a_second_namespace() -> None:
    where = Namespaces("jobs", "jobs-special")
    assert [where.short(one) for one in where.all] == ["", "jobs-special"]
    assert [where.full(kept) for kept in ("", "jobs-special")] == ["jobs", "jobs-special"]
    assert (where.elsewhere, Namespaces("jobs").elsewhere) == (
        "metadata.namespace!=jobs,metadata.namespace!=jobs-special",
        "metadata.namespace!=jobs",
    )
    pods = (PodRef("u", "p", True), None, PodRef("v", "q", False, "jobs-special"))
    assert read_pods(write_pods(pods)) == pods
    assert "namespace" not in write_pods(pods[:1])
    assert read_pods('[{"uid": "u", "name": "p", "running": true}]') == pods[:1]
