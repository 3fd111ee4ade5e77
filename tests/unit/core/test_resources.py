"""Charges: the resources of the final pod manifest, from every source of a number."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import CpuMemory, ExtendedResource, GpuType
from dlspawner.core.decisions import Reason, Refuse
from dlspawner.core.nodes import ForeignUsage, read_node
from dlspawner.core.resources import ResourceRequest, foreign_usage, request_of
from dlspawner.core.units import GPU, shown
from tests.unit.core.factories import CLUSTER, GIB

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
ON_A100 = {"nodeSelector": {"gpu": "a100"}}


def box(limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A container."""
    kinds = {"limits": limits, "requests": requests}
    return {"name": "c", "resources": {key: value for key, value in kinds.items() if value is not None}} | more


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> dict[str, Any]:
    return {"spec": {**ON_A100, **spec, "containers": list(containers), "initContainers": list(init)}}


def node_terms(*terms: dict[str, list[str]]) -> dict[str, Any]:
    """A required node affinity; the terms are alternatives."""
    written = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": values} for key, values in term.items()]}
        for term in terms
    ]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": written}}
    return {"nodeSelector": None, "affinity": {"nodeAffinity": affinity}}


ONE, SIDECAR = box({NVIDIA: 1}), box({NVIDIA: 1}, restartPolicy="Always")
CHARGED: dict[str, tuple[dict[str, Any], str]] = {
    "no GPU costs no GPU": (pod(box()), "None 0"),
    "limits count": (pod(box({NVIDIA: "2"})), "a100 2"),
    "requests count where limits say less": (pod(box({NVIDIA: 1}, {NVIDIA: 2})), "a100 2"),
    "several containers add up": (pod(ONE, box({NVIDIA: "2"})), "a100 3"),
    "an init container is over before the others begin": (
        pod(ONE, init=(box({NVIDIA: 3}), box({NVIDIA: 2}))),
        "a100 3",
    ),
    "a sidecar goes on beside the others": (pod(ONE, init=(box({NVIDIA: 2}, restartPolicy="Always"),)), "a100 3"),
    "an init container runs beside the sidecars before it": (pod(ONE, init=(SIDECAR, box({NVIDIA: 4}))), "a100 5"),
    "and without those after it": (pod(ONE, init=(box({NVIDIA: 2}), SIDECAR)), "a100 2"),
    "overhead adds up": (pod(ONE, overhead={NVIDIA: 1}), "a100 2"),
    "another vendor's GPU is another type": (pod(box({AMD: 2}), nodeSelector=None), "mi300 2"),
    "the type follows from the node selector": (pod(ONE, nodeSelector={"gpu": "v100"}), "v100 1"),
    "the type follows from a required affinity": (pod(ONE, **node_terms({"gpu": ["v100"]})), "v100 1"),
    "alternatives that agree are no doubt": (
        pod(ONE, **node_terms({"gpu": ["v100"], "zone": ["x"]}, {"gpu": ["v100"]})),
        "v100 1",
    ),
    "parts of a GPU cost their share": (pod(box({"nvidia.com/mig-1g.10gb": 2, "cpu": 1})), "a100-1g 0.284"),
    "a network card is no GPU": (pod(box({NVIDIA: 1, "nvidia.com/hostdev": 1})), "a100 1"),
    "an extended resource that is no GPU is counted beside them": (
        pod(box({NVIDIA: 1, "rdma/hca": 1, "hugepages-2Mi": "4Mi"}), box(None, {"rdma/hca": 1, "x.io/y": 0})),
        "a100 1 rdma/hca=2",
    ),
    "what the cluster file counts is no unknown GPU": (pod(box({"x.io/fpga": 2})), "None 0 x.io/fpga=2"),
}
COUNTING = replace(CLUSTER, extended_resources=(ExtendedResource("x.io/fpga", "FPGAs", 2),))


@pytest.mark.parametrize(("manifest", "expected"), CHARGED.values(), ids=CHARGED)
def test_charge(manifest: dict[str, Any], expected: str) -> None:
    charged = request_of([manifest], COUNTING)
    assert isinstance(charged, ResourceRequest), charged
    others = "".join(f" {name}={amount // GPU}" for name, amount in charged.extended if name != "nvidia.com/hostdev")
    assert f"{charged.gpu_type} {shown(charged.gpus)}{others}" == expected


