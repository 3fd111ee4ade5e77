"""Thirty people wait, and everything loses its power: places and submit times are kept, and all get their turn.

Through the real Hub, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager.crowds import SETTINGS, places, power_cut, queue, serve, turns
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.real]
WAITING = 30


@pytest.fixture
def hub(db_url: str, tmp_path: Path) -> Iterator[QuotaHub]:
    made = QuotaHub(tmp_path, db_url=db_url, settings=SETTINGS)
    with running(made):
        yield made


def test_places_and_submit_times_survive_and_everybody_starts_in_order(hub: QuotaHub) -> None:
    users = [f"u{number:02}" for number in range(WAITING)]
    hub.add_users(["holder", *users])
    hub.start_server("holder", gpus=GPUS)
    wait_for(lambda: hub.ready() == ["holder/"], "all GPUs are held", 60)
    for user in users:
        assert hub.start_server(user, gpus=1).status_code in {202, 429}
    wait_for(lambda: len(queue(hub)) == WAITING, "thirty wait", 60)
    before, shown = queue(hub), places(hub, users)
    assert sorted(shown.values()) == list(range(1, WAITING + 1))

    power_cut(hub, cluster=True)
    wait_for(lambda: len(places(hub, users)) == WAITING, "the new Manager decides", 60)
    assert queue(hub) == before
    assert places(hub, users) == shown
    wait_for(lambda: hub.ready() == ["holder/"], "what ran goes on", 60)

    with Sampler(hub) as sampler:
        hub.api("DELETE", "/users/holder/server")
        wait_for(lambda: len(queue(hub)) < WAITING, "turns come", 60)
        power_cut(hub)  # in the middle of the starts
        serve(hub, users)
    assert sampler.most == GPUS
    assert turns(hub) == [job for _, job, _ in before], "in the order of their places"
    assert "Traceback" not in (hub.state / "manager.log").read_text()
