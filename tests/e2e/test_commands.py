"""The command line of people, as a program of its own: from the form's file to a shell in the job and its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page

from tests.e2e.browsing import log_in
from tests.e2e.people import Person, Ssh, Stack, wait_for

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def carla(stack: Stack) -> Person:
    return stack.person("carla")


@pytest.fixture
def run(stack: Stack, carla: Person, tmp_path: Path) -> Run:
    """`dlspawner …` of a user that has logged in on their own machine."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def command(*words: str, text: str | None = None, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "dlspawner.cli", *words]
        done = subprocess.run(
            line, env=environ, input=text, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
        )
        assert code in {None, done.returncode}, done.stdout + done.stderr
        return done

    said = command("login", f"{stack.url}/hub/home", text=f"{carla.token}\n").stdout
    assert said == f"Logged in to {stack.url} as carla.\n"
    return command


def test_job_is_submitted_from_the_form_s_file_used_killed_and_requeued(
    page: Page, stack: Stack, carla: Person, run: Run, tmp_path: Path
) -> None:
    log_in(page, stack, "carla")
    page.goto(f"{stack.url}/hub/spawn/carla/train")
    page.check("#template-ssh", force=True)
    page.fill(".job-panel[data-template=ssh] [data-option=gpus]", "1")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download these choices as a file").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "train.yaml"
    wanted = yaml.safe_load(file.read_text())
    assert (wanted["server"], wanted["options"]["template"], wanted["options"]["gpus"]) == ("train", "ssh", 1)

    run("submit", "train.yaml", "--set", "gpus=0", "--wait")
    listed = run("list").stdout
    assert re.search(r"^train +running +ssh +- +General +\d+s +j-", listed, re.MULTILINE), listed
    shown = json.loads(run("show", "train", "--json").stdout)
    assert (shown["server"], shown["state"], shown["gpus"]) == ("train", "running", 0)
    assert run("show", shown["id"]).stdout == run("show", "carla/train").stdout

    client = carla.ssh(tmp_path / "keys")
    assert run("ssh", "train", "-F", str(client.config), "id", "-un").stdout == "carla\n"
    nobody_asked = ("-F", "none", "-i", client.key, "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=none")
    assert run("ssh", "train", *map(str, nobody_asked), "id", "-un").stdout == "carla\n"
    assert own_ssh(run, client, tmp_path, "train.dl") == own_ssh(run, client, tmp_path, "later.dl") == "carla\n"

    assert "asked to stop" in run("kill", "train").stdout
    ended = json.loads(run("submit", "train.yaml", "--set", "gpus=0", "--wait", "--json").stdout)
    assert ended["id"] != shown["id"]
    run("kill", "train")

    wait_for(lambda: json.loads(run("show", ended["id"], "--json").stdout)["state"] == "ended", "it has ended", 60)
    new = re.match(r"train \((j-[a-z2-7]{12})\): ", run("requeue", "train").stdout)
    assert new is not None
    wait_for(lambda: json.loads(run("show", "train", "--json").stdout)["state"] == "running", "it runs again", 60)
    assert json.loads(run("show", "train", "--json").stdout)["id"] == new[1]
    assert new[1] not in {shown["id"], ended["id"]}
    run("kill", "train")


def own_ssh(run: Run, client: Ssh, home: Path, host: str) -> str:
    """Returns the output of `id -un` at `ssh HOST`, with the files that `dlspawner ssh-config --write` has put into
    ~/.ssh.
    """
    folder = home / ".ssh"
    assert "ssh train.dl" in run("ssh-config", "--write").stdout
    # OpenSSH takes ~ from the account, not from $HOME; `later` is what a file without it would know.
    listed = (folder / "dlspawner_config").read_text().replace("~/.ssh/", f"{folder}/")
    if host == "later.dl":
        listed, host = re.sub(r"Host train\.dl\n(    .*\n)+", "", listed), "train.dl"
    (folder / "test").write_text(f"{listed}\nHost *\n    IdentityFile {client.key}\n    BatchMode yes\n")
    done = client.tool("ssh", "-F", str(folder / "test"), host, "id", "-un")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wrong_input_has_a_sentence_and_an_exit_code(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("server: no\noptions: {template: nonsense}\n")
    assert "nonsense" in run("submit", "job.yaml", code=1).stderr
    assert "has had no job" in run("show", "nothing", code=3).stderr
    assert "no such job" in run("kill", "j-aaaaaaaaaaaa", code=3).stderr
    assert "cannot be read" in run("submit", "nowhere.yaml", code=2).stderr
    assert run("list").stdout == "No running or queued jobs; --all shows those that have ended.\n"


@pytest.mark.launcher  # any image is there
def test_job_that_ends_at_once_is_printed_with_its_id_and_has_a_log(run: Run, tmp_path: Path) -> None:
    job = {"template": "custom", "image": "debian:12", "command": "echo so much; exit 3"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"server": "short", "options": job}))
    done = run("submit", "job.yaml", "--wait", code=1)  # on a busy machine the Hub may not wait for its end
    found = re.match(r"short \((j-[a-z2-7]{12})\): ended\n.*exit code 3", done.stdout)
    assert found, done.stdout + done.stderr

    def logged() -> bool:
        """The log is kept soon after the end, not before it is told."""
        done = run("logs", found[1], code=None)
        return done.returncode == 0 and "so much" in done.stdout

    wait_for(logged, "its log is kept")
