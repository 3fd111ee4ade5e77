"""`dlspawner ssh` runs only a login that the Hub names; `ssh-config` prints or writes OpenSSH's configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlspawner import cli
from tests.component.client.conftest import Scripted

ID = "j-aaaaaaaaaaaa"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBx0"
ANSWER = {"user": "alice", "host": "h.example.org", "port": 2222, "servers": ["train"], "host_keys": [KEY]}


@pytest.fixture
def hub(logged_in: Scripted) -> Scripted:
    logged_in.answers = [(200, ANSWER)]
    return logged_in


def test_ssh_config_is_printed(hub: Scripted, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ssh-config"]) == 0
    assert "Host train.dl\n    HostName h.example.org\n    Port 2222\n    User alice+train\n" in capsys.readouterr().out
    assert cli.main(["ssh-config", "--known-hosts"]) == 0
    assert capsys.readouterr().out == f"[h.example.org]:2222 {KEY}\n"
    assert not (home / ".ssh").exists()


def test_ssh_config_is_written_and_included_once_before_other_hosts(hub: Scripted, home: Path) -> None:
    folder = home / ".ssh"
    folder.mkdir()
    (folder / "config").write_text("Host *\n    User somebody\n")
    for _ in range(2):
        assert cli.main(["ssh-config", "--write"]) == 0
    written = (folder / "config").read_text()
    assert written.count("Include dlspawner_config") == 1
    assert written.endswith("\nHost *\n    User somebody\n")
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        ("config", "dlspawner_config", "dlspawner_known_hosts"), 0o600
    )
    # OpenSSH takes ~ from the account, not from $HOME.
    (folder / "config").write_text(written.replace("Include ", f"Include {folder}/"))
    shown = subprocess.run(
        ["ssh", "-G", "-F", str(folder / "config"), "train.dl"], capture_output=True, text=True, check=True, timeout=20
    )
    assert "user alice+train\n" in shown.stdout


def test_symbolic_link_to_a_configuration_is_kept(hub: Scripted, home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / "dotfiles").write_text("Host x\n")
    (home / ".ssh" / "config").symlink_to(home / "dotfiles")
    assert cli.main(["ssh-config", "--write"]) == 0
    assert (home / ".ssh" / "config").is_symlink()
    assert (home / "dotfiles").read_text().endswith("\nHost x\n")


def test_learned_host_keys_are_kept_where_the_hub_tells_none(hub: Scripted, home: Path) -> None:
    hub.answers = [(200, {**ANSWER, "host_keys": []})]
    (home / ".ssh").mkdir()
    (home / ".ssh" / "dlspawner_known_hosts").write_text("learned\n")
    assert cli.main(["ssh-config", "--write"]) == 0
    assert (home / ".ssh" / "dlspawner_known_hosts").read_text() == "learned\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({**ANSWER, "user": "a\nProxyCommand sh"}, 1),
        ({**ANSWER, "host": "h\nProxyCommand sh"}, 1),
        ({**ANSWER, "port": "22"}, 5),
        ({**ANSWER, "servers": [1]}, 5),
        ({}, 5),
    ],
    ids=["a program as the user", "a program as the host", "a port of letters", "a server that is none", "nothing"],
)
def test_answer_that_names_a_program_is_refused(
    hub: Scripted, home: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, object], code: int
) -> None:
    hub.answers = [(200, answer)]
    assert cli.main(["ssh-config", "--write"]) == code
    assert "Proxy" not in capsys.readouterr().out
    assert not (home / ".ssh").exists()


@pytest.fixture
def program(hub: Scripted, home: Path) -> Path:
    """A program called ssh, before all others, which writes its arguments down; the file they are in."""
    written = home / "arguments"
    program = home / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{written}"\n')
    program.chmod(0o755)
    return written


def log_in(
    hub: Scripted, home: Path, command: str, *rest: str, access: object = None
) -> subprocess.CompletedProcess[str]:
    """`dlspawner ssh` of a job that the Hub says to be reached by this command, through this gateway."""
    job = {"id": ID, "state": "running", "endpoints": [{"name": "ssh", "command": command}]}
    hub.answers = [(200, job), (200, access)]
    environ = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    line = [sys.executable, "-m", "dlspawner.cli", "ssh", ID, *rest]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ssh -p 2222 alice+train@h.example.org", "-p 2222 alice+train@h.example.org"),
        ("ssh 'a b@::1'", "a b@::1"),
        ("ssh -p 2222 -- -oProxyCommand=x@h", "-p 2222 -- -oProxyCommand=x@h"),
    ],
    ids=["a login and a port", "a name with a blank", "a name that looks like an option"],
)
def test_ssh_runs_with_the_login_of_the_hub(hub: Scripted, home: Path, program: Path, command: str, words: str) -> None:
    done = log_in(hub, home, command, "nvidia-smi")
    assert (done.returncode, done.stderr) == (0, "")
    assert " ".join(program.read_text().splitlines()) == f"{words} nvidia-smi"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("ssh -oProxyCommand=sh alice@h", id="an option that runs a program"),
        pytest.param("ssh -p 22 -oProxyCommand=sh@h", id="an option that looks like a login"),
        pytest.param("ssh -p -oProxyCommand=sh alice@h", id="an option as the port"),
        pytest.param("ssh alice@h sh", id="a command"),
        pytest.param("ssh 'alice$(sh)@h'", id="a name that a ProxyCommand of one's own would run"),
        pytest.param("ssh -- -oProxyCommand=sh", id="no host"),
        pytest.param("ssh 'alice@h", id="quotes that are not balanced"),
        pytest.param("sh -c x@h", id="another program"),
    ],
)
def test_command_that_is_more_than_a_login_is_refused(hub: Scripted, home: Path, program: Path, command: str) -> None:
    done = log_in(hub, home, command)
    assert done.returncode == 1, done.stderr
    assert (
        done.stderr == f"dlspawner: The Hub's way in is more than a login, and is not run for you. It says: {command}\n"
    )
    assert not program.exists()


LOGIN = "ssh -p 2222 alice+train@h.example.org"


@pytest.mark.parametrize("folder", [".config", "my own %d"])
def test_ssh_pins_the_host_keys_of_the_hub(
    hub: Scripted, home: Path, program: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / folder))
    done = log_in(hub, home, LOGIN, "nvidia-smi", access=ANSWER)
    assert (done.returncode, done.stderr) == (0, "")
    *options, port, number, place, command = program.read_text().splitlines()
    assert [port, number, place, command] == ["-p", "2222", "alice+train@h.example.org", "nvidia-smi"]
    file = home / folder / "dlspawner" / "known_hosts-h.example.org-2222"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"[h.example.org]:2222 {KEY}\n", 0o600)
    shown = subprocess.run(
        ["ssh", "-G", "-F", "none", *options, "h"], capture_output=True, text=True, check=True, timeout=20
    )
    assert f"globalknownhostsfile {file} /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2\n" in shown.stdout


def test_known_hosts_file_of_the_user_is_kept(hub: Scripted, home: Path, program: Path) -> None:
    done = log_in(hub, home, LOGIN, "-oglobalknownhostsfile=/mine", "nvidia-smi", access=ANSWER)
    assert (done.returncode, done.stderr) == (0, "")
    assert program.read_text().splitlines()[:2] == ["-p", "2222"]


@pytest.mark.parametrize(
    "access",
    [ANSWER | {"host_keys": []}, ANSWER | {"host": "-oProxyCommand=sh"}, {}, [], ANSWER],
    ids=["no keys", "no host", "nothing", "another answer", "no place to keep them"],
)
def test_ssh_asks_its_user_where_no_host_keys_are_known(
    hub: Scripted, home: Path, program: Path, access: object
) -> None:
    if access is ANSWER:
        (home / ".config").write_text("a file")
    done = log_in(hub, home, LOGIN, access=access)
    assert (done.returncode, done.stderr) == (0, "")
    assert program.read_text().splitlines() == ["-p", "2222", "alice+train@h.example.org"]
    assert not (home / ".config").is_dir()
