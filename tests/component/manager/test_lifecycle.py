"""Transitions of jobs: one module makes them, each with a reason that has its texts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dlspawner.manager
from dlspawner.manager.model.event_reason import EventReason

PACKAGE = Path(dlspawner.manager.__file__).parent


def _writes(module: Path) -> list[int]:
    """The lines of a module that call ``turn.write``."""
    calls = (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "write"
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "turn"
    ]


def test_only_the_lifecycle_module_makes_transitions() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _writes(path)}
    assert found == {"state/lifecycle.py"}


@pytest.mark.parametrize("reason", EventReason)
def test_reason_has_texts_for_user_and_operator(reason: EventReason) -> None:
    assert reason.user_text
    assert reason.operator_text
    assert len(reason.value) <= 40, "as the table's column"
