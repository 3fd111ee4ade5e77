"""Sixty users (two hundred where nothing is killed) request eight GPUs at once: eight are held, never nine.

Through the real Hub, on SQLite and on PostgreSQL. Who gets none waits, and starts as others end: the storm is over when
everybody has had one. What must hold in the end: no GPU is held by nobody (the Manager has no reservation left, and all
eight are somebody's), and no pod is owned by nobody (every pod is a server's of the Hub, and the other way round).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.component.manager.crowds import SETTINGS, Killer, live, rows, serve, settle
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.e2e.people import wait_for
from tests.harness import faults

pytestmark = pytest.mark.slow
CROWD = 200
FAULTS = (faults.Lost(done=True), faults.Reset(done=True), faults.Slow(4), faults.Answer(503))


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
    users = crowd(hub, 60)
    with Sampler(hub) as sampler:
        with Killer(hub, victim, seed=6) as killer:
            hub.storm(users, gpus=1)
            wait_for(lambda: killer.kills >= 3, "it was killed three times", 300)
        settle(hub, users)
        serve(hub, users)
    assert sampler.most == GPUS


@pytest.mark.real
def test_requests_that_were_carried_out_although_nobody_heard_of_it(db_url: str, tmp_path: Path) -> None:
    """While the first ones start and stop; the others are not served but cancel, so that it does not take longer."""
    tokens = '\nc.JupyterHub.load_roles[-1]["scopes"] += ["tokens"]\n'
    hub = QuotaHub(tmp_path, db_url=db_url, settings=SETTINGS, extra=tokens)
    hub.prepare()
    hub.start_cluster()
    with faults.before(hub.kubeconfig, tmp_path / "proxied") as api:
        hub.hub_kubeconfig = hub.manager_kubeconfig = api.kubeconfig
        try:
            hub.start_manager()
            hub.start_proxy()
            hub.start_hub()
            users = crowd(hub, 60)
            rules = [
                api.fail(verb, "pods", fault, times=None, probability=0.2)
                for fault in FAULTS
                for verb in ("create", "delete")
            ]

            def all_met() -> bool:
                stop(hub)
                return all(rule.happened for rule in rules)

            with Sampler(hub) as sampler:
                hub.storm(users, gpus=1)
                wait_for(all_met, "creates and deletes have met every fault", 120)
                api.heal()
                settle(hub, users)
                leave(hub, users)
            assert sampler.most == GPUS
        finally:
            for name in [*hub.running][::-1]:
                hub.stop(name)


def stop(hub: QuotaHub) -> None:
    """Whoever has a server gives it back."""
    with ThreadPoolExecutor(GPUS) as pool:
        list(pool.map(lambda name: hub.api("DELETE", f"/users/{name.rstrip('/')}/server"), hub.ready()))


def leave(hub: QuotaHub, users: list[str]) -> None:
    """Who waits cancels and who has a server gives it back, until nothing is left."""

    def cancel(user: str, job: str) -> None:
        headers = {"Authorization": f"token {hub.api('POST', f'/users/{user}/tokens', {}).json()['token']}"}
        url = f"{hub.manager_url()}/services/jobs/api/jobs/{job}"
        answer = requests.delete(url, headers=headers, timeout=60)
        assert answer.status_code in {202, 204}, answer.text

    left = rows(hub, "SELECT user_name, job FROM jobs WHERE state <> 'ended' ORDER BY submitted DESC")
    assert sorted(user for user, _ in left) == sorted(users)
    for user, job in left:  # the last first, so that nobody's turn comes meanwhile
        cancel(user, job)
    wait_for(lambda: not live(hub) and not hub.servers(), "nothing is left", 120)
    assert not hub.held()
