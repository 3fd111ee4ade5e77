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
from dlspawner.core.gpus import (
    KAI_FRACTION,
    KAI_MEMORY,
    KAI_MEMORY_PARTS,
    KAI_RESERVED,
    MEMORY_LABEL,
    request_units,
    without_claims_of,
)
from dlspawner.core.launch import pod_set
from dlspawner.core.launch.pod import disable_gpus_by_default
from dlspawner.core.launch.security import disallowed
from dlspawner.core.nodes import ForeignUsage, Node, in_gpus
from dlspawner.core.resources import ResourceRequest, foreign_usage, request_of, strip_manifest
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
KAI = replace(_PART, shown=(NVIDIA, 1), scheduler_name="kai-scheduler", any_size=True)
FRACTION = replace(KAI, name="kai", resource=KAI_FRACTION, amount=250)
MEMORY = replace(KAI, name="kai-memory", resource=KAI_MEMORY, amount=4096, also=((KAI_FRACTION, 250),))
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
    "KAI on two GPUs": (
        *(FRACTION, 2, {}),
        {"gpu-fraction": "0.25", "gpu-fraction-container-name": "main", "gpu-fraction-num-devices": "2"},
    ),
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
    if kind is ALNAIR:
        count = 1
    cluster = replace(CLUSTER, gpu_types=(MIG, ALNAIR, *([kind] if kind not in (MIG, ALNAIR) else [])))
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
    "a fraction of several GPUs": ({}, {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "65"}, "asks for 16.25."),
    "memory of a GPU of unknown size": ({}, {"gpu-memory": "4096"}, "“annotation/gpu-memory”, which is no GPU type"),
    "a fraction that is larger than a GPU": ({}, {"gpu-fraction": "1.5"}, "not one that Kubernetes"),
    "a fraction that is none": ({}, {"gpu-fraction": "nan"}, "not one that Kubernetes"),
    "fraction and memory": ({}, {"gpu-fraction": "0.25", "gpu-memory": "4096"}, "no GPU type"),
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
    cluster = replace(CLUSTER, gpu_types=(HAMI, FRACTION))
    container = {"name": "main", "resources": {"limits": limits}}
    refused = request_of([{"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}], cluster)
    assert isinstance(refused, Refuse), refused
    assert words in refused.sentence


SIZES: dict[str, tuple[GpuType, dict[str, str], int]] = {
    "a third, rounded up": (FRACTION, {"gpu-fraction": "0.3334"}, 334),
    "more than a unit": (FRACTION, {"gpu-fraction": "0.9"}, 900),
    "parts of two GPUs": (FRACTION, {"gpu-fraction": "0.3", "gpu-fraction-num-devices": "2"}, 600),
    "memory, by the size of a unit": (MEMORY, {"gpu-memory": "6000"}, 367),
    "memory of two GPUs": (MEMORY, {"gpu-memory": "6000", "gpu-fraction-num-devices": "2"}, 733),
    "a fraction where units are told in memory": (MEMORY, {"gpu-fraction": "0.5"}, 500),
}


@pytest.mark.parametrize(("kind", "annotations", "milli"), SIZES.values(), ids=SIZES)
def test_a_part_by_kai_costs_its_size(kind: GpuType, annotations: dict[str, str], milli: int) -> None:
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}}
    charged = request_of([strip_manifest(pod)], replace(CLUSTER, gpu_types=(kind,)))
    assert isinstance(charged, ResourceRequest), charged
    assert (charged.gpu_type, charged.gpus, charged.pods[0].resource) == (kind.name, milli, kind.resource)
    assert kind.milli_of({kind.resource: kind.amount_of(milli)}) == milli


OUTSIDE: dict[str, tuple[GpuType, dict[str, int], str, int]] = {
    "a fraction": (FRACTION, {KAI_FRACTION: 300}, "", 300),
    "memory, by the node's label": (FRACTION, {KAI_MEMORY: 4096}, "16384", 250),
    "memory of a GPU of unknown size is a GPU": (FRACTION, {KAI_MEMORY: 4096}, "", 1000),
    "two parts of GPUs of unknown size are two GPUs": (FRACTION, {KAI_MEMORY: 8192, KAI_MEMORY_PARTS: 2}, "", 2000),
    "memory, by the size of a unit": (MEMORY, {KAI_MEMORY: 8192}, "", 500),
    "a whole GPU beside KAI's own reservation of a shared one": (
        *(FRACTION, {NVIDIA: 2, KAI_RESERVED: 1, KAI_FRACTION: 250}),
        *("", 1250),
    ),
}


@pytest.mark.parametrize(("kind", "held", "memory", "milli"), OUTSIDE.values(), ids=OUTSIDE)
def test_parts_outside_the_hub_are_counted_on_their_node(
    kind: GpuType, held: dict[str, int], memory: str, milli: int
) -> None:
    others = ForeignUsage(tuple((name, amount * GPU) for name, amount in held.items()))
    node = Node("n", ((NVIDIA, 2 * GPU),), labels=((MEMORY_LABEL, memory),), others=others)
    found = in_gpus(node, [kind])
    assert (found.gpus_of(kind.resource), dict(found.others.gpus)[kind.resource]) == (2000, milli)


def test_reservations_of_kai_are_known_by_their_namespace() -> None:
    container = {"name": "main", "resources": {"limits": {NVIDIA: "1"}}}
    pod = {"metadata": {"namespace": "kai-resource-reservation"}, "spec": {"containers": [container]}}
    assert dict(foreign_usage([pod]).gpus) == {NVIDIA: GPU, KAI_RESERVED: GPU}


def test_claims_of_gpu_types_are_no_special_permission() -> None:
    pod, others = pod_with(CLAIMED, 2), frozenset(SpecialPermission) - {SpecialPermission.DEVICES}
    assert disallowed(without_claims_of(pod, KINDS), others) == ()
    pod["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimTemplateName": "nic"})
    assert [one.what for one in disallowed(without_claims_of(pod, KINDS), others)] == ["resourceClaims"]


@pytest.mark.parametrize("kind", [CLAIMED, FRACTION, HAMI], ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1, 2])
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
    "KAI's nodes show whole GPUs, of which others hold one": (FRACTION, NVIDIA, 2, 2000, 1000),
}


@pytest.mark.parametrize(("kind", "resource", "amount", "milli", "others"), SHOWN.values(), ids=SHOWN)
def test_a_node_has_gpus_of_a_kind(kind: GpuType, resource: str, amount: int, milli: int, others: int) -> None:
    node = Node("n", ((resource, amount * GPU),), others=ForeignUsage(((resource, GPU),)))
    found = in_gpus(node, [kind])
    assert found.gpus_of(kind.resource) == milli
    assert dict(found.others.gpus).get(kind.resource, 0) == others
