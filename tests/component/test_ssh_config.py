"""The generated OpenSSH configuration, as OpenSSH reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dlspawner.ssh_config import SshAccessConfig, Unwritable, alias, config, editor_links, known_hosts

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBx0"
ALICE = SshAccessConfig(
    "alice", "ssh.example.org", 2222, ("train", "eval-2", "tb*", "a b", ""), (f"{KEY} gateway", "no key")
)


def resolved(access: SshAccessConfig, host: str, folder: Path) -> dict[str, str]:
    """What `ssh HOST` would do."""
    file = folder / "config"
    file.write_text(config(access), encoding="utf-8")
    done = subprocess.run(["ssh", "-G", "-F", str(file), host], capture_output=True, text=True, check=True, timeout=20)
    return {name: value for name, _, value in (line.partition(" ") for line in done.stdout.splitlines())}


def test_other_hosts_are_not_configured(tmp_path: Path) -> None:
    found = resolved(ALICE, "example.org", tmp_path)
    assert "hostkeyalias" not in found
    assert "dlspawner" not in found["userknownhostsfile"]


def test_no_key_is_configured() -> None:
    assert "Identit" not in config(ALICE)


@pytest.mark.parametrize(
    ("user", "login", "host"),
    [("a+b", "a+b+train", "a+b+"), ("ann lee", "ann lee+train", "ann lee"), ("Zoë", "Zoë+train", "Zoë")],
    ids=["a plus, which would name a server", "a space", "a letter of another language"],
)
def test_other_user_names(user: str, login: str, host: str, tmp_path: Path) -> None:
    access = SshAccessConfig(user, "ssh.example.org", 22, ("train",))
    assert resolved(access, "train.dl", tmp_path)["user"] == login
    assert resolved(access, "dl", tmp_path)["user"] == host
    assert ("proxyjump" in resolved(access, "newer.dl", tmp_path)) is ("+" not in user)


@pytest.mark.parametrize(
    "change",
    [
        {"user": "a\nProxyCommand sh"},
        {"user": 'a"'},
        {"user": "${HOME}"},
        {"user": ""},
        {"host": "x\n    ProxyCommand sh"},
        {"host": "-oProxyCommand=sh;x"},
        {"user": "-v"},
        {"port": 0},
    ],
    ids=str,
)
def test_invalid_names_are_not_written(change: dict[str, object]) -> None:
    given = {"user": "alice", "host": "ssh.example.org", "port": 22, **change}
    for write in (config, known_hosts):
        with pytest.raises(Unwritable):
            write(SshAccessConfig(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("server", ["*", "a b", "a\nProxyCommand sh", "-x", "!a", "x" * 64])
def test_server_names_that_openssh_cannot_have_are_left_out(server: str) -> None:
    assert alias(server) is None
    assert editor_links(server) == ()
    assert config(SshAccessConfig("alice", "h", 22, (server,))) == config(SshAccessConfig("alice", "h", 22))


@pytest.mark.parametrize(
    ("access", "line"),
    [
        (ALICE, f"[ssh.example.org]:2222 {KEY}\n"),
        (SshAccessConfig("alice", "h", 22, (), (KEY,)), f"h {KEY}\n"),
        (SshAccessConfig("alice", "h", 22), ""),
        (SshAccessConfig("alice", "h", 22, (), (f"{KEY}\nh2 {KEY}", f"* {KEY}")), ""),
    ],
    ids=["another port", "port 22", "no key", "invalid keys"],
)
def test_known_hosts(access: SshAccessConfig, line: str) -> None:
    assert known_hosts(access) == line


def test_the_editor_s_link_names_the_host() -> None:
    links = dict(editor_links("train"))
    assert links["VS Code"] == "vscode://vscode-remote/ssh-remote+train.dl?windowId=_blank"
    assert links["Cursor"] == "cursor://vscode-remote/ssh-remote+train.dl?windowId=_blank"
    assert links["Zed"] == "zed://ssh/train.dl/~"
    assert links["JetBrains"] == "jetbrains://gateway/ssh/environment?h=train.dl"
    assert dict(editor_links(""))["VS Code"] == "vscode://vscode-remote/ssh-remote+dl?windowId=_blank"
