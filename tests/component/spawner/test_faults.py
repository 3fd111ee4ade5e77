"""Faults of the API server, in a real Hub: a job starts, or is refused with one sentence and leaves nothing behind."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.people import wait_for
from tests.harness import faults
from tests.harness.faults import Answer, Dropped, Fault, Lost, Reset
from tests.harness.faulty_hub import SENTENCE, FaultyHub, faulty
from tests.harness.spawner_hub import new_name

pytestmark = [pytest.mark.slow, pytest.mark.faults]

Both = tuple[FaultyHub, faults.Proxy]

# Of a busy API server, of etcd, of a balancer in front; of answers and connections that are lost.
PASSING: tuple[Fault, ...] = (
    *(Answer(429, retry_after=1), Answer(500), Answer(503, html=True), Answer(504, done=True), Answer(409)),
    *(Lost(), Lost(done=True), Reset(), Reset(done=True)),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with faulty(FaultyHub(tmp_path_factory.mktemp("faulty"))) as started:
        yield started


@pytest.fixture
def hub(both: Both) -> Iterator[FaultyHub]:
    yield both[0]
    both[1].heal()
    both[0].check_log()


@pytest.fixture
def api(both: Both) -> faults.Proxy:
    return both[1]


def test_nothing_is_lost_while_the_api_server_is_away(hub: FaultyHub, api: faults.Proxy) -> None:
    runs, stops, ends, starts, gives_up = (new_name(name) for name in ("runs-", "stops-", "ends-", "starts-", "brief-"))
    assert set(hub.outcomes(runs, stops, ends).values()) == {""}
    pending = new_name("pending-")
    hub.start(pending, template="ssh", gpus=8, gpu_type="a100")  # waits for a node if others have the GPUs
    wait_for(lambda: f"jupyter-{pending}" in hub.names(), "the pod of a start under way")

    api.away()
    hub.start(starts)
    hub.start(gives_up)
    hub.stop_server(stops)
    hub.kubectl("delete", "pod", f"jupyter-{ends}", "--wait=false")  # by somebody who can
    assert SENTENCE in hub.outcome(gives_up)
    wait_for(lambda: f"jupyter-{ends}" not in hub.names(), "it is gone, and the Hub cannot know", 60)
    assert all(hub.server(user)["ready"] for user in (runs, ends)), "what cannot be seen is as it was"
    assert hub.server(stops)["pending"] == "stop"
    api.back()

    assert hub.outcome(starts) == ""
    hub.stopped(stops, ends, gives_up)
    assert hub.server(runs)["ready"]
    after = new_name("after-")
    assert hub.outcomes(after) == {after: ""}, "the watch is alive"
    for user in (runs, starts, after, pending):
        wait_for(lambda: hub.server(user).get("pending") != "spawn", "no start is under way", 120)  # noqa: B023
        if hub.server(user):
            hub.stop_server(user)
    hub.stopped(runs, starts, after, pending)


def test_nothing_is_lost_when_the_hub_restarts_while_the_api_server_is_away(hub: FaultyHub, api: faults.Proxy) -> None:
    runs = new_name("stock-before-")
    assert hub.outcomes(runs) == {runs: ""}
    uid = hub.kubectl("get", "pod", f"jupyter-{runs}", "-o", "jsonpath={.metadata.uid}")
    hub.stop("hub", signal.SIGKILL)
    api.away()
    hub.start_hub()
    gives_up, starts = new_name("stock-brief-away-"), new_name("stock-away-")
    hub.start(starts)
    assert SENTENCE in hub.outcomes(gives_up)[gives_up]
    api.back()

    assert hub.outcome(starts) == ""
    wait_for(lambda: hub.server(runs).get("ready"), "it runs as before", 60)
    assert hub.kubectl("get", "pod", f"jupyter-{runs}", "-o", "jsonpath={.metadata.uid}") == uid
    for user in (runs, starts):
        hub.stop_server(user)
    hub.stopped(runs, starts, gives_up)


@pytest.mark.parametrize("seed", [1, 2])
def test_many_starts_with_random_faults_run_or_are_refused(hub: FaultyHub, api: faults.Proxy, seed: int) -> None:
    """A fifth of the requests fail; every third user has a short deadline."""
    kinds = random.Random(seed).choices(PASSING, k=40)
    for fault in kinds:
        api.fail("[!wl]*", "*", fault, times=None, probability=0.006)  # 40 rules: a fifth
    for fault in (Dropped(3), Answer(503)):
        api.fail("watch", "pods", fault, times=5)
    users = [new_name(f"{'stock-' if n % 2 else ''}{'brief-' if n % 3 == 0 else ''}storm-") for n in range(30)]
    outcomes = hub.outcomes(*users)
    api.cut("pods")

    assert {one.removeprefix("Spawn failed: ") for one in outcomes.values()} <= {"", SENTENCE}, outcomes
    running = {user for user, outcome in outcomes.items() if not outcome}
    assert len(running) >= 20, outcomes
    wanted = {f"jupyter-{user}" for user in running}
    wanted |= {f"jupyter-{user}-ssh" for user in running if not user.startswith("stock-")}
    wait_for(
        lambda: {name for name in hub.names() if "storm" in name} == wanted,
        "no more and no less than belongs to those",
        60,
    )
    for user in running:
        hub.stop_server(user)
    hub.stopped(*users)
