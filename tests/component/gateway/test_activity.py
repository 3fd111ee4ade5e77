"""What counts as use, and how often the Hub hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from ssh_gateway.backends.activity import ActivityReporter, SessionReporter
from ssh_gateway.backends.directory import BackendUnavailable
from ssh_gateway.core.proof import SshSessionState
from tests.component.gateway.peers import Client, FakePeople, Running, until

START = datetime(2026, 1, 1, tzinfo=UTC)


Reporter = TypeVar("Reporter", ActivityReporter, SessionReporter)


@contextlib.asynccontextmanager
async def telling(reporter: Reporter) -> AsyncIterator[Reporter]:
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_activity_of_a_job_is_reported_once_per_interval() -> None:
    people, clock = FakePeople(), iter(START + timedelta(seconds=n) for n in range(1000))
    async with telling(ActivityReporter(people, interval_seconds=3600, now=lambda: next(clock))) as activity:
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


async def test_reports_continue_after_an_outage_of_the_hub() -> None:
    people = FakePeople(down=True)
    async with telling(ActivityReporter(people, interval_seconds=0.01)) as activity:
        activity.touch("alice", "train")
        await asyncio.sleep(0.05)
        people.down = False
        activity.touch("alice", "train")
        await until(lambda: bool(people.reports))


async def test_keepalives_are_no_activity(alice: Client, running: Running) -> None:
    ssh = await alice.start("ssh", "-vvv", "-N", "-o", "ServerAliveInterval=1", "alice+train@gateway")
    while b"receive packet: type 8" not in await asyncio.wait_for(ssh.stderr.readline(), 15):
        pass  # until a keepalive was answered
    ssh.kill()
    await ssh.communicate()
    assert running.people.reports == []


def _short(told: list[SshSessionState]) -> list[tuple[str, str, bool]]:
    return [(one.user, one.server, one.open) for one in told]


@dataclass
class Manager:
    """It remembers what it was told."""

    told: list[list[SshSessionState]] = field(default_factory=list)
    down: bool = False
    refused: int = 0

    async def report_sessions(self, gateway: str, sessions: Sequence[SshSessionState]) -> None:
        if self.down:
            self.refused += 1
            raise BackendUnavailable("it is away")
        self.told.append(list(sessions))

    @property
    def last(self) -> list[tuple[str, str, bool]]:
        return _short(self.told[-1]) if self.told else []


async def test_new_session_is_reported_at_once_with_all_others() -> None:
    manager = Manager()
    async with telling(SessionReporter(manager, interval=3600)) as sessions:
        sessions.opened("alice", "train")
        await until(lambda: manager.last == [("alice", "train", True)])
        sessions.opened("bob", "")
        await until(lambda: manager.last == [("alice", "train", True), ("bob", "", True)])


async def test_report_has_the_time_since_the_last_byte() -> None:
    manager, clock = Manager(), [100.0]
    sessions = SessionReporter(manager, interval=3600, clock=lambda: clock[0])
    sessions.opened("alice", "silent")
    sessions.opened("alice", "train")
    sessions.touch("alice", "train")
    clock[0] += 40
    async with telling(sessions):
        await until(lambda: bool(manager.told))
    assert {one.server: one.seconds for one in manager.told[0]} == {"silent": None, "train": 40.0}


async def test_ended_session_is_reported_until_the_manager_answers() -> None:
    manager = Manager(down=True)
    async with telling(SessionReporter(manager, interval=0.01)) as sessions:
        sessions.opened("alice", "train")
        sessions.closed("alice", "train")
        await until(lambda: manager.refused > 1)
        manager.down = False
        await until(lambda: [("alice", "train", False)] in map(_short, manager.told))
        await until(lambda: manager.told[-1] == [])


async def test_job_with_two_sessions_is_open_until_both_end() -> None:
    manager = Manager()
    async with telling(SessionReporter(manager, interval=0.01)) as sessions:
        sessions.opened("alice", "train")
        sessions.opened("alice", "train")
        sessions.closed("alice", "train")
        await until(lambda: manager.last == [("alice", "train", True)])
        sessions.closed("alice", "train")
        await until(lambda: [("alice", "train", False)] in map(_short, manager.told))


async def test_real_session_is_reported_open_with_its_bytes(alice: Client, running: Running) -> None:
    manager = Manager()
    running.server.activity.sessions = SessionReporter(manager, interval=0.05)
    async with telling(running.server.activity.sessions):
        ssh = await alice.start("ssh", "alice+train@gateway", "echo hello; read line")
        await until(lambda: any(one.open and one.seconds is not None for told in manager.told for one in told))
        ssh.kill()
        await ssh.communicate()
        await until(lambda: manager.told[-1] == [])
    assert {(one.user, one.server) for told in manager.told for one in told} == {("alice", "train")}
