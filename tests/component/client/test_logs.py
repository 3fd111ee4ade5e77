"""`dlspawner logs`: what it asks for, how following goes on and ends, and jobs without a log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlspawner import cli
from dlspawner.client import logs
from tests.component.client.conftest import LOG, Scripted

ID = "j-aaaaaaaaaaaa"
JOB: dict[str, Any] = {"id": ID, "user": "alice", "server": "train", "state": "running", "started": "2026-01-02T12:00Z"}
RUNS, ENDED = (200, JOB), (200, {**JOB, "state": "ended"})
GONE = (410, {"detail": "The place is forgotten."})


@pytest.fixture
def hub(logged_in: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.0)
    return logged_in


def test_follow_continues_after_the_end_of_a_response(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers = [RUNS, (LOG, "1\n2\n"), (LOG, "2\n2\n"), GONE, ENDED]
    assert cli.main(["logs", "-f", ID]) == 0
    assert capsys.readouterr() == ("1\n2\n2\n2\n", "")
    first, *rest = hub.queries("/log")
    assert rest == [f"follow=true&after={first.removeprefix('follow=true&place=')}"] * 2


@pytest.mark.parametrize(
    ("later", "code", "told"),
    [([RUNS], 5, f"dlspawner: {logs.GOES_ON}\n"), ([RUNS, RUNS, ENDED], 0, "")],
    ids=["the job goes on", "the end of the job is known a little later"],
)
def test_follow_of_a_log_that_ends_before_its_job(
    hub: Scripted, capsys: pytest.CaptureFixture[str], later: list[tuple[int, Any]], code: int, told: str
) -> None:
    hub.answers = [RUNS, (LOG, "1\n"), GONE, *later]
    assert cli.main(["logs", "-f", ID]) == code
    assert capsys.readouterr() == ("1\n", told)


def test_follow_searches_by_itself(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers = [RUNS, (LOG, "Loss 1\nepoch\nloss 2\n"), GONE, ENDED]
    assert cli.main(["logs", "-f", "--search", "LOSS", "--json", ID]) == 0
    printed = [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["Loss 1", "loss 2"]
    assert "search" not in hub.queries("/log")[0]


def test_follow_with_tail_is_wrong_usage(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", "-f", "--tail", "100", ID]) == 2
    assert logs.NO_TAIL in capsys.readouterr().err
    assert hub.asked == []


@pytest.mark.parametrize(
    ("words", "query", "printed"),
    [
        ("--search x -p -c main --pod ps-0", "search=x&tail=0&previous=true&container=main&pod=ps-0", ("1\n", "")),
        ("--tail 20", "tail=20", ("1\n", "")),
        ("--search nothing", "search=nothing&tail=0", ("", "dlspawner: No line has these words.\n")),
        ("", "tail=0", ("", "")),
    ],
)
def test_options_become_the_query(
    hub: Scripted, capsys: pytest.CaptureFixture[str], words: str, query: str, printed: tuple[str, str]
) -> None:
    hub.answers = [RUNS, (LOG, printed[0])]
    assert cli.main(["logs", *words.split(), ID]) == 0
    assert (hub.queries("/log"), capsys.readouterr()) == ([query], printed)


def test_tail_0_prints_nothing(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers = [RUNS, (LOG, "1\n2\n")]
    assert cli.main(["logs", "--tail", "0", ID]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [[], ["-f"]], ids=["read", "followed"])
def test_log_of_a_queued_job_says_why_it_waits(
    hub: Scripted, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    waits = {**JOB, "state": "queued", "position": 3, "started": None, "why": "The team's quota is used."}
    hub.answers = [(200, waits), (404, {"detail": "There is no such log."})]
    assert cli.main(["logs", *words, ID]) == 1
    assert capsys.readouterr().err == (
        "dlspawner: alice/train has not started, so it has printed nothing: it is queued (number 3). "
        "The team's quota is used.\n"
    )


def test_missing_log_is_not_a_missing_job(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers = [RUNS, (404, {"detail": "There is no such log."})]
    assert cli.main(["logs", "-c", "other", ID]) == 1
    assert capsys.readouterr().err == "dlspawner: There is no such log.\n"
