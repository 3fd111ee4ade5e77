"""Who gets in, who does not, and what each of them learns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.core import packets
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.core.routing import JobCondition, JobEndpoint
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, Sshd, gateway, until
from tests.harness.ports import free_port

DENIED = "Permission denied (publickey,keyboard-interactive,password)."
PASSWORD = ("-o", "PreferredAuthentications=password")


async def with_token(client: Client, token: str, login: str, *options: str) -> tuple[int, str, str]:
    env, more = client.with_token(token)
    done = await client.ssh(*more, *options, f"{login}@gateway", "echo in", env=env)
    return done.status, done.text, done.err


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
async def test_a_token_of_the_hub_opens_its_owners_job(running: Running, mallory: Client, method: str) -> None:
    running.people.tokens["secret"] = TokenOwner("alice", every_server)
    options = ("-o", f"PreferredAuthentications={method}")
    status, out, err = await with_token(mallory, "secret", "alice+train", *options)
    assert (status, out) == (0, "in\n"), err


async def test_no_secret_is_logged_right_or_wrong(
    running: Running, mallory: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    running.people.tokens["right-secret"] = TokenOwner("alice", every_server)
    for token in ("right-secret", "wrong-secret"):
        await with_token(mallory, token, "alice+train", *PASSWORD)
    lines = [record.getMessage() for record in caplog.records]
    assert any("result=accepted user=alice method=password key=token" in text for text in lines)
    assert any("login=alice+train result=failed" in text for text in lines)
    assert not any("secret" in text for text in lines)


async def test_a_token_that_may_not_enter_this_server_is_told_so(running: Running, mallory: Client) -> None:
    running.people.tokens["narrow"] = TokenOwner("alice", lambda server: server == "eval")
    status, out, err = await with_token(mallory, "narrow", "alice+train", *PASSWORD)
    assert (status, out) == (255, "")
    assert "this token may not open train" in err


async def test_a_token_is_told_of_no_job_that_it_may_not_open(
    running: Running, mallory: Client, places: FakePlaces, sshd: Sshd
) -> None:
    places.targets["alice", "eval"] = replace(sshd.target(), server="eval")
    running.people.tokens["narrow"] = TokenOwner("alice", lambda server: server != "eval")
    _, _, err = await with_token(mallory, "narrow", "alice+trian", *PASSWORD)
    assert "no job trian; yours: train" in err
    assert "eval" not in err
    running.people.tokens["none"] = TokenOwner("alice", lambda _: False)
    for server in ("train", "trian"):
        _, _, err = await with_token(mallory, "none", f"alice+{server}", *PASSWORD)
        assert f"this token may not open {server}" in err
        assert "yours" not in err


async def test_a_key_in_use_is_noted(running: Running, alice: Client) -> None:
    assert (await alice.ssh("alice+train@gateway", "true")).status == 0
    assert running.people.used == [("alice", 1)]


async def test_asking_whether_a_key_would_do_starts_nothing(running: Running, alices_key: asyncssh.SSHKey) -> None:
    public = asyncssh.import_public_key(alices_key.export_public_key())

    class OnlyAsks(asyncssh.SSHClient):
        asked = 0

        def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
            self.asked += 1
            return Unsigned(public) if self.asked == 1 else None

    class Unsigned(asyncssh.SSHKeyPair):
        """The public half, of which asyncssh first asks whether it would do."""

        def __init__(self, key: asyncssh.SSHKey) -> None:
            super().__init__(key.algorithm, key.algorithm, (key.algorithm,), (), key.public_data, b"")

        async def sign_async(self, data: bytes) -> bytes:
            raise ValueError("there is no private half")

    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(
            "127.0.0.1",
            running.port,
            username="alice+train",
            known_hosts=None,
            config=None,
            agent_path=None,
            client_keys=None,
            client_factory=OnlyAsks,
        )
    assert running.people.asked == ["alice"]
    assert running.people.used == []


async def test_wrong_people_all_get_the_same_answer(running: Running, mallory: Client) -> None:
    running.people.tokens["mallorys"] = TokenOwner("mallory", every_server)
    running.people.tokens["service"] = TokenOwner("alice", every_server, person=False)
    answers = {
        "somebody else's key for a job": await mallory.ssh("alice+train@gateway", "id"),
        "somebody else's key for a job that is not there": await mallory.ssh("alice+nothing@gateway", "id"),
        "a user who does not exist": await mallory.ssh("ghost+train@gateway", "id"),
        "a name that cannot exist": await mallory.ssh("a/b+train@gateway", "id"),
        "the default server of somebody else": await mallory.ssh("alice@gateway", "id"),
    }
    assert {(done.status, done.out, done.err.split(": ", 1)[1].strip()) for done in answers.values()} == {
        (255, b"", DENIED)
    }
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
        await asyncssh.connect(
            "127.0.0.1",
            running.port,
            username=user,
            known_hosts=None,
            config=None,
            agent_path=None,
            client_keys=None,
            preferred_auth="password",
            client_factory=Guesser,
        )
    return Guesser.times[1] - Guesser.times[0]


async def test_wrong_credentials_are_answered_in_the_same_time(running: Running) -> None:
    running.people.tokens["mallorys"] = TokenOwner("mallory", every_server)
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


@pytest.mark.slow
async def test_openssh_waits_as_long_for_a_no_whoever_it_asks_for(running: Running, mallory: Client) -> None:
    """Ranks of all times together: were one kind of login slower or faster, its ranks would not be like the others'."""
    logins = ("alice+train", "alice+nothing", "ghost+train", "alice")
    times: list[tuple[float, str]] = []
    for _ in range(25):
        for login in logins:
            began = time.perf_counter()
            assert DENIED in (await mallory.ssh(f"{login}@gateway", "id")).err
            times.append((time.perf_counter() - began, login))
    ranks = {login: [rank for rank, (_, one) in enumerate(sorted(times)) if one == login] for login in logins}
    # Kruskal and Wallis: for four kinds above 21.1 once in ten thousand runs, if there is no difference.
    count = len(times)
    spread = sum(sum(one) ** 2 / len(one) for one in ([rank + 1 for rank in found] for found in ranks.values()))
    assert 12 / (count * (count + 1)) * spread - 3 * (count + 1) < 21.1, times


