"""``dlspawner login``: which addresses it takes, and where the token is kept and sent."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dlspawner import cli
from dlspawner.client import login
from dlspawner.client.service import ClientProblem
from tests.component.client.conftest import Scripted

EMPTY = (200, {"items": [], "next": None})
ALICE = (200, {"name": "alice"})


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("hub.example.org", "https://hub.example.org"),
        ("https://hub.example.org/lab/hub/home?x=1", "https://hub.example.org/lab"),
        ("http://127.0.0.1:8000/services/jobs/", "http://127.0.0.1:8000"),
        ("https://hub.example.org/lab/hub", "https://hub.example.org/lab"),
    ],
)
def test_any_page_of_the_hub_is_its_address(given: str, url: str) -> None:
    assert login.url_of(given) == url


@pytest.mark.parametrize(
    "given",
    [
        *("ftp://hub", "https://", "https://me:pw@hub.example.org", "https://[x", "https://hub:99999"),
        *("https://\u5b57.example", "https://hub .example.org", "https://hub.example.org/\x7f"),
    ],
    ids=ascii,
)
def test_other_addresses_are_refused(given: str) -> None:
    with pytest.raises(ClientProblem, match="no address of a Hub"):
        login.url_of(given)


def test_white_space_around_what_was_pasted_is_left_out() -> None:
    assert login.url_of(" https://hub.example.org/hub/token\n") == "https://hub.example.org"
    assert login.service({"DLSPAWNER_URL": "https://hub", "DLSPAWNER_TOKEN": "\tsecret \r\n"}).token == "secret"


def test_login_is_kept_readable_for_its_owner_alone(server: Scripted, home: Path) -> None:
    server.answers = [ALICE, EMPTY]
    assert cli.main(["login", f"{server.url}/hub/home"]) == 0
    file = home / ".config" / "dlspawner" / "login.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text()) == {"url": server.url, "token": "secret"}


def test_login_waits_for_the_route_to_the_service(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [ALICE, (302, "/hub/services/jobs/api/jobs?limit=1"), EMPTY]
    assert cli.main(["login", server.url]) == 0
    told = capsys.readouterr()
    assert told.out == f"Logged in to {server.url} as alice.\n"
    assert "the Hub shows its own pages, 302" in told.err
    assert "It may be starting anew" in told.err


def test_login_that_cannot_be_written_names_the_file_and_the_alternative(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".config").write_text("a file where the folder should be")
    server.answers = [ALICE, EMPTY]
    assert cli.main(["login", server.url]) == 1
    told = capsys.readouterr()
    assert (told.out, "secret" in told.err) == ("", False)
    assert f"{home / '.config' / 'dlspawner' / 'login.json'} cannot be written: " in told.err
    assert "DLSPAWNER_TOKEN" in told.err


def test_command_without_a_login_is_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 4
    assert "dlspawner login" in capsys.readouterr().err


def test_kept_token_is_not_sent_to_another_hub(server: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home / ".config")}), "https://hub.example.org", "secret")
    monkeypatch.setenv("DLSPAWNER_URL", server.url)
    server.answers = [(200, {})]
    assert cli.main(["quota"]) == 4
    assert server.asked == []
