"""Logins that start their job: one start, progress on standard error, a reason for a refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from dlspawner.clients.manager import StartStatus
from ssh_gateway.backends.directory import SshEndpoint
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.autostart import AutoStarter, WaitingLogin
from ssh_gateway.transport.server import Downstream
from tests.component.gateway.peers import (
    DEADLINE,
    Client,
    FakeAuthBackend,
    FakeJobDirectory,
    Running,
    Sshd,
    finish,
    until,
)
from tests.component.gateway.test_metrics import value

STARTING, RUNS = StartStatus("starting", page="/services/jobs/wait/alice/train"), StartStatus("running", job="j")
WAITS = StartStatus("queued", "number 2 in the queue. All 8 GPUs are used.", "/services/jobs/wait/alice/train", "j")
URL = "http://hub.example/services/jobs/wait/alice/train"


@pytest.fixture
def job_directory() -> FakeJobDirectory:
    return FakeJobDirectory({})


@pytest.fixture(autouse=True)
def patient(running: Running) -> None:
    """The gateway polls often, and waits long."""
    running.server.autostart = AutoStarter(running.auth_backend, "http://hub.example/", 60.0, 0.02)


def audit(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of starts: each line without its connection."""
    return [re.sub(r" conn=\S+", "", line) for line in caplog.messages if line.startswith("event=start")]


def appears(running: Running, target: SshEndpoint) -> Callable[[], StartStatus]:
    """The job runs from now on."""

    def look() -> StartStatus:
        running.job_directory.targets[("alice", target.server)] = target
        return RUNS

    return look


async def test_login_starts_the_job_and_tells_progress_on_standard_error(
    running: Running, alice: Client, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    last = WAITS.sentence.replace("2 in", "1 in")
    queued = (WAITS, WAITS, StartStatus("queued", last), STARTING)
    running.auth_backend.stages = [StartStatus("queued", WAITS.sentence), *queued, appears(running, sshd.target())]
    done = await alice.ssh("alice+train@gateway", "cat; exit 3", feed=b"in\n")
    assert (done.status, done.text) == (3, "in\n"), done.err
    assert running.auth_backend.starts == [("alice", "train")]
    said = [line.strip() for line in done.err.splitlines() if line.startswith("train")]
    assert said == [f"train is queued: {WAITS.sentence}", f"train is queued: {last}", "train is starting"]
    assert value(running, "starts_total", result="running") == 1
    assert audit(caplog) == ["event=start user=alice server=train", "event=started user=alice server=train"]


async def test_slow_answer_of_the_hub_is_told(
    running: Running, alice: Client, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def start(user: str, server: str) -> StartStatus:
        await answered.wait()
        return appears(running, sshd.target())()

    monkeypatch.setattr(running.auth_backend, "start", start)
    process = await alice.start("ssh", "alice+train@gateway", "echo in")
    said = await asyncio.wait_for(process.stderr.readline(), DEADLINE)
    answered.set()
    assert said.strip() == b"train does not run: asking for it to be started"
    assert (await finish(process)).text == "in\n"


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (
            [StartStatus("refused", "Team vision has used its 8 GPUs.")],
            "train does not start: Team vision has used its 8 GPUs",
        ),
        ([StartStatus("login-required", "The Hub wants you to log in.", WAITS.page)], f"you to log in ({URL})"),
        ([STARTING, StartStatus("pending-approval", "It is too large.", WAITS.page)], f"It is too large ({URL})"),
        ([STARTING, StartStatus("ended", "It was cancelled.")], "train has not started: It was cancelled"),
        ([StartStatus("off")], "no job train; you have none that runs"),
        ([StartStatus("refused", "No\x1b[2J \u202e…")], "train does not start: No?[2J ?"),
    ],
    ids=["quota", "a fresh login", "an approval", "it has ended", "it is off", "nothing moves the cursor"],
)
async def test_refused_start_is_one_sentence(
    running: Running, alice: Client, stages: list[StartStatus], told: str
) -> None:
    running.auth_backend.stages = list(stages)
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert told in done.err


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (
            WAITS,
            f"train does not run yet (number 2 in the queue. All 8 GPUs are used); it goes on by itself: watch {URL}",
        ),
        (
            StartStatus("running"),
            "train runs, and no pod of it that SSH can enter is found yet\n"
            "train runs, but no pod of it that SSH can enter is found: tell your administrator",
        ),
    ],
    ids=["in the queue", "its pod has other labels"],
)
async def test_login_that_waits_too_long_reads_why(
    running: Running, alice: Client, stage: StartStatus, told: str
) -> None:
    running.server.autostart = AutoStarter(running.auth_backend, "http://hub.example/", 0.1, 0.02)
    running.auth_backend.stages = [stage]
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert told in done.err.replace("\r", "")
    assert value(running, "starts_total", result="not-started") == 1