async def test_the_sixth_wrong_credential_ends_the_connection(running: Running, mallory: Client) -> None:
    env, _ = mallory.with_token("wrong")
    options = ["-v", "-o", "BatchMode=no", "-o", "NumberOfPasswordPrompts=10", "-o", "PubkeyAuthentication=no"]
    done = await mallory.ssh(*options, *PASSWORD, "alice+train@gateway", env=env)
    assert done.err.count("Authentications that can continue") == 6  # the list, and after five wrong tokens
    assert "too many failed attempts" in done.err


async def test_a_name_changed_on_the_way_starts_no_new_count(running: Running) -> None:
    """RFC 4252 lets a client change the name; six attempts are six all the same."""

    class Changeling(asyncssh.SSHClient):
        guesses = 0

        def password_auth_requested(self) -> str:
            Changeling.guesses += 1
            self.connection._username = f"user{Changeling.guesses}"
            return "wrong"

        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self.connection = conn

    with pytest.raises(asyncssh.DisconnectError, match="too many failed attempts"):
        await asyncssh.connect(
            "127.0.0.1", running.port, username="user0", known_hosts=None, config=None, agent_path=None,
            client_keys=None, preferred_auth="password", client_factory=Changeling,
        )  # fmt: skip
    assert Changeling.guesses == 6


