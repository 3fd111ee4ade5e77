"""What plink and dbclient do beyond commands: SOCKS, single streams, agents, terminals, keepalives, new keys."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from ssh_gateway.transport import server
from tests.component.gateway.clients.forwarding import answer_over, echo_server
from tests.component.gateway.clients.test_clients import both, login, over_socks
from tests.component.gateway.clients.test_forwards import agent
from tests.component.gateway.clients.test_terminals import plain, terminal
from tests.component.gateway.clients.ways import Desk, Way
from tests.component.gateway.peers import DEADLINE, Done
from tests.harness.ports import free_port

MIB = 2**20
DATA = os.urandom(300_000)


async def test_socks_of_plink(two: Desk) -> None:
    async def case(way: Way) -> bool:
        socks = free_port()
        *options, host = login(two, "plink", way)
        async with (
            echo_server() as port,
            two.background(*options, "-D", str(socks), host, "echo up; cat") as process,
        ):
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), DEADLINE) == b"up\n"
            return await over_socks(socks, port, DATA) == DATA

    assert await two.each(case)


async def test_a_remote_port_of_the_jobs_choice_is_a_mistake_to_plink(two: Desk) -> None:
    """It looks 0 up as a name of a service, asks for nothing, and goes on."""

    async def case(way: Way) -> tuple[int, bytes, bool, bool]:
        *options, host = login(two, "plink", way)
        done = await two.run(*options, "-v", "-R", "0:127.0.0.1:1", host, "echo up")
        mistaken = 'Service lookup failed for source port "0"' in done.err
        return done.status, done.out, mistaken, "Requesting remote port" in done.err

    assert await two.each(case) == (0, b"up\n", True, False)


async def test_a_remote_port_of_the_jobs_choice_is_told_by_dbclient_and_leads_here(two: Desk) -> None:
    async def case(way: Way) -> bytes:
        *options, host = login(two, "dbclient", way)
        async with (
            echo_server() as port,
            two.background(*options, "-R", f"0:127.0.0.1:{port}", host, "cat") as process,
        ):
            assert process.stderr is not None
            said = await asyncio.wait_for(process.stderr.readuntil(b" for remote forward"), DEADLINE)
            return await answer_over(int(said.split(b"Allocated port ")[1].split()[0]), DATA)

    assert await two.each(case) == DATA


@pytest.mark.parametrize(("client", "flag"), [("plink", "-nc"), ("dbclient", "-B")])
async def test_a_single_stream_in_place_of_a_session(two: Desk, client: str, flag: str) -> None:
    async def case(way: Way) -> tuple[int, bool]:
        *options, host = login(two, client, way)
        async with echo_server() as port:
            done = await two.run(*options, flag, f"127.0.0.1:{port}", host, feed=DATA)
        return done.status, done.out == DATA

    assert await two.each(case) == (0, True)


LISTS = 'test -n "$SSH_AUTH_SOCK" || exit 9; ssh-add -l'


@both
async def test_an_agent_of_another_client_is_used_from_the_job(two: Desk, client: str) -> None:
    without_one = {"plink": ("-a",), "dbclient": ()}[client]
    async with agent(two) as path:

        async def case(way: Way) -> tuple[Done, Done]:
            *options, host = login(two, client, way)
            env = {"SSH_AUTH_SOCK": str(path)}
            return (
                await two.run(*options, "-A", host, LISTS, env=env),
                await two.run(*options, *without_one, host, LISTS, env=env),
            )

        forwarded, without = await two.each(case)
    assert (forwarded.status, forwarded.text.split()[1]) == (0, two.key.get_fingerprint())
    assert without.status == 9


@pytest.mark.parametrize("way", [Way.GATEWAY, Way.JUMP], ids=lambda way: way.value)
@both
async def test_an_agent_of_another_client_that_is_not_allowed_does_not_come_along(
    strict: Desk, client: str, way: Way
) -> None:
    """The command runs all the same. Directly the agent is there, so that nothing but the gateway can be the reason."""
    await asyncio.gather(strict.make_ppk(), strict.make_dropbear_key())
    async with agent(strict) as path:
        statuses = []
        for one in (Way.DIRECT, way):
            *options, host = login(strict, client, one)
            done = await strict.run(*options, "-A", host, LISTS, env={"SSH_AUTH_SOCK": str(path)})
            statuses.append(done.status)
    assert statuses == [0, 9]


@pytest.mark.slow
@both
async def test_much_that_another_client_is_sent_is_whole(two: Desk, client: str) -> None:
    """Dropbear's end is not waited for: now and then it stands still with everything that it was sent, without a
    gateway as well (ssh_gateway/ATTACKS.md).
    """
    data = os.urandom(4 * MIB)

    async def case(way: Way) -> tuple[int | None, bool]:
        file = two.job_folder(way) / "much"
        file.write_bytes(data)
        command = *login(two, client, way), f"cat {file}"
        if client == "plink":
            done = await two.run(*command)
            return done.status, done.out == data
        process = await two.start(*command)
        try:
            assert process.stdout is not None
            return None, await asyncio.wait_for(process.stdout.readexactly(len(data)), 60) == data
        finally:
            process.kill()
            await process.communicate()

    assert await two.each(case) == ({"plink": 0, "dbclient": None}[client], True)


async def test_a_subsystem_that_plink_does_not_get(two: Desk) -> None:
    async def case(way: Way) -> tuple[int, bytes, str]:
        *options, host = login(two, "plink", way)
        done = await two.run(*options, "-s", host, "nonsense")
        return done.status, done.out, done.err

    status, out, said = await two.each(case)
    assert (status != 0, out) == (True, b"")
    assert "Server refused to start a shell/command" in said


async def packets_of_plink(desk: Desk, way: Way, settings: str, command: str, feed: bytes = b"") -> tuple[Done, str]:
    """Run plink as a saved session with these settings says; what it leaves behind, and its log of packets."""
    session = desk.home / ".putty" / "sessions" / way.value
    session.parent.mkdir(parents=True, exist_ok=True)
    session.write_text(f"Protocol=ssh\n{settings}\n")
    log = desk.directory / f"packets-{way.value}"
    name, *options, host = login(desk, "plink", way)
    done = await desk.run(name, "-load", way.value, *options, "-sshlog", str(log), host, command, feed=feed)
    return done, log.read_text(errors="replace")


@pytest.mark.slow
async def test_keepalives_of_plink_do_no_harm(two: Desk) -> None:
    async def case(way: Way) -> tuple[int, bytes, bool]:
        done, packets = await packets_of_plink(two, way, "PingIntervalSecs=1", "sleep 2.5; echo alive")
        begun = packets.split("SSH2_MSG_CHANNEL_SUCCESS")[1]
        return done.status, done.out, "SSH2_MSG_IGNORE" in begun

    assert await two.each(case) == (0, b"alive\n", True)


async def test_plink_wants_new_keys_in_a_transfer(two: Desk) -> None:
    data = os.urandom(4 * MIB)

    async def case(way: Way) -> tuple[int, bool, bool]:
        done, packets = await packets_of_plink(two, way, "RekeyBytes=1M\nSSHLogOmitData=1", "cat", feed=data)
        return done.status, done.out == data, packets.count("(SSH2_MSG_NEWKEYS)") > 4  # each end's count

    assert await two.each(case) == (0, True, True)


async def test_a_terminal_of_dbclient(two: Desk) -> None:
    async def case(way: Way) -> tuple[int, str]:
        name, *options, host = login(two, "dbclient", way)
        async with terminal(two, *options, "-t", host, "tty; stty size; exit 3", client=name) as screen:
            return await screen.ends(), plain(screen.seen).lstrip()  # a line for each host key that -y -y leaves out

    status, shown = await two.each(case)
    assert status == 3
    assert shown == "/dev/pts/N\r\n24 80\r\n"


@pytest.mark.slow
async def test_keepalives_of_dbclient_are_answered(two: Desk) -> None:
    """It asks every second, and leaves after the third question without an answer."""

    async def case(way: Way) -> tuple[int, bytes]:
        *options, host = login(two, "dbclient", way)
        done = await two.run(*options, "-K", "1", host, "sleep 4.2; echo alive")
        return done.status, done.out

    assert await two.each(case) == (0, b"alive\n")


@pytest.mark.slow
@pytest.mark.parametrize("client", ["plink", "dbclient"])
async def test_another_client_follows_when_the_gateway_wants_new_keys(
    two: Desk, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropbear's own limit of a GiB cannot be set.

    It only sends here, and what is counted are answers to that: while much goes both ways it can stop for ever, without
    a gateway as well (ssh_gateway/ATTACKS.md).
    """
    monkeypatch.setattr(two.running.server._options, "rekey_bytes", {"plink": MIB, "dbclient": 256}[client])
    renewed: list[server.Downstream] = []
    send = server.Downstream.send_newkeys

    def noting(leg: server.Downstream, k: bytes, h: bytes) -> None:
        renewed.append(leg)
        send(leg, k, h)

    monkeypatch.setattr(server.Downstream, "send_newkeys", noting)
    data = os.urandom(4 * MIB)
    digest = f"{hashlib.sha256(data).hexdigest()}  -\n".encode()
    command, answer = {"plink": ("cat", data), "dbclient": ("sha256sum", digest)}[client]

    async def case(way: Way) -> tuple[int, bool]:
        done = await two.run(*login(two, client, way), command, feed=data)
        return done.status, done.out == answer

    assert await two.each(case) == (0, True)
    assert len(set(renewed)) == 3  # the gateway's, and both of the jump
    assert all(renewed.count(leg) > 3 for leg in set(renewed))
