"""What one client can cost: memory stays flat, and hostile names go nowhere."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterable
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core.packets import text
from ssh_gateway.log import line
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.relay import Relay
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.hostile import DISCONNECT, USERAUTH_FAILURE, call, drop
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, Sshd, gateway, until

MIB = 2**20


def resident() -> int:
    """Bytes of this process (gateway included) that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def the_relay(running: Running) -> Relay:
    (visitor,) = running.server.connections
    assert visitor.session is not None
    assert visitor.session._relay is not None
    return visitor.session._relay


async def downloader(running: Running, key: asyncssh.SSHKey) -> asyncssh.SSHClientConnection:
    """A client with a window of 2 GiB that has begun to download for ever."""
    conn = await asyncssh.connect(
        "127.0.0.1", running.port, username="alice+train", client_keys=[key], known_hosts=None, config=None,
        agent_path=None,
    )  # fmt: skip
    await conn.create_session(
        asyncssh.SSHClientSession, "cat /dev/zero", encoding=None, window=2**31 - 1, max_pktsize=32768
    )
    return conn


async def stands_still(relay: Relay, seconds: float) -> int:
    """Bytes that have come down once nothing comes any more."""
    before, deadline = -1, asyncio.get_running_loop().time() + 20
    while relay.bytes_down != before:
        assert asyncio.get_running_loop().time() < deadline, "it never stands still"
        before = relay.bytes_down
        await asyncio.sleep(seconds)
    return before


