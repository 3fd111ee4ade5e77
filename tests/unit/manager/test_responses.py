"""The text of responses."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from dlspawner.manager.http.api.models.requests import KeyBody
from dlspawner.manager.http.api.models.responses import ProblemModel, as_json


def test_response_is_ascii_and_means_the_same() -> None:
    detail = 'Müller’s \u202e"job"\\ 😀\x1b[2J'
    text = as_json(ProblemModel(type="about:blank", title="", status=400, detail=detail))
    assert text.isascii()
    assert json.loads(text)["detail"] == detail


def test_half_of_a_surrogate_pair_in_a_body_is_no_json() -> None:
    """No response could hold it."""
    with pytest.raises(ValidationError) as refused:
        KeyBody.model_validate_json(b'{"key": "\\ud800"}')
    assert refused.value.errors()[0]["type"] == "json_invalid"
