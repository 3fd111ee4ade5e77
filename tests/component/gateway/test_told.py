"""What the Manager is told of the sessions that go through the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ssh_gateway.backends.activity import SessionReporter
from ssh_gateway.backends.directory import BackendUnavailable
from ssh_gateway.core.proof import SshSessionState
from tests.component.gateway.peers import Client, Running, until


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


@contextlib.asynccontextmanager
async def telling(sessions: SessionReporter) -> AsyncIterator[SessionReporter]:
    task = asyncio.create_task(sessions.run())
    try:
        yield sessions
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_new_session_is_told_of_at_once_and_with_it_all_others() -> None:
    manager = Manager()
    async with telling(SessionReporter(manager, interval=3600)) as sessions:
        sessions.opened("alice", "train")
        await until(lambda: manager.last == [("alice", "train", True)])
        sessions.opened("bob", "")
        await until(lambda: manager.last == [("alice", "train", True), ("bob", "", True)])


async def test_how_long_ago_the_last_byte_went_through_is_told() -> None:
    manager, clock = Manager(), [100.0]
    sessions = SessionReporter(manager, interval=3600, clock=lambda: clock[0])
    sessions.opened("alice", "silent")
    sessions.opened("alice", "train")
    sessions.touch("alice", "train")
    clock[0] += 40
    async with telling(sessions):
        await until(lambda: bool(manager.told))
    assert {one.server: one.seconds for one in manager.told[0]} == {"silent": None, "train": 40.0}


async def test_an_ended_session_is_told_until_it_was_heard() -> None:
    manager = Manager(down=True)
    async with telling(SessionReporter(manager, interval=0.01)) as sessions:
        sessions.opened("alice", "train")
        sessions.closed("alice", "train")
        await until(lambda: manager.refused > 1)
        manager.down = False
        await until(lambda: [("alice", "train", False)] in map(_short, manager.told))
        await until(lambda: manager.told[-1] == [])


async def test_two_sessions_of_a_job_are_open_until_both_have_ended() -> None:
    manager = Manager()
    async with telling(SessionReporter(manager, interval=0.01)) as sessions:
        sessions.opened("alice", "train")
        sessions.opened("alice", "train")
        sessions.closed("alice", "train")
        await until(lambda: manager.last == [("alice", "train", True)])
        sessions.closed("alice", "train")
        await until(lambda: [("alice", "train", False)] in map(_short, manager.told))


async def test_a_real_session_is_open_while_it_lasts_and_its_bytes_count(alice: Client, running: Running) -> None:
    manager = Manager()
    running.server.activity.sessions = SessionReporter(manager, interval=0.05)
    async with telling(running.server.activity.sessions):
        ssh = await alice.start("ssh", "alice+train@gateway", "echo hello; read line")
        await until(lambda: any(one.open and one.seconds is not None for told in manager.told for one in told))
        ssh.kill()
        await ssh.communicate()
        await until(lambda: manager.told[-1] == [])
    assert {(one.user, one.server) for told in manager.told for one in told} == {("alice", "train")}
