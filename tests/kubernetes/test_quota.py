"""Quota on a real Kubernetes, in containers: a crowd through a real Hub, and eight GPUs that stay eight.

Also when the Manager, which has a PostgreSQL, is killed. Greater crowds and what else may happen to them are those of
tests/component/manager/test_quota_storm.py, on a real control plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager import databases
from tests.component.manager.crowds import serve, settle
from tests.component.manager.quota import GPUS, QuotaHub, Sampler
from tests.contract.client import Client
from tests.e2e.people import wait_for
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
