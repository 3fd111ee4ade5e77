"""Faults as people meet them: what they read through the real Hub while something is away, and that nothing is lost.

One Hub, whose Manager has a PostgreSQL of its own; both reach Kubernetes through a proxy that has bad days. Whoever
waits has asked before the fault, and starts by itself after it.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.component.manager import databases
from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import GPUS, QuotaHub, Sampler
from tests.component.manager.test_queue_hub import ask, plain
from tests.component.spawner.test_faults import PASSING
from tests.e2e.people import wait_for
from tests.harness import faults
from tests.harness.spawner_hub import Person, new_name

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("nothing_left")]

MORE = "\nc.KubeSpawner.k8s_api_request_timeout = 2\n"


@dataclass
class FaultyHub(QuotaHub):
    database: str = ""  # the directory of its PostgreSQL
    kubernetes: faults.Proxy | None = None


@contextlib.contextmanager
def faulty(hub: FaultyHub) -> Iterator[FaultyHub]:
    """All of it, with a database of its own and a proxy before the API server; everything is gone at the end."""
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
    holder, waits, asks = (Person(hub, new_name(name)) for name in ("holder", "waits", "asks"))
    holder.launch("", gpus=GPUS)
    assert waits.start("", gpus=1).status_code in {202, 429}  # a busy Hub answers before the Manager does
    found = wait_for(lambda: (answer := ask(waits, "GET")).ok and answer.json(), "it waits", 60)
    assert found["why"] == "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1."
    return Cast(holder, waits, asks, {key: found[key] for key in ("job", "position", "why")})


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
        assert "Running jobs are not affected" in plain(cast.holder.get("/hub/home").text)
        time.sleep(15)  # until the Manager does not lead any more
    finally:
        databases.control(hub.database, "start")
    wait_for(lambda: ask(cast.waits, "GET").status_code == 200, "it is back", 60)
    cast.goes_on(hub)


def test_while_the_manager_hangs_the_home_page_says_so(hub: FaultyHub, cast: Cast) -> None:
    def home(path: str = "/hub/home") -> str:
        return plain(cast.waits.get(path).content.decode())

    hub.running["manager"].send_signal(signal.SIGSTOP)
    try:
        for path in ("/hub/home", "/hub/login"):  # a login leads there, too
            assert "Job pages are temporarily unavailable" in home(path)
    finally:
        hub.running["manager"].send_signal(signal.SIGCONT)
    wait_for(lambda: "Your jobs are on the page Jobs" in home(), "the Manager answers again", 60)
    cast.goes_on(hub)


def test_a_node_that_is_gone_keeps_what_its_job_holds_until_the_pod_is_gone_too(hub: FaultyHub, cast: Cast) -> None:
    node = hub.kubectl("get", "pod", cast.holder.pod_name(""), "-o", "jsonpath={.spec.nodeName}")
    hub.kubectl("delete", "node", node)
    said = hub.refusal(cast.asks.name, cast.asks.start("", gpus=1))
    assert "Number 2 in the queue; it starts automatically." in said
    cast.goes_on(hub)
    remove(hub, cast.holder)
    runs(hub, cast.waits)
    runs(hub, cast.asks)
    wait_for(lambda: f"{cast.holder.name}/" not in hub.servers(), "the Hub has seen it", 60)
    assert "The job was removed from outside the Hub" in plain(cast.holder.get("/services/jobs/").text)


def test_passing_faults_of_pods_are_not_noticed_and_charged_once(hub: FaultyHub, api: faults.Proxy) -> None:
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


def test_refused_start_whose_first_answer_was_lost_holds_its_gpus(hub: FaultyHub, api: faults.Proxy) -> None:
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
