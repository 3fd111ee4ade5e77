"""Observed pods: those of admitted jobs go on, those without an admission are charged and stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dlspawner.clients.kubernetes import PODS, ObjectNotFound
from dlspawner.core import naming
from dlspawner.core.job import JobState
from dlspawner.core.launch import pod_set
from dlspawner.core.resources import strip_manifest
from dlspawner.core.template import PodFailurePolicy
from dlspawner.core.units import Manifest
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.db.pod_events import read_pod_events
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import (
    AFTER_RESERVATION,
    NAMESPACE,
    Leader,
    ManagerHarness,
    pod_of,
    until,
    wants,
)
from tests.component.manager.test_pod_view import EXIT_3

pytestmark = pytest.mark.real


async def until_stopped(harness: ManagerHarness, name: str) -> None:
    """Until the pod's deletion was requested, or it is gone."""

    async def is_deleted() -> bool:
        try:
            pod = await harness.cluster.get(PODS, name, NAMESPACE)
        except ObjectNotFound:
            return True
        return "deletionTimestamp" in pod["metadata"]

    await until(is_deleted, f"{name} is stopped")


async def is_stopped(harness: ManagerHarness, name: str) -> bool:
    return "deletionTimestamp" in (await harness.pods())[name]["metadata"]


async def until_observed(leader: Leader) -> None:
    """Until the Manager has observed a pod that was made now, and so all earlier changes."""
    later = wants("later", gpus=0)
    await leader.run_job(later)


def has_strays(leader: Leader) -> bool:
    return any(job.startswith("pod-") for job in leader.states())


def labels(request: AdmissionRequest) -> dict[str, str]:
    return naming.job_labels(naming.PodIdentity(request.job, request.user, "", "default", "tiny", 1))


# Pods that claim a job


async def test_pod_that_comes_too_late_is_charged_and_stopped(harness: ManagerHarness) -> None:
    request, waits = wants(gpus=8), wants("bob")
    async with harness.manager() as leader:
        await leader.ask(request)
        harness.clock.moved += AFTER_RESERVATION
        await until(lambda: not leader.states(), "it has expired")
        await leader.settled()
    async with harness.manager() as leader:
        pod = await harness.make_pod(request)
        await harness.bind(pod)
        await until_stopped(harness, "jupyter-alice")
        assert (await leader.ask(waits)).decision == "wait", "the late pod is still there"
        await harness.delete(pod, grace=0)
        await until(lambda: not has_strays(leader), "it is gone")
        assert (await leader.ask(waits)).decision == "admit"


async def test_pod_with_forged_labels_is_charged_and_stopped_and_the_real_one_goes_on(
    harness: ManagerHarness, leader: Leader
) -> None:
    request = wants(gpus=2)
    await leader.run_job(request)
    forged = await harness.make_pod(replace(request, pods=wants(gpus=6).pods), name="forged", labels=labels(request))
    await harness.bind(forged)
    await until_stopped(harness, "forged")
    assert (await leader.ask(wants("bob"))).reason == "team-quota", "it is charged as long as it is there"
    await harness.delete(forged, grace=0)
    await until(lambda: not has_strays(leader), "it is gone")
    assert leader.state(request) is JobState.RUNNING
    assert not await is_stopped(harness, "jupyter-alice")


async def test_pod_without_the_nonce_of_the_admission_is_stopped(harness: ManagerHarness, leader: Leader) -> None:
    request = wants()
    assert (await leader.ask(request)).decision == "admit"
    for name, nonce in (("without", ""), ("another", "guessed")):
        await harness.bind(await harness.make_pod(replace(request, nonce=nonce), name=name))
        await until_stopped(harness, name)
    await leader.run_pod(request)
    for name in ("without", "another"):
        await harness.cluster.delete(PODS, name, NAMESPACE, grace=0)
    await until(lambda: leader.states() == {request.job: JobState.RUNNING}, "no other pod is charged")
    assert not await is_stopped(harness, "jupyter-alice")


