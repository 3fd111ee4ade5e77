"""What breaks in the middle, between OpenSSH's client and a real job: processes that are killed, jobs that go.

Its clients end with a reason and do not hang, what was begun can be done again, and nothing is left of it:
neither a session of the job's sshd nor a connection of the gateway's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gateways import another
from tests.e2e.people import Person, Ssh, begun, read_until, wait_for
from tests.e2e.stack import Launched
from tests.e2e.test_gateway import LOUD, NO_COMMAND, RUNS, by_token, wait_until_in

pytestmark = [pytest.mark.launcher, pytest.mark.slow, pytest.mark.faults]

SLOWLY = ("-l", "16384")  # of scp and sftp, in Kbit a second: a MiB takes half of one
MIB = 2**20
LONG = 64 * MIB  # so long that a busy machine sees it under way
VERBOSE = ("-o", "LogLevel=DEBUG1")
OFFERED = "Offering public key"
OF_SFTP, OF_SCP = "by-sftp", "by-scp"
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


@pytest.mark.parametrize("way", ["up", "down"])
def test_gateway_killed_in_a_transfer_ends_it_and_the_job_continues(
    stack: Launched, kit: Person, client: Ssh, way: str
) -> None:
    data = os.urandom(LONG)
    wanted = hashlib.sha256(data).hexdigest()
    sent, there, taken = client.folder / "sent", f"kit+train@gateway:{way}.bin", client.folder / "taken"
    sent.write_bytes(data)
    scp = ["scp", "-F", str(client.config)]
    if way == "down":
        assert client.tool(*scp, str(sent), there).returncode == 0
    pair = (str(sent), there) if way == "up" else (there, str(taken))
    boot = in_pod(kit, "train", "cat /proc/1/stat").split()[21]

    def has_some() -> bool:
        if way == "down":
            return taken.exists() and taken.stat().st_size > MIB
        return size_of(kit, "up.bin") > MIB

    with begun([*scp, *SLOWLY, *pair]) as moving:
        wait_for(has_some, "the transfer is under way")
        assert (len(sessions(kit, "train")) > 0, connected(stack.ssh_port)) == (True, 1)
        stack.kill("ssh_gateway")
        said = failed_output(moving)
    assert re.search(r"(?i)connection|lost", said), said
    wait_for_login(client)
    nothing_is_left(kit, "train")
    assert client.tool(*scp, *pair).returncode == 0
    copied = in_pod(kit, "train", "sha256sum </home/kit/up.bin").split()[0] if way == "up" else ""
    assert (copied or hashlib.sha256(taken.read_bytes()).hexdigest()) == wanted
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


def test_pod_deleted_in_a_transfer_ends_it_with_a_reason_and_other_jobs_continue(
    client: Ssh, lou: Person, tmp_path: Path
) -> None:
    others = lou.ssh(tmp_path)
    (tmp_path / "sent").write_bytes(os.urandom(LONG))
    batch = tmp_path / "batch"
    batch.write_text(f"put {tmp_path}/sent {OF_SFTP}\n")
    by_sftp = ["sftp", "-F", str(others.config), *SLOWLY, "-b", str(batch), "lou+train@gateway"]
    by_scp = ["scp", "-F", str(others.config), "-O", *SLOWLY, str(tmp_path / "sent"), f"lou+train@gateway:{OF_SCP}"]
    with begun(client.line("train", RUNS, options=LOUD)) as stays, begun(by_sftp) as sftp, begun(by_scp) as scp:
        wait_until_in(stays)
        wait_for(lambda: min(size_of(lou, OF_SFTP), size_of(lou, OF_SCP)) > MIB, "both are under way")
        lou.stack.kubectl("delete", pod_of(lou, "train"), "--wait=false", "--grace-period=3")
        for one in (sftp, scp):
            said = failed_output(one)
            # Or the gateway's next look at all sessions comes before the pod is gone.
            told = "train: Stopping|train: The job was removed|train was stopped"
            reasons = rf"(?i)the connection to your job was lost|lost connection|connection closed|{told}"
            assert re.search(reasons, said), said
        again = others.run("train", "true", options=LOUD)
        assert again.returncode == 255
        assert re.search(r"train is (stopping: wait|not running: start it at http)", again.stderr), again.stderr
        assert stays.poll() is None


# What is known of use


def facts(person: Person, server: str) -> dict[str, Any]:
    """Returns the Manager's record of the use of a job."""
    stack = person.stack
    assert isinstance(stack, Launched)
    query = "SELECT facts FROM activities JOIN jobs USING (job) WHERE user_name = ? AND server_name = ?"
    with contextlib.closing(sqlite3.connect(stack.state / "manager.sqlite", timeout=30)) as connection:
        row = connection.execute(query, (person.name, server)).fetchone()
    return dict(json.loads(row[0])) if row else {}


def used(person: Person, server: str) -> float:
    """When the Manager last knew of bytes of a session; 0 for never."""
    at = facts(person, server).get("ssh")
    return datetime.fromisoformat(at).timestamp() if at else 0.0


def hub_heard(person: Person, server: str) -> float:
    """When the Hub last knew of use."""
    return datetime.fromisoformat(person.server(server)["last_activity"]).timestamp()


def test_gateway_after_a_killed_one_reports_use_and_the_end_of_its_sessions(
    stack: Launched, lou: Person, tmp_path: Path
) -> None:
    """Of gateways that tell every second, and not once a minute; the launcher's sees nothing of it."""
    client, often = lou.ssh(tmp_path), "--Gateway.activity_seconds=1"
    typed = time.time()
    with (
        another(stack, tmp_path / "first.log", often) as first,
        begun(client.line("train", RUNS, options=(*LOUD, *first.way))) as session,
    ):
        wait_until_in(session)
        wait_for(lambda: used(lou, "train") >= typed, "the Manager knows of its bytes")
        wait_for(lambda: hub_heard(lou, "train") >= typed, "the Hub knows of them")
        before = facts(lou, "train")
        assert before["ssh_open"]
        first.process.kill()
        failed_output(session)
    assert (facts(lou, "train")["ssh_open"], facts(lou, "train")["ssh"]) == (True, before["ssh"]), (
        "nobody knows its end"
    )

    typed = time.time()
    with another(stack, tmp_path / "next.log", often) as following:
        with begun(client.line("train", RUNS, options=(*LOUD, *following.way))) as session:
            wait_until_in(session)
            wait_for(lambda: used(lou, "train") >= typed, "the Manager knows of the new one's bytes")
            wait_for(lambda: hub_heard(lou, "train") >= typed, "the Hub knows of them")
            assert facts(lou, "train")["ssh_gateway"] not in {"", before["ssh_gateway"]}
        wait_for(lambda: not facts(lou, "train")["ssh_open"], "no session is open any more, of neither gateway")
