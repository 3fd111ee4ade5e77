"""Kinds of GPUs: how a pod asks for units, what it is charged, and how many GPUs a node has."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspawner.core.config import CpuMemory, GpuType, SpecialPermission
from dlspawner.core.decisions import Refuse
from dlspawner.core.gpus import request_units, without_claims_of
from dlspawner.core.launch import pod_set
from dlspawner.core.launch.pod import disable_gpus_by_default
from dlspawner.core.launch.security import disallowed
from dlspawner.core.nodes import ForeignUsage, Node, in_gpus
from dlspawner.core.resources import ResourceRequest, request_of, strip_manifest
from dlspawner.core.units import GPU
from tests.unit.core.factories import CLUSTER, MIG

NVIDIA = "nvidia.com/gpu"
_PART = GpuType("", "", NVIDIA, CpuMemory(4000, 2**30), 64, share=Fraction(1, 4))
GPUMEM, GPUCORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
HAMI = replace(_PART, name="hami", beside=((GPUMEM, 4096), (GPUCORES, 25)), shown=(NVIDIA, 10))
ALNAIR = replace(
    _PART,
    name="alnair",
    resource="alnair/vgpu-compute",
    amount=25,
    beside=(("alnair/vgpu-memory", 4),),
    shown=("alnair/vgpu-compute", 100),
)
FRACTION = replace(_PART, name="kai", resource="gpu-fraction/0.25", shown=(NVIDIA, 1), scheduler_name="kai-scheduler")
MEMORY = replace(FRACTION, name="kai-memory", resource="gpu-memory/4096")
WHOLE = replace(_PART, name="whole", share=Fraction(1))
CLAIMED = replace(WHOLE, name="claimed", resource="claim/h100", per_node=8)
EXTENDED = replace(WHOLE, name="extended", per_node=8)
KINDS = (WHOLE, MIG, HAMI, ALNAIR, FRACTION, MEMORY, CLAIMED)


def pod_with(kind: GpuType, count: int) -> dict[str, Any]:
    asks = request_units(kind, count, "main")
    work = {"name": "main", "resources": {"limits": asks.limits, "requests": asks.limits, "claims": asks.claim_names}}
    spec = {"containers": [{"name": "notebook"}, work], "resourceClaims": list(asks.claims)}
    return {"metadata": {"annotations": asks.annotations}, "spec": spec}


ASKED: dict[str, tuple[GpuType, int, dict[str, str], dict[str, str]]] = {
    "whole GPUs": (WHOLE, 2, {NVIDIA: "2"}, {}),
    "MIG profiles": (MIG, 3, {"nvidia.com/mig-1g.10gb": "3"}, {}),
    "HAMi: the size is of each": (HAMI, 2, {NVIDIA: "2", GPUMEM: "4096", GPUCORES: "25"}, {}),
    "Alnair": (ALNAIR, 1, {"alnair/vgpu-compute": "25", "alnair/vgpu-memory": "4"}, {}),
    "KAI": (FRACTION, 1, {}, {"gpu-fraction": "0.25", "gpu-fraction-container-name": "main"}),
    "KAI by memory": (MEMORY, 1, {}, {"gpu-memory": "4096", "gpu-fraction-container-name": "main"}),
    "none": (HAMI, 0, {}, {}),
}


@pytest.mark.parametrize(("kind", "count", "limits", "annotations"), ASKED.values(), ids=ASKED)
def test_limits_and_annotations_ask_for_units(
    kind: GpuType, count: int, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    asks = request_units(kind, count, "main")
    assert (asks.limits, asks.annotations) == (limits, annotations)


def test_each_gpu_that_is_claimed_is_a_claim_of_its_own() -> None:
    asks = request_units(CLAIMED, 2, "main")
    assert (asks.limits, asks.annotations, asks.claim_names) == ({}, {}, [{"name": "gpu-0"}, {"name": "gpu-1"}])
    assert [one["resourceClaimTemplateName"] for one in asks.claims] == ["h100", "h100"]


@given(st.sampled_from(KINDS), st.integers(1, 8))
def test_what_is_asked_for_is_charged_and_seen(kind: GpuType, count: int) -> None:
    if kind in (ALNAIR, FRACTION, MEMORY):
        count = 1
    cluster = replace(CLUSTER, gpu_types=(MIG, ALNAIR, MEMORY, *([kind] if kind not in (MIG, ALNAIR, MEMORY) else [])))
    pod = pod_with(kind, count)
    charged = request_of([strip_manifest(pod)], cluster)
    assert isinstance(charged, ResourceRequest), charged
    assert (charged.gpu_type, charged.gpus) == (kind.name, count * kind.milli)
    work = disable_gpus_by_default(pod, cluster.gpu_resources)["spec"]["containers"][1]
    hidden = "NVIDIA_VISIBLE_DEVICES" in {one["name"] for one in work["env"]}
    assert hidden is (kind is CLAIMED), "devices that are claimed come by CDI"


WRONG: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "a larger part": (
        {NVIDIA: "1", GPUMEM: "8192", GPUCORES: "25"},
        {},
        f"{GPUMEM} must be 4096 in a container of type",
    ),
    "a whole GPU as a part": (
        {NVIDIA: "1"},
        {},
        f"{GPUCORES} must be 25 in a container of type hami; the pod asks for 0",
    ),
    "a part without a GPU, which HAMi adds": ({GPUMEM: "4096"}, {}, f"{GPUMEM} must be 0 in a container without a GPU"),
    "a fraction that is of no type": ({}, {"gpu-fraction": "0.9"}, "“gpu-fraction/0.9”, which is no GPU type"),
    "a fraction of several GPUs": ({}, {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "65"}, "asks for 16.25."),
    "a number that is none": ({}, {"gpu-memory": "4096", "gpu-fraction-num-devices": "all"}, "not one that Kubernetes"),
    "fewer than no GPUs": ({}, {"gpu-memory": "4096", "gpu-fraction-num-devices": "-1"}, "not one that Kubernetes"),
    "a part beside a whole GPU": (
        {NVIDIA: "1", GPUMEM: "4096", GPUCORES: "25"},
        {"gpu-fraction": "0.25"},
        "of one type",
    ),
}


@pytest.mark.parametrize(("limits", "annotations", "words"), WRONG.values(), ids=WRONG)
def test_other_parts_are_refused(limits: dict[str, str], annotations: dict[str, str], words: str) -> None:
    cluster = replace(CLUSTER, gpu_types=(HAMI, FRACTION, MEMORY))
    container = {"name": "main", "resources": {"limits": limits}}
    refused = request_of([{"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}], cluster)
    assert isinstance(refused, Refuse), refused
    assert words in refused.sentence


def test_claims_of_gpu_types_are_no_special_permission() -> None:
    pod, others = pod_with(CLAIMED, 2), frozenset(SpecialPermission) - {SpecialPermission.DEVICES}
    assert disallowed(without_claims_of(pod, KINDS), others) == ()
    pod["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimTemplateName": "nic"})
    assert [one.what for one in disallowed(without_claims_of(pod, KINDS), others)] == ["resourceClaims"]


@pytest.mark.parametrize("kind", [CLAIMED, FRACTION, HAMI], ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1])
def test_further_pods_of_a_job_ask_for_as_many_as_their_role(kind: GpuType, count: int) -> None:
    roles = [
        pod_set.Role(name, 1, request_units(kind, gpus, "main").limits, gpus=gpus)
        for name, gpus in (("a", 1), ("b", count))
    ]
    first = pod_with(kind, 1)
    first["metadata"] |= {"name": "jupyter-ann", "labels": {}}
    (further,) = pod_set.further_pods(pod_set.as_first(first, pod_set.PodSet(tuple(roles)), "s", "x"))
    cluster = replace(CLUSTER, gpu_types=(kind,))
    charged = request_of([strip_manifest(further)], cluster)
    assert isinstance(charged, ResourceRequest), charged
    assert charged.gpus == count * kind.milli
    (work,) = further["spec"]["containers"]
    claims = further["spec"].get("resourceClaims") or []
    assert [one["name"] for one in work["resources"].get("claims", [])] == [one["name"] for one in claims]


SHOWN: dict[str, tuple[GpuType, str, int, int, int]] = {
    "whole GPUs, of which others hold one": (WHOLE, NVIDIA, 4, 4000, 1000),
    "fourteen parts of two GPUs": (MIG, "nvidia.com/mig-1g.10gb", 14, 1988, 142),
    "HAMi shows each GPU ten times": (HAMI, NVIDIA, 20, 2000, 250),
    "Alnair shows percents": (ALNAIR, "alnair/vgpu-compute", 200, 2000, 250),
    "claims, of which nodes show nothing": (CLAIMED, "rdma/hca", 1, 8000, 0),
    "DRA by a resource, of which nodes show nothing": (EXTENDED, "rdma/hca", 1, 8000, 0),
    "KAI's nodes show whole GPUs, and its reservations hold them": (FRACTION, NVIDIA, 2, 2000, 0),
}


@pytest.mark.parametrize(("kind", "resource", "amount", "milli", "others"), SHOWN.values(), ids=SHOWN)
def test_a_node_has_gpus_of_a_kind(kind: GpuType, resource: str, amount: int, milli: int, others: int) -> None:
    node = Node("n", ((resource, amount * GPU),), others=ForeignUsage(((resource, GPU),)))
    found = in_gpus(node, [kind])
    assert found.gpus_of(kind.resource) == milli
    assert dict(found.others.gpus).get(kind.resource, 0) == others
