"""A stop through the Hub and a cancel through the Manager in the same second: what both answer, and what is left.

JupyterHub answers the first of two such stops 500 (SHARING.md, "Two stops at once"). It must not be the person's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import TEMPLATE, QuotaHub, running
from tests.component.manager.test_queue_hub import ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person

pytestmark = [pytest.mark.slow, pytest.mark.real]
# Its pod does not run, and takes its grace period to end.
SLOW = {"name": "slow", "image": "any", "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}
INTERRUPTED = "Interrupting spawner torn"


class SlowHub(QuotaHub):
    """One with a template whose jobs never come to run."""

    def prepare(self) -> None:
        super().prepare()
        slow = {**TEMPLATE, "title": "Slow", "grace_period_seconds": 3, "pod": {"initContainers": [SLOW]}}
        (self.templates / "jobs" / "slow.yaml").write_text(json.dumps(slow))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[QuotaHub]:
    with running(SlowHub(tmp_path, settings=SETTINGS)) as made:
        yield made


@pytest.fixture
def person(hub: QuotaHub) -> Person:
    """Somebody whose job is being started."""
    found = Person(hub, "torn")
    assert found.start("", template="slow", gpus=1).status_code == 202
    wait_for(lambda: hub.jobs() == {"torn": "starting"} and hub.held() == 1, "it starts", 60)
    wait_for(lambda: "init" in hub.kubectl("get", "pods").lower(), "its init container runs", 60)
    return found


def both(hub: QuotaHub, first: Callable[[], requests.Response], then: Callable[[], requests.Response]) -> list[int]:
    """The second one comes while the Hub carries out the first; the statuses of their answers."""
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(first)
        wait_for(lambda: INTERRUPTED in hub.log, "the Hub has begun to stop it", 60)
        second = then()
        return [begun.result().status_code, second.status_code]


def check_end(hub: QuotaHub, person: Person) -> None:
    wait_for(lambda: not hub.jobs() and not hub.held() and not hub.servers(), "nothing is left of it", 60)
    assert "Traceback" not in (hub.state / "manager.log").read_text()
    person.launch("", template="tiny", gpus=1)


def test_who_stops_a_job_that_was_just_cancelled_reads_that_it_is_being_stopped(hub: QuotaHub, person: Person) -> None:
    cancelled, stopped = both(hub, lambda: ask(person, "DELETE"), lambda: person.api("DELETE", person.server_path("")))
    assert cancelled == 204
    assert stopped in {202, 204}
    check_end(hub, person)


def test_who_cancels_a_job_that_is_just_being_stopped_does_not_disturb_the_stop(hub: QuotaHub, person: Person) -> None:
    stopped, cancelled = both(hub, lambda: person.api("DELETE", person.server_path("")), lambda: ask(person, "DELETE"))
    assert stopped in {202, 204}
    assert cancelled in {204, 404}
    check_end(hub, person)
    assert "pending stop" not in hub.log
