"""The Manager with an engine underneath: one of the tests' own, whose objects are ConfigMaps that say the verdict.

What the engines themselves are told and tell is in `tests/unit/core/test_schedulers.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from dlspawner.clients.kubernetes import CONFIG_MAPS, KubernetesRejected, ObjectNotFound, ResourceKind
from dlspawner.core import naming, schedulers
from dlspawner.core.config import ClusterConfig, SchedulerConfig, SchedulerName
from dlspawner.core.decisions import EngineAdmits, EngineEvicts, EngineVerdict, EngineWaits
from dlspawner.core.job import Job, JobState
from dlspawner.core.schedulers.engine import EngineObject, ObjectKind, Observed, Patch, QueueView
from dlspawner.core.units import Manifest
from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.engine import EngineController, LeftObjects
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.state import lifecycle
from tests.component.manager.manager_harness import NAMESPACE, Leader, ManagerHarness, until, wants

KIND = ObjectKind("v1", "configmaps")
VERDICTS: dict[str, EngineVerdict] = {
    "short": EngineWaits("Too little is free."),
    "admitted": EngineAdmits(),
    "evicted": EngineEvicts("Others are entitled to it."),
}


class ConfigMapEngine:
    """Reads its verdict from a ConfigMap of the job's name, and gives its pods a label."""

    kinds, domains = (KIND,), ("test",)

    def objects(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[EngineObject, ...]:
        metadata = {"name": job.id, "labels": {naming.JOB_LABEL: job.id}}
        data = {"gpus": str(job.request.gpus)}
        return (EngineObject(KIND, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}),)

    def patches(self, job: Job, observed: Observed, now: datetime) -> tuple[Patch, ...]:
        there = observed.own.get((KIND, job.id)) or {}
        gone = there.get("data", {}).get("verdict") == "evicted" and not job.holds
        return (Patch(KIND, job.id, {"data": {"verdict": "short"}}),) if gone else ()

    def additions(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[Manifest, ...]:
        return tuple({"metadata": {"labels": {"engine": job.id}}} for _ in job.request.pods)

    def verdict(self, job: Job, observed: Observed) -> EngineVerdict | None:
        there = observed.own.get((KIND, job.id)) or {}
        return VERDICTS.get(there.get("data", {}).get("verdict", ""))

    def queue_view(self, job: Job, cluster: ClusterConfig) -> QueueView | None:
        return QueueView(KIND, "positions", "")

    def positions(self, view: Manifest) -> Mapping[str, int]:
        return {job: int(place) for job, place in view["data"].items()}


@pytest.fixture
async def leader(harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leader]:
    """A Manager with this engine; its team has one GPU by the file, and one of its members at most two."""
    monkeypatch.setitem(schedulers._ENGINES, SchedulerName.KUEUE, ConfigMapEngine())
    monkeypatch.setattr("dlspawner.manager.controllers.leader.POSITION_SECONDS", 0.1)
    monkeypatch.setattr("dlspawner.manager.admission.service._VERDICT_SECONDS", 0.1)
    with (harness.folder / "cluster.yaml").open("a") as file:
        file.write("scheduler: {name: kueue}\n")
    (harness.folder / "teams.yaml").write_text(
        "teams:\n  default: {quota: {gpu: 1}}\n  few: {user_caps: {soft: 1, hard: 4}}\n"
    )
    async with harness.manager() as made:
        yield made


async def objects(harness: ManagerHarness) -> set[str]:
    """The jobs that the engine has."""
    found = await harness.cluster.list(CONFIG_MAPS, NAMESPACE, labels=naming.JOB_LABEL)
    return {one["metadata"]["name"] for one in found}


async def until_objects(harness: ManagerHarness, *jobs: AdmissionRequest) -> None:
    async def right() -> bool:
        return await objects(harness) == {one.job for one in jobs}

    await until(right, f"the engine has {len(jobs)} jobs")


async def say(harness: ManagerHarness, job: AdmissionRequest, verdict: str) -> None:
    async def said() -> bool:
        try:
            await harness.cluster.patch(CONFIG_MAPS, job.job, {"data": {"verdict": verdict}}, NAMESPACE)
        except ObjectNotFound:
            return False
        return True

    await until(said, "the engine has the job")


async def run(leader: Leader, harness: ManagerHarness, job: AdmissionRequest) -> dict[str, Any]:
    """Has the engine admit the job and the Hub start it; returns its pod."""
    leader.hub_starts(job)
    await leader.ask(job)
    await say(harness, job, "admitted")
    await until(lambda: leader.started(job), "the Hub was asked for its start")
    return await leader.run_pod(job)


async def test_job_waits_for_the_engine_and_starts_with_its_additions(leader: Leader, harness: ManagerHarness) -> None:
    job = wants(gpus=4)  # more than the quota in the file: the engine counts
    answer = await leader.ask(job)
    assert (answer.decision, answer.reason) == ("wait", "engine")
    await say(harness, job, "short")
    positions = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "positions"}, "data": {job.job: "7"}}
    await harness.cluster.create(CONFIG_MAPS, positions, NAMESPACE)

    def told() -> tuple[int, str]:
        look = leader.service.explainer.explain(leader.record(job))
        return look.position, look.sentence

    await until(lambda: told() == (7, "Too little is free."), "position and reason are the engine's")
    pod = await run(leader, harness, job)
    again = await leader.ask(job)
    assert again.decision == "admit"
    assert again.additions == ({"metadata": {"labels": {"engine": job.job}}},)
    await leader.stop(job.job, EventReason.IDLE)
    await until_objects(harness, job)  # it holds its GPUs until its pod is gone
    await harness.delete(pod, 0)
    await until_objects(harness)


