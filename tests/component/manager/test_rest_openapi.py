"""openapi.json describes every address; the tests of REST check every answer that they get (`described`)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import ValidationError

from dlspawner.manager.http.api.openapi import OPERATIONS
from tests.component.manager.addresses import addresses
from tests.component.manager.described import check

# For the gateway and jobs themselves, as internal/ is for the Hub.
INTERNAL = {
    *("PUT key-suggestions", "PUT kernels", "PUT wrong-ports"),
    *("POST ssh-starts/{user}/{server}", "GET ssh-starts/{user}/{server}"),
    *("PUT ssh-sessions", "POST ssh-access", "GET users/{user}/keys", "POST users/{user}/keys/{number}/used"),
}


def test_described_operations_are_the_existing_ones() -> None:
    api = [one for one in addresses() if one.path.startswith("api/") and not one.path.startswith("api/internal/")]
    there = {f"{one.method} {one.path.removeprefix('api/')}" for one in api}
    described = {f"{one.method} {one.path}" for one in OPERATIONS}
    assert there - described - INTERNAL == set(), "add it to openapi.OPERATIONS"
    assert (described | INTERNAL) - there == set(), "it is not there any more"
    assert described & INTERNAL == set()


SETTINGS = {"start_on_connect": True}
UNDESCRIBED: dict[str, tuple[int, str, Any]] = {
    "a status": (204, "", None),
    "a type": (200, "text/html", SETTINGS),
    "a body of the wrong type": (200, "application/json", {"start_on_connect": "yes"}),
    "a body without a field": (200, "application/json", {}),
    "a body with another field": (200, "application/json", {**SETTINGS, "more": 1}),
    "a problem without its sentence": (403, "application/problem+json", {"type": "about:blank", "status": 403}),
}


@pytest.mark.parametrize(("status", "kind", "body"), UNDESCRIBED.values(), ids=UNDESCRIBED)
def test_answer_that_is_not_described_is_noticed(status: int, kind: str, body: Any) -> None:
    check("GET", "api/ssh-settings", 200, "application/json; charset=utf-8", json.dumps(SETTINGS))
    with pytest.raises((AssertionError, ValidationError)):
        check("GET", "api/ssh-settings", status, kind, json.dumps(body))
