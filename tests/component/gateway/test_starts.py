"""A login that starts its job, with OpenSSH's own client: one start, words on standard error, a reason for a no."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ssh_gateway.auth.rate_limit import FREE, NOTHING_TRIED, Penalties, PenaltyRules
from ssh_gateway.backends.directory import SshEndpoint, StartStatus
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.autostart import AutoStarter, WaitingLogin, progress_line
from tests.component.gateway.peers import DEADLINE, Client, FakePeople, FakePlaces, Running, Sshd, finish, until
from tests.component.gateway.test_meters import value

STARTING, RUNS = StartStatus("starting", page="/services/jobs/wait/alice/train"), StartStatus("running", job="j")
WAITS = StartStatus("queued", "number 2 in the queue. All 8 GPUs are used.", "/services/jobs/wait/alice/train", "j")
URL = "http://hub.example/services/jobs/wait/alice/train"


@pytest.fixture
def places() -> FakePlaces:
    return FakePlaces({})


@pytest.fixture(autouse=True)
def patient(running: Running) -> None:
    """Looks are quick, and nobody gives up."""
    running.server.autostart = AutoStarter(running.people, "http://hub.example/", 60.0, 0.02)


@pytest.fixture(autouse=True)
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of starts: each line without its connection."""
    caplog.set_level(logging.INFO, "ssh_gateway")

    def read() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [re.sub(r" conn=\S+", "", line) for line in lines if line.startswith("event=start")]

    return read


def appears(running: Running, target: SshEndpoint) -> Callable[[], StartStatus]:
    """The job runs from now on."""

    def look() -> StartStatus:
        running.places.targets[("alice", target.server)] = target
        return RUNS

    return look


async def test_a_login_starts_the_job_and_nothing_of_it_is_on_standard_output(
    running: Running, alice: Client, sshd: Sshd, audit: Callable[[], list[str]]
) -> None:
    last = WAITS.sentence.replace("2 in", "1 in")
    queued = (WAITS, WAITS, StartStatus("queued", last), STARTING)
    running.people.stages = [StartStatus("queued", WAITS.sentence), *queued, appears(running, sshd.target())]
    done = await alice.ssh("alice+train@gateway", "cat; exit 3", feed=b"in\n")
    assert (done.status, done.text) == (3, "in\n"), done.err
    assert running.people.starts == [("alice", "train")]
    said = [line.strip() for line in done.err.splitlines() if line.startswith("train")]
    assert said == [f"train waits: {WAITS.sentence}", f"train waits: {last}", "train is starting"]
    assert value(running, "starts_total", result="running") == 1
    assert audit() == ["event=start user=alice server=train", "event=started user=alice server=train"]


async def test_of_several_logins_at_once_one_starts_the_job(running: Running, alice: Client, sshd: Sshd) -> None:
    everybody = asyncio.Event()

    def look() -> StartStatus:
        return appears(running, sshd.target())() if everybody.is_set() else STARTING

    running.people.stages = [look]
    logins = [asyncio.create_task(alice.ssh("alice+train@gateway", "echo in")) for _ in range(4)]
    await until(lambda: len(running.server.connections) == 4 and running.people.looks > 3)
    everybody.set()
    assert [(done.status, done.text) for done in await asyncio.gather(*logins)] == [(0, "in\n")] * 4
    # Each asks once; what was answered a moment ago counts for the others. The Manager lets no two start one server.
    assert set(running.people.starts) == {("alice", "train")}


async def test_who_waits_for_the_hub_s_answer_reads_so(
    running: Running, alice: Client, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def start(user: str, server: str) -> StartStatus:
        await answered.wait()
        return appears(running, sshd.target())()

    monkeypatch.setattr(running.people, "start", start)
    process = await alice.start("ssh", "alice+train@gateway", "echo in")
    assert process.stderr is not None
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
    ids=["quota", "a fresh login", "an approval", "it has ended", "nobody wants that", "nothing moves the cursor"],
)
async def test_a_no_is_one_clear_sentence(
    running: Running, alice: Client, stages: list[StartStatus], told: str
) -> None:
    running.people.stages = list(stages)
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert told in done.err


