"""Faults as people meet them: what they read through the real Hub while something is away, and that nothing is lost.

One Hub, whose Manager has a PostgreSQL of its own. Faults of Kubernetes are in tests/component/spawner/test_faults.py.
"""

from __future__ import annotations

import html
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.component.manager import databases
from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import GPUS, QuotaHub, running
from tests.component.manager.test_queue_hub import ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person, new_name

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("nothing_left")]


@dataclass
class FaultyHub(QuotaHub):
    database: str = ""  # the directory of its PostgreSQL


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyHub]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    with databases.postgresql() as directory:
        url = databases.create(directory)
        made = FaultyHub(tmp_path_factory.mktemp("faults"), db_url=url, settings=SETTINGS, database=directory)
        with running(made):
            yield made


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


def plain(page: str) -> str:
    """What is read of a page."""
    body = re.sub(r"(?s)<(script|style|head).*?</\1>", " ", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def end(person: Person) -> str:
    """How a start that takes longer than a moment ends, in the words that its person reads."""
    return str([event.get("message") for event in person.progress("")][-1])


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
