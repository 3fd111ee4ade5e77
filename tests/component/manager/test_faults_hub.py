"""Faults as people meet them: what they read through the real Hub while something is away, and that nothing is lost.

One Hub, whose Manager has a PostgreSQL of its own; both reach Kubernetes through a proxy that has bad days, and the
Manager's clock is what a file says. Whoever waits has asked before the fault, and starts by itself after it.
"""

from __future__ import annotations

import contextlib
import html
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine, text

from tests.component.manager import databases
from tests.component.manager.quota import GPUS, QuotaHub, Sampler
from tests.component.manager.test_queue_hub import ask
from tests.component.spawner.test_faults import PASSING, STAYING
from tests.e2e.people import wait_for
from tests.harness import faults
from tests.harness.faulty_hub import SENTENCE
from tests.harness.spawner_hub import Person, new_name

pytestmark = [pytest.mark.slow, pytest.mark.faults]

CLOCK = """
import sys
from datetime import timedelta
from pathlib import Path

from dlspawner.manager import app

machines = app._now
app._now = lambda: machines() + timedelta(seconds=float(Path({file!r}).read_text()))
app.main()
"""
# Whose name says so gives up soon.
MORE = """
async def patience(spawner, auth_state):
    if spawner.user.name.startswith("brief"):
        spawner.k8s_api_request_retry_timeout = 2
c.Spawner.auth_state_hook = patience
c.KubeSpawner.k8s_api_request_timeout = 2
"""
SETTINGS = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=20")


@dataclass
class FaultyHub(QuotaHub):
    database: str = ""  # the directory of its PostgreSQL
    kubernetes: faults.Proxy | None = None
    away_seconds: float = 15  # how long something is away

    def jobs(self) -> dict[str, str]:
        """The state of every job that has not ended, by its user."""
        engine = create_engine(self.db_url)
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT user_name, state FROM jobs WHERE state <> 'ended'")).all()
        engine.dispose()
        return {row.user_name: row.state for row in rows}


@contextlib.contextmanager
def faulty(hub: FaultyHub) -> Iterator[FaultyHub]:
    """All of it, with a database of its own and a proxy before the API server; everything is gone at the end."""
    (hub.state / "set").write_text("0")
    (hub.state / "manager.py").write_text(CLOCK.format(file=str(hub.state / "set")))
    hub.manager_program = (str(hub.state / "manager.py"),)
    hub.prepare()
    with databases.postgresql() as hub.database, contextlib.ExitStack() as later:
        hub.db_url = databases.create(hub.database)
        if hub.cluster is None:
            later.callback(stop_all, hub, "cluster")
            hub.start_cluster()
        hub.kubernetes = later.enter_context(faults.before(hub.kubeconfig, hub.state / "proxied"))
        hub.hub_kubeconfig = hub.manager_kubeconfig = hub.kubernetes.kubeconfig
        later.callback(stop_all, hub, "hub", "proxy", "manager")
        hub.start_manager()
        hub.start_proxy()
        hub.start_hub()
        yield hub


def stop_all(hub: FaultyHub, *names: str) -> None:
    for name in names:
        if name in hub.running:
            hub.stop(name)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyHub]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    with faulty(FaultyHub(tmp_path_factory.mktemp("faults"), settings=SETTINGS, extra=MORE)) as made:
        yield made


@pytest.fixture
def api(hub: FaultyHub) -> Iterator[faults.Proxy]:
    """What happens to requests of the Hub and the Manager."""
    assert hub.kubernetes is not None
    yield hub.kubernetes
    hub.kubernetes.heal()


@pytest.fixture(autouse=True)
def nothing_left(hub: FaultyHub) -> Iterator[None]:
    """Every test leaves the cluster and the queue empty, and no traceback."""
    yield

    def empty() -> bool:
        for name in hub.ready():  # those that waited start meanwhile
            hub.api("DELETE", f"/users/{name.rstrip('/')}/server")
        return not hub.servers() and not hub.held() and not hub.jobs()

    wait_for(empty, "all of it is stopped", 120)
    assert "Traceback" not in hub.log
    assert "Traceback" not in (hub.state / "manager.log").read_text()


@dataclass
class Cast:
    """Somebody has all GPUs, somebody waits for one, and a third is about to ask."""

    holder: Person
    waits: Person
    asks: Person
    place: dict[str, object]

    def goes_on(self, hub: FaultyHub) -> None:
        """What had been before the fault is as it was: the job runs, and who waits has the place and the time."""
        assert self.holder.server("").get("ready")
        assert hub.held() == GPUS
        found = ask(self.waits, "GET").json()
        assert {key: found[key] for key in ("job", "position", "why")} == self.place


