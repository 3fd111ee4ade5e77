"""Access that ends while a session lives, with OpenSSH's client on one side and its server on the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncssh
import pytest

from ssh_gateway.auth.trust import REVOKED, UNKNOWN
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.context import GatewayLimits
from tests.component.gateway.hostile import disconnect
from tests.component.gateway.peers import Client, FakeAuthBackend, Lab, Running, connect, finish, seen, until
from tests.component.gateway.test_certificates import holder, organisation

__all__ = ["organisation"]

SLEEP = ("alice+train@gateway", "echo in; sleep 60")
NOT_BLOCKED = frozenset({"access_state"})  # the Manager does not tell who is blocked


ALICE = frozenset({"alice"})
ENDS: dict[str, tuple[Callable[[Running], None], str]] = {
    "a user who is blocked": (
        lambda here: setattr(here.auth_backend, "blocked", ALICE),
        "your account may not use this gateway: ask an administrator",
    ),
    "a user who is deleted": (lambda here: setattr(here.auth_backend, "removed", ALICE), "your account was removed"),
    "a key that is removed": (
        lambda here: here.auth_backend.keys["alice"].clear(),
        "the key that you came in with was removed from your keys",
    ),
    "a job that is stopped": (lambda here: here.job_directory.targets.clear(), "train was stopped"),
}


@pytest.mark.parametrize(("change", "said"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("way", [SLEEP, ("-J", "alice@gateway", "alice@train", SLEEP[1])], ids=["direct", "jump"])
async def test_end_of_access_ends_the_session_with_a_sentence(
    alice: Client, running: Running, way: tuple[str, ...], change: Callable[[Running], None], said: str
) -> None:
    ssh = await alice.begin(*way)
    change(running)
    done = await finish(ssh)
    assert done.status == 255
    assert said in done.err
    await until(lambda: not running.server.upstreams)


async def test_revoked_token_ends_its_sessions_and_no_others(
    alice: Client, mallory: Client, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.auth_backend.tokens["secret"] = TokenOwner("alice", every_server)
    env, options = mallory.with_token("secret")
    by_key = await alice.begin(*SLEEP)
    by_token = await mallory.begin(*options, "-o", "PreferredAuthentications=password", *SLEEP, env=env)
    del running.auth_backend.tokens["secret"]
    assert "the token that you came in with" in (await finish(by_token)).err
    assert by_key.returncode is None
    assert not any("secret" in record.getMessage() for record in caplog.records)
    by_key.kill()
    await by_key.communicate()


async def test_slow_hub_does_not_delay_other_checks(lab: Lab) -> None:
    """Neither of keys, which the Manager answers, nor of other tokens."""
    auth_backend = FakeAuthBackend(tokens={token: TokenOwner("alice", every_server) for token in ("slow", "quick")})
    auth_backend.register("alice", lab.alices_key)
    async with lab.gateway(auth_backend=auth_backend) as running:
        by_key = await lab.client(running, "client").begin(*SLEEP)
        sessions = []
        for token in auth_backend.tokens:
            client = Client(lab.folder / token, running.port, None, lab.keys.host)
            env, options = client.with_token(token)
            sessions.append(await client.begin(*options, *SLEEP, env=env))
        auth_backend.held = {("deleted_users",): asyncio.Event(), ("token_owner", "slow"): asyncio.Event()}
        auth_backend.requests.clear()
        del auth_backend.tokens["quick"]
        slow, quick = sessions
        assert "the token that you came in with was revoked" in (await finish(quick)).err
        await until(lambda: auth_backend.count("deleted_users"))
        auth_backend.keys["alice"].clear()
        assert "was removed from your keys" in (await finish(by_key)).err
        assert slow.returncode is None
        slow.kill()
        await slow.communicate()


async def test_logins_are_refused_until_blocked_users_are_known(lab: Lab) -> None:
    auth_backend = FakeAuthBackend(blocked=frozenset({"mallory"}), unanswered=NOT_BLOCKED)
    auth_backend.tokens = {user: TokenOwner(user, every_server) for user in ("alice", "mallory")}
    lab.job_directory.targets[("mallory", "train")] = lab.job_directory.targets[("alice", "train")]
    async with lab.gateway(auth_backend=auth_backend, interval=3600.0) as running:
        client = Client(lab.folder / "client", running.port, None, lab.keys.host)

        async def log_in(user: str) -> tuple[int, str, str]:
            env, options = client.with_token(user)
            done = await client.ssh(*options, f"{user}+train@gateway", "echo in", env=env)
            return done.status, done.text, done.err

        for user in ("alice", "mallory"):
            status, said, problem = await log_in(user)
            assert (status, said) == (255, "")
            assert "it cannot be checked now whether your account may use this gateway: try again later" in problem
        auth_backend.unanswered = frozenset()  # and no round comes for an hour: the login itself asks
        assert (await log_in("alice"))[:2] == (0, "in\n")
        auth_backend.unanswered = NOT_BLOCKED  # what was told once stays known
        assert (await log_in("alice"))[:2] == (0, "in\n")
        status, said, problem = await log_in("mallory")
        assert (status, said) == (255, "")
        assert "your account may not use this gateway: ask an administrator" in problem


# What is so at the Hub and the Manager, and what is logged in with.
OUTAGES: dict[str, tuple[dict[str, Any], str]] = {
    "a right token while the Hub is away": ({"down": True}, "token"),
    "a key while the Manager is away": ({"manager_down": True}, "key"),
    "a key while blocked users are unknown": ({"unanswered": NOT_BLOCKED}, "key"),
}


@pytest.mark.parametrize(("happens", "proof"), OUTAGES.values(), ids=OUTAGES)
async def test_credentials_that_cannot_be_checked_cost_no_penalty(
    lab: Lab, happens: dict[str, Any], proof: str
) -> None:
    auth_backend = FakeAuthBackend(tokens={"right": TokenOwner("alice", every_server)}, **happens)
    auth_backend.register("alice", lab.alices_key)
    given: dict[str, Any] = (
        {"client_keys": [lab.alices_key]} if proof == "key" else {"client_keys": None, "password": "right"}
    )
    limits = GatewayLimits(failure_seconds=0.0, drain_seconds=0.0)
    async with lab.gateway(auth_backend=auth_backend, limits=limits, interval=3600.0) as running:

        async def log_in() -> asyncssh.SSHClientConnection:
            return await connect(running.port, **given)

        for _ in range(40):  # 13 wrong tokens, or 31 connections that try nothing, would be waited for
            with pytest.raises(asyncssh.Error, match=r"Permission denied|it cannot be checked"):
                await log_in()
        await until(lambda: not running.server.connections)
        assert running.server.penalties.penalised(running.server.now()) == (0, 0)
        auth_backend.down, auth_backend.manager_down, auth_backend.unanswered = False, False, frozenset()
        async with await log_in() as connection:
            assert (await connection.run("echo in")).stdout == "in\n"


async def test_round_sends_the_same_requests_for_many_sessions_as_for_two(lab: Lab) -> None:
    """Half of the sessions are logged in by one key, the others by one token."""
    auth_backend = FakeAuthBackend()
    auth_backend.register("alice", lab.alices_key)
    auth_backend.tokens["secret"] = TokenOwner("alice", every_server)
    async with (
        lab.gateway(auth_backend=auth_backend, interval=3600.0) as running,
        contextlib.AsyncExitStack() as sessions,
    ):

        async def log_in(*, by_key: bool) -> None:
            given: dict[str, Any] = {"client_keys": [lab.alices_key]} if by_key else {"password": "secret"}
            connection = await sessions.enter_async_context(connect(running.port, **given))
            assert (await connection.run("echo in")).stdout == "in\n"

        async def requests_of_a_round() -> list[tuple[str, ...]]:
            auth_backend.requests.clear()
            await running.server.revalidator.round()
            return sorted(request for request in auth_backend.requests if not request[0].startswith("report_"))

        of_a_round = [("access_state",), ("deleted_users", "alice"), ("token_owner", "secret")]
        for by_key in (True, False):
            await log_in(by_key=by_key)
        assert await requests_of_a_round() == of_a_round
        for number in range(8):
            await log_in(by_key=number % 2 == 0)
        assert len([one for one in running.server.connections if one.session is not None]) == 10
        assert await requests_of_a_round() == of_a_round


async def complains(process: asyncio.subprocess.Process, sentence: bytes) -> None:
    """The client ends with this on standard error while its input is open."""
    async with asyncio.timeout(60):
        assert sentence in await process.stderr.read()
        assert await process.wait() == 255


async def test_revoked_certificate_is_denied_and_ends_its_sessions(organisation: Running, lab: Lab) -> None:
    client = await holder(organisation, lab, "-n", "alice", "-z", "17")
    inside = await client.start("ssh", "alice+train@gateway", "echo ready; cat")
    await seen(inside, b"ready")
    (lab.folder / "revoked").write_text("serial: 17\n")
    await complains(inside, b"the certificate that you came in with was revoked")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out, REVOKED in done.err) == (255, b"", True)
    (lab.folder / "revoked").write_text("serial: 170\n")
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (lab.folder / "revoked").write_text("nonsense\n")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, UNKNOWN in done.err) == (255, True)


async def test_certificate_that_cannot_be_checked_costs_no_attempt(lab: Lab, organisation: Running) -> None:
    """The key without its certificate is the one attempt that fails, and the token the second."""
    lab.auth_backend.tokens["right"] = TokenOwner("alice", every_server)
    organisation.server.limits = replace(organisation.server.limits, attempts=2)
    client = await holder(organisation, lab, "-n", "alice")
    (lab.folder / "revoked").write_text("nonsense\n")
    conn = await connect(organisation.port, client_keys=[str(client.directory / "id")], password="right")  # fmt: skip
    assert (await conn.run("echo in")).stdout == "in\n"
    await disconnect(conn)
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255
    penalties = organisation.server.penalties
    await until(lambda: not organisation.server.connections)
    assert penalties.penalised(organisation.server.now()) == (0, 0)


async def test_expired_certificate_ends_its_sessions(
    organisation: Running, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    client = await holder(organisation, lab, "-n", "alice", "-V", f"-1m:{until:%Y%m%d%H%M%S}Z")
    inside = await client.start("ssh", "alice+train@gateway", "echo ready; cat")
    await seen(inside, b"ready")
    late = time.time() + 3700
    monkeypatch.setattr("ssh_gateway.auth.revalidation.time.time", lambda: late)
    await complains(inside, b"the certificate that you came in with has expired: get a new one")
