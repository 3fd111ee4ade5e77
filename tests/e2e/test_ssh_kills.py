"""What breaks in the middle, between OpenSSH's client and a real job: processes that are killed, jobs that go.

Its clients end with a reason and do not hang, what was begun can be done again, and nothing is left of it:
neither a session of the job's sshd nor a connection of the gateway's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.people import Person, Ssh, begun, read_until, wait_for
from tests.e2e.stack import Launched
from tests.e2e.test_gateway import LOUD, wait_until_in

pytestmark = [pytest.mark.launcher, pytest.mark.slow, pytest.mark.faults]

SLOWLY = ("-l", "16384")  # of scp and sftp, in Kbit a second: a MiB takes half of one
MIB = 2**20
LONG = 64 * MIB  # so long that a busy machine sees it under way
RUNS = "echo in; sleep 600"
NO_COMMAND = ("-N", "-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo in")
VERBOSE = ("-o", "LogLevel=DEBUG1")
OFFERED = "Offering public key"
AWAY = "the Hub does not answer: try again later"


@pytest.fixture(scope="module")
def kit(stack: Launched) -> Iterator[Person]:
    person = stack.person("kit")
    person.launch("train", template="ssh", seconds=120)
    yield person
    person.stop("train")
    person.close()


@pytest.fixture(scope="module")
def client(kit: Person, tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    return kit.ssh(tmp_path_factory.mktemp("kit"))


def by_token(client: Ssh, token: str) -> tuple[tuple[str, ...], dict[str, str]]:
    ask = client.folder / "askpass"
    ask.write_text(f"#!/bin/sh\necho '{token}'\n")
    ask.chmod(0o700)
    options = ("-o", "BatchMode=no", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1")
    return options, {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}


def failed_output(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """Returns the output of a client that has to fail in time."""
    _, said = process.communicate(timeout=seconds)
    assert process.returncode not in {None, 0}, said
    return said


def pod_of(person: Person, server: str) -> str:
    labels = f"dlspawner.dev/user={person.name},dlspawner.dev/server={server}"
    return person.stack.kubectl("get", "pods", "-l", labels, "-o", "name").strip()


def in_pod(person: Person, server: str, script: str) -> str:
    """Not by SSH."""
    return person.stack.kubectl("exec", pod_of(person, server), "--", "sh", "-c", script)


def size_of(person: Person, name: str) -> int:
    """Returns the size of a file in the home directory of the job `train`."""
    return int(in_pod(person, "train", f"stat -c %s /home/{person.name}/{name} 2>/dev/null || echo 0"))


def sessions(person: Person, server: str) -> list[str]:
    """Returns the processes of the job's sshd, by title."""
    found = in_pod(person, server, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null")
    return [line for line in found.splitlines() if re.match(r"sshd(-session)?: (?!.*\[listener\])", line)]


def connected(port: int) -> int:
    """Counts the established connections of the gateway's port."""
    there = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(words[1].endswith(there) and words[3] == "01" for words in (line.split() for line in lines))


def nothing_is_left(person: Person, server: str) -> None:
    wait_for(lambda: not sessions(person, server), "the job's sshd serves nobody")
    wait_for(lambda: not connected(person.stack.ssh_port), "the gateway serves nobody")


@contextlib.contextmanager
def stopped(stack: Launched, module: str) -> Iterator[None]:
    """Stops a process of the product for a while."""
    number = stack.process_of(module)
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGCONT)


def wait_for_login(client: Ssh) -> None:
    """Everything that a login asks works again."""
    wait_for(lambda: client.run("train", "echo in").stdout == "in\n", "a login as before", 60)