@pytest.fixture
def cast(hub: FaultyHub) -> Cast:
    return cast_of(hub)


def cast_of(hub: FaultyHub) -> Cast:
    holder, waits, asks = (Person(hub, new_name(name)) for name in ("holder", "waits", "asks"))
    holder.launch("", gpus=GPUS)
    assert waits.start("", gpus=1).status_code in {202, 429}  # a busy Hub answers before the Manager does
    found = wait_for(lambda: (answer := ask(waits, "GET")).ok and answer.json(), "it waits", 60)
    assert found["why"] == "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1."
    return Cast(holder, waits, asks, {key: found[key] for key in ("job", "position", "why")})


@pytest.fixture
def cast_on_a_node_that_goes(cast: Cast) -> Cast:
    """Any node of the embedded cluster may go; others have as many GPUs."""
    return cast


def end(person: Person) -> str:
    """How a start that takes longer than a moment ends, in the words that its person reads."""
    return str([event.get("message") for event in person.progress("")][-1])


def remove(hub: FaultyHub, person: Person) -> None:
    """Somebody deletes a pod, at once."""
    hub.kubectl("delete", "pod", person.pod_name(""), "--grace-period=0", "--force")


def runs(hub: FaultyHub, person: Person) -> None:
    wait_for(lambda: f"{person.name}/" in hub.ready(), "it has started by itself", 90)


def test_while_the_database_is_away_people_read_that_it_is_for_a_while(hub: FaultyHub, cast: Cast) -> None:
    databases.control(hub.database, "stop")
    try:
        assert cast.asks.start("", gpus=1).status_code in {202, 429, 503}
        said = end(cast.asks)
        assert re.search(r"does not answer.*\. Running jobs go on\. Try again soon\.", said), said
        waits = ask(cast.waits, "GET")
        assert (waits.status_code, waits.json()["detail"].endswith("Try again soon.")) == (503, True)
        assert "default server running Tiny, 8 GPUs" in plain(cast.holder.get("/hub/home").text)
        time.sleep(hub.away_seconds)
    finally:
        databases.control(hub.database, "start")
    wait_for(lambda: ask(cast.waits, "GET").status_code == 200, "it is back", 60)
    cast.goes_on(hub)


def test_while_kubernetes_is_away_jobs_and_places_are_shown_as_they_were(
    hub: FaultyHub, cast: Cast, api: faults.Proxy
) -> None:
    api.away()
    try:
        time.sleep(hub.away_seconds)
        said = hub.refusal(cast.asks.name, cast.asks.start("", gpus=1))
        assert "It is number 2 in the queue and starts by itself." in said
        assert "default server running Tiny, 8 GPUs" in plain(cast.holder.get("/hub/home").text)
    finally:
        api.back()
    cast.goes_on(hub)
    remove(hub, cast.holder)
    runs(hub, cast.waits)
    runs(hub, cast.asks)


def test_while_the_manager_hangs_queued_jobs_are_not_shown_as_stopped(hub: FaultyHub, cast: Cast) -> None:
    def home() -> str:
        return plain(cast.waits.get("/hub/home").content.decode())

    hub.running["manager"].send_signal(signal.SIGSTOP)
    try:
        page = home()
        assert "neither your jobs in the queue nor your notices are shown" in page
        assert ("not running" in page, "Start" in page, "Remove" in page) == (True, True, False)
    finally:
        hub.running["manager"].send_signal(signal.SIGCONT)
    wait_for(lambda: "waiting" in home(), "the Manager answers again", 60)
    assert "neither your jobs" not in home()
    cast.goes_on(hub)


def test_while_the_hub_is_away_the_turn_of_who_waits_is_not_lost(hub: FaultyHub, cast: Cast) -> None:
    hub.kill("hub")
    try:
        remove(hub, cast.holder)
        wait_for(lambda: hub.jobs() == {cast.waits.name: "starting"}, "the turn has come", 60)
        time.sleep(hub.away_seconds)
    finally:
        hub.start_hub()
    runs(hub, cast.waits)
    wait_for(lambda: hub.jobs() == {cast.waits.name: "running"}, "the Manager has seen it as well", 60)


def test_who_loses_a_pod_behind_our_back_reads_so_and_who_waits_starts(hub: FaultyHub, cast: Cast) -> None:
    remove(hub, cast.holder)
    runs(hub, cast.waits)
    wait_for(lambda: f"{cast.holder.name}/" not in hub.servers(), "the Hub has seen it", 60)
    said = plain(cast.holder.get("/hub/home").text)
    assert "The job was removed from outside the Hub: start it again, or ask an administrator why." in said
    assert hub.held() == 1


