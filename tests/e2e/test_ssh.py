"""OpenSSH's own clients, through the gateway, into the real sshd of real jobs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in
from tests.e2e.people import Person, Ssh, Stack


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


def test_jump_reaches_the_own_job_and_nothing_else(client: Ssh, bob: Person, stack: Stack) -> None:
    bob.launch("bobs", template="ssh")
    pods = json.loads(stack.kubectl("get", "pods", "-l", "dlspawner.dev/server=bobs", "-o", "json"))
    bobs_address = pods["items"][0]["status"]["podIP"]
    jumped = client.tool("ssh", "-F", str(client.config), "-J", "sara@gateway", "sara@train", "echo jumped; exit 3")
    assert (jumped.stdout, jumped.returncode) == ("jumped\n", 3), jumped.stderr
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
