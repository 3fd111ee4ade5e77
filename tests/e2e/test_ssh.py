"""OpenSSH's own clients, through the gateway, into the real sshd of real jobs."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pty
import re
import select
import shlex
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in
from tests.e2e.gateways import Another, another
from tests.e2e.people import Person, Ssh, Stack, wait_for
from tests.e2e.stack import Launched
from tests.harness.ports import free_port

KEYS = 5  # one connection may offer six; the last refusal ends it otherwise than the client itself does
ROUNDS = 5


@pytest.fixture(scope="module")
def sara(stack: Stack) -> Iterator[Person]:
    person = stack.person("sara")
    person.launch("train", template="ssh")
    yield person
    person.stop("train")
    person.close()


@pytest.fixture(scope="module")
def client(sara: Person, tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    return sara.ssh(tmp_path_factory.mktemp("sara"))


def in_terminal(command: list[str], typed: bytes, until: bytes, seconds: float = 60) -> bytes:
    """Returns the terminal of a user that runs `command` and types `typed`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)  # noqa: S606 - the child becomes the client
    seen, deadline = b"", time.monotonic() + seconds
    try:
        os.write(terminal, typed)
        while until not in seen:
            assert time.monotonic() < deadline, seen.decode(errors="replace")
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    seen += os.read(terminal, 65536)
                except OSError:
                    break
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    return seen


