"""OpenSSH's own clients, through the gateway, into the real sshd of real jobs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in
from tests.e2e.gateways import another
from tests.e2e.people import Person, Ssh, Stack
from tests.e2e.stack import Launched

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


def test_a_command_returns_its_output_and_exit_status(client: Ssh) -> None:
    done = client.run("train", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


def test_session_is_the_user_s_and_has_neither_token_nor_gpu(client: Ssh) -> None:
    assert client.run("train", "whoami; pwd").stdout.split() == ["sara", "/home/sara"]
    environment = client.run("train", "env").stdout
    assert "TOKEN" not in environment
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in environment


def test_log_of_the_job_is_without_what_sshd_has_to_say_of_itself(client: Ssh, stack: Stack) -> None:
    assert client.run("train", "true").returncode == 0
    assert "Server listening" not in stack.kubectl("logs", "-l", "dlspawner.dev/user=sara", "--tail=-1")


def test_the_home_page_copies_the_command_that_leads_into_the_job_and_opens_vs_code(
    page: Page, client: Ssh, stack: Stack
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    log_in(page, stack, "sara")
    link = page.get_by_role("link", name="VS Code: train")
    expect(link).to_have_attribute("href", "vscode://vscode-remote/ssh-remote+train.dl?windowId=_blank")
    page.get_by_role("button", name="Copy the ssh command of train").click()
    expect(page.locator("#said")).to_have_text(re.compile(r"^(Copied\.|Selected: press Ctrl and C\.)$"))
    copied = page.evaluate("() => isSecureContext ? navigator.clipboard.readText() : getSelection().toString()")
    assert re.fullmatch(rf"ssh -p {stack.ssh_port} sara\+train@\S+", copied), copied
    ssh, *words = shlex.split(copied)
    assert client.tool(ssh, "-F", str(client.config), *words, "echo in").stdout == "in\n"


@pytest.mark.longer
def test_user_has_one_uid_in_all_jobs_which_no_other_user_has(
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


def test_jump_through_the_gateway_reaches_the_own_job(client: Ssh) -> None:
    done = client.run("train", "hostname >/dev/null; echo jumped")
    assert done.stdout == "jumped\n"
    jumped = client.tool("ssh", "-F", str(client.config), "-J", "sara@gateway", "sara@train", "echo jumped; exit 3")
    assert (jumped.stdout, jumped.returncode) == ("jumped\n", 3), jumped.stderr


def test_jump_reaches_nothing_else(client: Ssh, bob: Person, stack: Stack) -> None:
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


def test_mistyped_server_gets_suggestions_after_the_login(client: Ssh) -> None:
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


@pytest.mark.launcher
@pytest.mark.slow
def test_wrong_keys_get_the_same_answer_in_the_same_time(
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
