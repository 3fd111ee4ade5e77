"""`dlspawner logs -f`: how it goes on, how it ends, and what it says of a job that has printed nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlspawner import cli
from dlspawner.client import logs
from tests.component.client.test_service import LOG, Scripted, server

__all__ = ["server"]
ID = "j-aaaaaaaaaaaa"
JOB: dict[str, Any] = {"id": ID, "user": "alice", "server": "train", "state": "running", "started": "2026-01-02T12:00Z"}
RUNS, ENDED = (200, JOB), (200, {**JOB, "state": "ended"})


@pytest.fixture(autouse=True)
def here(server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "XDG_CONFIG_HOME": str(tmp_path),
        "DLSPAWNER_URL": server.url,
        "DLSPAWNER_TOKEN": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.0)


GONE = (410, {"detail": "Nobody remembers."})


def test_a_log_whose_time_is_over_is_asked_for_from_there_on(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [RUNS, (LOG, "1\n2\n"), (LOG, "2\n2\n"), GONE, ENDED]
    assert cli.main(["logs", "-f", ID]) == 0
    assert capsys.readouterr() == ("1\n2\n2\n2\n", "")
    first, *rest = [path.partition("/log?")[2] for _, path, *_ in server.asked[1:4]]
    place = first.removeprefix("follow=true&place=")
    assert rest == [f"follow=true&after={place}"] * 2


def test_a_log_that_ends_before_its_job_is_5(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [RUNS, (LOG, "1\n"), GONE, RUNS]
    assert cli.main(["logs", "-f", ID]) == 5
    told = capsys.readouterr()
    assert (told.out, told.err) == ("1\n", f"dlspawner: {logs.GOES_ON}\n")


def test_a_log_ends_with_its_job_although_that_is_known_later(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [RUNS, (LOG, "1\n"), GONE, RUNS, RUNS, ENDED]
    assert cli.main(["logs", "-f", ID]) == 0
    assert capsys.readouterr() == ("1\n", "")


def test_a_log_that_is_followed_is_searched_as_it_comes(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [RUNS, (LOG, "Loss 1\nepoch\nloss 2\n"), GONE, ENDED]
    assert cli.main(["logs", "-f", "--search", "LOSS", "--json", ID]) == 0
    printed = [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["Loss 1", "loss 2"]
    assert "search" not in server.asked[1][1]


def test_the_last_lines_are_no_wish_of_who_follows(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [RUNS]
    assert cli.main(["logs", "-f", "--tail", "100", ID]) == 2
    assert logs.NO_TAIL in capsys.readouterr().err
    assert server.asked == []


def test_all_that_is_kept_is_printed_unless_it_is_to_be_less(server: Scripted) -> None:
    server.answers = [RUNS, (LOG, "1\n"), RUNS, (LOG, "1\n")]
    assert cli.main(["logs", "--search", "x", "-p", "-c", "main", ID]) == 0
    assert cli.main(["logs", "--tail", "20", ID]) == 0
    read = [path.partition("/log")[2] for _, path, *_ in server.asked if "/log" in path]
    assert read == ["?search=x&tail=0&previous=true&container=main", "?tail=20"]


def test_a_search_that_finds_nothing_says_so_beside_the_log(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [RUNS, (LOG, ""), RUNS, (LOG, "")]
    assert cli.main(["logs", "--search", "nothing", ID]) == 0
    assert capsys.readouterr() == ("", "dlspawner: No line has these words.\n")
    assert cli.main(["logs", ID]) == 0
    assert capsys.readouterr() == ("", "")


def test_of_its_last_lines_none_is_nothing(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [RUNS, (LOG, "1\n2\n")]
    assert cli.main(["logs", "--tail", "0", ID]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [[], ["-f"]], ids=["read", "followed"])
def test_a_job_that_has_not_started_is_said_to_wait(
    server: Scripted, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    waits = {**JOB, "state": "queued", "position": 3, "started": None, "why": "The team's quota is used."}
    server.answers = [(200, waits), (404, {"detail": "There is no such log."})]
    assert cli.main(["logs", *words, ID]) == 1
    assert capsys.readouterr().err == (
        "dlspawner: alice/train has not started, so it has printed nothing: it is queued (number 3). "
        "The team's quota is used.\n"
    )


def test_a_job_without_such_a_log_is_not_a_job_that_there_is_not(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [RUNS, (404, {"detail": "There is no such log."})]
    assert cli.main(["logs", "-c", "other", ID]) == 1
    assert capsys.readouterr().err == "dlspawner: There is no such log.\n"