async def test_a_queue_longer_than_the_wait_ends_with_where_to_look(running: Running, alice: Client) -> None:
    running.server.autostart = AutoStarter(running.people, "http://hub.example/", 0.1, 0.02)
    running.people.stages = [WAITS]
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert (
        f"train does not run yet (number 2 in the queue. All 8 GPUs are used); it goes on by itself: watch {URL} and"
        in done.err
    )
    assert value(running, "starts_total", result="not-started") == 1


async def test_the_time_for_a_login_is_not_the_time_for_a_start(
    running: Running, alice: Client, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is longer than a login may take, and none of it counts as one that stands at the door."""
    taken: list[float] = []
    longer = type(running.server.make_leg()).take_longer
    monkeypatch.setattr(
        "ssh_gateway.transport.server.Downstream.take_longer",
        lambda leg, seconds: (taken.append(seconds), longer(leg, seconds)),
    )
    waiting: list[int] = []

    def look() -> StartStatus:
        waiting.append(running.server.unauthenticated.waiting.total())
        return appears(running, sshd.target())()

    running.people.stages = [STARTING, look]
    assert (await alice.ssh("alice+train@gateway", "true")).status == 0
    assert taken == [60.0 + running.server.limits.login_seconds]
    assert set(waiting) == {0}


@pytest.mark.parametrize("jump", [False, True], ids=["user alone", "ssh -J"])
async def test_the_other_ways_in_wait_as_well(running: Running, alice: Client, sshd: Sshd, jump: bool) -> None:
    server = "train" if jump else ""
    running.people.stages = [STARTING, STARTING, appears(running, sshd.target(server))]
    way = ("-J", "alice@gateway", "alice@train") if jump else ("alice@gateway",)
    done = await alice.ssh(*way, "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err
    assert set(running.people.starts) == {("alice", server)}


async def test_a_login_that_names_no_server_reads_at_once_where_the_default_one_waits(
    running: Running, alice: Client, sshd: Sshd
) -> None:
    runs = asyncio.Event()

    def look() -> StartStatus:
        return appears(running, sshd.target(""))() if runs.is_set() else WAITS

    running.people.stages = [look]
    process = await alice.start("ssh", "alice@gateway", "echo in")
    assert process.stderr is not None
    said = await asyncio.wait_for(process.stderr.readline(), DEADLINE)
    assert said.decode().strip() == f"your default server waits: {WAITS.sentence} (nothing is shown until it runs)"
    runs.set()
    done = await finish(process)
    assert (done.status, done.text) == (0, "in\n"), done.err


async def test_a_login_that_names_no_server_reads_nothing_of_one_that_does_not_wait(
    running: Running, alice: Client, sshd: Sshd
) -> None:
    running.people.stages = [STARTING]
    running.places.targets[("alice", "train")] = sshd.target()
    done = await alice.ssh("-J", "alice@gateway", "alice@train", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err
    assert "default server" not in done.err
    assert running.people.starts == []


@pytest.mark.parametrize(
    ("by_token", "better", "told"),
    [
        (False, None, "the key that you came in with was removed from your keys"),
        (True, None, "the token that you came in with was revoked, or has expired"),
        (True, TokenOwner("alice", lambda server: server == "eval"), "you came in with may not open train any more"),
    ],
    ids=["key", "token", "narrower token"],
)
async def test_what_is_revoked_while_a_login_waits_lets_nobody_in(  # noqa: PLR0917  (where, with what, what they read)
    running: Running, alice: Client, sshd: Sshd, by_token: bool, better: TokenOwner | None, told: str
) -> None:
    people, rounds = running.people, running.server.revalidator
    assert rounds is not None
    rounds.visits = tuple  # they find nobody: the login itself has to ask

    def look() -> StartStatus:
        people.keys["alice"].clear()
        people.tokens = {"secret": better} if better else {}
        return appears(running, sshd.target())()

    people.stages = [STARTING, STARTING, look]
    people.tokens["secret"] = TokenOwner("alice", every_server, starts=every_server)
    env, options = alice.with_token("secret") if by_token else ({}, [])
    way = ["-o", "PubkeyAuthentication=no", *options] if by_token else []
    done = await alice.ssh(*way, "alice+train@gateway", "echo in", env=env)
    assert (done.status, done.out) == (255, b"")
    assert told in done.err


@pytest.mark.parametrize("by_token", [False, True], ids=["key", "token"])
async def test_a_login_in_the_queue_ends_when_what_it_came_in_with_is_taken_back(
    running: Running, alice: Client, by_token: bool
) -> None:
    people, rounds = running.people, running.server.revalidator
    assert rounds is not None
    people.stages, people.tokens["secret"] = [STARTING], TokenOwner("alice", every_server, starts=every_server)
    env, options = alice.with_token("secret") if by_token else ({}, [])
    way = ["-o", "PubkeyAuthentication=no", *options] if by_token else []
    login = asyncio.create_task(alice.ssh(*way, "alice+train@gateway", "echo in", env=env))
    await until(lambda: people.looks > 1)
    people.keys["alice"].clear()
    people.tokens.clear()
    await rounds.round()
    done = await login
    assert (done.status, done.out) == (255, b"")
    assert f"the {'token' if by_token else 'key'} that you came in with was" in done.err


async def test_a_login_goes_on_whose_proof_nobody_can_judge_again(running: Running, alice: Client, sshd: Sshd) -> None:
    def look() -> StartStatus:
        running.people.manager_down = running.people.down = True
        return appears(running, sshd.target())()

    running.people.stages = [STARTING, look]
    done = await alice.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err


async def test_a_client_that_goes_away_before_the_hub_answers_has_asked(
    running: Running, alice: Client, monkeypatch: pytest.MonkeyPatch, audit: Callable[[], list[str]]
) -> None:
    asked = asyncio.Event()

    async def start(user: str, server: str) -> StartStatus:
        asked.set()
        return await asyncio.Future()

    monkeypatch.setattr(running.people, "start", start)
    process = await alice.start("ssh", "alice+train@gateway", "true")
    await asyncio.wait_for(asked.wait(), DEADLINE)
    process.kill()
    await process.communicate()
    await until(lambda: not running.server.connections)
    assert audit() == ["event=start user=alice server=train"]


async def test_nothing_starts_before_a_credential_is_proven(
    running: Running, alice: Client, mallory: Client, audit: Callable[[], list[str]]
) -> None:
    running.people.stages = [WAITS]
    env, options = alice.with_token("wrong")
    assert (await mallory.ssh("alice+train@gateway", "true")).status == 255
    assert (await mallory.ssh(*options, "alice+train@gateway", "true", env=env)).status == 255
    # A question whether a key would do carries no signature.
    assert await running.server.auth_backend.registered_keys("alice")
    assert running.people.starts == []
    assert audit() == []


async def test_a_token_starts_only_what_it_opens(running: Running, alice: Client) -> None:
    running.people.stages = [WAITS]
    running.people.tokens["secret"] = TokenOwner("alice", lambda server: server == "other", starts=every_server)
    env, options = alice.with_token("secret")
    done = await alice.ssh("-o", "PubkeyAuthentication=no", *options, "alice+train@gateway", "true", env=env)
    assert (done.status, running.people.starts) == (255, [])


async def test_a_token_without_the_right_to_start_servers_starts_none(running: Running, alice: Client) -> None:
    """With it somebody else, or a script, could not start the server by the Hub's REST API either."""
    running.people.stages = [WAITS]
    running.people.tokens["secret"] = TokenOwner("alice", every_server, starts=lambda server: server == "other")
    env, options = alice.with_token("secret")
    done = await alice.ssh("-o", "PubkeyAuthentication=no", *options, "alice+train@gateway", "true", env=env)
    assert (done.status, running.people.starts) == (255, [])
    assert "no job train" in done.err


async def test_a_client_that_goes_away_ends_its_waiting(
    running: Running, alice: Client, audit: Callable[[], list[str]]
) -> None:
    running.people.stages = [STARTING]
    process = await alice.start("ssh", "alice+train@gateway", "true")
    await until(lambda: running.people.looks > 1)
    process.kill()
    await process.wait()
    await until(lambda: not running.server.connections)
    assert audit() == ["event=start user=alice server=train"]
    seen = running.people.looks
    running.people.stages = [StartStatus("off")]
    assert (await alice.ssh("alice+other@gateway", "true")).status == 255
    assert running.people.looks <= seen + 1, "somebody who is gone is still asked for"


async def test_a_no_costs_its_address_and_is_not_asked_for_again_at_once(
    running: Running, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssh_gateway.session.autostart.KEPT_SECONDS", 1000.0)
    running.server.penalties = Penalties(PenaltyRules(penalty_seconds=1000.0))
    for _ in range(int(FREE / NOTHING_TRIED) - 1):
        running.server.penalties.left("127.0.0.1", late=False, now=running.server.now())
    running.people.stages = [StartStatus("refused", "No.")]
    for _ in range(2):
        assert "train does not start: No" in (await alice.ssh("alice+train@gateway", "true")).err
    assert (
        "too many failed or unfinished logins from your address" in (await alice.ssh("alice+train@gateway", "true")).err
    )
    assert running.people.starts == [("alice", "train")]


@dataclass
class Silent(FakePeople):
    """A Manager that does not answer; who asks reads so once the test says it is enough."""

    enough: asyncio.Event = field(default_factory=asyncio.Event)
    manager_down: bool = True

    async def start(self, user: str, server: str) -> StartStatus:
        self.starts.append((user, server))
        await self.enough.wait()
        return await super().start(user, server)

    async def start_status(self, user: str, server: str, job: str) -> StartStatus:
        self.looks += 1
        return await super().start_status(user, server, job)


async def test_of_several_logins_one_waits_for_a_manager_that_does_not_answer() -> None:
    people = Silent()
    starts = AutoStarter(people, URL, 60.0, poll_seconds=1000.0)
    logins = [asyncio.create_task(starts.begin("alice", "train")) for _ in range(4)]
    await until(lambda: people.starts)
    people.enough.set()
    assert await asyncio.gather(*logins) == [False] * 4
    assert people.starts == [("alice", "train")]


async def test_nothing_is_kept_of_servers_that_nobody_could_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssh_gateway.session.autostart.KEPT_SECONDS", 0.0)
    people = Silent()
    people.enough.set()
    starts = AutoStarter(people, URL, 60.0)
    for number in range(100):
        assert not await starts.begin("alice", f"s{number}")
    people.enough.clear()
    gave_up = asyncio.create_task(starts.begin("alice", "train"))
    await until(lambda: ("alice", "train") in people.starts)
    gave_up.cancel()
    await asyncio.gather(gave_up, return_exceptions=True)
    people.enough.set()
    assert not await starts.begin("alice", "other")
    assert len(starts._servers) <= 2


async def test_who_waits_already_waits_on_while_others_read_that_nobody_can_tell() -> None:
    people = Silent(manager_down=False, stages=[WAITS])
    people.enough.set()
    starts, ready = AutoStarter(people, URL, 60.0, poll_seconds=0.01), asyncio.Event()

    async def enters() -> bool:
        return ready.is_set()

    waits = asyncio.create_task(
        starts.start_and_wait(WaitingLogin("alice", "train", enters, lambda: False, lambda _: None))
    )
    await until(lambda: people.looks > 1)
    people.manager_down = True
    looks = people.looks
    await until(lambda: people.looks > looks + 2)
    assert not await starts.begin("alice", "train")
    looks = people.looks
    await until(lambda: people.looks > looks + 2 or waits.done())
    people.manager_down, people.stages = False, [RUNS]
    ready.set()
    assert await asyncio.wait_for(waits, DEADLINE)


async def test_where_nobody_waits_nothing_starts(running: Running, alice: Client) -> None:
    running.server.autostart = AutoStarter(running.people, "http://hub.example/", 0.0)
    running.people.stages = [STARTING]
    assert "no job train" in (await alice.ssh("alice+train@gateway", "true")).err
    assert running.people.starts == []


def test_the_default_server_has_words_of_its_own() -> None:
    assert progress_line("", STARTING) == "your default server is starting"
