"""PostgreSQL's primary is killed under load, and its stand-by promoted: what was admitted and what waits is there.

Hub and Manager have URLs with both servers and `target_session_attrs=read-write`, and are not restarted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.component.manager import databases
from tests.component.manager.crowds import SETTINGS, places, serve, settle
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def servers() -> Iterator[tuple[str, str]]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    with databases.postgresql() as primary, databases.stand_by(primary) as other:
        yield primary, other


@pytest.fixture
def hub(servers: tuple[str, str], tmp_path: Path) -> Iterator[QuotaHub]:
    urls = [f"{databases.create(servers[0])},{servers[1]}&target_session_attrs=read-write" for _ in ("Manager", "Hub")]
    own = f"c.JupyterHub.db_url = {urls[1]!r}\n"
    with running(QuotaHub(tmp_path, db_url=urls[0], settings=SETTINGS, extra=own)) as made:
        yield made


def test_no_admitted_job_is_lost_when_the_stand_by_takes_over(hub: QuotaHub, servers: tuple[str, str]) -> None:
    primary, other = servers
    users = [f"u{number:02}" for number in range(40)]
    hub.add_users(users)
    with Sampler(hub) as sampler, ThreadPoolExecutor(2) as crowds:
        settle(hub, users[:20])
        before = dict(hub.rows("SELECT job, state FROM jobs"))
        pods = {pod["metadata"]["uid"] for pod in hub.pods()}
        crowds.submit(hub.storm, users[20:30], gpus=1)
        databases.control(primary, "stop")
        killed = time.monotonic()
        databases.control(other, "promote")
        crowds.submit(hub.storm, users[30:], gpus=1)
        wait_for(lambda: places(hub, users[30:]), "a job of after the kill waits", 120)
        print(f"the Manager decided again {time.monotonic() - killed:.1f} s after the kill")
        wait_for(
            lambda: hub.api("POST", "/users", {"usernames": ["later"]}).status_code in {201, 409},
            "the Hub writes again",
            120,
        )
        print(f"the Hub wrote again {time.monotonic() - killed:.1f} s after the kill")
        settle(hub, users)
        assert pods <= {pod["metadata"]["uid"] for pod in hub.pods()}, "the earlier pods still run"
        after = dict(hub.rows("SELECT job, state FROM jobs"))
        assert {job: after.get(job) for job in before} == before
        serve(hub, users)
    assert sampler.most == GPUS