async def test_a_client_that_stops_reading_behind_a_huge_window_costs_no_memory(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    conn = await downloader(running, alices_key)
    conn._transport.pause_reading()  # what it does not read stays in the kernel, and then in the job
    before = resident()
    taken = await stands_still(the_relay(running), 0.3)
    assert taken < 64 * MIB
    assert resident() - before < 32 * MIB
    conn.abort()
    await conn.wait_closed()


async def test_a_key_exchange_that_is_never_finished_costs_no_memory(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    conn = await downloader(running, alices_key)
    relay = the_relay(running)
    await until(lambda: relay.bytes_down > MIB)
    conn._send_kexinit()
    conn._recv_handler = lambda: False  # it listens, and says nothing more
    before = resident()
    taken = await stands_still(relay, 0.3)
    assert resident() - before < 96 * MIB  # the client's own unread input is in this process too
    await asyncio.sleep(0.5)
    assert relay.bytes_down == taken
    conn.abort()
    await conn.wait_closed()


async def test_others_work_on_while_one_client_stands_still(
    running: Running, alices_key: asyncssh.SSHKey, alice: Client
) -> None:
    conn = await downloader(running, alices_key)
    conn._transport.pause_reading()
    assert (await alice.ssh("alice+train@gateway", "echo works")).text == "works\n"
    conn.abort()
    await conn.wait_closed()


async def test_a_job_that_dies_in_the_middle_ends_the_session_with_a_reason(
    alice: Client, running: Running, sshd: Sshd
) -> None:
    ssh = await alice.start("ssh", "alice+train@gateway", "echo begun; sleep 60")
    assert ssh.stdout is not None
    assert await asyncio.wait_for(ssh.stdout.readline(), 15) == b"begun\n"
    (pod,) = running.server.upstreams
    assert pod._transport is not None
    pod._transport.abort()
    _, err = await asyncio.wait_for(ssh.communicate(), 15)
    assert b"the connection to your job was lost" in err
    assert ssh.returncode == 255


async def test_a_client_that_dies_leaves_nothing_behind(alice: Client, running: Running) -> None:
    ssh = await alice.start("ssh", "alice+train@gateway", "echo begun; sleep 60")
    assert ssh.stdout is not None
    await asyncio.wait_for(ssh.stdout.readline(), 15)
    ssh.kill()
    await ssh.communicate()
    await until(lambda: not running.server.connections and not running.server.upstreams)
    assert running.server.unauthenticated.waiting.total() == 0


async def test_the_gateway_says_that_it_stops(alice: Client, running: Running) -> None:
    ssh = await alice.start("ssh", "alice+train@gateway", "echo begun; sleep 60")
    assert ssh.stdout is not None
    await asyncio.wait_for(ssh.stdout.readline(), 15)
    await running.server.stop()
    _, err = await asyncio.wait_for(ssh.communicate(), 15)
    assert b"the gateway is stopping: connect again in a moment" in err


PIECES = ["../", "\x1b[2J", "\n", "\u202e", "alice", "+", "train", "%2f", "а", "'", '"', "$(id)", "\t", " "]
PROHIBITED = "\x1b\n\u202e\t"  # of these pieces, by SASLprep (RFC 4013): whoever sends one is sent away
LONGEST_SENT = 1023  # bytes


def hostile_names(count: int) -> list[str]:
    chosen = random.Random(7)
    return ["".join(chosen.choices(PIECES, k=chosen.randint(1, 12))) for _ in range(count)]


COMMON = bytes([USERAUTH_FAILURE]) + text(b"publickey,keyboard-interactive,password") + b"\0"


def sent_away(why: str) -> bytes:
    """The answer to what is no name: it repeats what was sent, and says nothing of who is known."""
    return (
        bytes([DISCONNECT]) + asyncssh.DISC_ILLEGAL_USER_NAME.to_bytes(4, "big") + text(why.encode()) + text(b"en-US")
    )


def answer_to(name: str) -> bytes:
    """What there is to be said to a stranger under this name, word for word."""
    if len(name.encode()) > LONGEST_SENT:
        return sent_away("Username too long")
    found = next((char for char in name if char in PROHIBITED), None)
    return COMMON if found is None else sent_away(f"Prohibited character: {found!r}")


async def answers(running: Running, names: Iterable[str]) -> list[bytes]:
    """Log in under every name in turn, over as few connections as that takes; the answers."""
    found, caller = [], await call(running)
    for name in names:
        if caller.is_closed():
            caller = await call(running)
        found.append(await caller.with_password(name.encode()))
    drop(caller)
    return found


def auth_lines(caplog: pytest.LogCaptureFixture, result: str) -> int:
    lines = [record.getMessage() for record in caplog.records if record.name == "ssh_gateway"]
    return sum("event=auth" in one and f"result={result}" in one for one in lines)


@pytest.mark.slow
async def test_ten_thousand_hostile_login_names_let_nobody_in_and_leave_clean_logs(
    keys: GatewayKeys,
    people: FakePeople,
    places: FakePlaces,
    alices_key: asyncssh.SSHKey,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    limits = GatewayLimits(
        attempts=100_000, failure_seconds=0.0, rules=PenaltyRules(penalty_seconds=0.0, connections_per_second=0.0)
    )
    warm, names = hostile_names(200), [*hostile_names(10_000), *("x" * size for size in (255, 256, 65_536))]
    async with gateway(keys, people, places, limits=limits) as running:
        await answers(running, warm)
        before = resident()
        said = await answers(running, names)
        assert resident() - before < 64 * MIB
        async with asyncssh.connect(
            "127.0.0.1", running.port, username="alice+train", client_keys=[alices_key], known_hosts=None, config=None,
            agent_path=None,
        ) as alice:  # fmt: skip
            assert (await alice.run("echo in")).stdout == "in\n"
    assert [one for one in zip(names, said, strict=True) if one[1] != answer_to(one[0])] == []
    assert auth_lines(caplog, "failed") == sum(answer_to(name) == COMMON for name in (*warm, *names)) > 1_000
    lines = [record.getMessage() for record in caplog.records if record.name == "ssh_gateway"]
    assert sum("result=accepted" in one for one in lines) == 1
    assert all(one.isascii() and one.isprintable() and len(one) < 1000 for one in lines)
    assert all(name.isprintable() and "/" not in name and len(name) <= 255 for name in people.asked)


async def test_hostile_login_names_get_the_common_answer_and_leave_clean_logs(
    running: Running, mallorys_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody's name, one that nobody could have and one that somebody has are answered the same."""
    caplog.set_level(logging.INFO, "ssh_gateway")
    names = ["nobody", "alice", "alice+train", "аlice+train", "", *hostile_names(60), "x" * 900, "x" * 64_000]

    async def answered(name: str) -> list[bytes]:
        caller = await call(running)
        said = [await caller.with_key(name.encode(), mallorys_key)]
        if not caller.is_closed():
            said.append(await caller.with_password(name.encode()))
        drop(caller)
        return said

    said = dict(zip(names, await asyncio.gather(*map(answered, names)), strict=True))
    due = {name: [answer_to(name)] * (1 + (answer_to(name) == COMMON)) for name in names}
    assert said == due
    common = sum(one == [COMMON] * 2 for one in due.values())
    assert 15 < common < len(due) - 15
    assert auth_lines(caplog, "failed") == 2 * common
    assert all(record.getMessage().isprintable() for record in caplog.records if record.name == "ssh_gateway")
    assert all(len(record.getMessage()) < 2000 for record in caplog.records if record.name == "ssh_gateway")


NO_NAMES = {
    "bytes that are no UTF-8": (
        b"\xff", "'utf-8' codec can't decode byte 0xff in position 5: invalid start byte"
    ),
    "half a character": (b"\xc3", "'utf-8' codec can't decode byte 0xc3 in position 5: unexpected end of data"),
    "a zero": (b"\0", "Prohibited character: '\\x00'"),
    "a surrogate": (
        b"\xed\xa0\x80", "'utf-8' codec can't decode byte 0xed in position 5: invalid continuation byte"
    ),
    "a character that Unicode 3.2 does not have": ("\U0001f600".encode(), "Unassigned character: '\U0001f600'"),
    "two ways of writing in one": ("\u05d0".encode(), "Both RandALCat and LCat characters present"),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "why"), NO_NAMES.values(), ids=NO_NAMES)
async def test_what_is_no_name_is_sent_away_whoever_it_resembles(running: Running, ending: bytes, why: str) -> None:
    for name in (b"alice", b"nobod"):
        assert await (await call(running)).with_password(name + ending) == sent_away(why)
    assert not running.people.asked


@pytest.mark.parametrize(
    "name", ["ａｌｉｃｅ+train", "ａｌｉｃｅ＋ｔｒａｉｎ", "ALICE+train", "al\u00adice+train"],
    ids=["full-width", "full-width throughout", "capitals", "a soft hyphen"],
)  # fmt: skip
async def test_a_name_written_otherwise_is_the_same_persons_and_only_theirs(
    running: Running, alice: Client, mallory: Client, name: str
) -> None:
    """Names are folded (SASLprep, then lower case) before anything is looked up: a folded one opens nothing more."""
    assert (await alice.ssh("-l", name, "gateway", "echo in")).text == "in\n"
    refused = await mallory.ssh("-l", name, "gateway", "echo in")
    assert (refused.status, refused.out) == (255, b"")
    assert "Permission denied" in refused.err
    assert set(running.people.asked) == {"alice"}


async def test_a_look_alike_of_another_alphabet_is_somebody_else(running: Running, alice: Client) -> None:
    refused = await alice.ssh("-l", "аlice+train", "gateway", "echo in")
    assert (refused.status, refused.out) == (255, b"")
    assert set(running.people.asked) == {"аlice"}


def test_a_log_line_quotes_what_is_not_plain() -> None:
    assert line("auth", conn=3, login="alice+train", why=None) == "event=auth conn=3 login=alice+train"
    assert line("auth", login="a\nevent=x \x1b") == 'event=auth login="a\\nevent=x \\u001b"'
    assert len(line("auth", login="x" * 10_000)) < 300