async def test_guesses_that_are_given_up_before_they_are_answered_count(running: Running) -> None:
    class Impatient(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self.connection = conn

        def password_auth_requested(self) -> str:
            for number in range(50):
                method = [packets.text(b"password"), b"\0", packets.text(b"guess %d" % number)]
                login = [packets.text(b"alice+train"), packets.text(b"ssh-connection")]
                self.connection.send_packet(50, *login, *method)
            return "the last"

    with pytest.raises((asyncssh.Error, OSError)):
        await asyncssh.connect(
            "127.0.0.1", running.port, username="alice+train", known_hosts=None, config=None, agent_path=None,
            client_keys=None, preferred_auth="password", client_factory=Impatient,
        )  # fmt: skip
    assert 1 <= running.people.guesses <= 6


async def test_a_typing_error_gets_help_once_the_person_is_known(alice: Client) -> None:
    for command in (
        ["ssh", "alice+trian@gateway"],
        ["scp", "alice+trian@gateway:x", "y"],
        ["sftp", "alice+trian@gateway"],
    ):
        done = await alice.run(*command)
        assert done.status == 255
        assert "no job trian; yours: train\n" in done.err.replace("\r", "")


async def test_a_default_server_that_does_not_run_is_told_to_the_shell(alice: Client) -> None:
    done = await alice.ssh("alice@gateway", "id")
    assert done.status == 255
    assert "your default server is not running: start it at http://hub.example/hub/spawn; yours: train" in done.err


async def test_a_job_that_is_starting_is_told(alice: Client, running: Running) -> None:
    running.places.others["alice"] = [JobEndpoint("eval", JobCondition.STARTING)]
    done = await alice.ssh("alice+eval@gateway", "id")
    assert "eval is starting: try again in a moment" in done.err


async def test_a_manager_that_is_down_is_told_and_lets_nobody_in(alice: Client, running: Running) -> None:
    running.people.manager_down = True
    done = await alice.ssh("alice+train@gateway", "id")
    assert done.status == 255
    assert "the keys service does not answer: try again later, or use a token" in done.err
    assert DENIED in done.err


def said_of_the_pod(running: Running, caplog: pytest.LogCaptureFixture) -> str:
    """The log's one line about a job that could not be reached, without the number of the connection."""
    (line,) = [text for record in caplog.records if (text := record.getMessage()).startswith("event=pod ")]
    return line.replace(f"conn={running.server.name}-1 ", "", 1)


async def test_a_job_with_another_host_key_is_refused(
    alice: Client, running: Running, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    target = sshd.target()
    running.places.targets["alice", "train"] = type(target)(
        target.job, target.user, target.server, target.host, target.port, target.login, other
    )
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert "answered with a host key that is not this job's" in done.err
    where = f"user=alice server=train job={target.job} pod={target.host}:{target.port}"
    assert said_of_the_pod(running, caplog).startswith(f"event=pod {where} result=host-key why=")


async def test_a_certificate_for_another_job_does_not_open_this_one(
    alice: Client, running: Running, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    target = sshd.target()
    running.places.targets["alice", "train"] = type(target)(
        "j-bbbbbbbbbbbb", target.user, target.server, target.host, target.port, target.login, target.host_key
    )
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert "did not accept the gateway's certificate" in done.err
    where = f"user=alice server=train job=j-bbbbbbbbbbbb pod={target.host}:{target.port}"
    assert said_of_the_pod(running, caplog).startswith(f"event=pod {where} result=not-accepted why=")


@pytest.fixture
async def impatient(keys: GatewayKeys, people: FakePeople, places: FakePlaces) -> AsyncIterator[Running]:
    limits = GatewayLimits(login_seconds=1.0, connect_seconds=0.3, waiting_per_source=3, drain_seconds=0.0)
    async with gateway(keys, people, places, limits=limits) as found:
        yield found


async def test_a_job_that_does_not_answer_is_told_in_time(  # noqa: PLR0917  (fixtures)
    impatient: Running,
    keys: GatewayKeys,
    alices_key: asyncssh.SSHKey,
    tmp_path: Path,
    sshd: Sshd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = sshd.target()
    impatient.places.targets["alice", "train"] = type(target)(
        target.job, target.user, target.server, target.host, free_port(), target.login, target.host_key
    )
    done = await Client(tmp_path / "c", impatient.port, alices_key, keys.host).ssh("alice+train@gateway", "id")
    assert "the SSH server of train does not answer yet: try again in a moment" in done.err
    where = impatient.places.targets["alice", "train"]
    said = f"event=pod user=alice server=train job={target.job} pod={where.host}:{where.port} result=no-answer"
    assert said_of_the_pod(impatient, caplog) == said


async def test_a_client_that_never_logs_in_is_sent_away_with_a_reason(impatient: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient.port)
    heard = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    assert heard.startswith(b"SSH-2.0-OpenSSH_compatible dlspawner\r\n")
    assert b"no login within 1 seconds" in heard


async def test_more_logins_from_one_address_than_may_wait_are_sent_away_and_the_door_opens_again(
    impatient: Running, keys: GatewayKeys, alices_key: asyncssh.SSHKey, tmp_path: Path
) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", impatient.port) for _ in range(3)]
    client = Client(tmp_path / "c", impatient.port, alices_key, keys.host)
    done = await client.ssh("alice+train@gateway", "echo in")
    assert "too many logins are going on from your address" in done.err
    for _, writer in idle:
        writer.close()
    await until(lambda: not impatient.server.connections)
    done = await client.ssh("alice+train@gateway", "echo in")
    assert done.text == "in\n", done.err
