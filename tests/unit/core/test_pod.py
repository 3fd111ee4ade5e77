"""Manifests: a fragment is merged over a pod, and no container sees a GPU that was not requested."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.launch.pod import disable_gpus_by_default, merge_pod

GPUS = frozenset({"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "a.b/gpu"})


def a(**fields: Any) -> dict[str, Any]:
    """A pod of one container of this name."""
    return {"containers": [{"name": "a", **fields}]}


def env(**values: str) -> dict[str, Any]:
    return a(env=[{"name": name, "value": value} for name, value in values.items()])


def mounts(**paths: str) -> dict[str, Any]:
    """Volumes by the letters of their paths."""
    return a(volumeMounts=[{"name": volume, "mountPath": f"/{path}"} for path, volume in paths.items()])


SOURCE = {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}
NAMED, PLAIN = {"name": "notebook-port", "containerPort": 8888}, {"containerPort": 8888, "protocol": "TCP"}
OTHER = {"containerPort": 22}
MERGED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mappings merge leaf by leaf": (
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"b": "3"}}},
        {"metadata": {"labels": {"a": "1", "b": "3"}}},
    ),
    "containers merge by name and new ones come last": (
        {"containers": [{"name": "notebook", "image": "old", "tty": True}]},
        {"containers": [{"name": "main"}, {"name": "notebook", "image": "new"}]},
        {"containers": [{"name": "notebook", "image": "new", "tty": True}, {"name": "main"}]},
    ),
    "a variable's value and its source exclude each other": (env(X="1"), a(env=[SOURCE]), a(env=[SOURCE])),
    "a variable comes after those that it refers to": (env(URL="$(IP)"), env(IP="1"), env(IP="1", URL="$(IP)")),
    "variables that refer to each other stay as they are": (env(A="$(B)"), env(B="$(A)"), env(A="$(B)", B="$(A)")),
    "mounts merge by path": (mounts(d="v"), mounts(d="w", e="w"), mounts(d="w", e="w")),
    "ports merge by number and protocol": (a(ports=[NAMED]), a(ports=[PLAIN, OTHER]), a(ports=[NAMED | PLAIN, OTHER])),
    "a port of the same name is the same port": (
        a(ports=[{"name": "p", "containerPort": 1}]),
        a(ports=[{"name": "p", "containerPort": 2}]),
        a(ports=[{"name": "p", "containerPort": 2}]),
    ),
    "tolerations add up": (
        {"tolerations": [{"key": "a"}]},
        {"tolerations": [{"key": "b"}, {"key": "a"}]},
        {"tolerations": [{"key": "a"}, {"key": "b"}]},
    ),
    "another shape replaces": ({"x": {"a": 1}, "y": [1]}, {"x": [2], "y": {"b": 3}}, {"x": [2], "y": {"b": 3}}),
}

_VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
_ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}

_OTHERS = {
    "amd.com/gpu": {"name": "AMD_VISIBLE_DEVICES", "value": "none"},
    "habana.ai/gaudi": {"name": "HABANA_VISIBLE_DEVICES", "value": "none"},  # its runtime takes “void” for “all”
    "huawei.com/Ascend910": {"name": "ASCEND_VISIBLE_DEVICES", "value": "void"},
}
_ALL_HIDDEN = [_VOID, *_OTHERS.values()]
_NVIDIA_SEEN, _AMD_SEEN = _ALL_HIDDEN[1:], [one for one in _ALL_HIDDEN if one["name"] != "AMD_VISIBLE_DEVICES"]

HIDDEN: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "no GPU of any vendor": ({}, _ALL_HIDDEN),
    "the image's or form's own wish is void": (
        {"env": [_ALL, {"name": "A", "value": "1"}]},
        [*_ALL_HIDDEN, {"name": "A", "value": "1"}],
    ),
    "a GPU in the limits": ({"resources": {"limits": {"nvidia.com/gpu": 1}}, "env": [_ALL]}, _NVIDIA_SEEN),
    "a part of a GPU": ({"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}, "env": [_ALL]}, _NVIDIA_SEEN),
    "a GPU of an unknown vendor may be one of NVIDIA's": ({"resources": {"limits": {"a.b/gpu": 1}}}, _NVIDIA_SEEN),
    "a GPU in the requests": ({"resources": {"requests": {"amd.com/gpu": "2"}}, "env": [_ALL]}, _AMD_SEEN),
    "zero GPUs are none": ({"resources": {"limits": {"nvidia.com/gpu": "0"}}}, _ALL_HIDDEN),
    "what is no number is none": ({"resources": {"limits": {"nvidia.com/gpu": "all"}}, "env": [_ALL]}, _ALL_HIDDEN),
    "a wish beside a GPU is the device plugin's": (
        {"resources": {"limits": {"amd.com/gpu": 1}}, "env": [{"name": "AMD_VISIBLE_DEVICES", "value": "all"}]},
        _AMD_SEEN,
    ),
    "resources that are null": ({"resources": None, "env": None}, _ALL_HIDDEN),
}


@pytest.mark.parametrize(("pod", "fragment", "expected"), MERGED.values(), ids=MERGED)
def test_merge(pod: dict[str, Any], fragment: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy((pod, fragment))
    assert merge_pod(pod, fragment) == expected
    assert merge_pod(merge_pod(pod, fragment), fragment) == expected
    assert (pod, fragment) == before


def test_merged_pod_shares_nothing_with_its_parts() -> None:
    pod, fragment = {"containers": [{"name": "a", "args": ["x"]}]}, {"containers": [{"name": "b", "args": ["y"]}]}
    merged = merge_pod(pod, fragment)
    for container in merged["containers"]:
        container["args"].append("z")
    assert pod["containers"][0]["args"] == ["x"]
    assert fragment["containers"][0]["args"] == ["y"]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(("container", "env"), HIDDEN.values(), ids=HIDDEN)
def test_hide_gpus(kind: str, container: dict[str, Any], env: list[dict[str, Any]]) -> None:
    pod = {"spec": {kind: [{"name": "a", **container}]}}
    before = copy.deepcopy(pod)
    hidden = disable_gpus_by_default(pod, GPUS)
    assert hidden["spec"][kind][0].get("env", []) == env
    assert disable_gpus_by_default(hidden, GPUS) == hidden
    assert pod == before


@pytest.mark.parametrize("resource", _OTHERS)
def test_every_vendors_gpus_are_hidden(resource: str) -> None:
    every = [{**_OTHERS[resource], "value": "all"}]
    asks = {"name": "b", "env": every, "resources": {"limits": {resource: 1}}}
    hidden = disable_gpus_by_default({"spec": {"containers": [{"name": "a", "env": every}, asks]}}, {resource})
    seen = [one for one in _ALL_HIDDEN if one != _OTHERS[resource]]
    assert [one["env"] for one in hidden["spec"]["containers"]] == [_ALL_HIDDEN, seen]


_NAMES = st.sampled_from(["a", "b", "c"])
_ENV = st.lists(
    st.fixed_dictionaries({"name": _NAMES, "value": st.sampled_from(["1", "2", "$(a)"])}),
    max_size=3,
    unique_by=lambda one: one["name"],
)
_CONTAINER = st.fixed_dictionaries(
    {"name": _NAMES},
    optional={
        "env": _ENV,
        "args": st.lists(_NAMES, max_size=2),
        "resources": st.dictionaries(_NAMES, _NAMES, max_size=2),
    },
)
_POD = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(_CONTAINER, max_size=2, unique_by=lambda one: one["name"]),
        "nodeSelector": st.dictionaries(_NAMES, _NAMES, max_size=2),
        "tolerations": st.lists(st.fixed_dictionaries({"key": _NAMES}), max_size=2, unique_by=lambda one: one["key"]),
    },
)


@settings(max_examples=60)
@given(_POD, _POD, _POD)
def test_merging_fragments_is_associative(one: Any, two: Any, three: Any) -> None:
    left = merge_pod(merge_pod(one, two), three)
    right = merge_pod(one, merge_pod(two, three))
    assert _unordered(left) == _unordered(right)
    assert merge_pod(left, three) == left


def _unordered(pod: dict[str, Any]) -> Any:
    """The order of variables only has to be one that Kubernetes can expand, so it is no part of what must be equal."""
    for container in pod.get("containers", []):
        if "env" in container:
            container["env"].sort(key=lambda one: str(one["name"]))
    return pod
