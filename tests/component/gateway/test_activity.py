"""What counts as use, and how often the Hub and the Manager hear of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from ssh_gateway.backends.activity import ActivityReporter
from tests.component.gateway.peers import Client, FakeAuthBackend, Running, until


@contextlib.asynccontextmanager
async def telling(reporter: ActivityReporter) -> AsyncIterator[ActivityReporter]:
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def told(auth_backend: FakeAuthBackend, at: int = -1) -> list[tuple[str, str, bool]] | None:
    """One report to the Manager: user, server, and if a session is open."""
    return [(one.user, one.server, one.open) for one in auth_backend.sessions[at]] if auth_backend.sessions else None


def ever_told(auth_backend: FakeAuthBackend, *jobs: tuple[str, str, bool]) -> bool:
    return list(jobs) in [told(auth_backend, at) for at in range(len(auth_backend.sessions))]


async def test_use_of_a_job_is_reported_to_the_hub_once_per_interval() -> None:
    auth_backend, clock = FakeAuthBackend(), [100.0]
    activity, before = ActivityReporter(auth_backend, 3600, lambda: clock[0]), datetime.now(UTC)
    for _ in range(100):
        activity.touch("alice", "train")
    clock[0] += 40
    activity.touch("bob", "")
    async with telling(activity):
        await until(lambda: len(auth_backend.reports) == 2)
        activity.touch("alice", "train")
        await asyncio.sleep(0)
    alice, bob = auth_backend.reports
    assert (alice[:2], bob[:2]) == (("alice", "train"), ("bob", ""))
    assert before <= alice[2] + timedelta(seconds=40) <= bob[2] <= datetime.now(UTC)


async def test_reports_continue_after_an_outage_of_the_hub() -> None:
    auth_backend = FakeAuthBackend(down=True)
    async with telling(ActivityReporter(auth_backend, 0.01)) as activity:
        activity.touch("alice", "train")
        await asyncio.sleep(0.05)
        auth_backend.down = False
        activity.touch("alice", "train")
        await until(lambda: bool(auth_backend.reports))


async def test_new_session_is_reported_at_once_with_all_others() -> None:
    auth_backend = FakeAuthBackend()
    async with telling(ActivityReporter(auth_backend, 3600)) as activity:
        activity.opened("alice", "train")
        await until(lambda: told(auth_backend) == [("alice", "train", True)])
        activity.opened("bob", "")
        await until(lambda: told(auth_backend) == [("alice", "train", True), ("bob", "", True)])


async def test_report_has_the_time_since_the_last_byte() -> None:
    auth_backend, clock = FakeAuthBackend(), [100.0]
    activity = ActivityReporter(auth_backend, 3600, lambda: clock[0])
    activity.opened("alice", "silent")
    activity.opened("alice", "train")
    activity.touch("alice", "train")
    clock[0] += 40
    async with telling(activity):
        await until(lambda: bool(auth_backend.sessions))
    assert {one.server: one.seconds for one in auth_backend.sessions[0]} == {"silent": None, "train": 40.0}


async def test_ended_session_is_reported_until_the_manager_answers() -> None:
    auth_backend = FakeAuthBackend(manager_down=True)
    async with telling(ActivityReporter(auth_backend, 0.01)) as activity:
        activity.opened("alice", "train")
        activity.closed("alice", "train")
        await until(lambda: auth_backend.count("report_sessions") > 1)
        auth_backend.manager_down = False
        await until(lambda: ever_told(auth_backend, ("alice", "train", False)))
        await until(lambda: told(auth_backend) == [])


async def test_job_with_two_sessions_is_open_until_both_end() -> None:
    auth_backend = FakeAuthBackend()
    async with telling(ActivityReporter(auth_backend, 0.01)) as activity:
        activity.opened("alice", "train")
        activity.opened("alice", "train")
        activity.closed("alice", "train")
        await until(lambda: told(auth_backend) == [("alice", "train", True)])
        activity.closed("alice", "train")
        await until(lambda: ever_told(auth_backend, ("alice", "train", False)))


async def test_real_session_is_reported_open_with_its_bytes(alice: Client, running: Running) -> None:
    reports = running.auth_backend.sessions
    ssh = await alice.start("ssh", "alice+train@gateway", "echo hello; read line")
    await until(lambda: any(one.open and one.seconds is not None for report in reports for one in report))
    ssh.kill()
    await ssh.communicate()
    await until(lambda: reports[-1] == [])
    assert {(one.user, one.server) for report in reports for one in report} == {("alice", "train")}