async def test_start_extends_the_time_for_the_login(
    running: Running, alice: Client, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is longer than a login may take, and the waiting login counts as authenticated."""
    taken: list[float] = []
    longer = Downstream.take_longer
    monkeypatch.setattr(
        "ssh_gateway.transport.server.Downstream.take_longer",
        lambda leg, seconds: (taken.append(seconds), longer(leg, seconds)),
    )
    unauthenticated: list[float | None] = []

    def look() -> StartStatus:
        unauthenticated.append(len(running.server.unauthenticated.waiting))
        unauthenticated.append(value(running, "open_connections", state="unauthenticated"))
        return appears(running, sshd.target())()

    running.auth_backend.stages = [STARTING, look]
    assert (await alice.ssh("alice+train@gateway", "true")).status == 0
    assert taken == [60.0 + running.server.limits.login_seconds]
    assert set(unauthenticated) == {0}


async def test_jump_waits_for_the_start(running: Running, alice: Client, sshd: Sshd) -> None:
    running.auth_backend.stages = [STARTING, STARTING, appears(running, sshd.target())]
    done = await alice.ssh("-J", "alice@gateway", "alice@train", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err
    assert set(running.auth_backend.starts) == {("alice", "train")}


async def test_login_without_a_server_reads_why_the_default_server_waits(
    running: Running, alice: Client, sshd: Sshd
) -> None:
    runs = asyncio.Event()

    def look() -> StartStatus:
        return appears(running, sshd.target(""))() if runs.is_set() else WAITS

    running.auth_backend.stages = [look]
    process = await alice.start("ssh", "alice@gateway", "echo in")
    said = await asyncio.wait_for(process.stderr.readline(), DEADLINE)
    assert said.decode().strip() == f"your default server is queued: {WAITS.sentence} (nothing is shown until it runs)"
    runs.set()
    done = await finish(process)
    assert (done.status, done.text) == (0, "in\n"), done.err
    assert set(running.auth_backend.starts) == {("alice", "")}


async def test_jump_reads_nothing_about_the_default_server(running: Running, alice: Client, sshd: Sshd) -> None:
    running.auth_backend.stages = [STARTING]
    running.job_directory.targets[("alice", "train")] = sshd.target()
    done = await alice.ssh("-J", "alice@gateway", "alice@train", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err
    assert "default server" not in done.err
    assert running.auth_backend.starts == []


def login(alice: Client, *, by_token: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """Environment and arguments of a login with the key, or with the token `secret`."""
    env, options = alice.with_token("secret")
    arguments = ("-o", "PubkeyAuthentication=no", *options) if by_token else ()
    return env, (*arguments, "alice+train@gateway", "echo in")


NARROWER = TokenOwner("alice", lambda server: server == "eval")
KEY_GONE = "the key that you came in with was removed from your keys"
TOKEN_GONE = "the token that you came in with was revoked, or has expired"
REVOKED: dict[str, tuple[bool, bool, TokenOwner | None, str]] = {
    "a key, as the job starts": (True, False, None, KEY_GONE),
    "a token, as the job starts": (True, True, None, TOKEN_GONE),
    "a narrower token, as the job starts": (True, True, NARROWER, "you came in with may not open train any more"),
    "a key, in the queue": (False, False, None, KEY_GONE),
}


@pytest.mark.parametrize("row", REVOKED.values(), ids=REVOKED)
async def test_credential_revoked_while_the_login_waits_refuses_it(
    running: Running, alice: Client, sshd: Sshd, row: tuple[bool, bool, TokenOwner | None, str]
) -> None:
    starts, by_token, better, told = row
    auth_backend, rounds = running.auth_backend, running.server.revalidator
    if starts:
        rounds.sessions = tuple  # they find no sessions: the login itself has to ask

    def revoke() -> StartStatus:
        auth_backend.keys["alice"].clear()
        auth_backend.tokens = {"secret": better} if better else {}
        return appears(running, sshd.target())() if starts else STARTING

    auth_backend.stages = [STARTING, STARTING, revoke]
    auth_backend.tokens["secret"] = TokenOwner("alice", every_server, starts=every_server)
    env, arguments = login(alice, by_token=by_token)
    done = await alice.ssh(*arguments, env=env)
    assert (done.status, done.out, told in done.err) == (255, b"", True), done.err


@pytest.mark.parametrize(
    "owner",
    [
        TokenOwner("alice", lambda server: server == "other", starts=every_server),
        TokenOwner("alice", every_server, starts=lambda server: server == "other"),
    ],
    ids=["may not open it", "may not start it"],
)
async def test_token_without_the_right_starts_no_server(running: Running, alice: Client, owner: TokenOwner) -> None:
    """The Hub's REST API would refuse that token as well."""
    running.auth_backend.stages = [WAITS]
    running.auth_backend.tokens["secret"] = owner
    env, arguments = login(alice, by_token=True)
    done = await alice.ssh(*arguments, env=env)
    assert (done.status, running.auth_backend.starts) == (255, [])


async def test_login_continues_while_its_credential_cannot_be_checked(
    running: Running, alice: Client, sshd: Sshd
) -> None:
    def look() -> StartStatus:
        running.auth_backend.manager_down = running.auth_backend.down = True
        return appears(running, sshd.target())()

    running.auth_backend.stages = [STARTING, look]
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err


async def test_unauthenticated_login_starts_nothing(
    running: Running, alice: Client, mallory: Client, caplog: pytest.LogCaptureFixture
) -> None:
    running.auth_backend.stages = [WAITS]
    env, options = alice.with_token("wrong")
    assert (await mallory.ssh("alice+train@gateway", "true")).status == 255
    assert (await mallory.ssh(*options, "alice+train@gateway", "true", env=env)).status == 255
    # A question whether a key would do carries no signature.
    assert await running.server.auth_backend.registered_keys("alice")
    assert running.auth_backend.starts == []
    assert audit(caplog) == []


async def test_refused_start_is_remembered(running: Running, alice: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssh_gateway.session.autostart.KEPT_SECONDS", 1000.0)
    running.auth_backend.stages = [StartStatus("refused", "No.")]
    for _ in range(2):
        assert "train does not start: No" in (await alice.ssh("alice+train@gateway", "true")).err
    assert running.auth_backend.starts == [("alice", "train")]


def silent_manager() -> tuple[FakeAuthBackend, asyncio.Event]:
    """A Manager that answers starts with an error, once the test permits it."""
    auth_backend, enough = FakeAuthBackend(manager_down=True), asyncio.Event()
    auth_backend.held["start",] = enough
    return auth_backend, enough


async def test_one_of_several_logins_waits_for_a_silent_manager() -> None:
    auth_backend, enough = silent_manager()
    starts = AutoStarter(auth_backend, URL, 60.0, poll_seconds=1000.0)
    logins = [asyncio.create_task(starts.begin("alice", "train")) for _ in range(4)]
    await until(lambda: auth_backend.starts)
    enough.set()
    assert await asyncio.gather(*logins) == [False] * 4
    assert auth_backend.starts == [("alice", "train")]


async def test_servers_without_an_answer_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssh_gateway.session.autostart.KEPT_SECONDS", 0.0)
    auth_backend, enough = silent_manager()
    enough.set()
    starts = AutoStarter(auth_backend, URL, 60.0)
    for number in range(100):
        assert not await starts.begin("alice", f"s{number}")
    enough.clear()
    gave_up = asyncio.create_task(starts.begin("alice", "train"))
    await until(lambda: ("alice", "train") in auth_backend.starts)
    gave_up.cancel()
    await asyncio.gather(gave_up, return_exceptions=True)
    enough.set()
    assert not await starts.begin("alice", "other")
    assert len(starts._servers) <= 2


async def test_waiting_login_outlasts_an_outage_of_the_manager() -> None:
    auth_backend = FakeAuthBackend(stages=[WAITS])
    starts, ready = AutoStarter(auth_backend, URL, 60.0, poll_seconds=0.01), asyncio.Event()

    async def enters() -> bool:
        return ready.is_set()

    waits = asyncio.create_task(
        starts.start_and_wait(WaitingLogin("alice", "train", enters, lambda: False, lambda _: None))
    )
    await until(lambda: auth_backend.looks > 1)
    auth_backend.manager_down = True
    looks = auth_backend.looks
    await until(lambda: auth_backend.looks > looks + 2)
    assert not await starts.begin("alice", "train")
    looks = auth_backend.looks
    await until(lambda: auth_backend.looks > looks + 2 or waits.done())
    auth_backend.manager_down, auth_backend.stages = False, [RUNS]
    ready.set()
    assert await asyncio.wait_for(waits, DEADLINE)


async def test_gateway_without_a_wait_starts_nothing(running: Running, alice: Client) -> None:
    running.server.autostart = AutoStarter(running.auth_backend, "http://hub.example/", 0.0)
    running.auth_backend.stages = [STARTING]
    assert "no job train" in (await alice.ssh("alice+train@gateway", "true")).err
    assert running.auth_backend.starts == []
