"""Notices on terminals, with OpenSSH's client and sshd, and their way from the Manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dlspawner.clients.hub import HubClient
from dlspawner.clients.manager import JobNotice, ManagerClient, read_notice
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.notify import post
from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager, JobNotices
from ssh_gateway.session.terminals import LONGEST_LINE, NoticeFollower, line
from tests.component.gateway.peers import Client, Lab, finish, seen, until
from tests.component.manager.noticing import harnesses, job_of, serving
from tests.component.manager.real_hub import RealHub

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
STOP = JobNotice("1", "alice", "train", "Team vision needs its GPUs: this job will be stopped {when}.")
MIB = 2**20


@dataclass
class Scripted:
    """A Manager that has the lists which it is given."""

    lists: asyncio.Queue[JobNotices | BackendUnavailable] = field(default_factory=asyncio.Queue)
    asked: list[str] = field(default_factory=list)

    async def open_notices(self, version: str, seconds: float) -> JobNotices:
        self.asked.append(version)
        found = await self.lists.get()
        if isinstance(found, BackendUnavailable):
            raise found
        return found


@contextlib.asynccontextmanager
async def following(notices: NoticeFollower) -> AsyncIterator[None]:
    task = asyncio.create_task(notices.run())
    try:
        yield
    finally:
        task.cancel()
        assert await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


@dataclass
class Telling:
    """A gateway and the Manager that the test scripts."""

    client: Client
    manager: Scripted
    version: int = 0

    def say(self, *notices: JobNotice) -> None:
        self.version += 1
        self.manager.lists.put_nowait(JobNotices(str(self.version), notices))


@pytest.fixture
async def telling(lab: Lab) -> AsyncIterator[Telling]:
    manager = Scripted()
    notices = NoticeFollower(manager, lambda: NOW)
    async with lab.gateway(notices=notices) as running, following(notices):
        yield Telling(lab.client(running, "alice"), manager)


async def test_terminal_shows_open_and_new_notices(telling: Telling) -> None:
    telling.say(replace(STOP, until=NOW + timedelta(minutes=5)), JobNotice("9", "alice", "other", "not here"))
    await until(lambda: len(telling.manager.asked) == 2)
    process = await telling.client.start("ssh", "-tt", "alice+train@gateway", "echo ready; read x; echo over")
    shown = await seen(process, b"ready")
    stop = b"\r\n*** Team vision needs its GPUs: this job will be stopped at 12:05 UTC, in 5 minutes. ***\r\n"
    assert stop in shown
    telling.say(STOP, JobNotice("2", "alice", "train", "Never mind: this job goes on."))
    shown += await seen(process, b"\r\n*** Never mind: this job goes on. ***\r\n")
    done = await finish(process, b"x\n")
    assert b"over" in done.out
    assert b"not here" not in shown + done.out
    assert shown.count(b"***") == 4, "each once"


# From the Manager


async def test_notices_stay_through_an_outage_of_the_manager() -> None:
    manager, changes = Scripted(), list[int]()
    notices = NoticeFollower(manager, lambda: NOW)
    notices.changed = lambda: changes.append(1)
    async with following(notices):
        manager.lists.put_nowait(JobNotices("a", (STOP,)))
        await until(lambda: len(changes) == 1)
        manager.lists.put_nowait(BackendUnavailable("away"))
        manager.lists.put_nowait(JobNotices("a", ()))  # the same version: nothing new
        await until(lambda: manager.asked == ["", "a", "a", "a"])
        assert [one.id for one in notices.lines("alice", "train")] == ["1"]
        manager.lists.put_nowait(JobNotices("b", ()))
        await until(lambda: len(changes) == 2)
        assert notices.lines("alice", "train") == []


def test_notice_belongs_to_its_job_and_expires() -> None:
    now = NOW
    notices = NoticeFollower(Scripted(), lambda: now)
    seen = replace(STOP, id="seen", seen=True)
    over = replace(STOP, id="over", until=NOW - timedelta(hours=1))
    denied = replace(STOP, id="2", text="Vera has denied it.", job="j-earlier")
    approved = replace(STOP, id="3", text="Vera has approved it.", job="j-now", ends=NOW + timedelta(minutes=10))
    notices._take([STOP, seen, over, denied, approved])
    assert [one.id for one in notices.lines("alice", "train", "j-now")] == ["1", "3"]
    assert [one.id for one in notices.lines("alice", "train")] == ["1", "2", "3"], "nobody knows which job it is"
    now += timedelta(minutes=10)  # with no word of the Manager, which is away
    assert [one.id for one in notices.lines("alice", "train", "j-now")] == ["1"]


async def test_posted_notice_reaches_the_gateway_at_once(
    real_hub: RealHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    token = real_hub.tokens["gateway"]
    job = job_of("alice", "train")
    async with (
        harnesses(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as harness,
        serving(harness, real_hub) as served,
        HubClient(real_hub.hub_api, token) as hub,
    ):
        auth_backend = HubAndManager(hub, served.url, token)
        first = await auth_backend.open_notices("", 0)
        assert first.notices == ()
        waiting = asyncio.create_task(auth_backend.open_notices(first.version, 60))
        await until(lambda: bool(served.store.notices._readers))
        posted = await served.store.transact(
            lambda transaction: post(transaction, job, NoticeKind.IDLE, "Unused.", until=NOW)
        )
        (found,) = (await waiting).notices
        assert found == JobNotice(posted.id, "alice", "train", "Unused.", NOW, job=job.id)
        approved = await served.store.transact(
            lambda transaction: post(transaction, job, NoticeKind.APPROVED, "Approved.")
        )
        ends = {one.text: one.ends for one in (await auth_backend.open_notices("", 0)).notices}
        assert ends == {"Unused.": None, "Approved.": approved.ends}
        assert approved.ends is not None


async def test_missing_scope_for_notices_is_named(real_hub: RealHub) -> None:
    token = real_hub.tokens["other"]
    async with HubClient(real_hub.hub_api, token) as hub:
        auth_backend = HubAndManager(hub, f"{real_hub.manager}/services/jobs", token)
        with pytest.raises(BackendUnavailable, match="custom:notices:read"):
            await auth_backend.open_notices("", 0)


GOOD = {"id": "1", "user": "alice", "server": "train", "text": "x", "until": None, "seen": False}


@pytest.mark.parametrize("entry", [None, [], {}, {**GOOD, "text": 5}, {**GOOD, "until": "2026-05-04T12:00:00"}])
def test_malformed_notice_is_ignored(entry: object) -> None:
    assert read_notice(GOOD) == JobNotice("1", "alice", "train", "x")
    assert read_notice(entry) is None


async def test_notices_for_administrators_are_not_for_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(*_: object) -> tuple[str, tuple[JobNotice | None, ...]]:
        return "7", (read_notice({**GOOD, "user": ""}), None, read_notice(GOOD))

    monkeypatch.setattr(ManagerClient, "open_notices", answered)
    async with HubClient("http://127.0.0.1:1/hub/api", "token") as hub:
        found = await HubAndManager(hub, "http://127.0.0.1:1", "token").open_notices("", 0)
    assert (found.version, [one.user for one in found.notices]) == ("7", ["alice"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b]0;title\x07\x9b31m\r\n", "?]0;title??31m"),
        ("Müller’s “job” – now…", 'Muller\'s "job" - now...'),
        ("日本", "??"),
        ("x" * 2000, "x" * (LONGEST_LINE - 3) + "..."),
    ],
)
def test_line_is_printable_ascii(text: str, shown: str) -> None:
    assert line(JobNotice("1", "a", "b", text), NOW) == f"\r\n*** {shown} ***\r\n".encode("ascii")
