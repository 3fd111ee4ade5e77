"""Pods as the Manager reads them: what they hold, and whether they ended by themselves or by their deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlspawner.core.config import ExtendedResource
from dlspawner.core.gpus import KAI_FRACTION, MEMORY_LABEL
from dlspawner.core.launch import pod_status
from dlspawner.core.naming import JOB_LABEL
from dlspawner.core.nodes import Node, in_gpus
from dlspawner.core.resources import ResourceRequest, request_of
from dlspawner.core.units import GPU
from dlspawner.manager.cluster.pod_view import observe, pod_request, read_pod
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.records import JobRecord
from tests.unit.core.factories import CLUSTER, GIB, NOW, node, queues

# Its deletion is asked for at noon, with half a minute of grace.
DELETED = {"deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
DISK = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ",
}
DRAINED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}
End = tuple[EventReason, str]
AGAIN = "and left no message: start the job again."
ENDED = EventReason.FINISHED, "The job has finished. Its server ended by itself."
EXIT_3 = EventReason.FAILED, f"Its server failed with exit code 3 {AGAIN}"
FAILED_3 = EventReason.FAILED, f"Its command failed with exit code 3 {AGAIN}"
SIGNAL_11 = EventReason.FAILED, "Its server was ended by signal 11 (SIGSEGV): start it again."
UNKNOWN = EventReason.FAILED, "The job failed and the cluster does not say why: ask an administrator."
BY_DELETION = EventReason.REMOVED, ""
MORNING, NOON, LATER = "2026-01-01T11:59:58Z", "2026-01-01T12:00:00Z", "2026-01-01T12:00:07Z"
BEHIND = "2026-01-01T11:59:59Z"


def pod(code: int, at: str | None, metadata: dict[str, Any]) -> dict[str, Any]:
    end = {"exitCode": code, **({"finishedAt": at} if at else {})}
    statuses = [{"name": "notebook", "state": {"terminated": end}}]
    labels = {JOB_LABEL: "j-abcdefghij23"}
    return {
        "metadata": {"name": "p", "uid": "u", "namespace": "jobs", "labels": labels, **metadata},
        "spec": {"containers": [{"name": "notebook", "image": "any"}]},
        "status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses},
    }


@pytest.mark.parametrize(
    ("code", "at", "metadata", "how", "stopped"),
    [
        pytest.param(0, MORNING, {}, ENDED, False, id="a program that has ended"),
        pytest.param(3, MORNING, {}, EXIT_3, False, id="one that has failed"),
        pytest.param(0, MORNING, DELETED, ENDED, False, id="one that had ended before its pod was deleted"),
        pytest.param(3, MORNING, DELETED, EXIT_3, False, id="one that had failed before"),
        pytest.param(139, MORNING, DELETED, SIGNAL_11, False, id="one that a signal had ended before"),
        pytest.param(0, NOON, DELETED, BY_DELETION, True, id="one that ends at once when it is asked to"),
        pytest.param(0, BEHIND, DELETED, BY_DELETION, True, id="one whose node's clock is behind"),
        pytest.param(0, LATER, DELETED, BY_DELETION, True, id="one that takes its time"),
        pytest.param(143, LATER, DELETED, BY_DELETION, True, id="one that a signal ends"),
        pytest.param(1, LATER, DELETED, BY_DELETION, True, id="one that complains about its stop"),
        pytest.param(0, None, DELETED, BY_DELETION, True, id="one that tells no time"),
    ],
)
@pytest.mark.parametrize("state", ["phase", "terminated", "waiting"])
def test_end_of_program_or_pod(  # noqa: PLR0917 - a table
    code: int, at: str | None, metadata: dict[str, Any], how: End, stopped: bool, state: str
) -> None:
    seen = pod(code, at, metadata)
    if state != "phase":  # a sidecar, or the next run, keeps the pod from its end
        seen["status"]["phase"] = "Running"
    if state == "waiting":
        container = seen["status"]["containerStatuses"][0]
        container["lastState"], container["state"] = container["state"], {"waiting": {"reason": "CrashLoopBackOff"}}
    found = read_pod(seen, JobNamespaces("jobs"))
    assert (found.over, found.how, found.sentence, found.stopped) == (state == "phase", *how, stopped)


@pytest.mark.parametrize(("code", "how"), [(0, ENDED), (3, EXIT_3)], ids=["success", "failure"])
def test_end_that_was_seen_before_the_deletion_stays_the_reason_and_a_restart_forgets_it(code: int, how: End) -> None:
    names, deleted = JobNamespaces("jobs"), pod(code, NOON, DELETED)
    ended, restarted = read_pod(pod(code, NOON, {}), names), pod(0, None, {})
    restarted["status"] = {"phase": "Running", "containerStatuses": [{"name": "notebook", "state": {"running": {}}}]}
    found = read_pod(deleted, names, ended)
    assert (found.stopped, found.how, found.sentence) == (False, *how)
    assert read_pod(deleted, names, read_pod(restarted, names, ended)).stopped


@pytest.mark.parametrize(
    ("code", "metadata", "status", "sentence"),
    [
        pytest.param(
            137, DELETED, DISK, "more to its temporary disk than it may (20Mi)", id="evicted, and then deleted"
        ),
        pytest.param(0, {}, DISK, "more to its temporary disk than it may (20Mi)", id="evicted, and ended well"),
        pytest.param(0, DELETED, DRAINED, "emptying the job's node", id="drained"),
        pytest.param(143, {}, {"reason": "OutOfcpu"}, "could not give what", id="refused by its node"),
        pytest.param(143, DELETED, {}, "", id="deleted"),
    ],
)
def test_end_by_the_cluster_is_told_as_the_hub_tells_it(
    code: int, metadata: dict[str, Any], status: dict[str, Any], sentence: str
) -> None:
    seen = pod(code, LATER, metadata)
    seen["status"].update(status)
    found = read_pod(seen, JobNamespaces("jobs"))
    judged = pod_status.evaluate(seen)
    assert sentence in found.sentence
    assert found.how is (EventReason.EVICTED if sentence else EventReason.REMOVED)
    assert not sentence or (isinstance(judged, pod_status.Terminated) and judged.reason == found.sentence)


@pytest.mark.parametrize(
    ("exit_codes", "how"),
    [
        pytest.param({"main": 3, "notebook": 143}, FAILED_3, id="of several the first that failed by itself"),
        pytest.param({"sshd": 1, "notebook": 0}, ENDED, id="sshd does not count"),
        pytest.param({}, UNKNOWN, id="nothing is known"),
    ],
)
def test_failure_is_that_of_the_users_program(exit_codes: dict[str, int], how: End) -> None:
    found = pod(1, MORNING, {})
    found["status"]["containerStatuses"] = [
        {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": MORNING}}}
        for name, code in exit_codes.items()
    ]
    read = read_pod(found, JobNamespaces("jobs"))
    assert (read.how, read.sentence) == how


def test_pod_with_resources_that_no_job_may_have_is_counted() -> None:
    resources = {"limits": {"nvidia.com/gpu": "8", "cpu": "30", "rdma/hca": 2}, "claims": [{"name": "more"}]}
    found = pod(0, None, {})
    found["spec"]["containers"][0]["resources"] = resources
    request = pod_request(read_pod(found, JobNamespaces("jobs")), CLUSTER, None)
    assert (request.gpu_type, request.gpus, request.pods[0].cpu_milli) == ("a100", 8 * GPU, 30_000)
    assert request.extended == (("rdma/hca", 2 * GPU),)


def test_part_of_a_gpu_that_no_job_may_have_is_counted_by_the_size_of_its_nodes_gpus() -> None:
    found = pod(0, None, {"annotations": {"gpu-memory": "4096", "gpu-fraction-num-devices": "2"}})
    kind = replace(CLUSTER.gpu_types[0], resource=KAI_FRACTION, amount=500, shown=("nvidia.com/gpu", 1), any_size=True)
    labels = (*kind.node_selector, (MEMORY_LABEL, "16384"))
    node = in_gpus(Node("n", (("nvidia.com/gpu", 2 * GPU),), labels=labels), [kind])
    observed = read_pod(found, JobNamespaces("jobs"))
    request = pod_request(observed, replace(CLUSTER, gpu_types=(kind,)), node)
    assert (request.gpu_type, request.gpus, request.pods[0].resource) == (kind.name, GPU // 2, KAI_FRACTION)
    assert request.extended == ()


def test_extended_resource_of_a_gpu_vendor_is_no_gpu() -> None:
    found = pod(0, None, {})
    found["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/dpu": 2}}
    found["spec"]["nodeSelector"] = dict(CLUSTER.gpu_types[0].node_selector)
    cluster = replace(CLUSTER, extended_resources=(ExtendedResource("nvidia.com/dpu", max_per_job=1),))
    request = pod_request(read_pod(found, JobNamespaces("jobs")), cluster, None)
    assert (request.gpu_type, request.extended) == ("a100", (("nvidia.com/dpu", 2 * GPU),))
    assert request.pods[0].placement.selector == CLUSTER.gpu_types[0].node_selector


def asks(**amounts: str) -> dict[str, Any]:
    return {"name": "notebook", "resources": {"limits": amounts}}


def alone(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod on a node with A100s."""
    return {"nodeSelector": {"gpu": "a100"}, "containers": list(containers), **more}


