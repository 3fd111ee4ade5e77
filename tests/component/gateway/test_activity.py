"""What counts as use, and how often the Hub hears of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from ssh_gateway.backends.activity import ActivityReporter
from tests.component.gateway.peers import Client, FakePeople, Running, until

START = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_jobs_use_is_told_once_per_interval_however_often_it_happens() -> None:
    people, clock = FakePeople(), iter(START + timedelta(seconds=n) for n in range(1000))
    activity = ActivityReporter(people, interval_seconds=3600, now=lambda: next(clock))
    task = asyncio.create_task(activity.run())
    for _ in range(100):
        activity.touch("alice", "train")
    activity.touch("bob", "")
    await until(lambda: len(people.reports) == 2)
    activity.touch("alice", "train")
    await asyncio.sleep(0)
    assert people.reports == [
        ("alice", "train", START + timedelta(seconds=99)),
        ("bob", "", START + timedelta(seconds=100)),
    ]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_hub_that_is_down_does_not_end_the_reports() -> None:
    people = FakePeople(down=True)
    activity = ActivityReporter(people, interval_seconds=0.01)
    task = asyncio.create_task(activity.run())
    activity.touch("alice", "train")
    await asyncio.sleep(0.05)
    people.down = False
    activity.touch("alice", "train")
    await until(lambda: bool(people.reports))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_bytes_through_the_gateway_are_activity_of_that_job(alice: Client, running: Running) -> None:
    assert (await alice.ssh("alice+train@gateway", "echo hello")).status == 0
    await until(lambda: bool(running.people.reports))
    assert {(user, server) for user, server, _ in running.people.reports} == {("alice", "train")}


async def test_a_login_that_does_nothing_is_none(alice: Client, running: Running) -> None:
    ssh = await alice.start("ssh", "-vvv", "-N", "-o", "ServerAliveInterval=1", "alice+train@gateway")
    assert ssh.stderr is not None
    while b"receive packet: type 8" not in await asyncio.wait_for(ssh.stderr.readline(), 15):
        pass  # until a keepalive was answered
    ssh.kill()
    await ssh.communicate()
    assert running.people.reports == []