async def test_copy_of_the_hubs_pod_that_the_next_manager_lists_first_is_stopped(harness: ManagerHarness) -> None:
    secret = wants().nonce
    request = wants(nonce=naming.sign(secret, f"{NAMESPACE}/jupyter-alice"))
    async with harness.manager() as leader:
        assert (await leader.ask(request)).decision == "admit"
    for name in ("jupyter-alice", "a-copy"):  # lists are by name
        await harness.bind(await harness.make_pod(replace(request, nonce=secret), name=name))
    async with harness.manager() as leader:
        await until_stopped(harness, "a-copy")
        await leader.until_state(request, JobState.RUNNING)
        assert not await is_stopped(harness, "jupyter-alice")


async def test_ended_pod_that_claims_a_queued_job_does_not_end_it(harness: ManagerHarness, leader: Leader) -> None:
    holder, waits = wants("holder", gpus=8), wants("alice")
    await leader.ask(holder)
    assert (await leader.ask(waits)).decision == "wait"
    await harness.bind(await harness.make_pod(replace(waits, pods=wants(gpus=0).pods), name="stray"))
    await until_stopped(harness, "stray")
    await harness.finish("stray", 143, "Error")
    await until(lambda: not has_strays(leader), "it has ended")
    leader.hub_starts(waits)
    await leader.service.release_reservation(holder.job, "holder")
    await until(lambda: leader.started(waits), "it may have a pod")
    await harness.finish("stray", 137, "Error")
    await leader.run_pod(waits)
    await harness.cluster.delete(PODS, "stray", NAMESPACE, grace=0)
    await until_observed(leader)
    assert leader.state(waits) is JobState.RUNNING
    assert not await is_stopped(harness, "jupyter-alice")


async def test_pod_whose_labels_contradict_its_annotations_is_stopped(harness: ManagerHarness, leader: Leader) -> None:
    request = wants()
    await leader.ask(wants("bob", gpus=8))
    await harness.make_pod(request, name="liar", labels={**labels(request), naming.USER_LABEL: "bob"})
    await until_stopped(harness, "liar")


# Pods that are no jobs, and nodes


async def test_pod_that_is_no_job_goes_on_and_takes_room(harness: ManagerHarness, leader: Leader) -> None:
    await harness.bind(await harness.make_pod(wants(gpus=7), name="other", labels={}, annotations={}))
    await until(lambda: leader.service.store.nodes["gpu-1"].others.gpus, "it is seen")
    assert (await leader.ask(wants("bob", gpus=2))).reason == "no-fit"
    assert (await leader.ask(wants("bob"))).decision == "admit"
    assert not await is_stopped(harness, "other")


