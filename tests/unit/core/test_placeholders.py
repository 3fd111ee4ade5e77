"""Placeholders: values fill leaves and nothing but leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.launch import rendering

VALUES = {
    "name": "alice",
    "count": 3,
    "rate": 0.5,
    "yes": True,
    "evil": "${name}\nspec: {x: 1}",
    "money": "$(TOKEN) $$ $",
    "port.nccl": "$(DLSPAWNER_PORT_NCCL)",
}

FILLED: dict[str, tuple[Any, Any]] = {
    "a whole placeholder keeps a number": ({"a": "${count}"}, {"a": 3}),
    "a whole placeholder keeps a truth": ({"a": "${yes}"}, {"a": True}),
    "a placeholder within text is written out": ({"a": "n=${count}, ${yes}"}, {"a": "n=3, true"}),
    "a value is not filled again and stays one leaf": ({"a": ["${evil}"]}, {"a": ["${name}\nspec: {x: 1}"]}),
    "two dollars are one": ({"a": "$${name} costs $$5"}, {"a": "${name} costs $5"}),
    "Kubernetes' own variables pass": ({"a": "$(POD_IP) $HOME $"}, {"a": "$(POD_IP) $HOME $"}),
    "keys are never filled": ({"${name}": 1}, {"${name}": 1}),
    "an environment value is text": (
        {"env": [{"name": "N", "value": "${yes}"}]},
        {"env": [{"name": "N", "value": "true"}]},
    ),
    "an annotation is text": ({"annotations": {"a": "${rate}"}}, {"annotations": {"a": "0.5"}}),
    "a port stays a number": ({"ports": [{"containerPort": "${count}"}]}, {"ports": [{"containerPort": 3}]}),
    "dollars in a command arrive as they were typed": (
        {"args": ["echo ${money}", "$(POD_IP)"]},
        {"args": ["echo $$(TOKEN) $$$$ $$", "$(POD_IP)"]},
    ),
    "a port in a command is a variable": (
        {"args": ["--port=${port.nccl}", "${port.nccl}"]},
        {"args": ["--port=$(DLSPAWNER_PORT_NCCL)", "$(DLSPAWNER_PORT_NCCL)"]},
    ),
    "dollars elsewhere are left alone": ({"annotations": {"a": "${money}"}}, {"annotations": {"a": "$(TOKEN) $$ $"}}),
}


@pytest.mark.parametrize(("tree", "expected"), FILLED.values(), ids=FILLED)
def test_fill(tree: Any, expected: Any) -> None:
    before = json.dumps(tree)
    assert rendering.substitute(tree, VALUES) == expected
    assert json.dumps(tree) == before


@pytest.mark.parametrize("tree", ["${nobody}", "a ${nobody}", {"a": [{"b": "${nobody}"}]}])
def test_placeholder_without_a_value_is_named(tree: Any) -> None:
    with pytest.raises(rendering.MissingValueError) as missing:
        rendering.substitute(tree, {**VALUES, "nobody": None})
    assert missing.value.name == "nobody"


def test_placeholders_are_found_with_their_paths() -> None:
    tree = {"a": ["x", "${one}-${Two}"], "${three}": "$${four} ${five", "b": "${}"}
    found = {(placeholder.path, placeholder.name) for placeholder in rendering.find_placeholders(tree)}
    assert found == {(("a", 1), "one"), (("a", 1), None), ((), None), (("${three}",), None), (("b",), None)}


_LEAVES = st.text(alphabet="ab${}() \n:[]'\"\\", max_size=12) | st.integers() | st.booleans() | st.none()
_TREES = st.recursive(
    _LEAVES | st.just("${v}") | st.just("x${v}y"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "args", "env"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def _shape(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _shape(value) for key, value in tree.items()}
    return [_shape(value) for value in tree] if isinstance(tree, list) else "leaf"


@settings(max_examples=80)
@given(_TREES, st.text(alphabet="${}()v: \n-[]'\"&*!|>%@`", max_size=20))
def test_no_value_changes_the_structure(tree: Any, value: str) -> None:
    names = {placeholder.name: value for placeholder in rendering.find_placeholders(tree)}
    assert _shape(rendering.substitute(tree, {**names, "": value, **_every_token(tree, value)})) == _shape(tree)


@settings(max_examples=80)
@given(st.text(alphabet="$()AB", max_size=12))
def test_escaped_value_survives_the_expansion_of_kubernetes(value: str) -> None:
    assert _kubernetes_expands(rendering.escape_expansion(value)) == value


def _every_token(tree: Any, value: str) -> dict[str, str]:
    return {
        placeholder.text[2:-1]: value
        for placeholder in rendering.find_placeholders(tree)
        if placeholder.text.endswith("}")
    }


def _kubernetes_expands(text: str) -> str:
    """Kubernetes' expansion of ``$(A)`` and ``$$``, with every variable known and empty."""
    written, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            written += text[at]
            at += 1
        elif text[at + 1] == "$":
            written += "$"
            at += 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            at = text.index(")", at) + 1
        else:
            written += text[at : at + 2]
            at += 2
    return written
