"""Sixty users request eight GPUs at once while Hub or Manager is killed: eight are held, never nine.

Through the real Hub, on SQLite and on PostgreSQL. Who gets none waits, and starts as others end: the storm is over when
everybody has had one. What must hold in the end: no GPU is held by nobody (the Manager has no reservation left, and all
eight are somebody's), and no pod is owned by nobody (every pod is a server's of the Hub, and the other way round).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager.crowds import SETTINGS, Killer, serve, settle
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.e2e.people import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(db_url: str, tmp_path: Path) -> Iterator[QuotaHub]:
    made = QuotaHub(tmp_path, db_url=db_url, settings=SETTINGS)
    with running(made):
        yield made


# Sixty starts are as many as a small machine carries while the Hub is killed. Two rows are in `make test-faults`.
@pytest.mark.real
@pytest.mark.parametrize(
    ("db_url", "victim"),
    [
        pytest.param("sqlite", "hub", marks=pytest.mark.faults),
        pytest.param("postgresql", "manager", marks=pytest.mark.faults),
        ("sqlite", "manager"),
        ("postgresql", "hub"),
    ],
    indirect=["db_url"],
)
def test_eight_gpus_are_held_and_nothing_is_left_behind_after_kills(hub: QuotaHub, victim: str) -> None:
    users = [f"u{number}" for number in range(60)]
    hub.add_users(users)
    with Sampler(hub) as sampler:
        with Killer(hub, victim, seed=6) as killer:
            hub.storm(users, gpus=1)
            wait_for(lambda: killer.kills >= 3, "it was killed three times", 300)
        settle(hub, users)
        serve(hub, users)
    assert sampler.most == GPUS
