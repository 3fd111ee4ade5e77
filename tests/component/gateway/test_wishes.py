"""What a login that names no server asks for, before its default server is connected and when there is none."""

from __future__ import annotations

import asyncio
import logging

import asyncssh
import pytest

from ssh_gateway.backends.directory import StartStatus
from ssh_gateway.core import packets
from ssh_gateway.session.autostart import AutoStarter
from ssh_gateway.session.session import MOST_PACKETS, TOO_MANY_STREAMS
from tests.component.gateway.hostile import Listener, drop, logged_in
from tests.component.gateway.peers import DEADLINE, Running, Sshd, until

NOT_RUNNING = "your default server is not running"


@pytest.fixture
def starting(running: Running) -> Running:
    """Logins start the default server, which takes its time."""
    running.server.autostart = AutoStarter(running.people, "http://hub.example/", 60.0, 0.02)
    running.people.stages = [StartStatus("starting")]
    return running


def runs(starting: Running, sshd: Sshd) -> None:
    starting.places.targets["alice", ""] = sshd.target("")
    starting.people.stages = [StartStatus("running")]


async def request(conn: asyncssh.SSHClientConnection, name: bytes, *content: bytes) -> bytes:
    """The packet that answers a global request."""
    _, answer = await conn._make_global_request(name, *content)
    return bytes(answer.get_full_payload())


async def session(conn: asyncssh.SSHClientConnection) -> str:
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


async def test_streams_at_once_that_no_pod_can_open_are_all_refused_and_the_connection_goes_on(
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
    drop(conn)
    await conn.wait_closed()


async def test_a_session_behind_a_refused_stream_reads_why_it_is_none(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    client = Listener()
    conn = await logged_in(running, alices_key, "alice", client)
    refused = asyncio.create_task(stream(conn, "localhost", 80))
    with pytest.raises(asyncssh.Error):
        await asyncio.wait_for(asyncio.gather(session(conn), refused), DEADLINE)
    assert NOT_RUNNING in await refused
    assert NOT_RUNNING in client.why


async def test_a_stream_to_a_job_does_not_wait_for_the_default_server(
    starting: Running, sshd: Sshd, alices_key: asyncssh.SSHKey
) -> None:
    conn = await logged_in(starting, alices_key, "alice")
    asked = asyncio.create_task(session(conn))
    jump = asyncio.create_task(stream(conn, "train", 22))
    await until(lambda: starting.people.looks > 1)
    assert (await asyncio.wait_for(jump, DEADLINE)).startswith("SSH-2.0-")
    assert not asked.done()
    runs(starting, sshd)
    assert await asyncio.wait_for(asked, DEADLINE) == "in\n"
    drop(conn)
    await conn.wait_closed()


async def test_more_streams_than_may_wait_are_refused_and_the_session_before_them_gets_in(
    starting: Running, sshd: Sshd, alices_key: asyncssh.SSHKey
) -> None:
    """As a browser opens them through `ssh -D`."""
    conn = await logged_in(starting, alices_key, "alice")
    asked = asyncio.create_task(session(conn))
    await until(lambda: starting.people.looks > 1)
    streams = [asyncio.create_task(stream(conn, "127.0.0.1", 9)) for _ in range(MOST_PACKETS + 5)]
    await until(lambda: sum(one.done() for one in streams) == 6)
    assert {one.result() for one in streams if one.done()} == {TOO_MANY_STREAMS}
    runs(starting, sshd)
    assert await asyncio.wait_for(asked, DEADLINE) == "in\n"
    drop(conn)
    await conn.wait_closed()
    await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.parametrize("streams", [0, 2], ids=["a session", "streams before a session"])
async def test_a_client_that_leaves_while_the_default_server_starts_is_waited_for_no_more(
    starting: Running, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture, streams: int
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    conn = await logged_in(starting, alices_key, "alice")
    asked = [asyncio.create_task(stream(conn, "localhost", 80)) for _ in range(streams)]
    asked.append(asyncio.create_task(session(conn)))
    await until(lambda: starting.people.looks > 1)
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
    asked = asyncio.create_task(session(conn))
    await until(lambda: starting.people.looks > 1)
    alive = asyncio.create_task(request(conn, packets.KEEPALIVE))
    assert await asyncio.wait_for(alive, DEADLINE) == bytes([packets.REQUEST_SUCCESS])
    assert not asked.done()
    asked.cancel()
    drop(conn)
    await conn.wait_closed()


async def test_a_keepalive_behind_a_request_of_the_pod_s_is_answered_after_it(
    starting: Running, sshd: Sshd, alices_key: asyncssh.SSHKey
) -> None:
    conn = await logged_in(starting, alices_key, "alice")
    forward = asyncio.create_task(request(conn, b"tcpip-forward", packets.text(b"127.0.0.1"), bytes(4)))
    alive = asyncio.create_task(request(conn, packets.KEEPALIVE))
    await until(lambda: starting.people.looks > 1)
    runs(starting, sshd)
    answers = await asyncio.wait_for(asyncio.gather(forward, alive), DEADLINE)
    assert [answer[0] for answer in answers] == [packets.REQUEST_SUCCESS, packets.REQUEST_FAILURE]
    assert packets.number_at(answers[0], 1) > 0, "the port that the job's sshd has taken"
    drop(conn)
    await conn.wait_closed()
