"""Each process of the product is killed under load on a real cluster; prints after how long people could go on.

The load: five people start a job with two of the eight GPUs, log in by ssh and stop it, for ever, so that one of them
waits. Beside them a notebook is used, and a terminal is open at each of two gateways. Processes are killed on the node,
as the kernel does it when memory is short; the kubelet starts them again. Needs a cluster of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tests.component.manager.quota import Sampler
from tests.e2e.deployed import Deployed
from tests.e2e.people import Person, Ssh, Stack, read_until, wait_for
from tests.e2e.test_evictions import listed
from tests.e2e.test_replicas import doubled, session, way_to
from tests.kubernetes.instance import ENVIRONMENT
from tests.kubernetes.manifests import JOBS, PRODUCT

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.skipif(ENVIRONMENT not in os.environ, reason="the node's processes are not ours to kill"),
]

GPUS, EACH = 8, 2
TWICE = ("manager", "gateway")


def pods(name: str) -> list[dict[str, Any]]:
    return listed(PRODUCT, "pods", "-l", f"app.kubernetes.io/name={name}", "--field-selector=status.phase=Running")


def is_ready(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["containerStatuses"][0]["ready"])


def restarts(pod: dict[str, Any]) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def kill(pod: dict[str, Any]) -> None:
    """SIGKILL for the first process of its container."""
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            numbers = (entry / "status").read_text().split("NSpid:")[1].split("\n")[0].split()
            if numbers[-1] == "1" and container in (entry / "cgroup").read_text():
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError(pod["metadata"]["name"])


def state(person: Person, server: str) -> str:
    """What the Hub says of a server: ready, none, or something between; also while it says nothing."""
    with contextlib.suppress(requests.RequestException):
        answer = person.api("GET", f"/users/{person.name}")
        if answer.ok:
            found = answer.json()["servers"].get(server)
            return "none" if found is None else "ready" if found["ready"] else "pending"
    return "unknown"


def gets_in(client: Ssh, server: str) -> bool:
    patience = ("-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=5")
    return client.run(server, "true", options=patience).returncode == 0


@dataclass
class Load:
    """People who start and stop jobs until it is enough."""

    clients: list[Ssh]
    enough: threading.Event = field(default_factory=threading.Event)
    rounds: dict[str, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        with ThreadPoolExecutor(len(self.clients)) as threads:
            every = [threads.submit(self._work, client) for client in self.clients]
            try:
                yield
            finally:
                self.enough.set()
            for one in every:
                one.result(300)

    def _work(self, client: Ssh) -> None:
        person = client.person
        while not self.enough.is_set():
            wait_for(lambda: self._asked(person), f"{person.name} has a job", 300)
            wait_for(lambda: gets_in(client, "work"), f"{person.name} is in", 120)
            wait_for(lambda: self._left(person), f"{person.name} has stopped it", 120)
            self.rounds[person.name] = self.rounds.get(person.name, 0) + 1

    def _asked(self, person: Person) -> bool:
        """Asks as long as the Hub knows of no job: a start that is refused for a while, or waits, is no server."""
        if (now := state(person, "work")) == "none":
            with contextlib.suppress(requests.RequestException):
                person.start("work", template="ssh", gpus=EACH, memory="256Mi")
        time.sleep(0.5)
        return now == "ready"

    def _left(self, person: Person) -> bool:
        if (now := state(person, "work")) == "ready":
            with contextlib.suppress(requests.RequestException):
                person.api("DELETE", person.server_path("work"))
        time.sleep(0.5)
        return now == "none"

    def goes_on(self) -> None:
        """Everybody has another job from beginning to end."""
        wanted = {name: rounds + 2 for name, rounds in self.rounds.items()}  # the first may have begun before
        wait_for(lambda: all(self.rounds[name] >= least for name, least in wanted.items()), "everybody's turn", 400)


@pytest.fixture(scope="module")
def product(stack: Stack) -> Iterator[Deployed]:
    """With two Managers and two gateways."""
    assert isinstance(stack, Deployed)
    with doubled(*TWICE):
        wait_for(lambda: [len(pods(name)) for name in TWICE] == [2, 2], "two of each", 120)
        wait_for(lambda: all(map(is_ready, pods("gateway"))), "both gateways", 120)
        wait_for(lambda: sum(map(is_ready, pods("manager"))) == 1, "one Manager acts", 120)
        yield stack


@pytest.fixture(scope="module")
def load(product: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    people = [product.person(f"busy{number}") for number in range(5)]
    made = Load([person.ssh(tmp_path_factory.mktemp(person.name)) for person in people])
    watched = SimpleNamespace(kubeconfig=Path(os.environ["KUBECONFIG"]), namespace=JOBS, resource="nvidia.com/gpu")
    with Sampler(watched) as sampler:  # type: ignore[arg-type]
        with made.runs():
            wait_for(lambda: len(made.rounds) == len(people), "everybody's first turn", 400)
            yield made
        assert sampler.most == GPUS, "all are in use, and none twice"
    ends = {str(job.get("stop") and job["stop"]["reason"]) for person in people for job in person.jobs()}
    assert ends == {"stopped-on-hub"}, "no job has another end than its person's wish"


@pytest.fixture(scope="module")
def steady(product: Deployed, load: Load) -> Iterator[Person]:
    person = product.person("steady")
    person.launch("train", template="ipython", gpus=0, memory="512Mi")
    yield person
    person.stop("train")


def first(pod: dict[str, Any], killed: float, question: Callable[[], object], what: str) -> str:
    """How long after the kill this was true."""
    wait_for(question, what, 180)
    return f"{what} {time.monotonic() - killed:.1f} s"


@pytest.mark.parametrize("victim", ["leader", "stand-by", "gateway", "hub", "proxy"])
def test_a_killed_process_costs_seconds_and_no_job(
    victim: str, product: Deployed, load: Load, steady: Person, tmp_path: Path
) -> None:
    client = steady.ssh(tmp_path)
    before = listed(JOBS, "pods", "-l", "dlspawner.dev/server=train")[0]["metadata"]["uid"]
    name = {"leader": "manager", "stand-by": "manager"}.get(victim, victim)
    found = sorted(pods(name), key=lambda pod: is_ready(pod) == (victim != "stand-by"))
    pod, gateways = found[-1], {one["metadata"]["name"] for one in pods("gateway")}

    def notebook() -> bool:
        url, headers = f"{product.url}/user/steady/train/api/status", {"Authorization": f"token {steady.token}"}
        with contextlib.suppress(requests.RequestException):
            return requests.get(url, headers=headers, timeout=5, allow_redirects=False).status_code == 200
        return False

    def manager() -> bool:
        with contextlib.suppress(requests.RequestException, AssertionError):
            return bool(steady.jobs())
        return False

    def again() -> bool:
        now = next((one for one in pods(name) if one["metadata"]["uid"] == pod["metadata"]["uid"]), None)
        return now is not None and restarts(now) > restarts(pod) and (is_ready(now) or victim in {"leader", "stand-by"})

    with contextlib.ExitStack() as ends:
        ways = {one: ends.enter_context(way_to(one)) for one in gateways}
        sessions = {one: ends.enter_context(session(client, ways[one])) for one in gateways}
        questions: dict[str, Callable[[], object]] = {
            "a notebook": notebook,
            "a login by ssh": lambda: gets_in(client, "train"),
            "the page Jobs": manager,
            "the Hub": lambda: state(steady, "train") == "ready",
            "the process": again,
        }
        killed = time.monotonic()
        kill(pod)
        with ThreadPoolExecutor(len(questions)) as threads:
            answers = [threads.submit(first, pod, killed, ask, what) for what, ask in questions.items()]
            print(f"{victim} killed:", "; ".join(one.result() for one in answers))
        load.goes_on()
        for one, shell in sessions.items():
            if (victim, one) == ("gateway", pod["metadata"]["name"]):
                assert shell.wait(60) == 255
                continue
            assert shell.stdin is not None
            shell.stdin.write("still here\n")
            shell.stdin.flush()
            read_until(shell.stdout, "still here")
    assert listed(JOBS, "pods", "-l", "dlspawner.dev/server=train")[0]["metadata"]["uid"] == before
