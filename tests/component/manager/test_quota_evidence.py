"""What the Manager is told and cannot trust: lists that were wrong once, names no database takes, faults in a turn."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dlspawner.clients.kubernetes import PODS, KubernetesClient, ResourceKind, WatchEvent
from dlspawner.core import naming
from dlspawner.core.job import Job, JobState
from dlspawner.core.units import GPU
from dlspawner.manager.cluster import pod_view, reconciler
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import DatabaseRejected
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.records import JobRecord, PodRef, as_ended
from dlspawner.manager.state.job_store import JobStore, Transaction
from tests.component.manager.manager_harness import (
    NAMESPACE,
    Office,
    ask,
    make_namespace,
    pod_of,
    settled,
    until,
    wants,
)
from tests.component.manager.test_quota_decisions import stopped
from tests.unit.core.factories import CLUSTER


def book_of(acting: LeaderElector) -> JobStore:
    assert acting.admission is not None
    return acting.admission.store


def states(acting: LeaderElector) -> dict[str, JobState]:
    return {job: record.job.state for job, record in book_of(acting).records.items()}


async def test_a_manager_that_looked_at_a_wrong_namespace_once_stops_nobody(office: Office, db_url: str) -> None:
    jobs = [wants(user, gpus=2) for user in ("alice", "bob")]
    running = dict.fromkeys((one.job for one in jobs), JobState.RUNNING)
    async with office.manager() as acting:
        for question in jobs:
            await ask(acting, question)
            await office.bind(await office.make_pod(question))
        await until(lambda: states(acting) == running, "both run")
    office.namespace = "elsewhere"
    await make_namespace(office.cluster, office.namespace)
    async with office.manager() as acting:
        assert not states(acting), "there is nothing"
    office.namespace = NAMESPACE
    async with office.manager() as acting:
        assert states(acting) == running
        assert (await ask(acting, wants("carol", gpus=5))).decision == "wait", "four of eight are held"
        assert (await ask(acting, wants("dave", gpus=4))).decision == "admit"
        assert not any("deletionTimestamp" in pod["metadata"] for pod in (await office.pods()).values())


async def test_a_pod_that_one_list_did_not_have_is_its_jobs_for_as_long_as_it_is_there(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, watch = wants(gpus=6), KubernetesClient.watch

    async def wrong_once(
        cluster: KubernetesClient, kind: ResourceKind, *where: Any, **more: Any
    ) -> AsyncIterator[WatchEvent]:
        async for change in watch(cluster, kind, *where, **more):
            yield change
            if ((change.object.get("metadata") or {}).get("annotations") or {}).get("list") == "wrong":
                yield WatchEvent("DELETED", change.object)
                yield WatchEvent("ADDED", change.object)

    async def reasons() -> list[str]:
        return [reason for _, _, reason in await acting.ledger.events(question.job)]

    async def found() -> bool:
        return "pod-recovered" in await reasons()

    monkeypatch.setattr(KubernetesClient, "watch", wrong_once)
    monkeypatch.setattr(reconciler, "_KNOWN_SECONDS", 1)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")
        await office.cluster.patch(PODS, "jupyter-alice", {"metadata": {"annotations": {"list": "wrong"}}}, NAMESPACE)
        await until(found, "it is found again")
        forgotten = asyncio.Event()
        asyncio.get_running_loop().call_later(1, forgotten.set)  # what was asked for before that has been done by then
        await forgotten.wait()
        await office.cluster.patch(PODS, "jupyter-alice", {"metadata": {"annotations": {"list": "right"}}}, NAMESPACE)
        await until_it_is_seen(office, acting)
        assert not any(job.startswith("pod-") for job in states(acting))
        assert states(acting)[question.job] is JobState.RUNNING


def label(job: str | None) -> dict[str, Any]:
    """What somebody who may do so changes about a pod."""
    return {"metadata": {"labels": {naming.JOB_LABEL: job}}}


async def test_a_pod_that_loses_its_label_stays_its_jobs_and_is_counted_once(office: Office) -> None:
    question = wants(gpus=6)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")
        await office.cluster.patch(PODS, "jupyter-alice", label(None), NAMESPACE)
        await until_it_is_seen(office, acting)
        assert states(acting)[question.job] is JobState.RUNNING
        assert (await ask(acting, wants("bob", gpus=2))).decision == "admit", "the node has two more"


async def until_it_is_seen(office: Office, acting: LeaderElector) -> None:
    """What was changed before has come to the Manager: a later pod's reservation has."""
    later = wants("later", gpus=0)
    await ask(acting, later)
    await office.bind(await office.make_pod(later))
    await until(lambda: states(acting)[later.job] is JobState.RUNNING, "the later one runs")