MALFORMED, UNKNOWN_TYPE, NOT_ALLOWED = Reason.MALFORMED, Reason.UNKNOWN_TYPE, Reason.NOT_ALLOWED
TOO_SMALL, EXCEEDS_LIMIT = Reason.NODE_TOO_SMALL, Reason.EXCEEDS_LIMIT
REFUSED: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "half a GPU": (pod(box({NVIDIA: "500m"})), MALFORMED, "must be a whole number"),
    "a negative number": (pod(box({NVIDIA: -1})), MALFORMED, "from 0 to 1,000,000; the pod asks for -1."),
    "a huge number": (pod(box({NVIDIA: "9e18"})), MALFORMED, "from 0 to 1,000,000"),
    "true": (pod(box({NVIDIA: True})), MALFORMED, "asks for true"),
    "not a number": (pod(box({NVIDIA: float("nan")})), MALFORMED, "from 0 to 1,000,000"),
    "words": (pod(box({NVIDIA: "all"})), MALFORMED, "asks for “all”"),
    "CPU that is no number": (
        pod(box({"cpu": "many"})),
        MALFORMED,
        "cpu must be an amount such as 2, “500m” or “4Gi”; the pod asks for “many”.",
    ),
    "a container that is no container": ({"spec": {"containers": [7]}}, MALFORMED, "Kubernetes"),
    "a vendor without a type": (pod(box({"gpu.intel.com/i915": 1})), UNKNOWN_TYPE, "no GPU type"),
    "a part of a GPU that is of no type": (pod(box({"nvidia.com/mig-2g.20gb": 1})), UNKNOWN_TYPE, "no GPU type"),
    "another name for a GPU of a known vendor": (pod(box({"nvidia.com/A100": 1})), UNKNOWN_TYPE, "no GPU type"),
    "a claimed device": (pod(box(), resourceClaims=[{"name": "gpu"}]), NOT_ALLOWED, "can not be claimed"),
    "a container's claim": (
        pod(box() | {"resources": {"claims": [{"name": "gpu"}]}}, resourceClaims=[{"name": "gpu"}]),
        NOT_ALLOWED,
        "can not be claimed",
    ),
    "GPUs of one of several types": (
        pod(ONE, nodeSelector=None),
        UNKNOWN_TYPE,
        "may get a100 or v100: choose the type",
    ),
    "an affinity that leaves it open": (
        pod(ONE, **node_terms({"gpu": ["v100"]}, {"zone": ["x"]})),
        UNKNOWN_TYPE,
        "may get a100 or v100",
    ),
    "two vendors in one pod": (pod(box({NVIDIA: 1, AMD: 1})), NOT_ALLOWED, "of one type"),
    "more GPUs than a job may have": (pod(box({NVIDIA: 65})), EXCEEDS_LIMIT, "may have 64 GPUs"),
    "more of an extended resource than a job may have": (
        pod(box({"x.io/fpga": 3})),
        EXCEEDS_LIMIT,
        "A job may have 2 FPGAs (x.io/fpga); this one asks for 3.",
    ),
    "half an extended resource": (pod(box({"rdma/hca": "500m"})), MALFORMED, "rdma/hca must be a whole number"),
    "more parts of GPUs than a job may have": (
        pod(box({"nvidia.com/mig-1g.10gb": 65})),
        EXCEEDS_LIMIT,
        "may have 9.088 GPUs of type a100-1g; this one asks for 9.23.",
    ),
    "more CPU than belongs to parts of GPUs": (
        pod(box({"nvidia.com/mig-1g.10gb": 2, "cpu": "1001m"})),
        TOO_SMALL,
        "at most 1 for 2 × a100-1g",
    ),
    "more CPU than belongs to the GPUs": (pod(box({NVIDIA: 2, "cpu": "8001m"})), TOO_SMALL, "at most 8 for 2 × a100"),
    "more memory than belongs to the GPUs": (pod(box({NVIDIA: 1, "memory": "17Gi"})), TOO_SMALL, "at most 16 GiB"),
    "a limit beyond it counts, too": (pod(box({NVIDIA: 1, "cpu": 5}, {"cpu": 1})), TOO_SMALL, "CPUs must be at most 4"),
    "a first container may not have more": (
        pod(ONE, init=(box({"cpu": 64}),)),
        TOO_SMALL,
        "CPUs must be at most 4 for 1 × a100; the pod asks for 64",
    ),
    "nor may the pod as a whole": (
        pod(box(), resources={"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"memory": "400Gi"}}),
        TOO_SMALL,
        "Memory must be at most 8 GiB for a job without GPUs; the pod asks for 400 GiB",
    ),
}


@pytest.mark.parametrize(("manifest", "reason", "words"), REFUSED.values(), ids=REFUSED)
def test_charge_is_refused(manifest: dict[str, Any], reason: Reason, words: str) -> None:
    refused = request_of([manifest], COUNTING)
    assert isinstance(refused, Refuse), refused
    assert refused.reason is reason
    assert words in refused.sentence


def test_all_pods_of_a_job_are_charged() -> None:
    charged = request_of([pod(box()), pod(box({NVIDIA: 2})), pod(box({NVIDIA: 3}))], CLUSTER)
    assert isinstance(charged, ResourceRequest)
    assert [one.gpus // GPU for one in charged.pods] == [0, 2, 3]


def test_pods_of_one_job_have_gpus_of_one_type() -> None:
    refused = request_of([pod(ONE), pod(ONE, nodeSelector={"gpu": "v100"})], CLUSTER)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.NOT_ALLOWED


def test_cpu_and_memory_are_what_the_scheduler_counts() -> None:
    init = (box(None, {"cpu": "50m", "memory": "2Gi"}),)
    manifest = pod(
        box({"cpu": 2, "memory": "1Gi"}, {"cpu": 1}), box({"cpu": "500m"}), init=init, overhead={"cpu": "10m"}
    )
    charged = request_of([manifest], CLUSTER)
    assert isinstance(charged, ResourceRequest)
    assert (charged.pods[0].cpu_milli, charged.pods[0].memory_bytes) == (1510, 2 * GIB)


def test_ambiguous_gpu_type_is_refused() -> None:
    anything = GpuType("any", "Any", NVIDIA, CpuMemory(4000, 16 * GIB), 8)
    cluster = replace(CLUSTER, gpu_types=(anything, *CLUSTER.gpu_types))
    found = request_of([pod(ONE, nodeSelector={"gpu": "v100"})], cluster)
    assert isinstance(found, Refuse)
    assert "may get any or v100" in found.sentence


def test_other_pods_hold_their_requests_until_they_end() -> None:
    ended = pod(box({NVIDIA: 4})) | {"status": {"phase": "Succeeded"}}
    running = pod(box({NVIDIA: 1, "cpu": 2}, {"cpu": 1}), box(None, {"memory": "1Gi"})) | {
        "status": {"phase": "Running"}
    }
    assert foreign_usage([ended, running, running]) == ForeignUsage(((NVIDIA, 2 * GPU),), 2000, 2 * GIB)
    claims = [{"name": "gpu-0", "resourceClaimTemplateName": "h100"}]
    parts = {"metadata": {"annotations": {"gpu-fraction": "0.25"}}, "spec": {"resourceClaims": claims}}
    assert foreign_usage([parts]).gpus == (("annotation/gpu-fraction", 250 * GPU), ("claim/h100", GPU))
    unknown = {**running, "metadata": {"annotations": {"gpu-memory": "4Gi"}}}
    assert foreign_usage([unknown]) == ForeignUsage(((NVIDIA, GPU),), 1000, GIB), "of an annotation that is not KAI's"


def test_a_node_is_read_as_kubernetes_describes_it() -> None:
    manifest = {
        "metadata": {
            "name": "n1",
            "labels": {"gpu": "a100"},
            "annotations": {
                "dlspawner.dev/cordon-reason": "New disk",
                "dlspawner.dev/drain-at": "2026-05-04T14:00:00+02:00",
            },
        },
        "spec": {"unschedulable": True, "taints": [{"key": "own", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "31500m", "memory": "1Gi", NVIDIA: "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    found = read_node(manifest)

    assert (found.name, found.gpus, found.cpu_milli, found.memory_bytes) == ("n1", ((NVIDIA, 8 * GPU),), 31_500, GIB)
    assert (found.cordoned, found.ready, found.open) == (True, True, False)
    assert (found.reason, found.drain_at) == ("New disk", datetime(2026, 5, 4, 12, tzinfo=UTC))
    assert read_node({"metadata": {"annotations": {"dlspawner.dev/drain-at": "soon"}}}).drain_at is None
    assert dict(found.labels) == {"gpu": "a100"}
    assert [taint.key for taint in found.taints] == ["own"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([NVIDIA, "limits"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "containers", "initContainers", "resources", "limits", "requests", NVIDIA, "cpu"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["spec"]), VALUES))
@settings(max_examples=100)
def test_any_manifest_is_charged_or_refused(manifest: dict[str, Any]) -> None:
    charged = request_of([manifest], CLUSTER)
    assert isinstance(charged, Refuse) or charged.gpus >= 0


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "init", "sidecar"])), max_size=6))
@settings(max_examples=100)
def test_a_pod_costs_no_less_than_any_container_and_no_more_than_all(parts: list[tuple[int, str]]) -> None:
    containers = [box({NVIDIA: gpus}) for gpus, kind in parts if not kind]
    inits = [
        box({NVIDIA: gpus}, **({"restartPolicy": "Always"} if kind == "sidecar" else {}))
        for gpus, kind in parts
        if kind
    ]
    charged = request_of([pod(*containers, init=tuple(inits))], CLUSTER)
    assert isinstance(charged, ResourceRequest)
    assert max([gpus for gpus, _ in parts], default=0) <= charged.gpus / GPU <= sum(gpus for gpus, _ in parts)