def test_gateway_killed_in_a_transfer_ends_it_and_the_job_continues(stack: Launched, kit: Person, client: Ssh) -> None:
    data, sent = os.urandom(LONG), client.folder / "sent"
    sent.write_bytes(data)
    there = (str(sent), "kit+train@gateway:sent")
    scp = ["scp", "-F", str(client.config)]
    boot = in_pod(kit, "train", "cat /proc/1/stat").split()[21]
    with begun([*scp, *SLOWLY, *there]) as moving:
        wait_for(lambda: size_of(kit, "sent") > MIB, "the transfer is under way")
        assert (len(sessions(kit, "train")) > 0, connected(stack.ssh_port)) == (True, 1)
        stack.kill("ssh_gateway")
        said = failed_output(moving)
    assert re.search(r"(?i)connection|lost", said), said
    wait_for_login(client)
    nothing_is_left(kit, "train")
    assert client.tool(*scp, *there).returncode == 0
    copied = in_pod(kit, "train", "sha256sum </home/kit/sent").split()[0]
    assert copied == hashlib.sha256(data).hexdigest()
    assert in_pod(kit, "train", "cat /proc/1/stat").split()[21] == boot, "the same job"


def test_manager_killed_in_a_login_refuses_it_with_a_sentence(stack: Launched, kit: Person, client: Ssh) -> None:
    with stopped(stack, "dlspawner.manager"), begun(client.line("train", "echo in", options=VERBOSE)) as entering:
        read_until(entering.stderr, OFFERED)
        stack.kill("dlspawner.manager")
        said = failed_output(entering)
    assert (entering.returncode, "the keys service does not answer: try again later" in said) == (255, True), said
    wait_for_login(client)
    nothing_is_left(kit, "train")


def test_hub_killed_in_a_token_login_delays_or_refuses_it_and_key_logins_continue(
    stack: Launched, kit: Person, client: Ssh
) -> None:
    """A login by token waits for the Hub, which is asked again until it has taken too long."""
    options, env = by_token(client, kit.token)
    asked = client.folder / "asked"
    (client.folder / "askpass").write_text(f"#!/bin/sh\n: >{asked}\necho '{kit.token}'\n")
    by_token_in = client.line("train", "echo in", options=(*LOUD, *options))
    with stopped(stack, "jupyterhub"), begun(by_token_in, **env) as entering:
        wait_for(asked.exists, "the token is asked for")
        with_key = client.run("train", "echo in")
        assert (with_key.returncode, with_key.stdout) == (0, "in\n"), with_key.stderr
        assert entering.poll() is None
        stack.kill("jupyterhub")
        shown, said = entering.communicate(timeout=60)
    waited = (entering.returncode, shown) == (0, "in\n")
    assert waited or (entering.returncode, AWAY in said) == (255, True), said
    wait_for(lambda: kit.api("GET", "/user").ok and kit.ready("train"), "the Hub is back and knows the job", 60)
    with begun(by_token_in, **env) as again:
        wait_until_in(again)
    nothing_is_left(kit, "train")


@pytest.fixture
def lou(stack: Launched) -> Iterator[Person]:
    person = stack.person("lou")
    person.launch("train", template="ssh", seconds=120)
    yield person
    person.stop("train")
    person.close()


def test_stopped_job_ends_its_sessions_within_a_minute_with_the_reason(
    client: Ssh, lou: Person, tmp_path: Path
) -> None:
    """A terminal reads it from the job itself; a command, a forward, and the way of `ssh -J`, from the gateway."""
    others = lou.ssh(tmp_path)
    stubborn = "trap '' HUP TERM; echo in; while kill -0 $PPID; do sleep 1; done"  # as long as its connection
    with (
        begun(client.line("train", RUNS, options=LOUD)) as stays,
        begun(others.line("train", RUNS, options=(*LOUD, "-tt"))) as terminal,
        begun(others.line("train", stubborn, options=LOUD)) as program,
        begun(others.line("train", RUNS, options=LOUD)) as command,
        begun(others.line("train", options=(*LOUD, *NO_COMMAND))) as way,
    ):
        for one in (stays, program, command, way):
            wait_until_in(one)
        assert terminal.stdout is not None
        assert terminal.stdout.readline() == "in\n"
        since = time.monotonic()
        assert lou.api("DELETE", "/users/lou/servers/train").status_code in {202, 204}
        assert "This job is being stopped." in terminal.communicate(timeout=60)[0]
        for one in (program, command, way):
            said = failed_output(one)
            assert (one.returncode, "train: This job was stopped on the Hub." in said) == (255, True), said
        assert time.monotonic() - since < 60
        assert stays.poll() is None
