"""``dlspawner list``: what it asks for, and that it ends although the history is long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dlspawner import cli
from dlspawner.client import arguments
from dlspawner.core.job import JobState
from dlspawner.manager.http.api import base
from tests.component.client.test_said import JOB
from tests.component.client.test_service import Scripted, server

__all__ = ["server"]
ME = (200, {"name": "alice"})


@pytest.fixture(autouse=True)
def here(server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DLSPAWNER_URL", server.url)
    monkeypatch.setenv("DLSPAWNER_TOKEN", "secret")


def page(count: int, next_: str | None = None) -> tuple[int, dict[str, Any]]:
    return (200, {"items": [JOB] * count, "next": next_})


def asked(server: Scripted) -> list[dict[str, list[str]]]:
    """The queries of the list."""
    return [parse_qs(urlsplit(path).query, keep_blank_values=True) for _, path, *_ in server.asked if "/jobs?" in path]


def test_a_long_history_is_not_read_to_its_end(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [ME, page(500, "more")]
    assert cli.main(["list", "-a", "-A"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 501
    assert printed.err == "dlspawner: There are more than these 500; --limit N shows up to N.\n"
    assert asked(server) == [{"limit": ["500"]}]


def test_more_than_a_page_is_read_in_pages_as_far_as_it_is_wanted(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [ME, page(500, "second"), page(200, "third")]
    assert cli.main(["list", "-a", "-A", "--limit", "700", "--json"]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)) == 700
    assert "more than these 700" in printed.err
    assert asked(server) == [{"limit": ["500"]}, {"limit": ["200"], "cursor": ["second"]}]


def test_what_is_all_is_not_said_to_be_more(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [ME, page(2)]
    assert cli.main(["list", "--limit", "2"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"user": ["alice"], "state": ["live"]}),
        (["-a"], {"user": ["alice"]}),
        (["--state", "ended"], {"user": ["alice"], "state": ["ended"]}),
        (["-a", "--state", "queued", "--state", "running"], {"user": ["alice"], "state": ["queued", "running"]}),
        (["--server", ""], {"user": ["alice"], "state": ["live"], "server": [""]}),
        (["-aA", "--server", "train"], {"server": ["train"]}),
        (["-aA", "--since", "2031-12-24T18:00:00+01:00"], {"since": ["2031-12-24T18:00:00+01:00"]}),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_it_asks_for_what_is_wanted(server: Scripted, words: list[str], expected: dict[str, list[str]]) -> None:
    server.answers = [ME, page(0)]
    assert cli.main(["list", *words]) == 0
    assert asked(server) == [{**expected, "limit": ["500"]}]


@pytest.mark.parametrize(
    "words", [["--limit", "0"], ["--limit", "-1"], ["--limit", "many"], ["--state", "done"]], ids=str
)
def test_what_cannot_be_is_2(server: Scripted, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["list", *words])
    assert ended.value.code == 2
    assert server.asked == []


def test_states_are_called_as_the_service_calls_them() -> None:
    assert set(arguments.STATES) == {base.LIVE, *(state.value for state in JobState)}


@pytest.mark.parametrize("since", ["tomorrow", "", "2031-13-01", "0001-01-01T00:00:00+10:00"])
def test_what_is_no_time_is_wrong_usage(server: Scripted, capsys: pytest.CaptureFixture[str], since: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["list", "--since", since])
    assert ended.value.code == 2
    assert "--since: it is a day or a time, such as 2031-12-24T18:00:00Z" in capsys.readouterr().err
    assert server.asked == []