def test_a_command_returns_its_output_and_exit_status(client: Ssh) -> None:
    done = client.run("train", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


def test_a_shell_has_a_terminal(client: Ssh) -> None:
    command = ["ssh", "-F", str(client.config), "-tt", "sara+train@gateway"]
    seen = in_terminal(command, b"tty; echo $((40 + 2)); whoami\n", b"42\r\n")
    assert b"/dev/pts/" in seen


def test_the_person_is_who_they_are_in_their_own_home(client: Ssh) -> None:
    assert client.run("train", "whoami; pwd").stdout.split() == ["sara", "/home/sara"]


def test_the_home_page_copies_the_command_that_leads_into_the_job_and_opens_vs_code(
    page: Page, client: Ssh, stack: Stack
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    log_in(page, stack, "sara")
    link = page.get_by_role("link", name="VS Code: train")
    expect(link).to_have_attribute("href", "vscode://vscode-remote/ssh-remote+train.dl?windowId=_blank")
    page.get_by_role("button", name="Copy the ssh command of train").click()
    expect(page.locator("#job-said")).to_have_text(re.compile(r"^(Copied\.|Selected: press Ctrl and C\.)$"))
    copied = page.evaluate("() => isSecureContext ? navigator.clipboard.readText() : getSelection().toString()")
    assert re.fullmatch(rf"ssh -p {stack.ssh_port} sara\+train@\S+", copied), copied
    ssh, *words = shlex.split(copied)
    assert client.tool(ssh, "-F", str(client.config), *words, "echo in").stdout == "in\n"


@pytest.mark.longer
def test_a_person_has_one_uid_in_all_jobs_and_nobody_else_has_it(
    client: Ssh, sara: Person, stack: Stack, tmp_path: Path
) -> None:
    other = stack.person("otto")
    others = other.ssh(tmp_path)
    sara.launch("again", template="ssh")
    other.launch("train", template="ssh")
    try:
        ids = [
            int(ssh.run(server, "id -u").stdout)
            for ssh, server in ((client, "train"), (client, "again"), (others, "train"))
        ]
        groups = [client.run(server, "id -Gn").stdout for server in ("train", "again")]
    finally:
        sara.stop("again")
        other.stop("train")
        other.close()

    assert ids[0] == ids[1] != ids[2]
    assert min(ids) >= 20_000  # cluster.yaml's accounts: given by the Manager, not configured
    assert groups[0] == groups[1]
    assert "sara" in groups[0].split()


def test_no_token_reaches_an_ssh_session(client: Ssh) -> None:
    assert "TOKEN" not in client.run("train", "env").stdout


def test_no_gpu_is_visible_where_none_was_asked(client: Ssh) -> None:
    assert client.run("train", "echo $NVIDIA_VISIBLE_DEVICES").stdout.strip() == "void"


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["sftp protocol", "scp protocol"])
def test_scp_moves_data_intact(client: Ssh, tmp_path: Path, flags: tuple[str, ...]) -> None:
    data = os.urandom(8 << 20)
    (tmp_path / "up").write_bytes(data)
    scp = ["scp", "-q", "-F", str(client.config), *flags]
    remote = "sara+train@gateway:scp.bin"
    assert client.tool(*scp, str(tmp_path / "up"), remote).returncode == 0
    assert client.run("train", "sha256sum scp.bin").stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert client.tool(*scp, remote, str(tmp_path / "down")).returncode == 0
    assert (tmp_path / "down").read_bytes() == data


def test_sftp_moves_data_intact(client: Ssh, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(os.urandom(1 << 20))
    batch = f"put {tmp_path}/up sftp.bin\nget sftp.bin {tmp_path}/down\n"
    done = client.tool("sftp", "-q", "-F", str(client.config), "-b", "-", "sara+train@gateway", text=batch)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()


def test_rsync_moves_a_tree_intact(client: Ssh, tmp_path: Path) -> None:
    for name in ("a", "b/c", "b/d e"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(os.urandom(100_000))
    rsync = ["rsync", "-a", "-e", client.remote_shell]
    up = client.tool(*rsync, f"{tmp_path}/tree/", "sara+train@gateway:tree/")
    assert up.returncode == 0, up.stderr
    assert client.tool(*rsync, "sara+train@gateway:tree/", f"{tmp_path}/back/").returncode == 0
    assert client.tool("diff", "-r", str(tmp_path / "tree"), str(tmp_path / "back")).returncode == 0


def test_a_local_forward_reaches_a_server_in_the_job(client: Ssh) -> None:
    port = free_port()
    script = (
        "import http.server as h, os, threading; s = h.HTTPServer((os.environ['POD_IP'], 8555),"
        " h.SimpleHTTPRequestHandler); print('up', flush=True); s.handle_request()"
    )
    pod_ip = client.run("train", "echo $POD_IP").stdout.strip()
    forward = ("-L", f"127.0.0.1:{port}:{pod_ip}:8555")
    process = subprocess.Popen(
        ["ssh", "-F", str(client.config), *forward, "sara+train@gateway", f'python3 -c "{script}"'],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert "Directory listing" in requests.get(f"http://127.0.0.1:{port}/", timeout=60).text
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_jumping_through_the_gateway_reaches_ones_own_job(client: Ssh) -> None:
    done = client.run("train", "hostname >/dev/null; echo jumped")
    assert done.stdout == "jumped\n"
    jumped = client.tool("ssh", "-F", str(client.config), "-J", "sara@gateway", "sara@train", "echo jumped; exit 3")
    assert (jumped.stdout, jumped.returncode) == ("jumped\n", 3), jumped.stderr


def test_jumping_reaches_nothing_else(client: Ssh, bob: Person, stack: Stack) -> None:
    bob.launch("bobs", template="ssh")
    pods = json.loads(stack.kubectl("get", "pods", "-l", "dlspawner.dev/server=bobs", "-o", "json"))
    bobs_address = pods["items"][0]["status"]["podIP"]
    for target in ("bobs", "bob+bobs", bobs_address, "127.0.0.1", "localhost", "10.0.0.1", "nosuch"):
        done = client.tool("ssh", "-F", str(client.config), "-W", f"{target}:22", "sara@gateway", text="")
        assert done.returncode != 0, (target, done.stdout)
        assert "SSH-2.0" not in done.stdout, target
    direct = client.tool("ssh", "-F", str(client.config), "-W", f"{bobs_address}:2222", "sara@gateway", text="")
    assert "SSH-2.0" not in direct.stdout
    assert client.run("bobs", "true").returncode == 255
    as_bob = client.tool("ssh", "-F", str(client.config), "bob+bobs@gateway", "true")
    assert as_bob.returncode == 255
    bob.stop("bobs")


def test_a_typing_error_gets_help_once_the_key_is_proven(client: Ssh) -> None:
    done = client.run("trian", "true")
    assert done.returncode == 255
    assert "no job trian" in done.stderr
    assert "train" in done.stderr


def test_a_token_is_a_password(client: Ssh, sara: Person, tmp_path: Path) -> None:
    ask = tmp_path / "askpass"
    ask.write_text(f"#!/bin/sh\necho '{sara.token}'\n")
    ask.chmod(0o700)
    options = ("-o", "BatchMode=no", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1")
    done = subprocess.run(
        ["ssh", "-F", str(client.config), *options, "sara+train@gateway", "echo in"],
        env={**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "in\n", done.stderr


def refusal(client: Ssh, login: str, password: str, folder: Path) -> tuple[str, float]:
    ask = folder / "askpass"
    ask.write_text(f"#!/bin/sh\necho '{password}'\n")
    ask.chmod(0o700)
    started = time.monotonic()
    done = subprocess.run(
        ["ssh", "-F", str(client.config), "-o", "BatchMode=no", "-o", "NumberOfPasswordPrompts=1", f"{login}@gateway"],
        env={**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 255
    return done.stderr.replace(login, "LOGIN"), time.monotonic() - started


@pytest.mark.longer
def test_every_wrong_person_gets_the_same_answer_in_the_same_time(
    client: Ssh, stack: Stack, bob: Person, tmp_path: Path
) -> None:
    stranger = Ssh(bob, tmp_path / "stranger")  # its key is registered for nobody
    cases = {
        "unknown user": ("nobody-knows+train", "guess"),
        "wrong token": ("sara+train", "guess"),
        "unknown job": ("sara+nosuch", "guess"),
        "somebody else's token": ("sara+train", bob.token),
    }
    texts, fastest = set(), dict.fromkeys(cases, math.inf)
    for _ in range(5):  # a busy machine only adds to the times: the fastest answers are the gateway's own
        for case, (login, password) in cases.items():
            text, seconds = refusal(stranger, login, password, tmp_path)
            texts.add(text)
            fastest[case] = min(seconds, fastest[case])
        if max(fastest.values()) - min(fastest.values()) < 0.3:
            break
    assert len(texts) == 1, texts
    assert min(fastest.values()) > 0.5, fastest
    assert max(fastest.values()) - min(fastest.values()) < 0.3, fastest


def test_a_key_reads_last_used_once_it_has_logged_in(sara: Person, stack: Stack, tmp_path: Path) -> None:
    other = sara.ssh(tmp_path)
    body = other.public_key.split()[1]

    def mine() -> dict[str, Any]:
        headers = {"Authorization": f"token {sara.token}"}
        keys = requests.get(f"{stack.url}/services/jobs/api/keys", headers=headers, timeout=30).json()["keys"]
        return next(key for key in keys if body in key["key"])

    def shown() -> str:
        page = sara.http.get(f"{stack.url}/services/jobs/keys", timeout=30).text
        entry, found, _ = page.partition(f"keys/{mine()['id']}/remove")
        assert found
        return re.findall(r"(never|last) used", entry)[-1]

    assert mine()["last_used"] is None
    assert shown() == "never"
    began = datetime.now(UTC)
    assert other.run("train", "echo in").stdout == "in\n"
    at = datetime.fromisoformat(wait_for(lambda: mine()["last_used"], "it is noted"))
    assert began - timedelta(seconds=1) <= at <= datetime.now(UTC)
    assert shown() == "last"


def test_the_portals_download_is_what_openssh_needs_for_a_job_that_it_names_and_a_later_one(
    client: Ssh, sara: Person, stack: Stack, tmp_path: Path
) -> None:
    folder = tmp_path / ".ssh"
    folder.mkdir()
    for page, name in (("ssh-config", "dlspawner_config"), ("ssh-known-hosts", "dlspawner_known_hosts")):
        answer = sara.http.get(f"{stack.url}/services/jobs/{page}", timeout=30)
        assert answer.headers["Content-Disposition"] == f"attachment; filename={name}"
        # OpenSSH takes ~ from the account, not from $HOME.
        (folder / name).write_text(answer.text.replace("~/.ssh/", f"{folder}/"))
    listed = (folder / "dlspawner_config").read_text()
    assert "Host train.dl\n" in listed
    (folder / "config").write_text(
        f"Include {folder}/dlspawner_config\nHost *\n IdentityFile {client.key}\n BatchMode yes\n IdentitiesOnly yes\n"
    )
    ssh = ("ssh", "-F", str(folder / "config"), "train.dl", "id -un; exit 3")
    for without in (False, True):  # its block: as if the job were newer than the file
        if without:
            later, blocks = re.subn(r"Host train\.dl\n(    .*\n)+", "", listed)
            assert blocks == 1
            (folder / "dlspawner_config").write_text(later)
        done = client.tool(*ssh)
        assert (done.stdout, done.returncode) == ("sara\n", 3), done.stderr
    assert not (folder / "known_hosts").exists(), "nobody was asked: the host key is known"


@pytest.mark.launcher
@pytest.mark.slow
def test_whoever_has_no_right_key_gets_one_answer_in_one_time(
    client: Ssh, stack: Launched, bob: Person, tmp_path: Path
) -> None:
    """With as many keys as a connection may offer, so that what one costs counts five times; at a gateway of its own,
    without penalties afterwards.
    """
    stranger, *others = (Ssh(bob, tmp_path / f"stranger-{number}") for number in range(KEYS))
    bobs = bob.ssh(tmp_path / "bob")
    many, keyless = stack.person("manfred"), stack.person("keith")
    for number in range(20):
        many.ssh(tmp_path / f"many-{number}")
    cases = {
        "unknown user": ("nobody-knows+train", others),
        "without keys": ("keith+train", others),
        "with many keys": ("manfred+train", others),
        "somebody else's job": ("sara+train", [*others[1:], bobs]),
    }
    texts: set[str] = set()
    took: dict[str, list[float]] = {case: [] for case in cases}

    def apart() -> float:
        medians = [median(times) for times in took.values()]
        return max(medians) - min(medians)

    with another(stack, tmp_path / "gateway.log", "--Gateway.penalty_seconds=0") as gateway:
        for number in range(3 * ROUNDS):  # what keeps a busy machine busy hits one case more than others
            for case, (login, offered) in cases.items():
                identities = [part for one in offered for part in ("-i", str(one.key))]
                began = time.monotonic()
                done = client.tool(
                    "ssh", "-F", str(stranger.config), *gateway.way, *identities, f"{login}@gateway", "true"
                )
                took[case].append(time.monotonic() - began)
                assert done.returncode == 255
                texts.add(done.stderr.replace(login, "LOGIN"))
            if number >= ROUNDS - 1 and apart() < 0.3:
                break
        tried = (tmp_path / "gateway.log").read_text().count(f"attempt={KEYS}")
    assert tried == sum(map(len, took.values())), "all of its keys are offered by each"
    assert len(texts) == 1, texts
    assert apart() < 0.3, took
    for person in (many, keyless):
        person.close()


@pytest.mark.launcher
@pytest.mark.slow
def test_a_certificate_of_the_organisation_lets_in_whom_it_names_and_nobody_else(
    client: Ssh, stack: Launched, sara: Person, tmp_path: Path
) -> None:
    def keygen(*words: str) -> None:
        subprocess.run(["ssh-keygen", "-q", *words], check=True, capture_output=True, timeout=30)

    for ca in ("ca", "other-ca"):
        keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / ca))
    holder = Ssh(sara, tmp_path / "holder")  # its key is registered for nobody
    trusts = f"--Gateway.user_ca_file={tmp_path / 'ca.pub'}"

    def enters(gateway: Another, ca: str, *principals: str) -> subprocess.CompletedProcess[str]:
        names = ("-n", ",".join(principals)) if principals else ()
        keygen("-s", str(tmp_path / ca), "-I", "sara@laptop", *names, "-V", "-5m:+5m", str(holder.key))
        return holder.run("train", "id -un", options=(*gateway.way, "-o", "LogLevel=INFO"))

    with another(stack, tmp_path / "gateway.log", trusts) as gateway:
        for principals in (("sara",), ("bob", "sara")):
            done = enters(gateway, "ca", *principals)
            assert (done.returncode, done.stdout) == (0, "sara\n"), done.stderr
        done = enters(gateway, "ca", "bob")
        assert (done.returncode, done.stdout) == (255, ""), done.stderr
        assert "this certificate is for another login name" in done.stderr
        for ca, named in (("other-ca", ("sara",)), ("ca", ())):
            done = enters(gateway, ca, *named)
            assert (done.returncode, "Permission denied" in done.stderr) == (255, True), done.stderr
    log = (tmp_path / "gateway.log").read_text()
    assert log.count("result=accepted") == 2


def test_ssh_bytes_count_as_activity(client: Ssh, sara: Person) -> None:
    """The job's page is not opened here, so all reports to the Hub are the gateway's."""
    sara.launch("active", template="ssh")
    typed = datetime.now(UTC)
    assert client.run("active", "echo x").returncode == 0

    def told() -> bool:
        return datetime.fromisoformat(sara.server("active")["last_activity"]) >= typed

    wait_for(told, "the gateway tells the Hub")
    sara.stop("active")
