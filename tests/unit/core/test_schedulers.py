"""Schedulers underneath: what is decided with one, and what each is told and tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dlspawner.core.config import ExtendedResource, SchedulerConfig, SchedulerName, Toleration
from dlspawner.core.decisions import Admit, EngineAdmits, EngineEvicts, EngineVerdict, EngineWaits, MustWait
from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.schedulers.engine import Observed
from dlspawner.core.schedulers.kueue import FLAVORS, PRIORITY_CLASSES, WORKLOADS, Kueue, queue_objects
from dlspawner.core.scheduling import queue
from dlspawner.core.scheduling.admission import admit, schedule
from tests.unit.core.factories import CLUSTER, NOW, ask, cluster_state, node, queues, runs, team, wants

KUEUE = replace(CLUSTER, scheduler=SchedulerConfig(SchedulerName.KUEUE, (("b", "bees"),), (("prod", "high"),)))


@pytest.mark.parametrize(
    ("verdict", "job", "expected"),
    [
        (None, wants("j", "a", 9), "wait engine 1: Kueue has not answered yet; the job keeps its place."),
        (EngineWaits("No quota.", 7), queues("j", "a", 9), "wait engine 7: No quota."),
        (EngineEvicts("Others need it."), queues("j", "a"), "wait engine 1: Others need it."),
        (EngineAdmits(), queues("j", "a", 9), "admit"),
        (EngineAdmits(), wants("j", "capped", 3), "refuse exceeds-limit: Team capped gives one person at most 2 GPUs;"),
        (None, wants("j", "nowhere"), "refuse unknown-team: There is no team"),
    ],
)
def test_quota_and_nodes_are_the_engines_and_limits_are_ours(
    verdict: EngineVerdict | None, job: Job, expected: str
) -> None:
    here = cluster_state(team("a", 1), team("capped", 9, hard=2), node("n", 1), cluster=KUEUE)
    here.verdicts |= {"j": verdict} if verdict else {}
    found = admit(job, here, NOW)
    match found:
        case Admit(nodes):
            said = "admit" if nodes == (None,) else str(nodes)
        case MustWait(reason, sentence, position):
            said = f"wait {reason.value} {position}: {sentence}"
        case _:
            said = f"refuse {found.reason.value}: {getattr(found, 'sentence', '')}"
    assert said.startswith(expected)


def test_queue_is_in_the_engines_order() -> None:
    here = cluster_state(*(queues(name, "a") for name in "xyz"), team("a", 1), cluster=KUEUE)
    here.verdicts = {"x": EngineWaits("", 3), "y": EngineWaits("", 1), "z": EngineWaits("", 2)}
    assert [job.id for job in queue.order(here, NOW)] == ["y", "z", "x"]


def test_jobs_that_the_engine_admits_start_beyond_our_quota_and_before_equal_ones() -> None:
    jobs = (queues("b1", "b"), queues("b2", "b"), queues("a1", "a", preemptible=True))
    here = cluster_state(*jobs, queues("c1", "c", preemptible=True), team("a", 1), team("b"), team("c"), cluster=KUEUE)
    here.verdicts = {"b1": EngineWaits(""), "b2": EngineAdmits(), "a1": EngineWaits(""), "c1": EngineAdmits()}
    assert [job.id for job, _ in schedule(here, NOW)] == ["b2", "c1"]


def workload(conditions: Mapping[str, str], **status: Any) -> dict[str, Any]:
    """A Workload with these conditions, each *True* or its message."""
    told = [
        {"type": kind, "status": "True" if text.startswith("+") else "False", "message": text[1:], "reason": "Because"}
        for kind, text in conditions.items()
    ]
    return {"metadata": {"name": "j"}, "status": {"conditions": told, **status}}


def observed(found: dict[str, Any] | None = None, **flavors: dict[str, Any]) -> Observed:
    own = {} if found is None else {(WORKLOADS, "j"): found}
    return Observed(own, {(FLAVORS, name): {"spec": spec} for name, spec in flavors.items()})


# As Kueue 0.15 writes them.
SHORT = (
    "couldn't assign flavors to pod set pods: insufficient unused quota for nvidia.com/gpu in flavor a, 1 more needed"
)
PREEMPTED = (
    "Preempted to accommodate a workload (UID: 1dfcae47, JobUID: UNKNOWN) due to prioritization in the ClusterQueue; "
    "preemptor path: /c/team; preemptee path: /c/team"
)
RESERVED = {"QuotaReserved": "+", "Admitted": "+"}
VERDICTS: dict[str, tuple[dict[str, Any] | None, EngineVerdict | None]] = {
    "no Workload yet": (None, None),
    "one that Kueue has not looked at": ({"metadata": {"name": "j"}}, None),
    "too little quota": (
        workload({"QuotaReserved": f"-{SHORT}"}),
        EngineWaits(f"Kueue has not admitted it yet: {SHORT}."),
    ),
    "quota, and a check that is pending": (
        workload({"QuotaReserved": "+"}, admissionChecks=[{"name": "node", "state": "Pending", "message": "4 wanted"}]),
        EngineWaits("Kueue has reserved its quota, and waits for its checks: node 4 wanted."),
    ),
    "admitted": (workload(RESERVED), EngineAdmits()),
    "preempted": (
        workload(RESERVED | {"Evicted": f"+{PREEMPTED}"}),
        EngineEvicts(
            "Kueue takes its GPUs back: Preempted to accommodate a workload due to prioritization in the ClusterQueue."
        ),
    ),
    "preempted, and back in the queue": (
        workload({"QuotaReserved": f"-{SHORT}", "Admitted": "-", "Evicted": f"+{PREEMPTED}"}),
        EngineWaits(f"Kueue has not admitted it yet: {SHORT}."),
    ),
}


@pytest.mark.parametrize(("found", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts_of_kueue(found: dict[str, Any] | None, expected: EngineVerdict | None) -> None:
    assert Kueue().verdict(queues("j", "a"), observed(found)) == expected


def test_workload_is_what_the_pods_ask_for() -> None:
    job = queues("j", "b", charge=ask([0, 2, 2], cpu=500), priority=100)
    (made,) = Kueue().objects(job, KUEUE, observed())
    spec = made.manifest["spec"]
    assert (made.name, spec["queueName"], spec["priority"]) == ("j", "bees", 100)
    assert made.manifest["metadata"]["labels"] == {"dlspawner.dev/job": "j"}
    assert "priorityClassRef" not in spec, "the class is not there yet"
    first, others = spec["podSets"]
    assert (first["count"], others["count"]) == (1, 2)
    asked = others["template"]["spec"]
    assert asked["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": 2**30, "nvidia.com/gpu": 2}
    assert asked["nodeSelector"] == {"gpu": "a100"}
    with_class = Observed({}, {(PRIORITY_CLASSES, "high"): {"value": 7000}})
    (made,) = Kueue().objects(job, KUEUE, with_class)
    assert made.manifest["spec"]["priority"] == 7000
    assert made.manifest["spec"]["priorityClassRef"]["name"] == "high"
    (made,) = Kueue().objects(queues("j", "a", 3, kind="a100-1g"), KUEUE, observed())
    (container,) = made.manifest["spec"]["podSets"][0]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["nvidia.com/mig-1g.10gb"] == 3, "parts in units, as Kueue counts them"
    adapters = queues("j", "a", charge=ResourceRequest(None, (PodRequest("", 0, extended=(("rdma/hca", 2000),)),)))
    (made,) = Kueue().objects(adapters, KUEUE, observed())
    (container,) = made.manifest["spec"]["podSets"][0]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["rdma/hca"] == 2
    for preemptible, name in ((False, "team-a"), (True, "team-a-preemptible")):
        (made,) = Kueue().objects(queues("j", "a", preemptible=preemptible), KUEUE, observed())
        assert made.manifest["spec"]["queueName"] == name


def test_flavors_are_added_to_the_pods_that_they_were_assigned_to() -> None:
    flavors = {"a": {"nodeLabels": {"gpu": "a"}, "tolerations": [{"key": "a"}]}, "any": {}}
    assigned = [
        {"name": "pods-0", "flavors": {"cpu": "any", "memory": "any"}},
        {"name": "pods-1", "flavors": {"cpu": "any", "nvidia.com/gpu": "a"}},
    ]
    found = workload(RESERVED, admission={"podSetAssignments": assigned})
    added = Kueue().additions(wants("j", "a", charge=ask([0, 1, 1])), KUEUE, observed(found, **flavors))
    on_a = {"spec": {"nodeSelector": {"gpu": "a"}, "tolerations": [{"key": "a"}]}}
    assert added == ({}, on_a, on_a)


@pytest.mark.parametrize(
    ("state", "conditions", "expected"),
    [
        (JobState.QUEUED, RESERVED, {}),
        (JobState.RUNNING, RESERVED, {"PodsReady": "True"}),
        (JobState.RUNNING, RESERVED | {"PodsReady": "+"}, {}),
        (JobState.STOPPING, RESERVED | {"Evicted": "+", "PodsReady": "+"}, {}),
        (
            JobState.QUEUED,
            RESERVED | {"Evicted": "+"},
            {"QuotaReserved": "False", "Admitted": "False", "Requeued": "True"},
        ),
        (JobState.QUEUED, {"QuotaReserved": "-", "Evicted": "+"}, {}),
    ],
)
def test_kueue_hears_that_pods_run_and_that_the_pods_of_an_evicted_job_are_gone(
    state: JobState, conditions: dict[str, str], expected: dict[str, str]
) -> None:
    found = workload(conditions)
    job = queues("j", "a") if state is JobState.QUEUED else runs("j", "a", 1, "n", state=state)
    patches = Kueue().patches(job, observed(found), NOW)
    changed = {}
    for patch in patches:
        status = patch.patch["status"]
        assert patch.subresource == "status"
        assert ("admission" in status) is ("QuotaReserved" in expected)
        assert {one["type"] for one in status["conditions"]} >= conditions.keys(), "none is lost"
        old = {one["type"]: one for one in found["status"]["conditions"]}
        changed = {one["type"]: one["status"] for one in status["conditions"] if one != old.get(one["type"])}
    assert changed == expected


def test_queues_of_teams_do_what_the_files_say() -> None:
    kinds = (replace(CLUSTER.gpu_types[0], tolerations=(Toleration("gpu", "Exists"),)), *CLUSTER.gpu_types[1:])
    quota = {"a100": 4, "mi300": 2, "a100-1g": Fraction(284, 1000)}
    here = cluster_state(team("a", quota, preempt_within_team=True), team("b", 8))
    cluster = replace(KUEUE, gpu_types=kinds, extended_resources=(ExtendedResource("rdma/hca"),))
    made = queue_objects(cluster, here.teams, ("jobs", "special"))
    found = {
        (one.manifest["kind"], one.manifest["metadata"].get("namespace", ""), one.name): one.manifest for one in made
    }
    assert found["ResourceFlavor", "", "a100"]["spec"] == {
        "nodeLabels": {"gpu": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    assert found["WorkloadPriorityClass", "", "high"]["value"] == 100
    assert {key for key in found if key[0] == "LocalQueue"} == {
        ("LocalQueue", namespace, name)
        for namespace in ("jobs", "special")
        for name in ("team-a", "team-a-preemptible")
    }, "team b has a queue of its own"
    for name, quotas, limit, within in (
        ("team-a", {"a100": "4", "v100": "0", "mi300": "2", "a100-1g": "2"}, "0", "LowerPriority"),
        ("team-a-preemptible", dict.fromkeys(("a100", "v100", "mi300", "a100-1g"), "0"), None, "Never"),
    ):
        spec = found["ClusterQueue", "", name]["spec"]
        assert spec["cohortName"] == "dlspawner"
        assert spec["preemption"]["withinClusterQueue"] == within
        flavors = [flavor for group in spec["resourceGroups"][:-1] for flavor in group["flavors"]]
        assert {one["name"]: one["resources"][0]["nominalQuota"] for one in flavors} == quotas
        assert {one["resources"][0].get("borrowingLimit") for one in flavors} == {limit}
        assert [group["coveredResources"] for group in spec["resourceGroups"]] == [
            ["nvidia.com/gpu"],
            ["amd.com/gpu"],
            ["nvidia.com/mig-1g.10gb"],
            ["cpu", "memory", "rdma/hca"],
        ]
