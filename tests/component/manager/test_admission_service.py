"""Admission requests, their reservations, and the lease of the Manager that answers them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from dlspawner.clients.kubernetes import NODES
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import REPLACED, AdmissionRequest
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import DatabaseRejected, DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import as_ended
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants

pytestmark = pytest.mark.real


async def test_of_fifty_requests_at_once_exactly_eight_are_admitted(leader: Leader, db_url: str) -> None:
    answers = await asyncio.gather(*(leader.ask(wants(f"u{number}")) for number in range(50)))
    assert [answer.decision for answer in answers].count("admit") == 8
    assert {answer.decision for answer in answers} == {"admit", "wait"}


async def test_repeated_request_gets_the_same_answer_and_one_reservation(harness: ManagerHarness, db_url: str) -> None:
    request = wants(gpus=8)
    async with harness.manager() as leader:
        first, second, third = await asyncio.gather(*(leader.ask(request) for _ in range(3)))
        assert {first.decision, second.decision, third.decision} == {"admit"}
        assert (await leader.ask(request)).seconds <= first.seconds
    async with harness.manager() as leader:
        assert (await leader.ask(request)).decision == "admit"
        assert (await leader.ask(wants("bob"))).decision == "wait"


async def test_admission_names_the_nodes_and_a_repeated_one_the_same(harness: ManagerHarness) -> None:
    harness.set_quota(24)
    await harness.make_node("gpu-2")
    pair = two_pods("carol")
    async with harness.manager() as leader:
        assert (await leader.ask(wants("bob", gpus=2))).nodes == ("gpu-1",)
        large = wants(gpus=8)
        for _ in range(2):
            assert (await leader.ask(large)).nodes == ("gpu-2",), "the only one that is empty"
        waits = await leader.ask(pair)
        assert (waits.decision, waits.nodes) == ("wait", ())
        without = await leader.ask(wants("carl", gpus=0))
        assert (without.decision, without.nodes) == ("admit", ()), "Kubernetes' scheduler spreads jobs without GPUs"
        await harness.make_node("gpu-3")
        await until(lambda: leader.is_due(pair), "it is scheduled")
        for _ in range(2):
            assert (await leader.ask(pair)).nodes == ("gpu-1", "gpu-3"), "one for each pod"


async def test_job_id_of_another_user_is_refused(leader: Leader) -> None:
    request = wants()
    await leader.ask(request)
    answer = await leader.ask(replace(request, user="mallory"))
    assert (answer.decision, answer.reason) == ("refuse", "job-id")


async def test_admission_is_for_the_start_with_its_nonce_only(leader: Leader) -> None:
    request = wants()
    assert (await leader.ask(request)).decision == "admit"
    assert (await leader.ask(replace(request, nonce="another"))).reason == "expired"
    assert (await leader.ask(request)).decision == "admit"


async def test_unknown_team_is_refused_by_its_name(leader: Leader) -> None:
    answer = await leader.ask(replace(wants(), team="gone"))
    assert (answer.decision, answer.reason) == ("refuse", "unknown-team")
    assert "There is no team “gone” any more" in " ".join(answer.sentences)
    assert leader.states() == {}


async def test_job_in_an_unwatched_namespace_is_refused(
    harness: ManagerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.manager() as leader:
        answer = await leader.ask(replace(wants(), namespace="jupyter-alice"))
        assert (answer.decision, answer.reason) == ("refuse", "other-namespace")
        assert leader.states() == {}
    assert "would be in namespace jupyter-alice, and Manager.namespace is jobs" in caplog.text


async def test_gpus_are_held_until_the_deleted_pod_is_gone(
    harness: ManagerHarness, leader: Leader, db_url: str
) -> None:
    request = wants(gpus=8)
    pod = await leader.run_job(request)
    await harness.delete(pod)
    await leader.until_state(request, JobState.STOPPING)
    assert (await leader.ask(wants("bob"))).decision == "wait"
    await harness.delete(pod, grace=0)
    await leader.until_state(request, JobState.ENDED)
    assert (await leader.ask(wants("bob"))).decision == "admit"
    assert await leader.reasons(request) == ["admitted", "pod-seen", "running", "deleted", "removed"]


async def test_pod_that_has_ended_holds_nothing_although_it_is_still_there(
    harness: ManagerHarness, leader: Leader
) -> None:
    request = wants(gpus=8)
    await leader.ask(request)
    await harness.bind(await harness.make_pod(request), phase="Succeeded")
    await leader.until_state(request, JobState.ENDED)
    assert (await leader.ask(wants("bob"))).decision == "admit"


async def test_reservation_without_a_pod_expires_when_no_request_can_be_on_its_way(
    harness: ManagerHarness, leader: Leader
) -> None:
    request = wants(gpus=8)
    await leader.ask(request)
    harness.clock.moved += timedelta(seconds=61)
    assert (await leader.ask(request)).decision == "refuse", "after the deadline no pod is made"
    assert (await leader.ask(wants("bob"))).decision == "wait", "a request may still be on its way"
    harness.clock.moved += timedelta(seconds=5)
    await leader.until_state(request, JobState.ENDED)
    assert await leader.reasons(request) == ["admitted", "pod-never-created"]
    assert (await leader.ask(request)).reason == "expired"


def two_pods(user: str = "alice") -> AdmissionRequest:
    """A job of two pods with four GPUs each."""
    return replace(wants(user, gpus=4), pods=wants(user, gpus=4).pods * 2)


async def test_ports_of_the_host_are_one_jobs_until_its_pods_are_gone(harness: ManagerHarness) -> None:
    with (harness.folder / "cluster.yaml").open("a") as file:
        file.write("host_ports: {range: 20000-20006}\n")
    first, second, third = (replace(wants(user), ports=(3,)) for user in ("alice", "bob", "carol"))
    pair = replace(wants("dave"), pods=wants().pods * 2, ports=(2, 1))
    async with harness.manager() as leader:
        assert (await leader.ask(first)).ports == ((20000, 20001, 20002),)
        assert (await leader.ask(pair)).ports == ((20003, 20004), (20005,)), "of each pod"
    async with harness.manager() as leader:
        for _ in range(2):
            assert (await leader.ask(first)).ports == ((20000, 20001, 20002),), "the same again, also after a restart"
        waits = await leader.ask(second)
        assert (waits.decision, waits.reason, waits.ports) == ("wait", "host-ports", ())
        assert "6 of the 7 ports of the host's network (20000 to 20006); this job needs 3." in waits.sentences[0]
        assert (await leader.ask(wants("erin"))).decision == "admit", "it needs none"
        never = await leader.ask(replace(third, ports=(8,)))
        assert (never.decision, never.sentences) == (
            "refuse",
            ("There are 7 ports of the host's network for jobs; this job needs 8.",),
        )
        pod = await leader.run_pod(first)
        await harness.delete(pod)
        await leader.until_state(first, JobState.STOPPING)
        assert (await leader.ask(third)).reason == "host-ports", "its pod is still there"
        await harness.delete(pod, grace=0)
        await until(lambda: leader.is_due(second), "the first that waits is scheduled")
        assert (await leader.ask(second)).ports == ((20000, 20001, 20002),)
        assert await leader.stop(second.job, EventReason.PREEMPTED) is False, "its pod is not there yet"
        await leader.service.release_reservation(second.job, "bob", temporary=True)
        await until(lambda: leader.is_due(third), "a job that waits again gives its ports back")
        assert leader.record(second).job.ports == ()


def with_adapters(user: str, count: int, **more: Any) -> AdmissionRequest:
    """A job without GPUs that wants so many adapters."""
    request = wants(user, gpus=0, **more)
    box = request.pods[0]["spec"]["containers"][0]
    limits = {**box["resources"]["limits"], "rdma/hca": str(count)}
    return replace(request, pods=({"spec": {"containers": [{**box, "resources": {"limits": limits}}]}},))


async def test_extended_resources_are_one_jobs_until_its_pods_are_gone(harness: ManagerHarness) -> None:
    with (harness.folder / "cluster.yaml").open("a") as file:
        file.write("extended_resources: {rdma/hca: {title: InfiniBand adapters, max_per_job: 8}}\n")
    harness.set_quota(8)
    teams = harness.folder / "teams.yaml"
    teams.write_text(teams.read_text().replace("gpu: 8", "gpu: 8, rdma/hca: 5"))
    amounts = {part: {"rdma/hca": "4"} for part in ("allocatable", "capacity")}
    await harness.cluster.patch(NODES, "gpu-1", {"status": amounts}, subresource="status")
    first, second, third = (with_adapters(user, 3) for user in ("alice", "bob", "carol"))
    async with harness.manager() as leader:
        assert (await leader.ask(first)).decision == "admit"
    async with harness.manager() as leader:  # what the first one holds outlasts a restart
        waits = await leader.ask(second)
        assert (waits.decision, waits.reason) == ("wait", "team-quota")
        smaller = with_adapters("dave", 2)
        assert (await leader.ask(smaller)).reason == "no-fit"
        less = await leader.ask(replace(second, pods=with_adapters("bob", 2).pods))
        assert (less.reason, REPLACED in less.sentences) == ("no-fit", False), "it keeps its place"
        assert REPLACED in (await leader.ask(second)).sentences, "with more it does not"
        kept = await leader.repository.job_history(first.job)
        assert kept is not None
        assert kept.extended == (("rdma/hca", 3000),)
        pod = await leader.run_pod(first)
        await harness.delete(pod, grace=0)
        await until(lambda: leader.is_due(smaller), "the first that waits is scheduled")
        assert (await leader.ask(third)).reason == "no-fit", "and has what it waited for"


async def test_job_of_several_pods_holds_all_until_the_last_is_gone(harness: ManagerHarness, db_url: str) -> None:
    harness.set_quota(16)
    await harness.make_node("gpu-2")
    request = two_pods()
    async with harness.manager() as leader:
        assert (await leader.ask(request)).decision == "admit"
        first = await harness.make_pod(request, name="pod-1")
        await harness.bind(first, "gpu-1")
        await until(lambda: "gpu-1" in leader.record(request).job.nodes, "the first is bound")
        assert leader.state(request) is JobState.STARTING, "one of two runs"
        await harness.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
        second = await harness.make_pod(request, name="pod-2")
        await harness.bind(second, "gpu-2")
        await leader.until_state(request, JobState.RUNNING)
        assert set(leader.record(request).job.nodes) == {"gpu-1", "gpu-2"}
        assert leader.service.store.cluster_state.node_infos["gpu-1"].gpus["nvidia.com/gpu"] == 4000
        await harness.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": None}})
    async with harness.manager() as leader:
        assert leader.states() == {request.job: JobState.RUNNING}
        await harness.delete(first, grace=0)
        for user in ("bob", "dave"):
            assert (await leader.ask(wants(user, gpus=4))).decision == "admit", "eight of sixteen are free"
        assert (await leader.ask(wants("carol"))).decision == "wait", "all eight are held until both are gone"
        await harness.delete(second, grace=0)
        await leader.until_state(request, JobState.ENDED)
        assert (await leader.ask(wants("carol"))).decision == "admit"


# Files, database and lease


async def test_changed_quota_counts_and_a_broken_file_not(
    harness: ManagerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.set_quota(4)
    later = wants("bob")
    async with harness.manager() as leader:
        (harness.folder / "teams.yaml").write_text("teams: [")
        notices, key = leader.service.store.notices, ("", NoticeKind.CONFIG_INVALID)
        await until(lambda: notices.pending(key) is not None, "administrators have a notice")
        assert "the files were changed and are not used, the last good version stays:" in caplog.text
        assert f"{harness.folder / 'teams.yaml'}:1" in caplog.text
        assert (await leader.ask(wants(gpus=4))).decision == "admit"
        assert (await leader.ask(later)).reason == "team-quota", "four, of a node's eight"
        harness.set_quota(5)
        await leader.until_state(later, JobState.STARTING)
        assert (await leader.ask(wants("carol"))).reason == "team-quota"
        assert notices.pending(key) is None, "it is withdrawn"


async def test_while_the_database_is_away_nothing_is_admitted_and_afterwards_nothing_is_lost(
    harness: ManagerHarness,
) -> None:
    request = wants(gpus=6)
    engine = create_engine(harness.db_url)
    async with harness.manager() as leader:
        await leader.run_job(request)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE job_events RENAME TO away"))
        failed = await asyncio.gather(
            *(leader.ask(wants(f"bob{number}")) for number in range(3)), return_exceptions=True
        )
        assert {type(answer) for answer in failed} == {DatabaseUnavailable}
        (pod,) = (await harness.pods()).values()
        await harness.delete(pod, grace=0)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO job_events"))
        await leader.until_state(request, JobState.ENDED)
        answers = [await leader.ask(wants(f"u{number}")) for number in range(9)]
        assert [answer.decision for answer in answers] == ["admit"] * 8 + ["wait"], "bob holds nothing"
    engine.dispose()


async def test_request_that_the_database_rejects_fails_alone(leader: Leader, db_url: str) -> None:
    good = [wants(f"u{number}") for number in range(4)]
    bad = replace(wants("bob"), server="\ud800")
    answers = await asyncio.gather(*(leader.ask(one) for one in [*good[:2], bad, *good[2:]]), return_exceptions=True)
    assert isinstance(answers.pop(2), DatabaseRejected)
    assert [one.decision for one in answers if not isinstance(one, BaseException)] == ["admit"] * 4
    await leader.settled()
    assert set(leader.states()) == {one.job for one in good}


async def test_transaction_that_raises_has_written_nothing(leader: Leader, db_url: str) -> None:
    request = wants(gpus=8)
    await leader.ask(request)

    def fail_half_way(transaction: Transaction) -> None:
        transaction.write(as_ended(leader.record(request)), EventReason.GONE)
        raise ZeroDivisionError

    store = leader.service.store
    found = await asyncio.gather(
        store.transact(fail_half_way),
        store.transact(lambda transaction: request.job in transaction.store.records),
        return_exceptions=True,
    )
    assert isinstance(found[0], ZeroDivisionError)
    assert found[1] is True
    assert (await leader.ask(wants("bob", gpus=8))).decision == "wait"


async def test_id_of_a_job_that_ended_before_is_over_and_replaces_nothing(harness: ManagerHarness, db_url: str) -> None:
    old, waits = wants("alice"), wants("alice", gpus=8)
    async with harness.manager() as leader:
        await leader.ask(old)
        await leader.transact(Transaction.write, as_ended(leader.record(old)), EventReason.NOT_CREATED)
    async with harness.manager() as leader:
        await leader.ask(wants("bob"))
        assert (await leader.ask(waits)).decision == "wait"
        answers = await asyncio.gather(*(leader.ask(one) for one in (wants("a"), old, wants("b"), old)))
        assert [one.reason for one in answers] == ["admitted", "expired", "admitted", "expired"]
        assert leader.state(waits) is JobState.QUEUED
        assert await leader.reasons(old) == ["admitted", "not-created"]


async def test_second_manager_leads_when_the_first_releases_the_lease(harness: ManagerHarness, db_url: str) -> None:
    async with harness.manager() as first, harness.manager(waits=False) as second:
        await first.ask(wants(gpus=8))
        before = first.admission
        assert before is not None
        assert second.admission is None
        await first.repository.release(first.identity)
        await until(lambda: second.admission is not None, "it leads")
        assert (await second.ask(wants("bob"))).decision == "wait"
        with pytest.raises(NotLeader):
            await before.review(wants("carol", gpus=0))


async def test_recent_usage_of_a_team_survives_a_restart(harness: ManagerHarness, db_url: str) -> None:
    async with harness.manager() as leader:
        await leader.ask(wants(gpus=8))
        store = leader.service.store
        await store.transact(Transaction.persist_usage)
        harness.clock.moved += timedelta(seconds=10)
        await store.transact(Transaction.persist_usage)
        used = store.cluster_state.usage["default"]
        assert used.amount >= 8000 * 9.9
    async with harness.manager() as leader:
        usage = leader.service.store.cluster_state.usage
        assert usage["default"].amount >= 0.9 * used.amount, "and time has passed"