MAIN = asks(cpu="1", memory="1Gi", **{"nvidia.com/gpu": "1"})
SIDECAR = {**asks(cpu="250m", memory="1Gi"), "name": "mesh"}
ONLY_GPU = asks(**{"nvidia.com/gpu": "1"})


@pytest.mark.parametrize(
    ("asked", "seen", "held"),
    [
        pytest.param(alone(MAIN), alone(MAIN), (1000, GIB), id="nothing"),
        pytest.param(
            alone(asks(**{"rdma/hca": "2"})),
            alone(asks(**{"rdma/hca": "1", "intel.com/vf": "1"})),
            (0, 0, (("intel.com/vf", GPU), ("rdma/hca", 2 * GPU))),
            id="the devices of a network",
        ),
        pytest.param(
            alone(MAIN),
            alone(MAIN, overhead={"cpu": "500m", "memory": "1Gi"}),
            (1500, 2 * GIB),
            id="the overhead of a RuntimeClass",
        ),
        pytest.param(alone(MAIN), alone(MAIN, SIDECAR), (1250, 2 * GIB), id="a sidecar"),
        pytest.param(alone(ONLY_GPU), alone(MAIN), (1000, GIB), id="the defaults of a LimitRange"),
        pytest.param(alone(MAIN, SIDECAR), alone(MAIN), (1250, 2 * GIB), id="less than was reserved"),
    ],
)
def test_what_the_cluster_adds_is_held(asked: dict[str, Any], seen: dict[str, Any], held: tuple[Any, ...]) -> None:
    reserved = request_of([{"spec": asked}], CLUSTER)
    assert isinstance(reserved, ResourceRequest)
    record = JobRecord(queues("j", "a", charge=reserved))
    metadata = {"name": "p", "uid": "u", "namespace": "jobs"}
    found = read_pod({"metadata": metadata, "spec": {**seen, "nodeName": "n1"}}, JobNamespaces("jobs"))
    _, after = observe(record, found, CLUSTER, node("n1"), NOW)
    before = reserved.pods[0]
    cpu, memory, *more = held
    extended = more[0] if more else ()
    assert after.job.request.pods == (replace(before, cpu_milli=cpu, memory_bytes=memory, extended=extended),)
