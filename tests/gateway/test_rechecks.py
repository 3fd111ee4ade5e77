"""Access that ends while a session lives, with OpenSSH's client on one side and its server on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from ssh_gateway.access import Bearer, everything
from tests.gateway.peers import Client, Running, finish, until

SLEEP = ("alice+train@gateway", "echo in; sleep 60")


async def begun(client: Client, *arguments: str, **env: str) -> asyncio.subprocess.Process:
    """A session that stands."""
    process = await client.start("ssh", *arguments, env=env)
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"in\n"
    return process


def block(running: Running) -> None:
    running.people.blocked = frozenset({"alice"})


def remove_person(running: Running) -> None:
    running.people.removed = frozenset({"alice"})


def remove_key(running: Running) -> None:
    running.people.keys["alice"].clear()


def stop_job(running: Running) -> None:
    running.places.targets.clear()


ENDS = {
    "a user who is blocked": (block, "your account may not use this gateway: ask an administrator"),
    "a user who is deleted": (remove_person, "your account was removed"),
    "a key that is removed": (remove_key, "the key that you came in with was removed from your keys"),
    "a job that is stopped": (stop_job, "train was stopped"),
}


@pytest.mark.parametrize(("change", "said"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("way", [SLEEP, ("-J", "alice@gateway", "alice@train", SLEEP[1])], ids=["direct", "jump"])
async def test_what_ends_access_ends_the_session_with_a_sentence(
    alice: Client, running: Running, way: tuple[str, ...], change: Callable[[Running], None], said: str
) -> None:
    ssh = await begun(alice, *way)
    change(running)
    done = await finish(ssh)
    assert done.status == 255
    assert said in done.err
    await until(lambda: not running.server.pods)


@pytest.mark.parametrize("better", [None, Bearer("alice", lambda server: server == "eval")], ids=["gone", "narrowed"])
async def test_a_token_that_is_revoked_ends_its_sessions_and_no_others(
    alice: Client, mallory: Client, running: Running, better: Bearer | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    running.people.tokens["secret"] = Bearer("alice", everything)
    env, options = mallory.with_token("secret")
    by_key = await begun(alice, *SLEEP)
    by_token = await begun(mallory, *options, "-o", "PreferredAuthentications=password", *SLEEP, **env)
    if better is None:
        del running.people.tokens["secret"]
    else:
        running.people.tokens["secret"] = better
    assert "the token that you came in with" in (await finish(by_token)).err
    assert by_key.returncode is None
    assert not any("secret" in record.getMessage() for record in caplog.records)
    by_key.kill()
    await by_key.communicate()


async def test_who_is_blocked_does_not_get_in(alice: Client, running: Running) -> None:
    block(running)
    await until(running.server.blocked)
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert "your account may not use this gateway: ask an administrator" in done.err


async def test_sessions_go_on_while_nobody_can_tell_and_the_log_says_so_once(
    alice: Client, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    ssh = await begun(alice, "alice+train@gateway", "echo in; read line; echo $line")
    running.people.down = running.places.down = True
    await until(lambda: sum("event=recheck" in record.getMessage() for record in caplog.records) >= 3)
    rounds = running.server.rechecks
    assert rounds is not None
    for _ in range(3):
        await rounds.round()
    assert sum("event=recheck" in record.getMessage() for record in caplog.records) == 3
    assert (await finish(ssh, b"still here\n")).text == "still here\n"
