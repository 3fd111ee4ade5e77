"""What commands say: of a job that has ended, of times, of lines of a log, and to a reader who has read enough."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dlspawner import cli

ID, NEW = "j-aaaaaaaaaaaa", "j-bbbbbbbbbbbb"
AT = "2026-01-02T12:00:00.123456Z"
SSH = "ssh -p 2222 -L 6006:localhost:6006 alice+train@gate"
WAYS = [
    {"name": "notebook", "protocol": "http", "url": "/lab/user/alice/train/"},
    {"name": "board", "protocol": "http", "port": 6006, "forward": SSH, "address": "http://localhost:6006/"},
    {"name": "api", "protocol": "tcp", "port": 5000},
    {"name": "ssh", "protocol": "ssh", "port": 2222, "login": "alice+train", "command": "ssh alice+train@gate"},
]
JOB: dict[str, Any] = {
    "endpoints": WAYS,
    **{"id": ID, "user": "alice", "server": "train", "team": "default", "team_title": "Everybody else"},
    **{"template": "ssh", "state": "ended", "why": "Its program has ended.", "gpus": 0, "submitted": AT, "ended": AT},
}
EVENT = {"at": AT, "state": "ended", "reason": "finished", "detail": ""}
ANSWERS: dict[str, Any] = {
    "/hub/api/user": {"name": "alice"},
    f"jobs/{ID}/events": {"items": [EVENT], "next": None},
    f"jobs/{ID}/requeue": {**JOB, "id": NEW, "state": "queued", "ended": None, "why": "The quota is used."},
    f"jobs/{ID}": JOB,
    "jobs": {"items": [JOB], "next": None},
    "queue": {"items": [{**JOB, "position": 1}], "next": None},
}
Run = Callable[..., int]


class Hub(BaseHTTPRequestHandler):
    """A Hub whose one job has ended, and which ends nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/services/jobs/api/")
        is_log = path.endswith("/log")
        content = b"one\n\x1b[2Jtwo\nthree" if is_log else json.dumps(ANSWERS[path]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if is_log else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DLSPAWNER_URL", f"http://127.0.0.1:{http.server_address[1]}")
    monkeypatch.setenv("DLSPAWNER_TOKEN", "secret")
    yield lambda *words: cli.main(words)
    http.shutdown()
    thread.join()
    http.server_close()


def test_to_kill_what_has_ended_is_no_failure(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kill", "train") == 0
    assert capsys.readouterr().out == f"alice/train ({ID}): has ended already. Its program has ended.\n"
    assert run("kill", "train", "--json") == 0
    assert json.loads(capsys.readouterr().out) == JOB


def test_a_log_as_json_is_an_object_for_each_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("logs", ID, "--json") == 0
    printed = capsys.readouterr().out
    assert [json.loads(line) for line in printed.splitlines()] == [
        {"line": text} for text in ("one", "\x1b[2Jtwo", "three")
    ]
    assert "\x1b" not in printed


def test_times_are_told_to_the_second(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", ID) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^Ended: +2026-01-02 12:00:00 UTC$", printed, re.MULTILINE)
    assert "\n2026-01-02 12:00:00 UTC  ended  finished" in printed
    assert "123456" not in printed


@pytest.mark.parametrize("shortened", [True, False])
def test_transitions_that_are_not_all_are_said_to_be_the_latest(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shortened: bool
) -> None:
    answer = {"items": [EVENT, EVENT], "next": None, "shortened": shortened}
    monkeypatch.setitem(ANSWERS, f"jobs/{ID}/events", answer)
    assert run("show", ID) == 0
    assert ("\nOnly its latest 2 transitions:\nWHEN" in capsys.readouterr().out) is shortened
    assert run("show", ID, "--json") == 0
    assert json.loads(capsys.readouterr().out)["events_shortened"] is shortened


def test_a_way_into_a_job_can_be_opened(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", ID) == 0
    assert f" {os.environ['DLSPAWNER_URL']}/lab/user/alice/train/\n" in capsys.readouterr().out


def test_every_way_into_a_job_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", ID) == 0
    told = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line]
    ways = {name: way.strip() for name, way in told if name in {"Board", "Api", "Ssh"}}
    assert ways == {
        "Board": f"{SSH}, then http://localhost:6006/",
        "Api": "port 5000, for other pods of the cluster",
        "Ssh": "ssh alice+train@gate",
    }


def test_a_team_is_called_as_on_the_pages(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["list", "--all"], ["queue"], ["show", ID]):
        assert run(*command) == 0
        assert "Everybody else" in capsys.readouterr().out
    assert run("show", ID) == 0
    assert "Everybody else (default)" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("completion", "tcsh"), ("list", "--all"), ("logs", ID)], ids=lambda words: words[0])
def test_who_has_read_enough_is_left_alone(run: Run, words: tuple[str, ...]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    line = [sys.executable, "-m", "dlspawner.cli", *words]
    with os.fdopen(writes, "wb") as out:
        done = subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (cli.READ_ENOUGH, "")


def printed(*words: str, encoding: str) -> str:
    """What a command prints on a machine whose terminal takes so many letters only."""
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    line = [sys.executable, "-m", "dlspawner.cli", *words]
    done = subprocess.run(line, env=environ, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode(encoding)


def test_a_terminal_without_all_letters_gets_them_spelled_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(JOB, "team_title", "\u89c6\u89c9")
    assert "\\u89c6\\u89c9 (default)" in printed("show", ID, encoding="latin-1")
    assert "\u89c6\u89c9 (default)" in printed("show", ID, encoding="utf-8")
    assert "\n  \\u2026 " in printed("ssh", "--help", encoding="ascii")


def test_a_name_that_is_no_text_is_no_traceback(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("show", "tr\udcffin"), ("list", "--team", "\udcff"), ("show", "\udcff/train")):
        assert run(*words) == 2
        assert capsys.readouterr().err == "dlspawner: An argument is not text that can be sent: it is not UTF-8.\n"


def test_what_is_asked_for_again_is_said_as_what_is_submitted(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("requeue", "train") == 0
    assert capsys.readouterr().out == f"train ({NEW}): queued\nThe quota is used.\n"
    assert run("requeue", "train", "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == NEW
