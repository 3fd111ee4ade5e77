"""Bad input and faults: what whoever asks is told, and that what runs goes on and stays counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlspawner.clients.kubernetes import NODES, PODS, KubernetesClient
from dlspawner.core.job import JobState
from dlspawner.devcluster.api import start
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionResponse
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.state.job_store import JobStore
from tests.component.manager import quota
from tests.component.manager.manager_harness import Office, ask, make_namespace, prepare, until, wants
from tests.component.manager.queue_helpers import reasons
from tests.harness import faults


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    prepare(tmp_path)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        made = Office(tmp_path, f"sqlite:///{tmp_path / 'manager.sqlite'}", cluster)
        await made.make_node()
        yield made
    await api.stop()


def book_of(acting: LeaderElector) -> JobStore:
    assert acting.admission is not None
    return acting.admission.store


def held(acting: LeaderElector) -> int:
    """Milli-GPUs that jobs hold, whatever their team is."""
    return sum(record.job.request.gpus for record in book_of(acting).records.values() if record.job.holds)


async def running(office: Office, acting: LeaderElector, question: AdmissionRequest) -> None:
    """A job that is admitted and runs."""
    assert (await ask(acting, question)).decision == "admit"
    await office.bind(await office.make_pod(question))
    records = book_of(acting).records
    await until(lambda: records[question.job].job.state is JobState.RUNNING, "it runs")


def with_gpus(text: str) -> AdmissionRequest:
    """Somebody's manifest that asks for this many GPUs, in these very words."""
    made = wants("bob")
    container = {"name": "notebook", "resources": {"limits": {quota.GPU: text}}}
    return replace(made, pods=({"spec": {"containers": [container]}},))


def said(answer: AdmissionResponse) -> str:
    return " ".join(answer.sentences)


async def test_an_unknown_team_is_refused_by_its_name(office: Office) -> None:
    async with office.manager() as acting:
        answer = await ask(acting, replace(wants(), team="gone"))
        assert (answer.decision, answer.reason) == ("refuse", "unknown-team")
        assert "There is no team “gone” any more" in said(answer)
        assert held(acting) == 0


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("-1", "GPUs (nvidia.com/gpu) must be a whole number from 0 to 1,000,000; the pod asks for “-1”."),
        ("0.5", "must be a whole number; the pod asks for “0.5”."),
        ("9", "A job may have 8 GPUs of type gpu; this one asks for 9."),
        ("99999999999999999999", "from 0 to 1,000,000; the pod asks for “99999999999999999999”."),
        ("many", "from 0 to 1,000,000; the pod asks for “many”."),
    ],
)
async def test_an_impossible_number_of_gpus_is_refused_and_holds_nothing(
    office: Office, number: str, sentence: str
) -> None:
    async with office.manager() as acting:
        answer = await ask(acting, with_gpus(number))
        assert answer.decision == "refuse"
        assert sentence in said(answer)
        assert held(acting) == 0


async def test_a_quota_that_is_lowered_below_what_runs_stops_nobody_and_lets_nobody_in(office: Office) -> None:
    job = wants(gpus=6)
    async with office.manager() as acting:
        await running(office, acting, job)
        office.set_quota(2)
        await until(lambda: book_of(acting).cluster_state.quota("default", "gpu") == 2000, "it is read")
        answer = await ask(acting, wants("bob"))
        assert answer.decision == "wait"
        assert "Team Everybody uses 6 of its 2 GPUs of type gpu" in said(answer)
        assert held(acting) == 6000
        assert "deletionTimestamp" not in (await office.pods())["jupyter-alice"]["metadata"]


async def test_more_quota_than_the_nodes_have_is_what_the_nodes_have(office: Office) -> None:
    office.set_quota(100)
    async with office.manager() as acting:
        assert (await ask(acting, wants(gpus=8))).decision == "admit"
        answer = await ask(acting, wants("bob"))
        assert (answer.decision, answer.reason) == ("wait", "no-node")
        assert "Idle GPUs of type gpu: 0" in said(answer)


async def test_the_jobs_of_a_team_that_is_removed_go_on_and_are_counted(office: Office) -> None:
    teams = office.folder / "teams.yaml"
    both = "teams:\n  vision: {title: Vision, quota: {gpu: 4}}\n  default: {title: Everybody, quota: {gpu: 8}}\n"
    teams.write_text(both)
    job = replace(wants(gpus=4), team="vision")
    async with office.manager() as acting:
        await running(office, acting, job)
        teams.write_text(quota.TEAMS % 8)
        await until(lambda: book_of(acting).cluster_state.team("vision") is None, "it is read")
        assert (await ask(acting, replace(wants("bob"), team="vision"))).reason == "unknown-team"
        assert (await ask(acting, wants("carol", gpus=5))).decision == "wait", "four of eight are held"
        assert (await ask(acting, wants("carol", gpus=4))).decision == "admit"
        assert "deletionTimestamp" not in (await office.pods())["jupyter-alice"]["metadata"]
    async with office.manager() as acting:
        assert held(acting) == 8000


async def test_a_node_that_is_gone_holds_its_jobs_until_their_pods_are_gone(office: Office) -> None:
    await office.make_node("gpu-2")
    job = wants(gpus=8)
    async with office.manager() as acting:
        await running(office, acting, job)
        (node,) = (name for name in book_of(acting).records[job.job].job.nodes if name)
        await office.cluster.delete(NODES, node)
        await until(lambda: node not in book_of(acting).nodes, "it is seen")
        assert (await ask(acting, wants("bob"))).reason == "team-quota", "the quota is held"
        await office.cluster.delete(PODS, "jupyter-alice", "jobs", grace=0)
        await until(lambda: job.job not in book_of(acting).records, "the pod is gone")
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit", "on the other node"


async def test_a_pod_that_is_deleted_behind_our_back_is_free_and_said_to_be_gone(office: Office) -> None:
    job = wants(gpus=8)
    async with office.manager() as acting:
        await running(office, acting, job)
        await office.cluster.delete(PODS, "jupyter-alice", "jobs", grace=0)
        await until(lambda: job.job not in book_of(acting).records, "it is seen")
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit"
        assert (await ask(acting, job)).reason == "over"
        assert (await reasons(acting, job))[-1] == "disappeared"


async def test_what_ended_while_no_manager_looked_is_not_said_to_have_been_stopped(office: Office) -> None:
    job = wants(gpus=8)
    async with office.manager() as acting:
        await running(office, acting, job)
    await office.cluster.delete(PODS, "jupyter-alice", "jobs", grace=0)
    async with office.manager() as acting:
        await until(lambda: job.job not in book_of(acting).records, "it is seen")
        assert (await reasons(acting, job))[-1] == "disappeared"


async def test_while_kubernetes_is_away_what_is_held_stays_held_and_what_changed_is_seen_afterwards(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = wants("alice", gpus=4), wants("bob", gpus=4)
    with faults.before(tmp_path / "cluster" / "kubeconfig", tmp_path / "proxied") as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        async with office.manager() as acting:
            await running(office, acting, stays)
            await running(office, acting, goes)
            api.away()
            await office.cluster.delete(PODS, "jupyter-bob", "jobs", grace=0)
            assert (await ask(acting, wants("carol"))).decision == "wait", "nobody knows that bob's is gone"
            assert held(acting) == 8000
            api.back()
            await until(lambda: goes.job not in book_of(acting).records, "it is found out")
            await until(lambda: held(acting) == 5000, "the turn of who waited has come")
            assert (await ask(acting, wants("carol", gpus=4))).decision == "admit"