@pytest.mark.parametrize("claims", [None, "j-" + "a" * 12], ids=["no label", "another job's"])
async def test_a_manager_that_finds_a_pod_without_its_own_label_keeps_its_job(
    office: Office, claims: str | None
) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")
    await office.cluster.patch(PODS, "jupyter-alice", label(claims), NAMESPACE)
    await office.make_node("gpu-2")
    async with office.manager() as acting:
        assert states(acting) == {question.job: JobState.RUNNING}
        assert (await ask(acting, wants("bob", gpus=8))).reason == "team-quota", "the quota is held"
        await office.cluster.delete(PODS, "jupyter-alice", NAMESPACE, grace=0)
        await until(lambda: question.job not in states(acting), "it has ended with its pod")


async def test_the_pods_of_a_database_that_was_lost_go_on(office: Office) -> None:
    mine, other = wants("alice", gpus=8), wants("carol", gpus=0)
    async with office.manager() as acting:
        await ask(acting, other)  # the Hub asks
    await office.bind(await office.make_pod(mine))
    async with office.manager() as acting:
        assert states(acting)[mine.job] is JobState.RUNNING
        assert (await ask(acting, wants("bob"))).decision == "wait"
        assert "deletionTimestamp" not in (await office.pods())["jupyter-alice"]["metadata"]


async def test_pods_that_were_made_while_there_were_no_limits_go_on_when_there_are(office: Office, db_url: str) -> None:
    before, meanwhile = wants("alice", gpus=4), wants("bob", gpus=4)
    async with office.manager() as acting:
        await ask(acting, wants("carol", gpus=0))
        limits = (office.folder / "teams.yaml").read_text()
        (office.folder / "teams.yaml").write_text("teams: {default: {title: Everybody}}")
        world = book_of(acting).cluster_state
        await until(lambda: not world.teams.has_quota, "the limits are gone")
        (office.folder / "teams.yaml").write_text(limits)
        await until(lambda: world.teams.has_quota, "they are back, and the Hub has not read them yet")
        await office.bind(await office.make_pod(before))
        await until(lambda: states(acting).get(before.job) is JobState.RUNNING, "it is counted")
    async with office.manager() as acting:  # and the Hub still has not
        await office.bind(await office.make_pod(meanwhile))
        both = dict.fromkeys((before.job, meanwhile.job), JobState.RUNNING)
        await until(lambda: both.items() <= states(acting).items(), "both go on")
        assert not any("deletionTimestamp" in pod["metadata"] for pod in (await office.pods()).values())


async def test_a_late_pod_that_a_new_manager_finds_is_stopped_before_the_hub_has_asked_it(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        office.clock.moved += timedelta(seconds=70)
        await until(lambda: not states(acting), "it has expired")
        await settled(acting)
    await office.bind(await office.make_pod(question))
    async with office.manager():
        await stopped(office, "jupyter-alice")


async def test_a_pod_whose_names_are_too_long_for_the_database_is_charged_and_stopped(
    office: Office, db_url: str
) -> None:
    forged = wants("a\0" + "b" * 300, gpus=8)
    async with office.manager() as acting:
        await ask(acting, wants("bob", gpus=0))
        await office.bind(await office.make_pod(forged, name="forged"))
        await until(lambda: any(job.startswith("pod-") for job in states(acting)), "it is charged")
        assert (await ask(acting, wants("carol"))).decision == "wait"
        await stopped(office, "forged")


def test_what_no_job_may_have_is_counted_all_the_same_once_it_is_there() -> None:
    resources = {"limits": {"nvidia.com/gpu": "8", "cpu": "30"}, "claims": [{"name": "more"}]}
    question = replace(wants(), pods=({"spec": {"containers": [{"name": "c", "resources": resources}]}},))
    found = pod_view.pod_request(pod_view.read_pod(with_uid(pod_of(question)), JobNamespaces("jobs")), CLUSTER, None)
    assert (found.gpu_type, found.gpus, found.pods[0].cpu_milli) == ("a100", 8 * GPU, 30_000)


ASKED = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("ends", "deletion", "failure"),
    [
        pytest.param({"main": (0, "10")}, {}, "", id="nothing fails that ends well"),
        pytest.param({"main": (3, "10"), "notebook": (143, "40")}, {}, "exit code 3.", id="the person's own counts"),
        pytest.param({"notebook": (139, "10")}, {}, "signal 11.", id="a signal"),
        pytest.param({"sshd": (1, "10"), "notebook": (0, "10")}, {}, "", id="what stands beside it does not count"),
        pytest.param({"main": (3, "29")}, ASKED, "exit code 3.", id="it had failed before its pod was deleted"),
        pytest.param({"main": (1, "31")}, ASKED, "", id="its pod's deletion ended it"),
        pytest.param({"main": (143, "30")}, ASKED, "", id="the deletion's own signal"),
        pytest.param({}, {}, "", id="nobody knows"),
    ],
)
def test_a_program_that_failed_is_told_from_one_that_was_stopped(
    ends: dict[str, tuple[int, str]], deletion: dict[str, Any], failure: str
) -> None:
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{at}Z"}}}
        for name, (code, at) in ends.items()
    ]
    pod = with_uid(pod_of(wants()))
    pod = {**pod, "metadata": {**pod["metadata"], **deletion}}
    pod["status"] = {"phase": "Failed", "containerStatuses": statuses}
    assert pod_view.read_pod(pod, JobNamespaces("jobs")).failure == failure


