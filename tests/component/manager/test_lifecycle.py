"""Reasons of transitions."""

from __future__ import annotations

import pytest

from dlspawner.manager.model.event_reason import EventReason


@pytest.mark.parametrize("reason", EventReason)
def test_reason_has_texts_for_user_and_operator(reason: EventReason) -> None:
    assert reason.user_text
    assert reason.operator_text
    assert len(reason.value) <= 40, "as the table's column"
