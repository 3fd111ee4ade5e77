"""The queue on a real Kubernetes: places are kept when Hub and Manager are killed, and turns come in their order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.edges.spawner_hub import Person
from tests.edges.test_manager.crowds import places, queue, serve, turns
from tests.edges.test_manager.quota import GPUS, QuotaHub, Sampler
from tests.kubernetes.conftest import Image
from tests.kubernetes.counted import counted

pytestmark = pytest.mark.kubernetes
USERS = [f"user{number}" for number in range(12)]


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[QuotaHub]:
    with counted(kubernetes, jobs_namespace, image("job"), tmp_path) as made:
        yield made


def test_who_waits_keeps_the_place_through_kills_and_starts_in_order_unless_it_cancels(hub: QuotaHub) -> None:
    hub.add_users(["holder", *USERS])
    hub.start_server("holder", gpus=GPUS)
    wait_for(lambda: hub.ready() == ["holder/"], "all GPUs are held", 120)
    for user in USERS:
        assert hub.start_server(user, gpus=1).status_code in {202, 429}
    wait_for(lambda: len(queue(hub)) == len(USERS), "all of them wait", 60)
    before, shown = queue(hub), places(hub, USERS)
    with Sampler(hub) as sampler:
        for name in ("manager", "hub"):
            hub.kill(name)
        hub.start_manager()
        hub.start_hub()
        wait_for(lambda: places(hub, USERS) == shown, "the new Manager knows the places", 60)
        assert queue(hub) == before

        user, job, _ = before[3]
        headers = {"Authorization": f"token {Person(hub, user).token}"}
        answer = requests.delete(f"{hub.url}/services/jobs/api/wait/{user}/", headers=headers, timeout=30)
        assert answer.status_code == 204, answer.text
        hub.api("DELETE", "/users/holder/server")
        serve(hub, [one for one in USERS if one != user])
    assert sampler.most == GPUS
    assert turns(hub) == [one for _, one, _ in before if one != job]
