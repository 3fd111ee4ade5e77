"""Penalties, limits and floods, as a client meets them: OpenSSH's where words count, bare sockets where numbers do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway import accept
from ssh_gateway.app import Gateway
from ssh_gateway.auth.rate_limit import FREE_OF_A_NAME, PenaltyRules
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.hostile import DENIED, call
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, gateway, until
from tests.component.gateway.test_bounds import MIB, resident
from tests.component.gateway.test_login import PASSWORD, with_token

HELD_UP = "too many failed or unfinished logins from your address: try again in "


@pytest.fixture
async def strict(keys: GatewayKeys, people: FakePeople, places: FakePlaces) -> AsyncIterator[Running]:
    # Time pays nothing meanwhile, however slow this machine is.
    limits = GatewayLimits(
        failure_seconds=0.0, drain_seconds=0.0, connections_per_user=2, rules=PenaltyRules(penalty_seconds=600.0)
    )
    async with gateway(keys, people, places, limits=limits) as found:
        yield found


@pytest.fixture
def person(strict: Running, keys: GatewayKeys, alices_key: asyncssh.SSHKey, tmp_path: Path) -> Client:
    return Client(tmp_path / "person", strict.port, alices_key, keys.host)


async def guesses(
    running: Running, name: str, most: int = 100, host: str = "127.0.0.1", source: str | None = None
) -> str:
    """Guess passwords on one connection, from an address of this machine's, until it ends; why it ended."""

    class Guesser(asyncssh.SSHClient):
        left = most

        def password_auth_requested(self) -> str | None:
            Guesser.left -= 1
            return f"guess {Guesser.left}" if Guesser.left >= 0 else None

    try:
        await asyncssh.connect(
            host, running.port, username=name, known_hosts=None, config=None, agent_path=None,
            client_keys=None, preferred_auth="password", client_factory=Guesser,
            local_addr=(source, 0) if source else None,
        )  # fmt: skip
    except (asyncssh.Error, OSError) as problem:
        return str(problem)
    raise AssertionError("a guess was right")


async def test_empty_answers_are_no_guesses_and_have_an_end(strict: Running, person: Client) -> None:
    """A client without a terminal, whose key was removed, sends them: its address has to wait for nothing."""
    strict.people.keys["alice"].clear()
    env, options = person.with_token("")
    for _ in range(5):
        done = await person.ssh("-o", "NumberOfPasswordPrompts=3", *options, "alice+train@gateway", "true", env=env)
        assert "Permission denied" in done.err
    assert strict.server.penalties.refusal("127.0.0.1", strict.server.now()) is None
    done = await person.ssh("-o", "NumberOfPasswordPrompts=9", *options, "alice+train@gateway", "true", env=env)
    assert "too many failed attempts" in done.err