async def test_evicted_job_has_its_notice_and_the_engine_hears_when_its_pod_is_gone(
    leader: Leader, harness: ManagerHarness
) -> None:
    job = wants(requeue=True)
    pod = await run(leader, harness, job)
    submitted = leader.record(job).job.submitted
    await say(harness, job, "evicted")
    await until(leader.notices, "it has notice")
    assert [notice.text for notice in leader.notices()] == [
        "Others are entitled to it. The job will be stopped {when}."
    ]
    harness.clock.moved += timedelta(minutes=6)
    await leader.until_state(job, JobState.STOPPING)
    await leader.settled()
    assert (await leader.stop_of(job)).message.startswith("Others are entitled to it. It keeps its place in the queue")
    await harness.delete(pod, 0)
    await leader.until_state(job, JobState.QUEUED)
    assert leader.record(job).job.submitted == submitted

    async def given_back() -> bool:
        found = await harness.cluster.get(CONFIG_MAPS, job.job, NAMESPACE)
        return bool(found["data"]["verdict"] == "short")

    await until(given_back, "the same object waits again")


async def test_job_that_is_evicted_before_its_pod_exists_waits_again(leader: Leader, harness: ManagerHarness) -> None:
    job = wants()
    await leader.ask(job)
    await say(harness, job, "admitted")
    await until(lambda: leader.is_due(job), "it is scheduled")
    await say(harness, job, "evicted")
    await leader.until_reason(job, "engine-evicted")
    await until(lambda: leader.state(job) is JobState.QUEUED, "it waits")


async def test_engine_has_no_job_that_our_limits_hold_back(leader: Leader, harness: ManagerHarness) -> None:
    beyond = wants("bob", team="few", gpus=2)
    assert (await leader.ask(beyond)).reason == "approval"
    first, second = wants("carl", team="few"), wants("carl", team="few", server="two")
    pod = await run(leader, harness, first)
    await leader.ask(second)
    assert await objects(harness) == {first.job}
    await harness.delete(pod, 0)
    await leader.transact(approvals.reevaluate_all)
    await until_objects(harness, second)
    assert leader.state(beyond) is JobState.PENDING_APPROVAL
    await leader.transact(lifecycle.cancel_request, "carl", "two", "carl")
    await until_objects(harness)


async def test_objects_of_no_job_are_deleted(leader: Leader, harness: ManagerHarness) -> None:
    job = wants()
    await leader.ask(job)
    await until_objects(harness, job)
    await harness.cluster.create(CONFIG_MAPS, config_map("j-left"), NAMESPACE)
    await until_objects(harness, job)