def with_uid(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "uid": "u"}}


async def test_a_question_that_the_database_never_takes_fails_alone(office: Office, db_url: str) -> None:
    async with office.manager() as acting:
        good = [wants(f"u{number}") for number in range(4)]
        bad = replace(wants("bob"), server="\ud800", job="j-" + "a" * 12)
        questions = [*good[:2], bad, *good[2:]]
        answers = await asyncio.gather(*(ask(acting, one) for one in questions), return_exceptions=True)
        assert isinstance(answers.pop(2), DatabaseRejected)
        assert [one.decision for one in answers if not isinstance(one, BaseException)] == ["admit"] * 4
        await settled(acting)
        assert set(states(acting)) == {one.job for one in good}


async def test_after_a_fault_within_a_turn_nobody_sees_what_it_had_written(office: Office, db_url: str) -> None:
    alice, bob = wants("alice", gpus=8), wants("bob", gpus=8)
    async with office.manager() as acting:
        await ask(acting, alice)

        def half(turn: Transaction) -> None:
            record = turn.record(alice.job)
            assert record is not None
            turn.write(as_ended(record), EventReason.GONE)
            raise ZeroDivisionError

        book = book_of(acting)
        found = await asyncio.gather(
            book.transact(half), book.transact(lambda turn: alice.job in turn.store.records), return_exceptions=True
        )
        assert isinstance(found[0], ZeroDivisionError)
        assert found[1] is True
        assert (await ask(acting, bob)).decision == "wait"


@pytest.mark.slow
async def test_a_list_that_is_older_than_the_end_of_a_pod_gives_it_nothing_back(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = wants(gpus=8)
    office.reservation_seconds = 1
    listed = KubernetesClient.list

    async def late(self: KubernetesClient, *args: Any, **more: Any) -> list[dict[str, Any]]:
        """The pod comes and goes while this list is on its way."""
        if not more.get("labels") or "came" in seen:
            return await listed(self, *args, **more)
        pod = await office.cluster.create(PODS, pod_of(question), NAMESPACE)
        found = await listed(self, *args, **more)
        await until(lambda: states(acting).get(question.job) and book_of(acting).records[question.job].seen, "seen")
        await office.delete(pod, grace=0)
        await until(lambda: question.job not in states(acting), "gone")
        seen.add("came")
        return found

    seen: set[str] = set()
    async with office.manager() as acting:
        await ask(acting, question)
        monkeypatch.setattr(KubernetesClient, "list", late)
        await until(lambda: "came" in seen, "the reservation is over")
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit"
        assert question.job not in states(acting)


async def test_a_stray_pod_whose_end_nobody_saw_holds_nothing_any_more(office: Office) -> None:
    async with office.manager() as acting:

        def charged(turn: Transaction) -> None:
            job = Job("pod-u", "", "default", turn.now, state=JobState.RUNNING, nodes=("gpu-1",))
            turn.write(JobRecord(job, pods=(PodRef("u", "nobody-has-this-pod"),)), EventReason.UNADMITTED_POD)

        await book_of(acting).transact(charged)
        await until(lambda: "pod-u" not in states(acting), "Kubernetes has no such pod")


async def test_a_job_that_would_be_where_nobody_counts_it_is_refused(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    question = replace(wants(), namespace="jupyter-alice")
    async with office.manager() as acting:
        answer = await ask(acting, question)
        assert (answer.decision, answer.reason) == ("refuse", "other-namespace")
        assert not states(acting)
    assert "would be in namespace jupyter-alice, and Manager.namespace is jobs" in caplog.text


async def test_a_manager_that_stops_in_order_logs_no_fault_of_what_it_stops(
    office: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a turn learns at that moment that there are none any more."""
    begun = asyncio.Event()

    async def act(_acting: LeaderElector, _epoch: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            raise NotLeader("this Manager has stopped acting")

    monkeypatch.setattr(LeaderElector, "_lead", act)
    async with office.manager(waits=False):
        await asyncio.wait_for(begun.wait(), 60)
    gc.collect()
    assert "never retrieved" not in caplog.text
