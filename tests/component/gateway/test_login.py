"""Logins: credentials, attempts, answers and their time, and limits before the login."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncssh
import pytest

from ssh_gateway.auth.rate_limit import FREE, FREE_OF_A_NAME, PenaltyRules
from ssh_gateway.core import packets
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.login import NO_LOGIN, TOO_MANY
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.hostile import DENIED as DENIED_PACKET
from tests.component.gateway.hostile import IGNORE, before_login, call, disconnect, drop, pour
from tests.component.gateway.peers import (
    DEAR,
    DENIED,
    MIB,
    PASSWORD,
    Client,
    FakeAuthBackend,
    FakeJobDirectory,
    Lab,
    Running,
    Sshd,
    connect,
    gateway,
    resident,
    until,
    with_token,
)


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
async def test_token_opens_the_owner_s_job(running: Running, mallory: Client, method: str) -> None:
    running.auth_backend.tokens["secret"] = TokenOwner("alice", every_server)
    options = ("-o", f"PreferredAuthentications={method}")
    for typed in ("secret", " secret\t", "\u00a0secret"):
        status, out, err = await with_token(mallory, typed, "alice+train", *options)
        assert (status, out) == (0, "in\n"), err


async def test_token_read_from_a_file_with_its_line_end_opens_the_job(running: Running) -> None:
    running.auth_backend.tokens["secret"] = TokenOwner("alice", every_server)
    async with connect(running.port, password="secret\r\n") as ssh:
        assert (await ssh.run("echo in")).stdout == "in\n"


async def test_token_reads_only_names_of_jobs_that_it_may_open(
    running: Running, mallory: Client, job_directory: FakeJobDirectory, sshd: Sshd
) -> None:
    job_directory.targets["alice", "eval"] = replace(sshd.target(), server="eval")
    running.auth_backend.tokens["narrow"] = TokenOwner("alice", lambda server: server != "eval")
    _, _, err = await with_token(mallory, "narrow", "alice+trian", *PASSWORD)
    assert "no job trian; yours: train" in err
    assert "eval" not in err
    running.auth_backend.tokens["none"] = TokenOwner("alice", lambda _: False)
    for server in ("train", "trian"):
        status, out, err = await with_token(mallory, "none", f"alice+{server}", *PASSWORD)
        assert (status, out) == (255, "")
        assert f"this token may not open {server}" in err
        assert "yours" not in err


async def test_token_for_one_server_opens_every_pod_of_its_job(
    running: Running, mallory: Client, job_directory: FakeJobDirectory, sshd: Sshd
) -> None:
    running.auth_backend.tokens["narrow"] = TokenOwner("alice", lambda server: server == "train")
    for name, server in (("train.worker-1", "train"), ("eval.worker-1", "eval"), ("train.x", "train.x")):
        job_directory.targets["alice", name] = replace(sshd.target(), server=server)
        status, _, err = await with_token(mallory, "narrow", f"alice+{name}", *PASSWORD)
        assert (status == 0) is (server == "train"), err


async def test_use_of_a_key_is_recorded_and_a_query_without_a_signature_is_none(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey
) -> None:
    caller = await call(running)
    asking = asyncio.create_task(caller.with_key(b"alice+train", alices_key))  # asyncssh keeps a yes to itself
    await until(lambda: running.auth_backend.asked == ["alice"])
    asking.cancel()
    caller.abort()
    assert running.auth_backend.used == []
    assert (await alice.ssh("alice+train@gateway", "true")).status == 0
    assert running.auth_backend.used == [("alice", 1)]


async def test_changed_login_name_does_not_reset_the_count(running: Running) -> None:
    """RFC 4252 permits a change of the name."""
    caller = await call(running)
    answers = [await caller.with_password(b"user%d" % number) for number in range(6)]
    assert answers[:5] == [DENIED_PACKET] * 5
    assert TOO_MANY.encode() in answers[5]


async def test_wrong_credentials_have_the_same_answer(running: Running, mallory: Client) -> None:
    running.auth_backend.tokens["mallorys"] = TokenOwner("mallory", every_server)
    running.auth_backend.tokens["service"] = TokenOwner("alice", every_server, person=False)
    logins = ("alice+train", "alice+nothing", "ghost+train", "a/b+train", "alice")
    keys = [await mallory.ssh(f"{login}@gateway", "id") for login in logins]
    assert {(done.status, done.out, done.err.split(": ", 1)[1].strip()) for done in keys} == {(255, b"", DENIED)}
    assert running.auth_backend.asked == ["alice", "alice", "ghost", NO_LOGIN.user, "alice"], (
        "one look-up for each login, of known and unknown users"
    )
    tokens = [
        await with_token(mallory, token, login, *PASSWORD)
        for token in ("wrong", "mallorys", "service")
        for login in ("alice+train", "ghost+train")
    ]
    assert {(status, out, err.splitlines()[-1].split(": ", 1)[1]) for status, out, err in tokens} == {(255, "", DENIED)}


async def guess(running: Running, user: str, token: str) -> float:
    """Seconds until a wrong password is answered."""

    class Guesser(asyncssh.SSHClient):
        times: tuple[float, ...] = ()

        def password_auth_requested(self) -> str | None:
            Guesser.times += (time.perf_counter(),)
            return token if len(Guesser.times) == 1 else None

    with pytest.raises(asyncssh.PermissionDenied):
        await connect(running.port, username=user, preferred_auth="password", client_factory=Guesser)
    return Guesser.times[1] - Guesser.times[0]


async def test_wrong_credentials_take_the_same_time(running: Running) -> None:
    running.auth_backend.tokens["mallorys"] = TokenOwner("mallory", every_server)
    cases = [("alice+train", "wrong"), ("alice+train", "mallorys"), ("ghost+train", "wrong"), ("a/b", "wrong")]
    times: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    fastest: list[float] = []
    for number in range(30):  # a busy machine only adds
        for case in cases:
            times[case].append(await guess(running, *case))
        fastest = [min(found) for found in times.values()]
        if number >= 4 and max(fastest) - min(fastest) < 0.02:
            break
    assert min(fastest) >= 0.1
    assert max(fastest) - min(fastest) < 0.02, times


@pytest.fixture
async def impatient(lab: Lab) -> AsyncIterator[Running]:
    limits = GatewayLimits(login_seconds=1.0, connect_seconds=0.3, waiting_per_source=3, drain_seconds=0.0)
    async with lab.gateway(limits=limits) as found:
        yield found


async def test_client_without_a_login_is_disconnected_with_a_reason(impatient: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
    heard = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    assert heard.startswith(b"SSH-2.0-OpenSSH_compatible dlspawner\r\n")
    assert b"no login within 1 seconds" in heard


async def test_silent_connections_make_room_and_hold_up_no_login_from_their_address(lab: Lab) -> None:
    """However many there were, and whether they are closed or not: nobody has failed to log in."""
    rules = PenaltyRules(connections_per_second=0.0)
    async with lab.gateway(limits=GatewayLimits(waiting_per_source=20, drain_seconds=0.0, rules=rules)) as running:
        silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(400)]
        assert b"too many logins are going on" in await asyncio.wait_for(silent[0][0].read(-1), 10)
        client = lab.client(running, "c")
        done = await client.ssh("alice+train@gateway", "echo in")
        assert done.text == "in\n", done.err
        for _, writer in silent:
            writer.close()
        await until(lambda: not running.server.connections)
        assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"


USERAUTH_REQUEST = 50


async def test_input_while_a_token_is_checked_is_not_kept(keys: GatewayKeys, job_directory: FakeJobDirectory) -> None:
    auth_backend, answer = FakeAuthBackend(tokens={"right": TokenOwner("alice", every_server)}), asyncio.Event()
    auth_backend.held["token_owner",] = answer
    pouring: list[asyncio.Task[int]] = []

    async def more(conn: asyncssh.SSHClientConnection) -> int:
        await until(lambda: auth_backend.count("token_owner"))
        taken = await pour(conn, IGNORE, packets.text(bytes(32_764)), 64 * MIB)
        answer.set()
        return taken

    async def attack(conn: asyncssh.SSHClientConnection) -> str:
        pouring.append(asyncio.create_task(more(conn)))
        return "right"

    async with gateway(keys, auth_backend, job_directory) as running:
        before = resident()
        conn = await before_login(running, attack)
        assert await asyncio.gather(*pouring) == [64 * MIB]
        assert resident() - before < 32 * MIB
        assert (await conn.run("echo in")).stdout == "in\n"
        await disconnect(conn)


def guess_on(conn: asyncssh.SSHClientConnection, times: int) -> None:
    """Send so many wrong tokens for alice, and wait for no answer."""
    for number in range(times):
        login = [packets.text(b"alice+train"), packets.text(b"ssh-connection"), packets.text(b"password")]
        conn.send_packet(USERAUTH_REQUEST, *login, b"\0", packets.text(b"guess %d" % number))


async def test_pipelined_guesses_do_not_hold_up_the_name(lab: Lab) -> None:
    """What one address may guess is twelve, and one more that is waited for; a name takes 24."""
    lab.auth_backend.tokens["right"] = TokenOwner("alice", every_server)
    reasons = list[str]()

    async def attack(conn: asyncssh.SSHClientConnection) -> str:
        guess_on(conn, 120)
        return "the last"

    async with lab.gateway(limits=GatewayLimits(failure_seconds=0.1, drain_seconds=0.0)) as running:
        penalties = running.server.penalties
        for _ in range(5):
            with pytest.raises((asyncssh.Error, OSError)) as ended:
                await before_login(running, attack)
            reasons.append(str(ended.value))
        assert penalties.token_refusal("192.0.2.1", "alice", running.server.now()) is None
        assert TOO_MANY in reasons[0]
        assert "too many failed logins from your address" in reasons[-1]
        conn = await connect(running.port, password="right", local_addr=("127.0.0.2", 0))  # fmt: skip
        assert (await conn.run("echo in")).stdout == "in\n"
        conn.close()
        await conn.wait_closed()


def guessed(running: Running) -> int:
    """How many guesses have come, judged or not."""
    return sum(visitor._attempts.guesses for visitor in running.server.connections)


@pytest.mark.parametrize(
    ("shared", "at_once"), [((), FREE + 1), (("127.0.0.0/8",), FREE_OF_A_NAME + 1)], ids=["one address", "shared ones"]
)
async def test_many_logins_at_once_from_one_address_all_succeed(
    keys: GatewayKeys, job_directory: FakeJobDirectory, shared: tuple[str, ...], at_once: int
) -> None:
    """Also logins that begin while the tokens of others are checked."""
    rules = replace(DEAR, shared=read_networks(shared))
    limits = GatewayLimits(failure_seconds=0.1, drain_seconds=0.0, rules=rules)
    hub, answer = FakeAuthBackend(tokens={"right": TokenOwner("alice", every_server)}), asyncio.Event()
    hub.held["token_owner",] = answer
    async with gateway(keys, hub, job_directory, limits=limits) as running:
        coming = [asyncio.ensure_future(connect(running.port, password="right")) for _ in range(at_once)]
        await until(lambda: hub.count("token_owner") == at_once)
        coming += [asyncio.ensure_future(connect(running.port, password="right")) for _ in range(7)]
        await until(lambda: guessed(running) == len(coming) or any(task.done() for task in coming))
        answer.set()
        inside = await asyncio.gather(*coming)
        for conn in inside:
            drop(conn)
