"""`dlspawner ssh-config --write`: what it puts into ~/.ssh, and what it leaves as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dlspawner import cli
from tests.edges.test_client.test_client_service import Scripted, server

__all__ = ["server"]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBx0"
ANSWER = {"user": "alice", "host": "h.example.org", "port": 2222, "servers": ["train"], "host_keys": [KEY]}


@pytest.fixture
def home(server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"HOME": str(tmp_path), "DLSPAWNER_URL": server.url, "DLSPAWNER_TOKEN": "secret"}.items():
        monkeypatch.setenv(name, value)
    server.answers = [(200, ANSWER)]
    return tmp_path


def test_it_is_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ssh-config"]) == 0
    assert "Host train.dl\n    HostName h.example.org\n    Port 2222\n    User alice+train\n" in capsys.readouterr().out
    assert cli.main(["ssh-config", "--known-hosts"]) == 0
    assert capsys.readouterr().out == f"[h.example.org]:2222 {KEY}\n"
    assert not (home / ".ssh").exists()


def test_it_is_written_and_included_once_before_what_is_there(home: Path) -> None:
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


def test_a_configuration_kept_elsewhere_stays_there(home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / "dotfiles").write_text("Host x\n")
    (home / ".ssh" / "config").symlink_to(home / "dotfiles")
    assert cli.main(["ssh-config", "--write"]) == 0
    assert (home / ".ssh" / "config").is_symlink()
    assert (home / "dotfiles").read_text().endswith("\nHost x\n")


def test_keys_that_ssh_has_asked_about_are_kept(server: Scripted, home: Path) -> None:
    server.answers = [(200, {**ANSWER, "host_keys": []})]
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
def test_a_hub_can_name_no_program(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, object], code: int
) -> None:
    server.answers = [(200, answer)]
    assert cli.main(["ssh-config", "--write"]) == code
    assert "Proxy" not in capsys.readouterr().out
    assert not (home / ".ssh").exists()
