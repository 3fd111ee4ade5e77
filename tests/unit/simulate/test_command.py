"""The command: reports in every form, settings on the command line, problems as one sentence."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dlspawner import cli

ROOT = Path(__file__).parents[3]
FILES = ("--cluster", str(ROOT / "hub_config/cluster.yaml"), "--teams", str(ROOT / "hub_config/teams.yaml"))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Sessions and jobs of the teams of hub_config; one team is unknown there."""
    file = tmp_path / "trace.csv"
    file.write_text(
        "submit,duration,gpus,type,team,preemptible,activity\n"
        "0,40000,2,a100,vision,false,0-600 30000-30600\n"
        "5,3600,8,a100,language,true,\n"
        "60,3600,4,a100,language,false,\n"
        "90,10,1,a100,nobody,false,\n",
        encoding="utf-8",
    )
    return str(file)


def test_report_is_told_in_every_form(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, folder = tmp_path / "report.html", tmp_path / "tables"
    given = ["simulate", "--trace", trace, *FILES, "--html", str(page), "--csv", str(folder), "--advise"]
    assert cli.main([*given, "--set", "idle.dry_run=false", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["team"]: row for row in told["reports"]["as configured"]["rows"]}
    assert (rows["vision"]["jobs"], rows["nobody"]["refused"]) == (1, 1)
    assert rows["vision"]["unwanted"] == 1, "its window is two hours, and it is used again after eight"
    assert told["settings"][0]["window"] is None
    assert len(told["settings"]) > 100
    with (folder / "teams.csv").open(encoding="utf-8") as opened:
        assert [row["team"] for row in csv.DictReader(opened)] == [*rows]
    assert {file.name for file in folder.iterdir()} == {"jobs.csv", "settings.csv", "teams.csv", "trace.csv", "use.csv"}
    assert outside(page.read_text(encoding="utf-8")) == []


def outside(text: str) -> list[str]:
    """What a page loads or runs."""
    found: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            if tag in {"script", "link", "img", "iframe"} or any(key in {"src", "href"} for key, _ in attributes):
                found.append(tag)

    Parser().feed(text)
    assert "<svg" in text
    return found


def test_text_names_teams_settings_and_refusals(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(ROOT / "hub_config/cluster.yaml")
    assert cli.main(["simulate", "--trace", trace, *FILES, "--sweep", "--compare", other]) == 0
    told = capsys.readouterr().out
    for part in (f"== {other} ==", "There is no team “nobody” any more", "idle window 60 min", "\nvision"):
        assert part in told


def test_anonymous_report_is_the_same_without_names(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for more in ((), ("--anonymise",)):
        assert cli.main(["simulate", "--trace", trace, *FILES, "--json", *more]) == 0
        reports.append(capsys.readouterr().out)
    rows = [json.loads(one)["reports"]["as configured"]["rows"] for one in reports]
    assert [{**row, "team": ""} for row in rows[0]] == [{**row, "team": ""} for row in rows[1]]
    for name in ("vision", "language", "Language", "nobody"):
        assert (name in reports[0], name in reports[1]) == (True, False)


def test_same_seed_gives_the_same_report(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["simulate", "--synthetic", "jobs=300,days=1", "--preemptible", "0.3", "--json", "--no-excess"]
    told = []
    for seed in ("1", "1", "2"):
        assert cli.main([*given, "--seed", seed]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != told[2]


def test_interrupt_prints_what_is_known_so_far() -> None:
    """Interrupted as soon as the terminal shows how far the replay is."""
    ours, theirs = pty.openpty()
    heeds = ["env", "--default-signal=INT", sys.executable]  # a shell's background job ignores it
    command = [*heeds, "-m", "dlspawner.cli", "simulate", "--synthetic", "jobs=30000,days=90", "--no-excess"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"replay: jobs: [1-9]", shown):
            shown += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 130
    assert "Interrupted: what is known so far." in told


WRONG: dict[str, tuple[list[str], str]] = {
    "nothing to replay": ([], "Name what is replayed: --trace FILE…, --history URL or --synthetic KEY=VALUE,…"),
    "no file": (["--trace", "/nowhere.csv"], "/nowhere.csv: No such file or directory."),
    "a key that is none": (
        ["--synthetic", "default", *FILES, "--set", "scheduling.notice=1"],
        f"{FILES[1]}: scheduling.notice: there is no such key",
    ),
    "a value that is too small": (
        ["--synthetic", "default", *FILES, "--set", "scheduling.notice_seconds=-1"],
        f"{FILES[1]}: scheduling.notice_seconds: must be between 0 and",
    ),
    "a team that is none": (
        ["--synthetic", "default", *FILES, "--set", "teams.visoin.borrow_limit=1"],
        "--set teams.visoin.borrow_limit=1: there is no team visoin; teams: vision, language, default.",
    ),
    "another scheduler": (
        ["--synthetic", "default", *FILES, "--set", "scheduler.name=kueue"],
        f"{FILES[1]}: scheduler: Kueue's decisions cannot be replayed; leave it out for ours.",
    ),
    "no value": (["--synthetic", "default", "--set", "x"], "--set x: must be like scheduling.notice_seconds=60."),
    "nodes of no type": (["--synthetic", "default", "--nodes", "b200=4x8"], "--nodes b200=4x8: must be like TYPE=42x8"),
    "an unknown parameter": (["--synthetic", "users=5"], "--synthetic users=5: must be one of jobs=10000"),
    "a parameter without end": (
        ["--synthetic", "days=inf"],
        "--synthetic days=inf: must be above 0 and at most 10,000.",
    ),
    "a directory": (["--synthetic", "default", "--html", "/"], "--html /: this is a directory."),
    "no directory": (["--synthetic", "default", "--html", "/nowhere/a.html"], "--html /nowhere/a.html: there is no"),
    "no database at all": (["--history"], "--history: name the database, or set DLSPAWNER_MANAGER_DB_URL"),
    "no database": (["--history", "sqlite:////nowhere/manager.sqlite"], "--history names a file in /nowhere"),
}


@pytest.mark.parametrize(("given", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_sentence(given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *given]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith(sentence)
