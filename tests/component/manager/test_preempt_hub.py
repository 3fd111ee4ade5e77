"""A stop that the Manager has decided, through the real Hub: it is done, and its person reads why."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest
import requests

from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]

SENTENCE = "This preemptible job was stopped after notice, because of <b>others</b>: start it again."


class FreeHub(QuotaHub):
    """One whose teams have no limits, so that nothing is asked before a start."""

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text("teams: {default: {title: Everybody}}\n")


@pytest.fixture(params=[QuotaHub, FreeHub])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("stops")
    settings = ("--Manager.lease_seconds=3",)
    with running(request.param(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=settings)) as made:
        yield made


def database(hub: QuotaHub, statement: str, *values: str) -> list[str]:
    connection = sqlite3.connect(hub.state / "manager.sqlite", timeout=30)
    try:
        with connection:
            return [str(row[0]) for row in connection.execute(statement, values)]
    finally:
        connection.close()


def page(hub: QuotaHub, path: str, user: str = "alice") -> str:
    """What this person sees."""
    browser = requests.Session()
    form = browser.get(f"{hub.url}/hub/login", timeout=60).text
    token = re.search(r'name="_xsrf"\s+value="([^"]+)"', form)
    assert token is not None
    password = hub.env()["DLSPAWNER_ADMIN_PASSWORD"] if user == "admin" else hub.password
    body = {"username": user, "password": password, "_xsrf": token[1]}
    browser.post(f"{hub.url}/hub/login", data=body, timeout=60)
    return browser.get(f"{hub.url}{path}", timeout=60).text


def test_a_manager_that_is_killed_after_its_decision_stops_the_job_when_it_is_back_and_says_why(hub: QuotaHub) -> None:
    hub.add_users(["alice"])
    assert hub.start_server("alice", gpus=1).status_code in {201, 202}
    wait_for(lambda: hub.ready() == ["alice/"], "it runs", 60)
    wait_for(lambda: database(hub, "SELECT state FROM jobs") == ["running"], "that is written down", 60)
    hub.kill("manager")
    # As `stopping.stop` leaves it: decided, and nothing done yet.
    database(
        hub, "UPDATE jobs SET state = 'stopping', stop_reason = 'preempted', stop_sentence = ? RETURNING job", SENTENCE
    )
    assert hub.ready() == ["alice/"]

    hub.start_manager()
    wait_for(lambda: not hub.servers() and not hub.held(), "the Hub has stopped it", 60)
    wait_for(lambda: database(hub, "SELECT state FROM jobs") == ["ended"], "it has ended", 60)

    shown = SENTENCE.replace("<b>", "&lt;b&gt;").replace("</b>", "&lt;/b&gt;")
    assert shown in page(hub, "/hub/user/alice/")
    wait_for(lambda: shown in page(hub, "/hub/home"), "the Manager has answered the page in time", 60)

    (hub.config / "teams.yaml").write_text("teams: [broken]\n")
    wait_for(
        lambda: "the last good version of all files stays in use" in page(hub, "/hub/home", "admin"), "it is told", 60
    )
    assert "may not see and stop" not in page(hub, "/hub/home", "admin"), "the role of hub_config is enough"
    assert "Traceback" not in hub.log
