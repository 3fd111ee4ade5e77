"""Patches as rows: what was, what is asked, what comes out; what clients send every day is in the contract."""

import copy
from typing import Any

import pytest

from dlspawner.devcluster.api.objects.patch import PatchError, json_patch, merge_patch, strategic_patch


def test_merge_patch_changes_neither_object_nor_patch() -> None:
    target, patch = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merge_patch(target, patch) == {"a": {"b": 3, "c": 2}}
    assert (target, patch) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    assert merge_patch(target, 3) == 3


OPERATIONS: dict[str, tuple[Any, list[dict[str, Any]], Any]] = {
    "add to an object": ({}, [{"op": "add", "path": "/a", "value": 1}], {"a": 1}),
    "add into a list": ({"l": [1, 3]}, [{"op": "add", "path": "/l/1", "value": 2}], {"l": [1, 2, 3]}),
    "add to the end": ({"l": [1]}, [{"op": "add", "path": "/l/-", "value": 2}], {"l": [1, 2]}),
    "replace in a list keeps its place": (
        {"l": [1, 2]},
        [{"op": "replace", "path": "/l/0", "value": 9}],
        {"l": [9, 2]},
    ),
    "escapes": ({"a/b": {"~": 1}}, [{"op": "remove", "path": "/a~1b/~0"}], {"a/b": {}}),
    "copy": ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    "move": ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
    "the whole document": ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
}


@pytest.mark.parametrize(("target", "operations", "result"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_json_patch(target: Any, operations: list[dict[str, Any]], result: Any) -> None:
    before = copy.deepcopy(target)
    assert json_patch(target, operations) == result
    assert target == before


FAILURES: dict[str, tuple[Any, bool]] = {
    "a path that is not there": ([{"op": "remove", "path": "/x"}], False),
    "a replacement of what is not there": ([{"op": "replace", "path": "/x", "value": 1}], False),
    "an index beyond the end": ([{"op": "add", "path": "/l/7", "value": 1}], False),
    "a move into itself": ([{"op": "move", "from": "/l", "path": "/l/0"}], False),
    "no list": ({"op": "remove"}, True),
    "no such operation": ([{"op": "jump", "path": "/a"}], False),
    "no value": ([{"op": "add", "path": "/a"}], False),
}


@pytest.mark.parametrize(("operations", "malformed"), FAILURES.values(), ids=FAILURES.keys())
def test_json_patch_failures(operations: Any, malformed: bool) -> None:
    with pytest.raises(PatchError) as error:
        json_patch({"a": 1, "l": [1]}, operations)
    assert error.value.malformed == malformed


def _containers(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": list(containers)}}


def _env(**values: str) -> dict[str, Any]:
    return _containers({"name": "a", "env": [{"name": name, "value": value} for name, value in values.items()]})


def _finalizers(*names: str) -> dict[str, Any]:
    return {"metadata": {"finalizers": list(names)}}


A, B, C = {"name": "a"}, {"name": "b"}, {"name": "c"}
STRATEGIC: dict[str, tuple[Any, Any, Any]] = {
    "variables inside containers are merged by name": (_env(X="1", Y="1"), _env(Y="2"), _env(X="1", Y="2")),
    "one element is deleted": (_containers(A, B), _containers(A | {"$patch": "delete"}), _containers(B)),
    "a list is replaced": (_containers(A, B), _containers({"$patch": "replace"}, C), _containers(C)),
    "lists without a key are replaced": (
        {"spec": {"tolerations": [{"key": "a"}]}},
        {"spec": {"tolerations": [{"key": "b"}]}},
        {"spec": {"tolerations": [{"key": "b"}]}},
    ),
    "finalizers are a set": (_finalizers("a"), _finalizers("a", "b"), _finalizers("a", "b")),
    "a finalizer is deleted": (
        _finalizers("a", "b"),
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        _finalizers("b"),
    ),
    "only the retained keys stay": (
        {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
        {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}},
        {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}},
    ),
    "the order is the patch's": (
        _containers(A, B),
        {"spec": {"$setElementOrder/containers": [B, A]}},
        _containers(B, A),
    ),
    "a map is replaced": (
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
        {"metadata": {"labels": {"b": "2"}}},
    ),
    "nothing strange is left in a new object": (
        {},
        {"spec": {"nodeSelector": {"a": None, "b": "1"}, "containers": [{"name": "a", "image": None}]}},
        {"spec": {"nodeSelector": {"b": "1"}, "containers": [A]}},
    ),
}


@pytest.mark.parametrize(("target", "patch", "result"), STRATEGIC.values(), ids=STRATEGIC.keys())
def test_strategic_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert strategic_patch("Pod", target, patch) == result
    assert (target, patch) == before


@pytest.mark.parametrize(
    "patch", [[], _containers({"image": "no name"}), {"$patch": "dance"}, {"spec": {"containers": [1]}}]
)
def test_a_malformed_strategic_patch(patch: Any) -> None:
    with pytest.raises(PatchError) as error:
        strategic_patch("Pod", {"spec": {}}, patch)
    assert error.value.malformed
