"""Two hundred people want eight GPUs at once, while whatever can be killed is killed: eight are held, never nine.

Through the real Hub, on SQLite and on PostgreSQL. Who gets none waits, and starts as others end: the storm is over when
everybody has had one. What must hold in the end: no GPU is held by nobody (the Manager has no reservation left, and all
eight are somebody's), and no pod is owned by nobody (every pod is a server's of the Hub, and the other way round).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import faults
from tests.e2e.people import wait_for
from tests.edges.test_manager.crowds import SETTINGS, Killer, serve, settle
from tests.edges.test_manager.quota import GPUS, QuotaHub, Sampler, running

pytestmark = pytest.mark.slow
CROWD = 200


@pytest.fixture
def hub(db_url: str, tmp_path: Path) -> Iterator[QuotaHub]:
    made = QuotaHub(tmp_path, db_url=db_url, settings=SETTINGS)
    with running(made):
        yield made


def crowd(hub: QuotaHub, size: int = CROWD) -> list[str]:
    names = [f"u{number}" for number in range(size)]
    hub.add_users(names)
    return names


# On a real control plane the others are with PostgreSQL.
@pytest.mark.parametrize("db_url", [pytest.param("sqlite", marks=pytest.mark.real), "postgresql"], indirect=True)
def test_of_200_people_eight_get_a_gpu_and_the_others_when_it_is_their_turn(hub: QuotaHub) -> None:
    users = crowd(hub)
    with Sampler(hub) as sampler:
        statuses = hub.storm(users, gpus=1)
        settle(hub, users)
        assert sampler.most == GPUS
        assert len(hub.ready()) == GPUS
        assert set(statuses) <= {201, 202, 429}
        serve(hub, users)
    assert sampler.most == GPUS
    assert "Traceback" not in hub.log


@pytest.mark.real
@pytest.mark.parametrize("victim", ["manager", "hub"])
def test_whoever_is_killed_eight_are_held_and_nothing_is_left_behind(hub: QuotaHub, victim: str) -> None:
    users = crowd(hub)
    with Sampler(hub) as sampler:
        with Killer(hub, victim, seed=6) as killer:
            hub.storm(users, gpus=1)
            wait_for(lambda: killer.kills >= 3, "it was killed three times", 300)
        settle(hub, users)
        serve(hub, users)
    assert sampler.most == GPUS


@pytest.mark.real
def test_requests_that_were_carried_out_although_nobody_heard_of_it(db_url: str, tmp_path: Path) -> None:
    hub = QuotaHub(tmp_path, db_url=db_url, settings=SETTINGS)
    hub.prepare()
    hub.start_cluster()
    with faults.before(hub.kubeconfig, tmp_path / "proxied") as api:
        hub.hub_kubeconfig = hub.manager_kubeconfig = api.kubeconfig
        try:
            hub.start_manager()
            hub.start_proxy()
            hub.start_hub()
            users = crowd(hub, 60)
            for fault in (faults.Lost(done=True), faults.Reset(done=True), faults.Slow(4), faults.Answer(503)):
                api.fail("create", "pods", fault, times=None, probability=0.2)
                api.fail("delete", "pods", fault, times=None, probability=0.2)
            with Sampler(hub) as sampler:
                hub.storm(users, gpus=1)
                time.sleep(1)
                api.heal()
                settle(hub, users)
                serve(hub, users)
            assert sampler.most == GPUS
        finally:
            for name in [*hub.running][::-1]:
                hub.stop(name)
