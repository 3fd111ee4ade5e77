"""Jobs go on when labels, lists, a database, a node or Kubernetes are lost for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dlspawner.clients.kubernetes import PODS, KubernetesClient, ResourceKind, WatchEvent
from dlspawner.core import naming
from dlspawner.core.job import Job, JobState
from dlspawner.manager.cluster import reconciler
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobRecord, PodRef
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import (
    NAMESPACE,
    Leader,
    ManagerHarness,
    make_namespace,
    until,
    wants,
)
from tests.component.manager.test_reconciler import has_strays, is_stopped, until_observed, until_stopped
from tests.harness import faults


async def test_pod_with_names_too_long_for_the_database_is_charged_and_stopped(
    harness: ManagerHarness, leader: Leader, db_url: str
) -> None:
    await leader.ask(wants("bob", gpus=0))
    await harness.bind(await harness.make_pod(wants("a\0" + "b" * 300, gpus=8), name="forged"))
    await until(lambda: has_strays(leader), "it is charged")
    assert (await leader.ask(wants("carol"))).decision == "wait"
    await until_stopped(harness, "forged")


async def test_pods_that_were_made_without_quota_go_on_when_there_is_some_again(
    harness: ManagerHarness, db_url: str
) -> None:
    before, meanwhile = wants("alice", gpus=4), wants("bob", gpus=4)
    teams = harness.folder / "teams.yaml"
    limits = teams.read_text()
    async with harness.manager() as leader:
        await leader.ask(wants("carol", gpus=0))
        cluster_state = leader.service.store.cluster_state
        teams.write_text("teams: {default: {title: Everybody}}")
        await until(lambda: not cluster_state.teams.has_quota, "there is no quota")
        teams.write_text(limits)
        await until(lambda: cluster_state.teams.has_quota, "there is one again, and the Hub has not read it yet")
        await harness.bind(await harness.make_pod(before))
        await until(lambda: leader.states().get(before.job) is JobState.RUNNING, "it is counted")
    async with harness.manager() as leader:  # and the Hub still has not
        await harness.bind(await harness.make_pod(meanwhile))
        both = dict.fromkeys((before.job, meanwhile.job), JobState.RUNNING)
        await until(lambda: both.items() <= leader.states().items(), "both go on")
        assert not any([await is_stopped(harness, name) for name in await harness.pods()])


async def test_manager_that_watched_a_wrong_namespace_once_stops_no_job(harness: ManagerHarness, db_url: str) -> None:
    jobs = [wants(user, gpus=2) for user in ("alice", "bob")]
    running = dict.fromkeys((one.job for one in jobs), JobState.RUNNING)
    async with harness.manager() as leader:
        for request in jobs:
            await leader.run_job(request)
    harness.namespace = "elsewhere"
    await make_namespace(harness.cluster, harness.namespace)
    async with harness.manager() as leader:
        assert not leader.states()
    harness.namespace = NAMESPACE
    async with harness.manager() as leader:
        assert leader.states() == running
        assert (await leader.ask(wants("carol", gpus=5))).decision == "wait", "four of eight are held"
        assert (await leader.ask(wants("dave", gpus=4))).decision == "admit"
        assert not any([await is_stopped(harness, name) for name in await harness.pods()])


async def test_pod_that_one_list_lacked_is_found_again(
    harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, watch = wants(gpus=6), KubernetesClient.watch

    async def wrong_once(
        cluster: KubernetesClient, kind: ResourceKind, *where: Any, **more: Any
    ) -> AsyncIterator[WatchEvent]:
        async for change in watch(cluster, kind, *where, **more):
            yield change
            if ((change.object.get("metadata") or {}).get("annotations") or {}).get("list") == "wrong":
                yield WatchEvent("DELETED", change.object)
                yield WatchEvent("ADDED", change.object)

    monkeypatch.setattr(KubernetesClient, "watch", wrong_once)
    monkeypatch.setattr(reconciler, "_KNOWN_SECONDS", 1)
    async with harness.manager() as leader:
        await leader.run_job(request)
        await harness.cluster.patch(PODS, "jupyter-alice", {"metadata": {"annotations": {"list": "wrong"}}}, NAMESPACE)
        await leader.until_reason(request, "pod-recovered")
        forgotten = asyncio.Event()
        asyncio.get_running_loop().call_later(1, forgotten.set)  # after this the Manager lists the pod again
        await forgotten.wait()
        await harness.cluster.patch(PODS, "jupyter-alice", {"metadata": {"annotations": {"list": "right"}}}, NAMESPACE)
        await until_observed(leader)
        assert not has_strays(leader)
        assert leader.state(request) is JobState.RUNNING


def relabel(job: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {naming.JOB_LABEL: job}}}


@pytest.mark.parametrize("claims", [None, "j-" + "a" * 12], ids=["no label", "another job's"])
async def test_restarted_manager_keeps_the_job_of_a_pod_without_its_label(
    harness: ManagerHarness, claims: str | None
) -> None:
    request = wants(gpus=8)
    async with harness.manager() as leader:
        await leader.run_job(request)
    await harness.cluster.patch(PODS, "jupyter-alice", relabel(claims), NAMESPACE)
    await harness.make_node("gpu-2")
    async with harness.manager() as leader:
        assert leader.states() == {request.job: JobState.RUNNING}
        assert (await leader.ask(wants("bob", gpus=8))).reason == "team-quota", "the quota is held"
        await harness.cluster.delete(PODS, "jupyter-alice", NAMESPACE, grace=0)
        await until(lambda: request.job not in leader.states(), "it has ended with its pod")


async def test_charged_stray_that_is_not_in_kubernetes_any_more_holds_nothing(leader: Leader) -> None:

    def charge(transaction: Transaction) -> None:
        job = Job("pod-u", "", "default", transaction.now, state=JobState.RUNNING, nodes=("gpu-1",))
        record = JobRecord(job, pods=(PodRef("u", "no-such-pod"),))
        transaction.write(record, EventReason.UNADMITTED_POD)

    await leader.transact(charge)
    await until(lambda: not has_strays(leader), "it is released")


async def test_while_kubernetes_is_away_jobs_are_held_and_changes_are_observed_afterwards(
    harness: ManagerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = wants("alice", gpus=4), wants("bob", gpus=4)
    proxied = faults.before(tmp_path / "cluster" / "kubeconfig", tmp_path / "proxied")
    with proxied as api, monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", str(api.kubeconfig))
        async with harness.manager() as leader:
            for request in (stays, goes):
                await leader.run_job(request)
            api.away()
            await harness.cluster.delete(PODS, "jupyter-bob", NAMESPACE, grace=0)
            waits = wants("carol", gpus=4)
            assert (await leader.ask(waits)).decision == "wait", "the end of bob's job is not known"
            assert set(leader.states().values()) == {JobState.RUNNING, JobState.QUEUED}
            api.back()
            await leader.until_state(goes, JobState.ENDED)
            await leader.until_state(waits, JobState.STARTING)