async def test_objects_of_a_job_can_be_deleted_twice_at_once(leader: Leader, harness: ManagerHarness) -> None:
    job = wants()
    await leader.ask(job)
    await until_objects(harness, job)
    make_objects: Any = leader.service.make_objects
    controller: EngineController = make_objects.__self__
    await leader.cancel()
    await asyncio.gather(*(controller.reconcile(job.job) for _ in range(3)))
    await until_objects(harness)
    await until(lambda: job.job not in controller._own, "nothing of the job is remembered")


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {naming.JOB_LABEL: name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def test_another_scheduler_takes_over_within_seconds_and_the_engine_has_no_job_any_more(
    leader: Leader, harness: ManagerHarness
) -> None:
    runs, waits = wants("bob"), wants()
    pod = await run(leader, harness, runs)
    await leader.ask(waits)
    await until_objects(harness, runs, waits)
    file = harness.folder / "cluster.yaml"
    file.write_text(file.read_text().replace("{name: kueue}", "{name: native}"))
    await until_objects(harness)
    await until(lambda: leader.admission is not None, "it leads with the native queue")
    assert leader.state(runs) is JobState.RUNNING
    leader.hub_starts(waits)
    await harness.delete(pod, 0)
    await leader.until_state(waits, JobState.STARTING)
    await harness.cluster.create(CONFIG_MAPS, config_map("j-foreign"), NAMESPACE)
    file.write_text(file.read_text().replace("{name: native}", "{name: gang}"))
    await until(lambda: leader.admission is not None and leader._scheduler is SchedulerName.GANG, "it leads again")
    assert await objects(harness) == {"j-foreign"}, "not made by a Manager"


async def test_objects_are_left_alone_without_the_engines_api_or_the_rights_to_it() -> None:
    class Refuses:
        async def list(self, kind: ResourceKind, *_: object, **__: object) -> None:
            raise (ObjectNotFound if kind.plural == "podgroups" else KubernetesRejected)(kind.plural)

    left = LeftObjects.of(Refuses(), JobNamespaces("jobs"), SchedulerConfig())  # type: ignore[arg-type]
    assert {kind.plural for kind, _ in left.due()} == {"workloads", "podgroups"}
    for key in tuple(left.due()):
        await left.reconcile(key)
    assert left.due() == []


async def test_owner_reads_that_the_engine_does_not_take_the_job(
    leader: Leader, harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConfigMapEngine, "objects", _refused)
    job = wants()
    await leader.ask(job)
    words = "Kueue does not take this job now. It keeps its place, and is offered again and again."
    await until(lambda: leader.service.explainer.why(leader.record(job).job, harness.clock()) == words, "it reads so")


def _refused(self: ConfigMapEngine, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[EngineObject, ...]:
    """An object that the API server refuses."""
    return (EngineObject(KIND, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not a name"}}),)


@pytest.fixture
async def placing(harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leader]:
    """A Manager with this engine as one that places pods which are made at once."""
    monkeypatch.setitem(schedulers._ENGINES, SchedulerName.VOLCANO, ConfigMapEngine())
    with (harness.folder / "cluster.yaml").open("a") as file:
        file.write("scheduler: {name: volcano}\n")
    async with harness.manager() as made:
        yield made


async def test_pods_are_made_after_the_objects_of_an_engine_that_places_them(
    placing: Leader, harness: ManagerHarness
) -> None:
    job = wants(gpus=4)
    answer = await placing.ask(job)
    assert (answer.decision, await objects(harness)) == ("admit", {job.job})
    desk = placing.service
    assert await desk.leave_in_cluster(job.job, job.user) is None  # no pod is known yet
    await harness.make_pod(job)
    await placing.until_reason(job, "pod-seen")
    assert await desk.leave_in_cluster(job.job, "somebody else") is None
    assert await desk.leave_in_cluster(job.job, job.user)
    await say(harness, job, "short")
    await until(lambda: desk.pending(job.user)[0].position == 0, "it waits in the cluster")
    await until(lambda: desk.explainer.explain(placing.record(job)).sentence == "Too little is free.", "it says why")
    later = replace(job, nonce="another start's")
    placing.hub_starts(later)
    await say(harness, job, "admitted")
    await placing.until_reason(job, "rejoined")
    assert (await placing.ask(later)).pods_exist  # once more, because an answer may be lost
    assert desk.pending(job.user) == []


async def test_job_is_refused_if_the_engines_objects_cannot_be_made(
    placing: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConfigMapEngine, "objects", _refused)
    job = wants(gpus=4)
    answer = await placing.ask(job)
    assert (answer.decision, answer.reason) == ("refuse", "engine")
    assert answer.sentences == ("Volcano does not take this job now. Start it again later, or ask an administrator.",)
    await placing.until_reason(job, "not-created")