def test_a_node_that_is_gone_keeps_what_its_job_holds_until_the_pod_is_gone_too(
    hub: FaultyHub, cast_on_a_node_that_goes: Cast
) -> None:
    cast = cast_on_a_node_that_goes
    node = hub.kubectl("get", "pod", cast.holder.pod_name(""), "-o", "jsonpath={.spec.nodeName}")
    hub.kubectl("delete", "node", node)
    said = hub.refusal(cast.asks.name, cast.asks.start("", gpus=1))
    assert "It is number 2 in the queue and starts by itself." in said
    cast.goes_on(hub)
    remove(hub, cast.holder)
    runs(hub, cast.waits)
    runs(hub, cast.asks)
    wait_for(lambda: f"{cast.holder.name}/" not in hub.servers(), "the Hub has seen it", 60)
    assert "The job was removed from outside the Hub" in plain(cast.holder.get("/hub/home").text)


def test_what_passes_while_pods_are_made_and_stopped_is_not_noticed_and_charged_once(
    hub: FaultyHub, api: faults.Proxy
) -> None:
    kinds = [kind for kind in PASSING if kind != "etcd"]  # as many as there are GPUs
    users = {new_name(f"user-{kind}-"): PASSING[kind] for kind in kinds}
    rules = [
        api.fail(verb, "pods", fault, times=times, name=f"jupyter-{user}")
        for user, (times, fault) in users.items()
        for verb in ("create", "delete")
    ]
    hub.add_users([*users])
    waits = Person(hub, new_name("waits-"))
    with Sampler(hub) as sampler:
        hub.storm([*users], gpus=1)
        wait_for(lambda: {f"{user}/" for user in users} == set(hub.ready()), "all of them run", 120)
        assert hub.held() == len(users) == GPUS
        assert "in the queue" in hub.refusal(waits.name, waits.start("", gpus=GPUS))
        with ThreadPoolExecutor(GPUS) as pool:
            stopped = pool.map(lambda user: hub.api("DELETE", f"/users/{user}/server").status_code, users)
        assert set(stopped) <= {202, 204}
        runs(hub, waits)
    assert sampler.most == GPUS
    assert all(rule.happened for rule in rules)
    wait_for(lambda: hub.jobs() == {waits.name: "running"}, "nobody else has a job", 60)


def test_what_stays_is_one_sentence_and_holds_nothing(hub: FaultyHub, api: faults.Proxy) -> None:
    people = {Person(hub, new_name(f"brief-{kind}-")): fault for kind, fault in STAYING.items()}
    for person, fault in people.items():
        api.fail("create", "pods", fault, times=None, name=person.pod_name(""))
    hub.storm([person.name for person in people], gpus=GPUS // len(people))
    assert [end(person).count(SENTENCE) for person in people] == [1] * len(people)
    wait_for(lambda: not hub.jobs() and not hub.held(), "nothing is held", 60)
    Person(hub, new_name("asks-")).launch("", gpus=GPUS)


def test_who_is_refused_after_an_answer_was_lost_holds_what_may_still_come_of_it(
    hub: FaultyHub, api: faults.Proxy
) -> None:
    refused, waits = Person(hub, new_name("refused-")), Person(hub, new_name("waits-"))
    full = faults.Answer(
        403, 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    )
    lost = api.fail("create", "pods", faults.Lost(), times=1, name=refused.pod_name(""))
    api.fail("create", "pods", full, times=None, name=refused.pod_name(""))

    assert "exceeded quota" not in hub.refusal(refused.name, refused.start("", gpus=GPUS))
    assert lost.happened == 1
    assert hub.jobs() == {refused.name: "starting"}, "its first request may still be carried out"
    assert "in the queue" in hub.refusal(waits.name, waits.start("", gpus=GPUS))
    runs(hub, waits)


def test_watches_that_break_or_are_too_old_are_there_again(hub: FaultyHub, cast: Cast, api: faults.Proxy) -> None:
    """Those of the Hub and of the Manager."""
    before = api.watching("pods")
    for ending in (faults.HALF_A_LINE, faults.GONE):
        refused = api.fail("watch", "pods", faults.Answer(410), times=before)
        assert api.cut(ending, "pods")
        wait_for(lambda refused=refused: refused.happened == before, "new ones are refused", 60)
        wait_for(lambda: api.watching("pods") >= before, "all of them are there again", 60)
    cast.goes_on(hub)
    remove(hub, cast.holder)
    runs(hub, cast.waits)
    wait_for(lambda: f"{cast.holder.name}/" not in hub.servers(), "the Hub has seen it", 60)


def plain(page: str) -> str:
    """What is read of a page."""
    body = re.sub(r"(?s)<(script|style|head).*?</\1>", " ", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
