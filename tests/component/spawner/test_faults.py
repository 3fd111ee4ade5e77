"""Faults of the API server, in a real Hub: a job starts, or is refused with one sentence and leaves nothing behind."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.people import wait_for
from tests.harness import faults
from tests.harness.faults import Answer, Dropped, Fault, Lost, Reset
from tests.harness.faulty_hub import SENTENCE, FaultyHub, faulty
from tests.harness.spawner_hub import Person, new_name

pytestmark = [pytest.mark.slow, pytest.mark.faults]

Both = tuple[FaultyHub, faults.Proxy]

# Faults that pass: how often they happen, and which.
PASSING: dict[str, tuple[int, Fault]] = {
    "busy": (2, Answer(429, retry_after=1)),
    "etcd": (2, Answer(500)),
    "balancer": (2, Answer(503, html=True)),
    "timeout": (1, Answer(504, done=True)),
    "conflict": (2, Answer(409)),
    "lost": (1, Lost()),
    "late": (1, Lost(done=True)),
    "broken": (2, Reset()),
    "cut": (1, Reset(done=True)),
}
STAYING: dict[str, Fault] = {
    "busy": Answer(429, retry_after=3600),
    "balancer": Answer(503, html=True),
    "lost": Lost(done=True),
    "broken": Reset(),
}
REFUSING = Answer(
    403,
    'admission webhook "policy.example" denied the request: JUPYTERHUB_API_TOKEN {} is no business of yours, '
    + "nor is any of this: " * 10
    + "terminationGracePeriodSeconds: 30",
)


def names(user: str) -> dict[str, str]:
    """The names of the objects of a start, by resource."""
    pod = f"jupyter-{user}"
    stock = user.startswith("stock")
    return {
        "persistentvolumeclaims": f"home-{user}",
        "pods": pod,
        **({} if stock else {"secrets": f"{pod}-ssh"}),
        **({} if stock and "services" not in user else {"services": pod if stock else f"{pod}-ssh"}),
    }


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


@pytest.mark.parametrize("resource", ["stock-pods", "pods", "secrets", "persistentvolumeclaims", "services"])
def test_a_start_survives_passing_faults(hub: FaultyHub, api: faults.Proxy, resource: str) -> None:
    users = {new_name(f"{resource[:5]}-{kind}-"): fault for kind, fault in PASSING.items()}
    kind = resource.removeprefix("stock-")
    rules = [
        api.fail("create", kind, fault, times=times, name=names(user)[kind]) for user, (times, fault) in users.items()
    ]

    assert hub.outcomes(*users) == dict.fromkeys(users, "")
    assert all(rule.happened == rule.times for rule in rules)
    for user in users:
        pod = json.loads(hub.kubectl("get", "pod", f"jupyter-{user}", "-o", "json"))
        assert "deletionTimestamp" not in pod["metadata"]
        hub.stop_server(user)
    hub.stopped(*users)


def test_a_start_with_a_lasting_fault_is_refused_with_one_sentence(hub: FaultyHub, api: faults.Proxy) -> None:
    person = Person(hub, new_name("brief-page-"))
    resources = ("pods", "secrets", "persistentvolumeclaims", "services")
    failing = {new_name(f"brief-{one[:5]}-"): (one, STAYING["balancer"]) for one in resources}
    failing |= {new_name(f"stock-brief-{kind}-"): ("pods", fault) for kind, fault in STAYING.items()}
    failing[new_name("stock-services-brief-")] = ("services", STAYING["lost"])
    failing[person.name] = ("pods", STAYING["busy"])
    for user, (resource, fault) in failing.items():
        api.fail("create", resource, fault, times=None, name=names(user)[resource])

    outcomes = hub.outcomes(*failing)
    assert {user: outcome.count(SENTENCE) for user, outcome in outcomes.items()} == dict.fromkeys(failing, 1)
    assert not any("{" in one or "HTTP" in one or "Retry" in one for one in outcomes.values()), outcomes
    hub.stopped(*failing)
    page = person.get(f"/hub/spawn-pending/{person.name}").text
    assert SENTENCE in page
    assert faults.HEADER not in page


def test_a_refusal_is_not_retried_and_shows_no_token(hub: FaultyHub, api: faults.Proxy) -> None:
    alice, stock = new_name("refused-"), new_name("stock-refused-")
    token = "f" * 32
    for user in (alice, stock):
        fault = Answer(403, REFUSING.said.format(token))
        api.fail("create", "pods", fault, times=None, name=f"jupyter-{user}")

    outcomes = hub.outcomes(alice, stock)
    assert all("A rule of the cluster refuses this job" in one for one in outcomes.values()), outcomes
    assert token not in str(outcomes) + hub.log
    assert all(api.count("create", "pods", f"jupyter-{user}") == 1 for user in outcomes)


def test_a_stop_is_retried(hub: FaultyHub, api: faults.Proxy) -> None:
    users = {new_name(f"stock-stop-{kind}-"): fault for kind, (_, fault) in PASSING.items()}
    assert set(hub.outcomes(*users).values()) == {""}
    rules = [api.fail("delete", "pods", fault, times=3, name=f"jupyter-{user}") for user, fault in users.items()]
    for user in users:
        hub.stop_server(user)
    hub.stopped(*users)

    assert all(rule.happened for rule in rules)


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


def test_a_pod_of_a_start_that_was_given_up_is_deleted(hub: FaultyHub, api: faults.Proxy) -> None:
    """The answer to the creation is lost, the watch is down, and the start gives up."""
    user = new_name("brief-orphan-")
    api.fail("watch", "pods", Lost(), times=None)
    api.cut("pods")
    api.fail("create", "pods", Lost(done=True), times=1, name=f"jupyter-{user}")
    api.fail("create", "pods", Reset(), times=None, name=f"jupyter-{user}")

    assert SENTENCE in hub.outcomes(user)[user]
    hub.stopped(user)


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
    kinds = random.Random(seed).choices(list(PASSING.values()), k=40)
    for _, fault in kinds:
        api.fail("[!wl]*", "*", fault, times=None, probability=0.006)  # 40 rules: a fifth
    for fault in (Dropped(3), Answer(503)):
        api.fail("watch", "pods", fault, times=5)
    users = [new_name(f"{'stock-' if n % 2 else ''}{'brief-' if n % 3 == 0 else ''}storm-") for n in range(30)]
    outcomes = hub.outcomes(*users)
    api.cut("pods", faults.HALF_A_LINE)

    assert {one.removeprefix("Spawn failed: ") for one in outcomes.values()} <= {"", SENTENCE}, outcomes
    running = {user for user, outcome in outcomes.items() if not outcome}
    assert len(running) >= 20, outcomes
    wanted = {
        name for user in running for resource, name in names(user).items() if resource != "persistentvolumeclaims"
    }
    wait_for(
        lambda: {name for name in hub.names() if "storm" in name} == wanted,
        "no more and no less than belongs to those",
        60,
    )
    for user in running:
        hub.stop_server(user)
    hub.stopped(*users)
