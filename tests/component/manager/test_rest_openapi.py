"""openapi.json describes every address; the tests of REST check every answer that they get (`described`)."""

from __future__ import annotations

from dlspawner.manager.http.api.openapi import OPERATIONS
from tests.component.manager.addresses import addresses

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