async def test_pods_of_other_namespaces_take_room_on_their_node(harness: ManagerHarness) -> None:
    harness.watch_all_namespaces = True
    system = pod_of(wants("root", gpus=0), name="driver", labels={}, annotations={})
    system["spec"]["nodeName"] = "gpu-1"
    system["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "31950m"}, "limits": {"cpu": "31950m"}}
    await harness.cluster.create(PODS, system, "kube-system")
    async with harness.manager() as leader:
        nodes = leader.service.store.nodes
        await until(lambda: nodes["gpu-1"].others.cpu_milli, "it is seen")
        assert (await leader.ask(wants())).decision == "admit"
        assert (await leader.ask(wants("bob"))).reason == "no-fit", "the node's CPU is used up"
        await harness.cluster.delete(PODS, "driver", "kube-system", grace=0)
        await until(lambda: not nodes["gpu-1"].others.cpu_milli, "it is gone")
        assert (await leader.ask(wants("bob"))).decision == "admit"


# Pods that were made without an admission request


async def test_restarted_manager_frees_what_went_meanwhile_and_holds_what_runs(
    harness: ManagerHarness, db_url: str
) -> None:
    stays, goes = wants("alice", gpus=4), wants("bob", gpus=4)
    async with harness.manager() as leader:
        for request in (stays, goes):
            await leader.run_job(request)
    await harness.cluster.delete(PODS, "jupyter-bob", NAMESPACE, grace=0)
    async with harness.manager() as leader:
        assert leader.states() == {stays.job: JobState.RUNNING}
        assert (await leader.reasons(goes))[-1] == "disappeared"
        assert (await leader.ask(wants("carol", gpus=5))).decision == "wait"
        assert (await leader.ask(wants("carol", gpus=4))).decision == "admit"


async def test_jobs_of_a_hub_that_did_not_ask_go_on_and_are_charged(harness: ManagerHarness) -> None:
    before, meanwhile = wants(gpus=3), wants("bob", gpus=2)
    await harness.bind(await harness.make_pod(before))
    async with harness.manager() as leader:
        await harness.bind(await harness.make_pod(meanwhile))  # by a Hub that has not been restarted yet
        both = dict.fromkeys([before.job, meanwhile.job], JobState.RUNNING)
        await until(lambda: leader.states() == both, "both are counted")
        assert (await leader.ask(wants("carol", gpus=4))).decision == "wait"
        assert await leader.reasons(before) == ["adopted"]


@pytest.mark.parametrize("failed", [False, True])
async def test_pod_goes_on_whose_start_is_newer_than_the_database(harness: ManagerHarness, *, failed: bool) -> None:
    holder, request = wants("holder", gpus=8), wants(gpus=8)
    async with harness.manager() as leader:
        await leader.run_job(holder)
        await leader.ask(request)
        before = leader.record(request)
        if failed:  # the database knows the start of this pod
            known = replace(before, nonce=request.nonce)
            await leader.transact(Transaction.write, known, EventReason.REQUEUED)
    await harness.cluster.delete(PODS, "jupyter-holder", NAMESPACE, grace=0)
    pod = await harness.make_pod(request)
    await harness.bind(pod)
    async with harness.manager() as leader:
        if failed:
            await until_stopped(harness, "jupyter-alice")
            return
        await until(lambda: leader.record(request).uids == {pod["metadata"]["uid"]}, "it is the job's")
        await leader.until_state(request, JobState.RUNNING)
        assert leader.record(request).job.submitted == before.job.submitted
        assert (await leader.ask(wants("bob"))).decision == "wait", "it is charged"
        assert not await is_stopped(harness, "jupyter-alice")


async def test_without_any_quota_no_pod_is_stopped(harness: ManagerHarness) -> None:
    (harness.folder / "teams.yaml").write_text("teams: {default: {title: Everybody}}")
    async with harness.manager() as leader:
        await leader.ask(wants(gpus=0))
        request = wants("bob")
        await harness.bind(await harness.make_pod(request))
        await until(lambda: leader.states().get(request.job) is JobState.RUNNING, "it is counted")
        assert not await is_stopped(harness, "jupyter-bob")


# Jobs of several pods

EACH = {"cpu": "50m", "memory": "64Mi", "nvidia.com/gpu": "1"}


async def admit_several(leader: Leader, request: AdmissionRequest, pods: pod_set.PodSet) -> list[Manifest]:
    """Has a job admitted with the pods that it starts with; returns the manifests of all of them."""
    first = pod_set.as_first(pod_of(request), pods, f"jupyter-{request.user}-pods", "x")
    manifests = [first, *pod_set.further_pods(first)]
    signed = naming.sign(request.nonce, f"{NAMESPACE}/jupyter-{request.user}")
    at_start = tuple(strip_manifest(pod) for pod in manifests if not pod["spec"].get("schedulingGates"))
    admitted = await leader.ask(replace(request, pods=at_start, nonce=signed))
    assert (admitted.decision, len(admitted.nodes)) == ("admit", len(at_start))
    return manifests


async def run_several(
    harness: ManagerHarness,
    leader: Leader,
    policy: PodFailurePolicy = PodFailurePolicy.STOP,
    made: int = 3,
    **phases: str,
) -> str:
    """A job of three pods: jupyter-alice and its two workers; so many of them are made, and run."""
    request = wants()
    pods = pod_set.PodSet((pod_set.Role("chief", 1, EACH), pod_set.Role("worker", 2, EACH)), policy)
    manifests = await admit_several(leader, request, pods)
    for manifest in reversed(manifests[:made]):
        manifest["spec"]["schedulerName"] = "tests"
        name = manifest["metadata"]["name"]
        await harness.bind(await harness.cluster.create(PODS, manifest, NAMESPACE), phase=phases.get(name, "Running"))
    state = JobState.RUNNING if made == len(manifests) else JobState.STARTING
    await until(lambda: leader.states() == {request.job: state}, "all of them run")
    return request.job


def ended_with(leader: Leader, job: str) -> str:
    record = leader.service.store.records[job]
    return record.stop.message if record.stop else ""


async def test_failed_pod_of_several_stops_the_job_and_is_named(harness: ManagerHarness, leader: Leader) -> None:
    job = await run_several(harness, leader)
    roles = ["chief", "worker-0", "worker-1"]
    assert [pod.role for pod in leader.service.store.records[job].seen] == roles
    made = [one.detail for one in await leader.repository.history(job) if one.reason == "pod-seen"]
    assert sorted(made) == roles
    await harness.finish("jupyter-alice----worker-0", 0, "Completed")
    await until_observed(leader)
    assert ended_with(leader, job) == ""
    await harness.finish("jupyter-alice----worker-1", 3, "Error")
    await leader.run_job(wants("last", gpus=0))
    assert ended_with(leader, job) == f"Its pod worker-1 has ended: {EXIT_3[1]}"

    async def told() -> bool:
        events = await leader.repository.read(lambda connection: read_pod_events(connection, job))
        return "worker-1: The container notebook ended with exit code 3." in [one.sentence for one in events]

    await until(told, "the event names its pod")


@pytest.mark.parametrize(
    ("policy", "phase", "ends"),
    [
        (PodFailurePolicy.STOP, "Running", True),
        (PodFailurePolicy.CONTINUE, "Running", False),
        (PodFailurePolicy.STOP, "Succeeded", False),
    ],
    ids=["stop", "continue", "stop, and it had ended well"],
)
async def test_pod_of_several_that_is_deleted_while_no_manager_watches(
    harness: ManagerHarness, policy: PodFailurePolicy, phase: str, ends: bool
) -> None:
    name = "jupyter-alice----worker-1"
    async with harness.manager() as leader:
        job = await run_several(harness, leader, policy, **{name: phase})
    await harness.cluster.delete(PODS, name, NAMESPACE, grace=0)
    async with harness.manager() as leader:
        assert ended_with(leader, job) == ("Its pod worker-1 was deleted from outside the Hub." if ends else "")


async def test_job_grows_when_there_is_room_and_starts_small_again_after_it_had_to_leave(
    harness: ManagerHarness,
) -> None:
    other, request = wants("bob", gpus=5), wants(requeue=True)
    pods = pod_set.PodSet((pod_set.Role("chief", 1, EACH), pod_set.Role("worker", 4, EACH, least=1)))
    async with harness.manager() as leader:
        await leader.run_job(other)
        manifests = await admit_several(leader, request, pods)
        for manifest in manifests:
            manifest["spec"]["schedulerName"] = "tests"
            made = await harness.cluster.create(PODS, manifest, NAMESPACE)
            if not manifest["spec"].get("schedulingGates"):
                await harness.bind(made)

        def gates(pods: Mapping[str, Manifest]) -> list[str]:
            return sorted(name for name, pod in pods.items() if pod["spec"].get("schedulingGates"))

        async def only_the_last_waits() -> bool:
            return gates(await harness.pods()) == ["jupyter-alice----worker-2", "jupyter-alice----worker-3"]

        await until(only_the_last_waits, "one more has room")
        await until_observed(leader)
        assert len(leader.record(request).job.request.pods) == 3
        why = "3 of 5 pods: the others start when quota and nodes have room for them."
        full = "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1."
        assert leader.service.explainer.why(leader.record(request).job, harness.clock()) == f"{why} {full}"
        assert (await leader.ask(wants("carol"))).decision == "wait"

    # The next Manager knows the same, and the others come when there is room.
    async with harness.manager() as leader:
        assert gates(await harness.pods()) == ["jupyter-alice----worker-2", "jupyter-alice----worker-3"]
        await harness.cluster.delete(PODS, "jupyter-bob", NAMESPACE, grace=0)
        await leader.until_reason(request, "pod-admitted", 3)
        assert leader.record(request).job.state is JobState.RUNNING
        held = leader.service.store.cluster_state.guaranteed("default", "gpu")
        assert held == 6000, "with carol's, who waited before they grew"

        await leader.stop(request.job, EventReason.PREEMPTED)
        for manifest in manifests:
            await harness.cluster.delete(PODS, manifest["metadata"]["name"], NAMESPACE, grace=0)
        await leader.until_reason(request, "requeued")
        assert len(leader.record(request).job.request.pods) == 2


async def test_job_of_which_not_all_pods_were_made_is_stopped(harness: ManagerHarness, leader: Leader) -> None:
    job = await run_several(harness, leader, made=2)
    harness.clock.moved += AFTER_RESERVATION
    await until(lambda: ended_with(leader, job) == "The Hub has not made all of its pods.", "it is stopped")


async def test_job_that_the_hub_gives_up_between_its_pods_ends_with_the_reason(
    harness: ManagerHarness, leader: Leader
) -> None:
    job, why = await run_several(harness, leader, made=1), "The namespace's quota has no room."
    await until(lambda: leader.service.store.records[job].seen, "its first pod is seen")
    await leader.transact(lifecycle.on_job_ended, job, "alice", why)
    assert ended_with(leader, job) == why
    await harness.cluster.delete(PODS, "jupyter-alice", NAMESPACE, grace=0)
    await until(lambda: job not in leader.states(), "it holds nothing any more")


async def test_preempted_job_waits_again_although_the_hub_has_reported_a_failure_first(
    harness: ManagerHarness, leader: Leader
) -> None:
    request = wants(requeue=True)
    await leader.run_job(request)
    await leader.transact(lifecycle.on_job_ended, request.job, "alice", "Its pod was deleted.")
    await leader.transact(lifecycle.preempt_by_engine, leader.record(request), "Volcano", "For b.")
    assert ended_with(leader, request.job).startswith("Volcano has stopped it for another job: For b. It keeps its")
    await harness.cluster.delete(PODS, "jupyter-alice", NAMESPACE, grace=0)
    await leader.until_reason(request, "requeued")


async def test_pod_that_calls_itself_a_further_one_is_no_pod_of_the_job(
    harness: ManagerHarness, leader: Leader
) -> None:
    """Its name is not the one that follows from the first pod's, so it could be anybody's."""
    request = wants()
    signed = naming.sign(request.nonce, f"{NAMESPACE}/jupyter-alice")
    assert (await leader.ask(replace(request, nonce=signed))).decision == "admit"
    claims = {naming.FIRST_POD_ANNOTATION: "jupyter-alice"}
    forged = pod_of(request, name="forged")
    forged["metadata"]["annotations"] |= claims
    forged["metadata"]["labels"] |= {naming.POD_LABEL: "worker-0"}
    await harness.cluster.create(PODS, forged, NAMESPACE)
    await until_stopped(harness, "forged")