async def test_an_empty_answer_that_is_given_up_pays_for_no_other(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    async with gateway(keys, people, places, limits=GatewayLimits(failure_seconds=60.0, drain_seconds=0.0)) as running:
        caller = await call(running)
        for _ in range(3):
            caller.with_nothing(b"alice+train")
            assert await caller.with_key(b"alice+train", stranger) == DENIED
        caller.abort()
    failed = [line for line in caplog.messages if "result=failed" in line]
    assert [line.rpartition("attempt=")[2] for line in failed] == ["1", "2", "3"]


async def test_who_guesses_waits_and_reads_how_long(strict: Running, person: Client) -> None:
    assert "too many failed attempts" in await guesses(strict, "alice+train")
    assert "too many failed attempts" in await guesses(strict, "bob+train")
    assert HELD_UP in await guesses(strict, "carol+train")
    done = await person.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert HELD_UP in done.err
    assert strict.people.guesses == 13


async def test_thousands_of_guesses_are_a_few_dozen(strict: Running) -> None:
    before = resident()

    async def try_for_long() -> None:
        for _ in range(13):
            await guesses(strict, "alice+train")

    for _ in range(10):
        await asyncio.gather(*(try_for_long() for _ in range(10)))
    assert strict.people.guesses <= 12 + 10 * 2
    assert resident() - before < 64 * MIB


@pytest.mark.slow
async def test_beside_thirteen_thousand_guesses_from_ten_addresses_others_come_in_and_memory_stays(
    strict: Running, person: Client
) -> None:
    """Each connection would guess once more, were it not told to wait."""
    strict.people.tokens["right"] = TokenOwner("alice", every_server)
    assert (await person.ssh("alice+train@gateway", "echo in")).text == "in\n"  # she is known from here
    before, most_at_once, sent_away = resident(), asyncio.Semaphore(64), 0

    async def guess_if_let_in(source: str) -> None:
        nonlocal sent_away
        async with most_at_once:
            heard = await first_words(strict.port, source)
            if heard is None or b"too many" in heard:
                sent_away += 1
            else:
                await guesses(strict, "alice+train", source=source)

    async def attack(source: str) -> None:
        await asyncio.gather(*(guess_if_let_in(source) for _ in range(1300)))

    attacking = [asyncio.create_task(attack(f"127.0.7.{last}")) for last in range(1, 11)]
    logins = 0
    while not all(task.done() for task in attacking):
        assert (await person.ssh("alice+train@gateway", "echo in")).text == "in\n"
        status, out, err = await with_token(person, "right", "alice+train", *PASSWORD)
        assert (status, out) == (0, "in\n"), err
        logins += 2
    await asyncio.gather(*attacking)
    assert logins >= 2
    assert sent_away > 12_000, "the others were let in, and guessed"
    assert strict.people.guesses <= 25, "of all of them"
    assert resident() - before < 64 * MIB


async def test_a_name_is_held_up_for_tokens_from_shared_addresses_whoever_came_in_there_and_never_for_keys(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey, tmp_path: Path
) -> None:
    people.tokens["right"] = TokenOwner("alice", every_server)
    # Time pays nothing meanwhile, however slow this machine is.
    rules = PenaltyRules(penalty_seconds=600.0, shared=read_networks(["127.0.0.0/8"]))
    async with gateway(keys, people, places, limits=GatewayLimits(failure_seconds=0.0, rules=rules)) as running:
        client = Client(tmp_path / "c", running.port, alices_key, keys.host)
        for _ in range(2):
            for _ in range(10):
                await guesses(running, "alice+train", source="127.0.0.66")
            assert people.guesses == FREE_OF_A_NAME + 1, "of all of them"
            status, _, err = await with_token(client, "right", "alice+train", *PASSWORD)
            assert status == 255
            assert "too many wrong tokens for this name: use a registered key, or try again in " in err
            assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_a_right_token_gets_in_from_a_shared_address_soon_after_the_guesses_end(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey, tmp_path: Path
) -> None:
    people.tokens["right"] = TokenOwner("alice", every_server)
    rules = PenaltyRules(penalty_seconds=1.0, shared=read_networks(["127.0.0.0/8"]))
    async with gateway(keys, people, places, limits=GatewayLimits(failure_seconds=0.0, rules=rules)) as running:
        client = Client(tmp_path / "c", running.port, alices_key, keys.host)
        await asyncio.gather(*(guesses(running, "alice+train") for _ in range(40)))
        now, penalties = running.server.now, running.server.penalties
        await until(lambda: penalties.token_refusal("127.0.0.1", "alice", now()) is None, seconds=5.0)
        status, out, err = await with_token(client, "right", "alice+train", *PASSWORD)
        assert (status, out) == (0, "in\n"), err


async def test_a_person_with_too_many_connections_reads_so_and_others_come_in(strict: Running, person: Client) -> None:
    open_ = [await person.start("ssh", "alice+train@gateway", "echo in; sleep 60") for _ in range(2)]
    for process in open_:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"in\n"
    done = await person.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert "you have 2 connections already: close some of them" in done.err
    open_[0].kill()
    await until(lambda: strict.server.session_limit.inside["alice"] < 2)
    assert (await person.ssh("alice+train@gateway", "echo in")).text == "in\n"
    open_[1].kill()
    for process in open_:
        await process.communicate()


async def test_a_flood_of_connections_is_sent_away_in_words_costs_little_and_one_line(  # noqa: PLR0917  (fixtures)
    keys: GatewayKeys,
    people: FakePeople,
    places: FakePlaces,
    alices_key: asyncssh.SSHKey,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    limits = GatewayLimits(drain_seconds=0.0, rules=PenaltyRules(connections_per_second=0.01))
    async with gateway(keys, people, places, limits=limits) as running:
        person = Client(tmp_path / "c", running.port, alices_key, keys.host)
        assert (await person.ssh("alice+train@gateway", "echo in")).text == "in\n"
        before = resident()
        words = await asyncio.gather(*(knock(running.port) for _ in range(600)))
        assert sum(b"too many connections from your address" in one for one in words) >= accept.MOST_FAREWELLS
        await until(lambda: not running.server._lobby.leaving)
        assert resident() - before < 32 * MIB
        done = await person.ssh("alice+train@gateway", "echo in")
    assert "too many connections from your address: try again in" in done.err
    lines = [record.getMessage() for record in caplog.records if "what=connection" in record.getMessage()]
    assert len(lines) == 1


async def first_words(port: int, source: str) -> bytes | None:
    """What somebody reads first who connects from there; None for who is dropped without words."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        try:
            return await asyncio.wait_for(reader.read(4096), 20) or None
        finally:
            writer.close()
    return None


async def knock(port: int) -> bytes:
    """What somebody reads who connects and says nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    with contextlib.suppress(OSError):  # dropped without words
        heard = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return heard


@pytest.mark.parametrize("network", ["10.0.0.0/33", "balancer"])
def test_a_network_that_is_none_is_named(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    gateway = Gateway()
    with pytest.raises(SystemExit):
        gateway.initialize([f"--Gateway.shared_sources={network}"])
    assert network in capsys.readouterr().err
