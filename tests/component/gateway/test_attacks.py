"""What one peer can make the gateway keep, ask or write down: bounds, before and after a login.

What a client costs that reads nothing of its job's output, or never finishes a key exchange, is in test_bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field, replace

import asyncssh
import pytest

from ssh_gateway import log, transport
from ssh_gateway.auth.rate_limit import FREE, FREE_OF_A_NAME, PenaltyRules
from ssh_gateway.core import packets
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.core.routing import JobEndpoint
from ssh_gateway.session import session
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.login import TOO_MANY
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.hostile import IGNORE, UNKNOWN, Listener, before_login, drop, logged_in, pour
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, gateway, until
from tests.component.gateway.test_bounds import MIB, resident

USERAUTH_REQUEST = 50


@dataclass
class SlowHub(FakePeople):
    """A Hub that takes its time."""

    questions: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def token_owner(self, token: str) -> TokenOwner | None:
        self.questions += 1
        self.asked.set()
        await self.answers.wait()
        return await super().token_owner(token)


async def test_what_comes_while_a_token_is_judged_is_not_kept(keys: GatewayKeys, places: FakePlaces) -> None:
    people = SlowHub(tokens={"right": TokenOwner("alice", every_server)})
    pouring: list[asyncio.Task[int]] = []

    async def more(conn: asyncssh.SSHClientConnection) -> int:
        await people.asked.wait()
        taken = await pour(conn, IGNORE, packets.text(bytes(32_764)), 64 * MIB)
        people.answers.set()
        return taken

    async def attack(conn: asyncssh.SSHClientConnection) -> str:
        pouring.append(asyncio.create_task(more(conn)))
        return "right"

    async with gateway(keys, people, places) as running:
        before = resident()
        conn = await before_login(running, attack)
        assert await asyncio.gather(*pouring) == [64 * MIB]
        assert resident() - before < 32 * MIB
        assert (await conn.run("echo in")).stdout == "in\n"
        drop(conn)
        await conn.wait_closed()


def guess_on(conn: asyncssh.SSHClientConnection, times: int) -> None:
    """Send so many wrong tokens for alice, and wait for no answer."""
    for number in range(times):
        login = [packets.text(b"alice+train"), packets.text(b"ssh-connection"), packets.text(b"password")]
        conn.send_packet(USERAUTH_REQUEST, *login, b"\0", packets.text(b"guess %d" % number))


async def test_tokens_whose_answer_nobody_waits_for_hold_up_no_name(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces
) -> None:
    """What one address may guess is twelve, and one more that is waited for; a name takes 24."""
    people.tokens["right"] = TokenOwner("alice", every_server)
    reasons = list[str]()

    async def attack(conn: asyncssh.SSHClientConnection) -> str:
        guess_on(conn, 120)
        return "the last"

    async with gateway(keys, people, places, limits=GatewayLimits(failure_seconds=0.1, drain_seconds=0.0)) as running:
        penalties = running.server.penalties
        for _ in range(5):
            with pytest.raises((asyncssh.Error, OSError)) as ended:
                await before_login(running, attack)
            reasons.append(str(ended.value))
        assert penalties.token_refusal("192.0.2.1", "alice", running.server.now()) is None
        assert TOO_MANY in reasons[0]
        assert "too many failed or unfinished logins from your address" in reasons[-1]
        conn = await asyncssh.connect(
            "127.0.0.1", running.port, username="alice+train", known_hosts=None, config=None, agent_path=None,
            client_keys=None, password="right", local_addr=("127.0.0.2", 0),
        )  # fmt: skip
        assert (await conn.run("echo in")).stdout == "in\n"
        conn.close()
        await conn.wait_closed()


def guessed(running: Running) -> int:
    """How many guesses have come, judged or not."""
    return sum(visitor._attempts.guesses for visitor in running.server.connections)


# Time pays nothing meanwhile, however slow this machine is.
DEAR = GatewayLimits(failure_seconds=0.1, drain_seconds=0.0, rules=PenaltyRules(penalty_seconds=600.0))


async def test_keys_are_exchanged_once_before_a_login(keys: GatewayKeys, places: FakePlaces) -> None:
    """Each time costs the gateway a signature, and the client nothing (CVE-2002-20001, "DHEat")."""
    hub = FakePeople(tokens={"right": TokenOwner("alice", every_server)})

    async def attack(conn: asyncssh.SSHClientConnection) -> str:
        conn._send_kexinit()
        return "right"

    async with gateway(keys, hub, places) as running:
        with pytest.raises(asyncssh.Error, match="new keys are for after the login"):
            await before_login(running, attack)
        conn = await with_right_token(running)
        assert (await conn.run("echo in")).stdout == "in\n"
        drop(conn)
        await conn.wait_closed()


@pytest.mark.parametrize(
    ("shared", "at_once"), [((), FREE + 1), (("127.0.0.0/8",), FREE_OF_A_NAME + 1)], ids=["one address", "shared ones"]
)
async def test_many_who_come_in_at_once_from_behind_one_address_are_all_let_in(
    keys: GatewayKeys, places: FakePlaces, shared: tuple[str, ...], at_once: int
) -> None:
    """Those who come while others' tokens are judged, too."""
    limits = replace(DEAR, rules=replace(DEAR.rules, shared=read_networks(shared)))
    hub = SlowHub(tokens={"right": TokenOwner("alice", every_server)})
    async with gateway(keys, hub, places, limits=limits) as running:
        coming = [asyncio.create_task(with_right_token(running)) for _ in range(at_once)]
        await until(lambda: hub.questions == at_once)
        coming += [asyncio.create_task(with_right_token(running)) for _ in range(7)]
        await until(lambda: guessed(running) == len(coming) or any(task.done() for task in coming))
        hub.answers.set()
        inside = await asyncio.gather(*coming)
        for conn in inside:
            drop(conn)


