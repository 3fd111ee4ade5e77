"""What pods and PodGroups carry for each engine: the projects' own examples, and their rules.

Volcano, coscheduling and Kubernetes' own gangs also run for real (`tests/component/manager/test_gang_hub.py`); KAI,
kube-batch and HiveD are compared with their documented schemas here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.config import PriorityClasses, SchedulerConfig, SchedulingConfig
from dlspawner.core.decisions import EngineAdmits, EngineEvicts, EngineVerdict, EngineWaits
from dlspawner.core.job import Job
from dlspawner.core.schedulers.coscheduling import COSCHEDULING
from dlspawner.core.schedulers.engine import Observed
from dlspawner.core.schedulers.gang import GANG
from dlspawner.core.schedulers.hived import HIVED
from dlspawner.core.schedulers.kai import KAI
from dlspawner.core.schedulers.kube_batch import KUBE_BATCH
from dlspawner.core.schedulers.pod_groups import PodGroups
from dlspawner.core.schedulers.volcano import VOLCANO
from tests.unit.core.factories import CLUSTER, wants

CLASSES = PriorityClasses("dl-guaranteed", "dl-preemptible")
HERE = replace(
    CLUSTER,
    scheduling=SchedulingConfig(classes=CLASSES),
    scheduler=SchedulerConfig(queues=(("vision", "team-a"),), priority_classes=(("prod", "dl-prod"),)),
)
NOTHING = Observed({}, {})
ENGINES = {"volcano": VOLCANO, "coscheduling": COSCHEDULING, "kube-batch": KUBE_BATCH, "kai": KAI, "gang": GANG}

# Of a guaranteed job of two pods with a GPU each: version, and metadata and spec beside name and job; the pods' keys.
EXAMPLES: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "volcano": (
        "scheduling.volcano.sh/v1beta1",
        {
            "annotations": {"volcano.sh/preemptable": "false"},
            "spec": {
                "minMember": 2,
                "queue": "team-a",
                "priorityClassName": "dl-prod",
            },
        },
        {
            "annotations": {"scheduling.k8s.io/group-name": "j-1", "volcano.sh/preemptable": "false"},
            "spec": {"schedulerName": "volcano"},
        },
    ),
    "coscheduling": (
        "scheduling.x-k8s.io/v1alpha1",
        {"spec": {"minMember": 2}},
        {
            "labels": {"scheduling.x-k8s.io/pod-group": "j-1"},
            "spec": {"schedulerName": "scheduler-plugins-scheduler"},
        },
    ),
    "kube-batch": (
        "scheduling.incubator.k8s.io/v1alpha1",
        {"spec": {"minMember": 2, "queue": "team-a", "priorityClassName": "dl-prod"}},
        {"annotations": {"scheduling.k8s.io/group-name": "j-1"}, "spec": {"schedulerName": "kube-batch"}},
    ),
    "kai": (
        "scheduling.run.ai/v2alpha2",
        {
            "spec": {
                "minMember": 2,
                "queue": "team-a",
                "priorityClassName": "dl-prod",
                "preemptibility": "non-preemptible",
            }
        },
        {
            "labels": {"kai.scheduler/queue": "team-a"},
            "annotations": {"pod-group-name": "j-1", "kai.scheduler/skip-podgrouper": "true"},
            "spec": {"schedulerName": "kai-scheduler"},
        },
    ),
    "gang": (
        "scheduling.k8s.io/v1beta1",
        {
            "spec": {
                "schedulingPolicy": {"gang": {"minCount": 2}},
                "disruptionMode": {"all": {}},
                "priorityClassName": "dl-prod",
            }
        },
        {"spec": {"schedulerName": "default-scheduler", "schedulingGroup": {"podGroupName": "j-1"}}},
    ),
}


def job(gpus: Any = (1, 1), **more: Any) -> Job:
    return wants("j-1", "vision", gpus, priority=100, **more)


@pytest.mark.parametrize("name", EXAMPLES)
def test_group_and_pods_are_those_of_the_engines_examples(name: str) -> None:
    version, group, member = EXAMPLES[name]
    (made,) = ENGINES[name].objects(job(), HERE, NOTHING)
    metadata = {"name": "j-1", "labels": {naming.JOB_LABEL: "j-1"}}
    metadata |= {"annotations": group["annotations"]} if "annotations" in group else {}
    assert made.manifest == {"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": group["spec"]}
    assert made.kind.group_version == version
    annotations = {**member.get("annotations", {}), naming.ENGINE_ANNOTATION: ENGINES[name].title}
    metadata = {"annotations": annotations} | ({"labels": member["labels"]} if "labels" in member else {})
    wanted = {"metadata": metadata, "spec": {"priorityClassName": "dl-prod", **member["spec"]}}
    assert ENGINES[name].additions(job(), HERE, NOTHING) == (wanted, wanted)


@pytest.mark.parametrize("engine", [*ENGINES.values(), HIVED], ids=lambda one: one.title)
def test_all_pods_of_a_job_have_one_priority_class_and_a_preemptible_job_the_lowest(engine: PodGroups) -> None:
    for level, preemptible, expected in ((100, False, "dl-prod"), (10, False, "dl-guaranteed"), (100, True, None)):
        asked = replace(job((1, 2, 0)), priority=level, preemptible=preemptible)
        added = engine.additions(asked, HERE, NOTHING)
        assert {one["spec"]["priorityClassName"] for one in added} == {expected or "dl-preemptible"}


def test_preemptible_jobs_are_so_by_name() -> None:
    asked = job(preemptible=True)
    (group,), (kai,) = VOLCANO.objects(asked, HERE, NOTHING), KAI.objects(asked, HERE, NOTHING)
    annotations = [one["metadata"]["annotations"] for one in VOLCANO.additions(asked, HERE, NOTHING)]
    for one in (group.manifest["metadata"]["annotations"], *annotations):
        assert one["volcano.sh/preemptable"] == "true"
    assert kai.manifest["spec"]["preemptibility"] == "preemptible"


def test_scheduler_name_of_the_file_wins() -> None:
    here = replace(HERE, scheduler=replace(HERE.scheduler, scheduler_name="gpu-scheduler"))
    for engine in (*ENGINES.values(), HIVED):
        assert {one["spec"]["schedulerName"] for one in engine.additions(job(), here, NOTHING)} == {"gpu-scheduler"}


# The experiments of OpenPAI's lab, as far as they show in what HiveD is asked for; it is the judge of these. Of the
# native engine they are in test_sharing (safety), test_preemption (priority), test_out_of_share (opportunistic),
# test_gangs, test_queue (incremental: jobs start until nothing fits) and test_quota (more than the quota).


def hived(asked: Job) -> list[dict[str, Any]]:
    """What HiveD reads of each pod with cells, checked as HiveD checks it (pkg/internal/utils.go)."""
    found = []
    for added in HIVED.additions(asked, HERE, NOTHING):
        written = added["metadata"]["annotations"].get("hivedscheduler.microsoft.com/pod-scheduling-spec")
        if written is None:
            continue
        spec = json.loads(written)
        members = spec["affinityGroup"]["members"]
        assert spec["virtualCluster"]
        assert -1 <= spec["priority"] <= 1000
        assert spec["leafCellNumber"] > 0
        assert spec["affinityGroup"]["name"]
        assert all(one["podNumber"] > 0 and one["leafCellNumber"] > 0 for one in members)
        assert spec["leafCellNumber"] in {one["leafCellNumber"] for one in members}
        found.append(spec)
    return found


def test_hived_experiment_virtual_cluster_safety_a_job_is_in_its_own_teams() -> None:
    (spec,) = hived(job(4))
    assert spec == {
        "virtualCluster": "team-a",
        "priority": 100,
        "leafCellType": "a100",
        "leafCellNumber": 4,
        "gangReleaseEnable": False,
        "lazyPreemptionEnable": False,
        "ignoreK8sSuggestedNodes": True,
        "affinityGroup": {"name": "j-1", "members": [{"podNumber": 1, "leafCellNumber": 4}]},
    }


@pytest.mark.parametrize("level", [120, 100, 10])  # crit, prod and test of OpenPAI
def test_hived_experiment_priority_is_the_level(level: int) -> None:
    (spec,) = hived(replace(job(1), priority=level))
    assert spec["priority"] == level


def test_hived_experiments_opportunistic_and_more_than_the_quota_are_minus_one() -> None:
    (spec,) = hived(job(64, preemptible=True))
    assert (spec["priority"], spec["virtualCluster"]) == (-1, "team-a")


def test_hived_experiment_gang_names_every_pod_with_cells_once() -> None:
    specs = hived(job((0, 4, 4, 1)))
    assert [one["leafCellNumber"] for one in specs] == [4, 4, 1]
    members = [{"podNumber": 1, "leafCellNumber": 1}, {"podNumber": 2, "leafCellNumber": 4}]
    assert [one["affinityGroup"] for one in specs] == [{"name": "j-1", "members": members}] * 3


def test_hived_experiment_incremental_each_job_is_a_group_of_its_own() -> None:
    first, second = hived(job(1)), hived(replace(job(1), id="j-2"))
    assert first[0]["affinityGroup"]["name"] != second[0]["affinityGroup"]["name"]


def test_hived_pods_ask_for_the_token_instead_of_gpus_and_for_cpu_and_memory_in_proportion_to_cells() -> None:
    chief, worker = HIVED.additions(job((0, 4), cpu=7), HERE, NOTHING)
    assert "container" not in chief
    amounts = {
        "hivedscheduler.microsoft.com/pod-scheduling-enable": "1",
        "nvidia.com/gpu": None,
        "cpu": "16",
        "memory": "64Gi",
    }
    assert worker["container"]["resources"] == {"limits": amounts, "requests": amounts}
    (visible,) = worker["container"]["env"]
    path = "metadata.annotations['hivedscheduler.microsoft.com/pod-leaf-cell-isolation']"
    assert visible == {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    assert worker["spec"]["schedulerName"] == "hivedscheduler-ds-team-a"
    (cpu_only,) = HIVED.additions(job(0), HERE, NOTHING)
    assert cpu_only["spec"]["schedulerName"] == "default-scheduler"


# Verdicts


def pod(node: str = "", *conditions: tuple[str, str, str, str]) -> dict[str, Any]:
    told = [dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in conditions]
    return {"spec": {"nodeName": node} if node else {}, "status": {"conditions": told}}


FULL = ("PodScheduled", "False", "Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
VERDICTS: list[tuple[str, tuple[dict[str, Any], ...], EngineVerdict | None]] = [
    ("a pod is not seen yet", (pod("n1"),), None),
    ("both have a node", (pod("n1"), pod("n2")), EngineAdmits()),
    (
        "no words yet",
        (pod("n1"), pod()),
        EngineWaits("Volcano has its pods, and has not placed them yet."),
    ),
    (
        "a pod says why",
        (pod("n1"), pod("", FULL)),
        EngineWaits(f"Volcano has no place for it yet: {FULL[-1]}."),
    ),
    (
        "Volcano evicts",
        (pod("n1", ("Ready", "False", "Evict", "Pod is evicted, because of reclaim")), pod("n2")),
        EngineEvicts("Volcano has stopped it for another job: Pod is evicted, because of reclaim."),
    ),
    (
        "a scheduler preempts, of several pods one is gone",
        (pod("n1", ("DisruptionTarget", "True", "PreemptionByScheduler", "")),),
        EngineEvicts("Volcano has stopped it for another job: it gave no reason."),
    ),
    (
        "another disruption is not the engine's",
        (pod("n1", ("DisruptionTarget", "True", "EvictionByEvictionAPI", "")), pod("n2")),
        EngineAdmits(),
    ),
]


@pytest.mark.parametrize(("what", "pods", "expected"), VERDICTS, ids=[one[0] for one in VERDICTS])
def test_verdict_is_read_from_the_pods(
    what: str, pods: tuple[dict[str, Any], ...], expected: EngineVerdict | None
) -> None:
    assert VOLCANO.verdict(job(), Observed({}, {}, pods)) == expected


def test_waiting_job_is_told_its_groups_reason_before_a_pods() -> None:
    said = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"
    for engine, told in ((VOLCANO, ("Unschedulable", "True")), (GANG, ("PodGroupInitiallyScheduled", "False"))):
        condition = {"type": told[0], "status": told[1], "message": said}
        assert engine.kind is not None
        own = {(engine.kind, "j-1"): {"status": {"conditions": [condition]}}}
        verdict = engine.verdict(job(), Observed(own, {}, (pod("", FULL), pod("", FULL))))
        assert verdict == EngineWaits(f"{engine.title} has no place for it yet: {said}.")
