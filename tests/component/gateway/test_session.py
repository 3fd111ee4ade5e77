"""Sessions: requests before the default server is connected, streams, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

import asyncssh
import pytest

from dlspawner.clients.manager import StartStatus
from ssh_gateway import log
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core import packets
from ssh_gateway.core.routing import JobEndpoint
from ssh_gateway.session import session as session_module
from ssh_gateway.session.autostart import AutoStarter
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.session import MOST_PACKETS, TOO_MANY_STREAMS
from tests.component.gateway.hostile import Listener, disconnect, drop, logged_in
from tests.component.gateway.peers import DEADLINE, Client, FakeJobDirectory, Lab, Running, Sshd, log_lines, until

NOT_RUNNING = "your default server is not running"


@pytest.fixture
def starting(running: Running) -> Running:
    """Logins start the default server, which takes its time."""
    running.server.autostart = AutoStarter(running.auth_backend, "http://hub.example/", 60.0, 0.02)
    running.auth_backend.stages = [StartStatus("starting")]
    return running


def runs(starting: Running, sshd: Sshd) -> None:
    starting.job_directory.targets["alice", ""] = sshd.target("")
    starting.auth_backend.stages = [StartStatus("running")]


async def request(conn: asyncssh.SSHClientConnection, name: bytes, *content: bytes) -> bytes:
    """The packet that answers a global request."""
    _, answer = await conn._make_global_request(name, *content)
    return bytes(answer.get_full_payload())


async def echo(conn: asyncssh.SSHClientConnection) -> str:
    return str((await conn.run("echo in")).stdout)


async def stream(conn: asyncssh.SSHClientConnection, host: str, port: int) -> str:
    """What a stream says first, or why it was not opened."""
    try:
        reader, writer = await conn.open_connection(host, port)
    except asyncssh.ChannelOpenError as refused:
        return refused.reason
    said = await reader.readline()
    writer.close()
    assert isinstance(said, bytes)
    return said.decode()


async def test_streams_without_a_pod_are_refused_and_the_connection_continues(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    """As a browser opens them through `ssh -L`."""
    conn = await logged_in(running, alices_key, "alice")
    for _ in range(MOST_PACKETS // 6 + 1):
        asked = (stream(conn, "localhost", port) for port in range(6))
        answers = await asyncio.wait_for(asyncio.gather(*asked), DEADLINE)
        assert [answer.partition(", and ")[0] for answer in answers] == [
            f"localhost:{port} is none of your jobs" for port in range(6)
        ]
        assert all(NOT_RUNNING in answer for answer in answers)
    assert (await stream(conn, "train", 22)).startswith("SSH-2.0-")
    await disconnect(conn)


async def test_stream_to_a_job_does_not_wait_for_the_default_server(
    starting: Running, sshd: Sshd, alices_key: asyncssh.SSHKey
) -> None:
    conn = await logged_in(starting, alices_key, "alice")
    asked = asyncio.create_task(echo(conn))
    jump = asyncio.create_task(stream(conn, "train", 22))
    await until(lambda: starting.auth_backend.looks > 1)
    assert (await asyncio.wait_for(jump, DEADLINE)).startswith("SSH-2.0-")
    assert not asked.done()
    runs(starting, sshd)
    assert await asyncio.wait_for(asked, DEADLINE) == "in\n"
    await disconnect(conn)


async def test_waiting_streams_are_limited_and_the_session_starts(
    starting: Running, sshd: Sshd, alices_key: asyncssh.SSHKey
) -> None:
    """As a browser opens them through `ssh -D`."""
    conn = await logged_in(starting, alices_key, "alice")
    asked = asyncio.create_task(echo(conn))
    await until(lambda: starting.auth_backend.looks > 1)
    streams = [asyncio.create_task(stream(conn, "127.0.0.1", 9)) for _ in range(MOST_PACKETS + 5)]
    await until(lambda: sum(one.done() for one in streams) == 6)
    assert {one.result() for one in streams if one.done()} == {TOO_MANY_STREAMS}
    runs(starting, sshd)
    assert await asyncio.wait_for(asked, DEADLINE) == "in\n"
    await disconnect(conn)
    await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.parametrize("streams", [0, 2], ids=["a session", "streams before a session"])
async def test_client_that_leaves_ends_the_wait_for_the_default_server(
    starting: Running, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture, streams: int
) -> None:
    conn = await logged_in(starting, alices_key, "alice")
    asked = [asyncio.create_task(stream(conn, "localhost", 80)) for _ in range(streams)]
    asked.append(asyncio.create_task(echo(conn)))
    await until(lambda: starting.auth_backend.looks > 1)
    drop(conn)
    await until(lambda: not starting.server.connections)
    assert starting.server.session_limit.inside["alice"] == 0
    await asyncio.gather(*asked, return_exceptions=True)

    def refusals() -> list[str]:
        lines = [record.getMessage().partition("what=")[2] for record in caplog.records]
        return [line for line in lines if line]

    await until(refusals)
    assert refusals() == ['session why="the client is gone"']


async def test_keepalives_are_answered_while_the_default_server_starts(
    starting: Running, alices_key: asyncssh.SSHKey
) -> None:
    conn = await logged_in(starting, alices_key, "alice")
    asked = asyncio.create_task(echo(conn))
    await until(lambda: starting.auth_backend.looks > 1)
    alive = asyncio.create_task(request(conn, packets.KEEPALIVE))
    assert await asyncio.wait_for(alive, DEADLINE) == bytes([packets.REQUEST_SUCCESS])
    assert not asked.done()
    asked.cancel()
    await disconnect(conn)


async def test_default_server_is_user_plus_and_user_alone(alice: Client, running: Running, sshd: Sshd) -> None:
    running.job_directory.targets["alice", ""] = sshd.target("")
    explicit, implicit = await asyncio.gather(
        alice.ssh("alice+@gateway", "echo here; exit 3"), alice.ssh("alice@gateway", "cat; exit 4", feed=b"typed")
    )
    assert (explicit.out, explicit.status) == (b"here\n", 3)
    assert (implicit.out, implicit.status) == (b"typed", 4)


@pytest.mark.parametrize(("count", "size"), [(65, 1), (16, 32_000)], ids=["many small", "few large"])
async def test_requests_before_the_first_session_are_limited(
    running: Running, alices_key: asyncssh.SSHKey, count: int, size: int
) -> None:
    """Requests without a wanted answer connect no pod."""
    client = Listener()
    conn = await logged_in(running, alices_key, "alice", client)
    for _ in range(count):
        conn.send_packet(packets.GLOBAL_REQUEST, packets.text(b"nobody@example.com"), b"\0", bytes(size))
    await until(lambda: client.why)
    assert client.why == "too many requests before the first session"
    await until(lambda: not running.server.connections)


async def test_refused_requests_do_not_fill_the_log(
    running: Running, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    conn = await logged_in(running, alices_key)
    await conn.create_process("cat")
    for _ in range(3 * log.BURST):  # the job knows the channel as 0
        conn.send_packet(packets.CHANNEL_REQUEST, bytes(4), packets.text(b"auth-agent-req@openssh.com"), b"\0")
    assert (await conn.run("echo in")).stdout == "in\n"
    lines = log_lines(caplog, "auth-agent")
    assert log.BURST // 2 < len(lines) < 2 * log.BURST
    await disconnect(conn)
    await until(lambda: any("event=close" in line and " unlogged=" in line for line in caplog.messages))


@dataclass
class SlowCluster(FakeJobDirectory):
    """A cluster with an API that does not answer yet."""

    questions: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def jobs(self, user: str) -> tuple[JobEndpoint, ...]:
        self.questions += 1
        await self.answers.wait()
        return await super().jobs(user)

    async def running(self, jobs: Collection[str]) -> frozenset[str]:
        return frozenset(jobs)


async def test_streams_to_missing_jobs_are_limited_and_do_not_fill_the_log(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SlowCluster(lab.job_directory.targets)
    async with lab.gateway(job_directory=cluster) as running:
        conn = await logged_in(running, lab.alices_key, "alice")
        before = cluster.questions
        asking = [asyncio.create_task(stream(conn, "nowhere", 22)) for _ in range(3 * log.BURST)]
        await until(lambda: any(task.done() for task in asking))
        cluster.answers.set()
        answers = await asyncio.gather(*asking)
        looked = cluster.questions - before
        assert looked < log.BURST
        assert sum("no job nowhere; yours: train" in answer for answer in answers) == looked
        assert sum("too many streams" in answer for answer in answers) == len(asking) - looked
        assert sum("what=stream" in line for line in caplog.messages) < 2 * log.BURST
        await disconnect(conn)


async def test_streams_to_the_own_job_have_a_rate(lab: Lab) -> None:
    rules = PenaltyRules(penalty_seconds=0.0, connections_per_second=1.0)
    async with lab.gateway(limits=GatewayLimits(drain_seconds=0.0, rules=rules)) as running:
        began = running.server.now()
        conn = await logged_in(running, lab.alices_key, "alice")
        answers = [await stream(conn, "train", 22) for _ in range(60)]
        opened = sum(answer.startswith("SSH-") for answer in answers)
        assert 21 <= opened <= 22 + running.server.now() - began
        assert {one for one in answers if not one.startswith("SSH-")} == {"too many streams: try again in 1 second"}
        await disconnect(conn)


async def test_look_at_the_default_server_has_a_deadline(
    starting: Running, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def hangs(_user: str, server: str, _job: str) -> StartStatus:
        asked.append(server)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(session_module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(starting.auth_backend, "start_status", hangs)
    conn = await asyncio.wait_for(logged_in(starting, lab.alices_key, "alice"), DEADLINE)
    assert asked == [""]
    drop(conn)
