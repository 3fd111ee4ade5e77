"""The API server's bad days before a real one: what the embedded server might be too kind for."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness import faults
from tests.harness.faults import Answer
from tests.harness.faulty_hub import SENTENCE, FaultyHub, faulty
from tests.harness.spawner_hub import new_name
from tests.kubernetes.conftest import RESTRICTED, Image
from tests.kubernetes.failing import make_hub

pytestmark = pytest.mark.kubernetes

Both = tuple[FaultyHub, faults.Proxy]


@pytest.fixture(scope="module")
def both(kubernetes: Client, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    namespace = f"faults-{secrets.token_hex(3)}"
    kubernetes.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": RESTRICTED}})
    kubernetes.until(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: True)
    state: Path = tmp_path_factory.mktemp("faults")
    made = make_hub(state, namespace, image("job"), kubernetes.kubeconfig, gpu="example.com/gpu", seconds=300)
    hub = FaultyHub(**{field.name: getattr(made, field.name) for field in fields(made)}, template="shell")
    try:
        with faulty(hub) as started:
            yield started
    finally:
        kubernetes.request("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.fixture
def hub(both: Both) -> Iterator[FaultyHub]:
    yield both[0]
    both[1].heal()
    both[0].check_log()


@pytest.fixture
def api(both: Both) -> faults.Proxy:
    return both[1]


def test_an_api_server_that_goes_away_and_comes_back_loses_nothing(hub: FaultyHub, api: faults.Proxy) -> None:
    runs, stops, ends, starts, gives_up = (new_name(name) for name in ("runs-", "stops-", "ends-", "starts-", "brief-"))
    assert set(hub.outcomes(runs, stops, ends).values()) == {""}
    api.away()
    hub.start(starts)
    hub.start(gives_up)
    hub.stop_server(stops)
    hub.kubectl("delete", "pod", f"jupyter-{ends}", "--wait=true")
    assert SENTENCE in hub.outcome(gives_up)
    assert all(hub.server(user)["ready"] for user in (runs, ends)), "what cannot be seen is as it was"
    api.back()

    assert hub.outcome(starts) == ""
    hub.stopped(stops, ends, gives_up)
    assert hub.server(runs)["ready"]
    for user in (runs, starts):
        hub.stop_server(user)
    hub.stopped(runs, starts)


def test_a_watch_that_breaks_or_is_too_old_is_there_again(hub: FaultyHub, api: faults.Proxy) -> None:
    user = new_name("watch-")
    hub.start(user)
    api.cut(faults.HALF_A_LINE, "pods")
    assert hub.outcome(user) == ""
    api.fail("watch", "pods", Answer(410))
    api.cut(faults.GONE, "pods")
    hub.stop_server(user)
    hub.stopped(user)
    wait_for(lambda: api.watching("pods") == 1, "one watch, as before")
