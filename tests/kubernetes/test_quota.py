"""Quota on a real Kubernetes: a crowd through a real Hub, and eight GPUs that stay eight.

Whatever is killed, and whatever the API server has carried out without an answer. The Manager that is killed has a
PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import faults
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.edges.test_manager import databases
from tests.edges.test_manager.crowds import SETTINGS, Killer, serve, settle
from tests.edges.test_manager.quota import GPUS, QuotaHub, Sampler
from tests.kubernetes.conftest import Image
from tests.kubernetes.counted import counted

pytestmark = pytest.mark.kubernetes
CROWD = 30


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[QuotaHub]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    with databases.postgresql() as directory:
        url = databases.create(directory)
        with counted(kubernetes, jobs_namespace, image("job"), tmp_path, db_url=url) as made:
            yield made


def test_of_a_crowd_eight_hold_gpus_also_when_the_manager_is_killed_and_all_have_their_turn(hub: QuotaHub) -> None:
    users = [f"user{number}" for number in range(CROWD)]
    hub.add_users(users)
    with Sampler(hub) as sampler:
        hub.storm(users[: CROWD // 2], gpus=1)
        wait_for(lambda: len(hub.ready()) == GPUS, "eight are ready", 120)
        hub.kill("manager")
        hub.start_manager()
        hub.storm(users[CROWD // 2 :], gpus=1)
        settle(hub, users)
        assert len(hub.ready()) == GPUS == hub.held()
        serve(hub, users)
    assert sampler.most == GPUS


def check_end(hub: QuotaHub, users: list[str]) -> None:
    """Eight hold GPUs, all of them have their turn, and then nothing is left that nobody owns."""
    settle(hub, users)
    assert len(hub.ready()) == GPUS == hub.held()
    serve(hub, users)
    assert hub.kubectl("get", "pods", "-o", "name") == ""


def test_a_hub_that_is_killed_again_and_again_leaves_nothing_that_nobody_owns(
    kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path
) -> None:
    users = [f"user{number}" for number in range(CROWD)]
    with counted(kubernetes, jobs_namespace, image("job"), tmp_path, settings=SETTINGS) as hub:
        hub.add_users(users)
        with Sampler(hub) as sampler:
            with Killer(hub, "hub", seed=6) as killer:
                hub.storm(users, gpus=1)
                wait_for(lambda: killer.kills >= 3, "it was killed three times", 300)
            check_end(hub, users)
        assert sampler.most == GPUS


def test_requests_that_were_carried_out_although_nobody_heard_of_it(
    kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path
) -> None:
    users = [f"user{number}" for number in range(CROWD)]
    with faults.before(kubernetes.kubeconfig, tmp_path / "proxied") as api:
        through = {"hub_kubeconfig": api.kubeconfig, "manager_kubeconfig": api.kubeconfig}
        with counted(kubernetes, jobs_namespace, image("job"), tmp_path, settings=SETTINGS, **through) as hub:
            hub.add_users(users)
            lost = [api.fail(verb, "pods", faults.Lost(done=True), times=3) for verb in ("create", "delete")]
            for fault in (faults.Lost(done=True), faults.Reset(done=True), faults.Slow(4), faults.Answer(503)):
                for verb in ("create", "delete"):
                    api.fail(verb, "pods", fault, times=None, probability=0.2)
            with Sampler(hub) as sampler:
                hub.storm(users, gpus=1)
                wait_for(lambda: len(hub.ready()) == GPUS, "eight are ready all the same", 120)
                assert "found again" in hub.log, "a pod that was made without an answer"
                for name in hub.ready():
                    hub.api("DELETE", f"/users/{name.rstrip('/')}/server")
                wait_for(
                    lambda: all(rule.happened == 3 for rule in lost), "stops were carried out without an answer", 60
                )
                api.heal()
                check_end(hub, users)
            assert sampler.most == GPUS
