"""Penalties, limits and floods as clients meet them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ssh_gateway import accept
from ssh_gateway.auth.rate_limit import FREE_OF_A_NAME, PenaltyRules
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.context import GatewayLimits
from tests.component.gateway.peers import (
    DEAR,
    HELD_UP,
    MIB,
    PASSWORD,
    Client,
    Lab,
    Running,
    guesses,
    knock,
    log_lines,
    resident,
    until,
    with_token,
)
from tests.component.gateway.test_metrics import value


@pytest.fixture
async def strict(lab: Lab) -> AsyncIterator[Running]:
    limits = GatewayLimits(failure_seconds=0.0, drain_seconds=0.0, connections_per_user=2, rules=DEAR)
    async with lab.gateway(limits=limits) as found:
        yield found


@pytest.fixture
def person(lab: Lab, strict: Running) -> Client:
    return lab.client(strict, "person")


async def test_empty_passwords_cost_no_penalty_and_are_limited(strict: Running, person: Client) -> None:
    """A client without a terminal sends them after its key was removed: its address is not penalised."""
    strict.auth_backend.keys["alice"].clear()
    env, options = person.with_token("")
    for _ in range(5):
        done = await person.ssh("-o", "NumberOfPasswordPrompts=3", *options, "alice+train@gateway", "true", env=env)
        assert "Permission denied" in done.err
    assert strict.server.penalties.refusal("127.0.0.1", strict.server.now()) is None
    done = await person.ssh("-o", "NumberOfPasswordPrompts=9", *options, "alice+train@gateway", "true", env=env)
    assert "too many failed attempts" in done.err


async def test_address_that_guesses_reads_how_long_it_has_to_wait(strict: Running, person: Client) -> None:
    assert "too many failed attempts" in await guesses(strict, "alice+train")
    assert "too many failed attempts" in await guesses(strict, "bob+train")
    assert [value(strict, "penalised", kind=kind) for kind in ("address", "name")] == [1, 2]
    assert HELD_UP in await guesses(strict, "carol+train")
    before = value(strict, "refusals_total", what="connection") or 0
    done = await person.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert HELD_UP in done.err
    assert strict.auth_backend.guesses == 13
    assert value(strict, "refusals_total", what="connection") == before + 1


async def test_few_of_a_thousand_guesses_reach_the_hub(strict: Running) -> None:
    before = resident()

    async def try_for_long() -> None:
        for _ in range(13):
            await guesses(strict, "alice+train")

    for _ in range(10):
        await asyncio.gather(*(try_for_long() for _ in range(10)))
    assert strict.auth_backend.guesses <= 12 + 10 * 2
    assert resident() - before < 64 * MIB


async def test_name_guessed_at_from_shared_addresses_waits_for_tokens_and_not_for_keys(lab: Lab) -> None:
    lab.auth_backend.tokens["right"] = TokenOwner("alice", every_server)
    rules = replace(DEAR, shared=read_networks(["127.0.0.0/8"]))
    async with lab.gateway(limits=GatewayLimits(failure_seconds=0.0, rules=rules)) as running:
        client = lab.client(running, "c")
        for _ in range(2):
            for _ in range(10):
                await guesses(running, "alice+train", source="127.0.0.66")
            assert lab.auth_backend.guesses == FREE_OF_A_NAME + 1, "of all of them"
            status, _, err = await with_token(client, "right", "alice+train", *PASSWORD)
            assert status == 255
            assert "too many wrong tokens for this name: use a registered key, or try again in " in err
            assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_user_with_too_many_connections_is_refused(strict: Running, person: Client) -> None:
    open_ = [await person.begin("alice+train@gateway", "echo in; sleep 60") for _ in range(2)]
    done = await person.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert "you have 2 connections already: close some of them" in done.err
    open_[0].kill()
    await until(lambda: strict.server.session_limit.inside["alice"] < 2)
    assert (await person.ssh("alice+train@gateway", "echo in")).text == "in\n"
    open_[1].kill()
    for process in open_:
        await process.communicate()


async def test_flood_is_refused_with_a_sentence_and_one_line_of_log(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    limits = GatewayLimits(drain_seconds=0.0, rules=PenaltyRules(connections_per_second=0.01))
    async with lab.gateway(limits=limits) as running:
        person = lab.client(running, "c")
        assert (await person.ssh("alice+train@gateway", "echo in")).text == "in\n"
        before = resident()
        words = await asyncio.gather(*(knock(running.port) for _ in range(600)))
        assert sum(b"too many connections from your address" in one for one in words) >= accept.MOST_FAREWELLS
        await until(lambda: not running.server._admission.leaving)
        assert resident() - before < 32 * MIB
        done = await person.ssh("alice+train@gateway", "echo in")
    assert "too many connections from your address: try again in" in done.err
    lines = log_lines(caplog, "what=connection")
    assert len(lines) == 1