async def with_right_token(running: Running) -> asyncssh.SSHClientConnection:
    return await asyncssh.connect(
        "127.0.0.1", running.port, username="alice+train", known_hosts=None, config=None, agent_path=None,
        client_keys=None, password="right",
    )  # fmt: skip


async def deaf_flood(running: Running, conn: asyncssh.SSHClientConnection) -> None:
    """Ask for answers, and read none of them."""
    (visitor,) = running.server.connections
    visitor.leg.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
    )  # the kernel keeps little
    assert conn._transport is not None
    conn._transport.pause_reading()
    await pour(conn, UNKNOWN, bytes(8), MIB)


async def test_a_stranger_who_reads_no_answers_is_dropped(
    running: Running, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    before = resident()

    async def attack(conn: asyncssh.SSHClientConnection) -> None:
        await deaf_flood(running, conn)
        await until(lambda: not running.server.connections)
        drop(conn)

    with contextlib.suppress(asyncssh.Error, OSError):
        await before_login(running, attack)
    assert resident() - before < 32 * MIB
    assert any(transport.connection.UNREAD in record.getMessage() for record in caplog.records)
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_somebody_inside_who_reads_no_answers_is_dropped(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport.connection, "MOST_UNSENT", MIB)
    conn = await logged_in(running, alices_key)
    await deaf_flood(running, conn)
    await until(lambda: not running.server.connections and not running.server.upstreams)
    drop(conn)
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_answers_that_wait_for_a_key_exchange_are_not_kept_without_end(
    running: Running, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    monkeypatch.setattr(transport.connection, "MOST_DEFERRED", 1000)
    conn = await logged_in(running, alices_key, "alice")
    conn._send_kexinit()
    conn._recv_handler = lambda: False  # it never finishes,
    conn._kex_complete = True  # and goes on as if it had not begun
    keepalive = packets.text(b"keepalive@openssh.com") + b"\1"
    await pour(conn, packets.GLOBAL_REQUEST, keepalive, MIB)
    await until(lambda: not running.server.connections)
    assert any("a key exchange was not finished" in record.getMessage() for record in caplog.records)
    drop(conn)


@pytest.mark.parametrize(("count", "size"), [(65, 1), (16, 32_000)], ids=["many small", "few large"])
async def test_what_is_asked_for_before_the_first_session_is_not_kept_without_end(
    running: Running, alices_key: asyncssh.SSHKey, count: int, size: int
) -> None:
    """Requests whose answers nobody waits for connect no pod."""
    client = Listener()
    conn = await logged_in(running, alices_key, "alice", client)
    for _ in range(count):
        conn.send_packet(packets.GLOBAL_REQUEST, packets.text(b"nobody@example.com"), b"\0", bytes(size))
    await until(lambda: client.why)
    assert client.why == "too many requests before the first session"
    await until(lambda: not running.server.connections)


async def test_requests_that_policy_refuses_fill_no_disk(
    running: Running, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    conn = await logged_in(running, alices_key)
    await conn.create_process("cat")
    for _ in range(3 * log.BURST):  # the job knows the channel as 0
        conn.send_packet(packets.CHANNEL_REQUEST, bytes(4), packets.text(b"auth-agent-req@openssh.com"), b"\0")
    assert (await conn.run("echo in")).stdout == "in\n"
    lines = [record.getMessage() for record in caplog.records if "auth-agent" in record.getMessage()]
    assert log.BURST // 2 < len(lines) < 2 * log.BURST
    drop(conn)
    await conn.wait_closed()


@dataclass
class SlowCluster(FakePlaces):
    """A cluster whose API does not answer yet."""

    questions: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def jobs(self, user: str) -> tuple[JobEndpoint, ...]:
        self.questions += 1
        await self.answers.wait()
        return await super().jobs(user)

    async def running(self, jobs: Collection[str]) -> frozenset[str]:
        return frozenset(jobs)


@pytest.fixture
async def slow_cluster(keys: GatewayKeys, people: FakePeople, places: FakePlaces) -> AsyncIterator[Running]:
    async with gateway(keys, people, SlowCluster(places.targets)) as found:
        yield found


async def test_streams_that_lead_nowhere_are_few_questions_at_a_time_and_fill_no_disk(
    slow_cluster: Running, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    cluster = slow_cluster.places
    assert isinstance(cluster, SlowCluster)
    conn = await logged_in(slow_cluster, alices_key, "alice")
    before = cluster.questions
    asking = [asyncio.create_task(stream(conn)) for _ in range(3 * log.BURST)]
    await until(lambda: sum(task.done() for task in asking) == len(asking) - session.MOST_ASKING)
    assert cluster.questions == before + session.MOST_ASKING
    cluster.answers.set()
    answers = await asyncio.gather(*asking)
    assert sum("no job nowhere; yours: train" in answer for answer in answers) == session.MOST_ASKING
    assert sum("too many streams" in answer for answer in answers) == len(asking) - session.MOST_ASKING
    assert sum("what=stream" in record.getMessage() for record in caplog.records) < 2 * log.BURST
    drop(conn)
    await conn.wait_closed()


@pytest.fixture
async def counted(keys: GatewayKeys, people: FakePeople, places: FakePlaces) -> AsyncIterator[Running]:
    cluster = SlowCluster(places.targets)
    cluster.answers.set()
    rules = PenaltyRules(penalty_seconds=0.0, connections_per_second=1.0)
    async with gateway(keys, people, cluster, limits=GatewayLimits(drain_seconds=0.0, rules=rules)) as found:
        yield found


async def test_streams_to_ones_own_job_have_a_rate(counted: Running, alices_key: asyncssh.SSHKey) -> None:
    cluster, began = counted.places, counted.server.now()
    assert isinstance(cluster, SlowCluster)
    conn = await logged_in(counted, alices_key, "alice")
    before, refused = cluster.questions, list[str]()
    for _ in range(100):
        try:
            _, writer = await conn.open_connection("train", 22)
            writer.close()
        except asyncssh.ChannelOpenError as problem:
            refused.append(problem.reason)
    opened = 100 - len(refused)
    assert 21 <= opened <= 22 + counted.server.now() - began
    assert cluster.questions == before + opened
    assert set(refused) == {"too many streams: try again in 1 second"}
    drop(conn)
    await conn.wait_closed()


async def test_streams_to_ones_own_job_fill_no_disk_and_a_login_is_in_the_log_all_the_same(
    keys: GatewayKeys,
    people: FakePeople,
    places: FakePlaces,
    alices_key: asyncssh.SSHKey,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    rules = PenaltyRules(penalty_seconds=0.0, connections_per_second=0.0)
    async with gateway(keys, people, places, limits=GatewayLimits(drain_seconds=0.0, rules=rules)) as running:
        conn = await logged_in(running, alices_key, "alice")
        began = use_up(running)
        for _ in range(300):
            _, writer = await conn.open_connection("train", 22)
            writer.close()
        await until(lambda: len(running.server.connections) == 1)
        taken = 1 + (running.server.now() - began) * log.PER_SECOND
        assert len(lines_of(caplog, "event=stream") + lines_of(caplog, "through=")) <= taken
        assert len(lines_of(caplog, "event=close")) <= taken
        use_up(running)
        async with asyncssh.connect(
            "train", tunnel=conn, username="alice", known_hosts=None, config=None, client_keys=[alices_key]
        ) as inner:
            assert (await inner.run("echo in")).stdout == "in\n"
        await until(lambda: len(running.server.connections) == 1)
        proven = [line for line in lines_of(caplog, "event=auth") if "result=accepted" in line][-1]
        number = proven.split("conn=")[1].split()[0]
        events = [line.split()[0] for line in lines_of(caplog, f"conn={number}")]
        assert events == [
            "event=connect",
            "event=auth",
            "event=open",
            "event=channel",
            "event=exec",
            "event=exit",
            "event=close",
        ]
        drop(conn)
        await conn.wait_closed()


def use_up(running: Running) -> float:
    """Leave the one connection that there is no lines; when."""
    (visitor,) = running.server.connections
    now = running.server.now()
    while visitor.session is not None and visitor.session.budget.take(now):
        pass
    return now


def lines_of(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


async def stream(conn: asyncssh.SSHClientConnection) -> str:
    """Why a stream to a job that is not there was not opened."""
    try:
        await conn.open_connection("nowhere", 22)
    except asyncssh.ChannelOpenError as refused:
        return refused.reason
    raise AssertionError("there is no such job")
