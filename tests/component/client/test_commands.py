"""Commands of users: what each asks of the service, prints, completes, and shows of hostile names."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from typing import Any
from urllib.parse import parse_qs

import pytest

from dlspawner import cli
from dlspawner.client import arguments
from dlspawner.manager.http.api.models import requests
from tests.component.client.conftest import Scripted

ID, NEW = "j-aaaaaaaaaaaa", "j-bbbbbbbbbbbb"
AT = "2026-01-02T12:00:00.123456Z"
SSH = "ssh -p 2222 -L 6006:localhost:6006 alice+train@gate"
ENDPOINTS = [
    {"name": "notebook", "protocol": "http", "url": "/lab/user/alice/train/"},
    {"name": "board", "protocol": "http", "port": 6006, "forward": SSH, "address": "http://localhost:6006/"},
    {"name": "api", "protocol": "tcp", "port": 5000},
    {"name": "ssh", "protocol": "ssh", "port": 2222, "login": "alice+train", "command": "ssh alice+train@gate"},
]
JOB: dict[str, Any] = {
    "endpoints": ENDPOINTS,
    **{"id": ID, "user": "alice", "server": "train", "team": "default", "team_title": "Everybody else"},
    **{"template": "ssh", "state": "ended", "why": "Its program has ended.", "gpus": 0, "submitted": AT, "ended": AT},
}
EVENT = {"at": AT, "state": "ended", "reason": "finished", "detail": ""}
ME = (200, {"name": "alice"})


def listed(*items: Any, **more: Any) -> dict[str, Any]:
    return {"items": list(items), "next": None, **more}


@pytest.fixture
def hub(logged_in: Scripted) -> Scripted:
    """A Hub whose one job has ended."""
    logged_in.routes = {
        "/hub/api/user": {"name": "alice"},
        f"jobs/{ID}/events": listed(EVENT),
        f"jobs/{ID}/requeue": {**JOB, "id": NEW, "state": "queued", "ended": None, "why": "The quota is used."},
        f"jobs/{ID}": JOB,
        f"jobs/{ID}/log": "one\n\x1b[2Jtwo\nthree",
        "jobs": listed(JOB),
        "queue": listed({**JOB, "position": 1}),
    }
    return logged_in


@pytest.mark.parametrize(
    ("command", "printed", "job"),
    [
        ("kill", f"alice/train ({ID}): has ended already. Its program has ended.\n", ID),
        ("requeue", f"train ({NEW}): queued\nThe quota is used.\n", NEW),
    ],
)
def test_changed_job_is_printed(
    hub: Scripted, capsys: pytest.CaptureFixture[str], command: str, printed: str, job: str
) -> None:
    assert cli.main([command, "train"]) == 0
    assert capsys.readouterr().out == printed
    assert cli.main([command, "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == job


def test_log_as_json_is_one_object_per_line(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", ID, "--json"]) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line)["line"] for line in printed.splitlines()]
    assert (lines, "\x1b" in printed) == (["one", "\x1b[2Jtwo", "three"], False)


def test_show_prints_times_endpoints_and_the_team(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", ID]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^Ended: +2026-01-02 12:00:00 UTC$", printed, re.MULTILINE)
    assert "\n2026-01-02 12:00:00 UTC  ended  finished" in printed
    assert "123456" not in printed
    assert "Everybody else (default)" in printed
    facts = dict(line.split(": ", 1) for line in printed.splitlines() if ": " in line)
    assert {name: facts[name].strip() for name in ("Notebook", "Board", "Api", "Ssh")} == {
        "Notebook": f"{hub.url}/lab/user/alice/train/",
        "Board": f"{SSH}, then http://localhost:6006/",
        "Api": "port 5000, for other pods of the cluster",
        "Ssh": "ssh alice+train@gate",
    }


@pytest.mark.parametrize("shortened", [True, False])
def test_show_says_whether_older_transitions_are_left_out(
    hub: Scripted, capsys: pytest.CaptureFixture[str], shortened: bool
) -> None:
    hub.routes[f"jobs/{ID}/events"] = listed(EVENT, EVENT, shortened=shortened)
    assert cli.main(["show", ID]) == 0
    assert ("\nOnly its latest 2 transitions:\nWHEN" in capsys.readouterr().out) is shortened
    assert cli.main(["show", ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events_shortened"] is shortened


def test_closed_pipe_ends_the_command_without_an_error(hub: Scripted) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    line = [sys.executable, "-m", "dlspawner.cli", "logs", ID]
    with os.fdopen(writes, "wb") as out:
        done = subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (cli.READ_ENOUGH, "")


@pytest.mark.parametrize(
    ("words", "encoding", "shown"),
    [
        (f"show {ID}", "latin-1", "\\u89c6\\u89c9 (default)"),
        (f"show {ID}", "utf-8", "\u89c6\u89c9 (default)"),
        ("ssh --help", "ascii", "\n  \\u2026 "),
    ],
)
def test_characters_that_the_terminal_lacks_are_escaped(hub: Scripted, words: str, encoding: str, shown: str) -> None:
    hub.routes[f"jobs/{ID}"] = {**JOB, "team_title": "\u89c6\u89c9"}
    line = [sys.executable, "-m", "dlspawner.cli", *words.split()]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(line, env=environ, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout.decode(encoding)


def test_argument_that_is_not_utf_8_is_wrong_usage(hub: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "tr\udcffin"]) == 2
    assert capsys.readouterr().err == "dlspawner: An argument is not text that can be sent: it is not UTF-8.\n"


# list


def page(count: int, next_: str | None = None) -> tuple[int, dict[str, Any]]:
    return (200, {"items": [JOB] * count, "next": next_})


def asked(server: Scripted) -> list[dict[str, list[str]]]:
    return [parse_qs(query, keep_blank_values=True) for query in server.queries("/jobs")]


def test_list_reads_as_many_pages_as_the_limit_needs(logged_in: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    logged_in.answers = [ME, page(500, "more"), page(1, "more")]
    assert cli.main(["list", "-a", "-A"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 501
    assert printed.err == "dlspawner: There are more than these 500; --limit N shows up to N.\n"
    logged_in.asked.clear()
    logged_in.answers = [ME, page(500, "second"), page(201, "third"), ME, page(2)]
    assert cli.main(["list", "-a", "-A", "--limit", "700", "--json"]) == 0
    printed = capsys.readouterr()
    assert (len(json.loads(printed.out)), "more than these 700" in printed.err) == (700, True)
    assert asked(logged_in) == [{"limit": ["500"]}, {"limit": ["500"], "cursor": ["second"]}]
    assert cli.main(["list", "--limit", "2"]) == 0
    assert capsys.readouterr().err == "", "that is all"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"user": ["alice"], "state": ["live"]}),
        ("--state ended", {"user": ["alice"], "state": ["ended"]}),
        ("-a --state queued --state running", {"user": ["alice"], "state": ["queued", "running"]}),
        ("--server=", {"user": ["alice"], "state": ["live"], "server": [""]}),
        ("-aA --since 2031-12-24T18:00:00+01:00", {"since": ["2031-12-24T18:00:00+01:00"]}),
    ],
)
def test_options_of_list_become_its_query(logged_in: Scripted, words: str, expected: dict[str, list[str]]) -> None:
    logged_in.answers = [ME, page(0)]
    assert cli.main(["list", *words.split()]) == 0
    assert asked(logged_in) == [{**expected, "limit": ["500"]}]


@pytest.mark.parametrize(
    "words",
    [
        "--limit 0",
        "--limit many",
        "--state done",
        "--since=",
        "--since=2031-13-01",
        "--since=0001-01-01T00:00+10:00",
    ],
)
def test_invalid_option_of_list_is_wrong_usage(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["list", *words.split()])
    assert (ended.value.code, logged_in.asked) == (2, [])
    told = capsys.readouterr().err
    assert "since" not in words or "--since: it is a day or a time, such as 2031-12-24T18:00:00Z" in told


def test_states_have_the_names_of_the_service() -> None:
    assert set(arguments.STATES) == {requests.LIVE, *requests.STATES}


# events

QUEUED = {"at": "2026-01-02T12:00:00Z", "state": "queued", "reason": "queued", "detail": ""}
RAN = {"at": "2026-01-02T12:00:05.5Z", "state": "running", "reason": "running", "detail": ""}
MOUNT = {"at": "2026-01-02T12:00:03Z", "reason": "FailedMount", "sentence": "A volume\x1b[2J cannot.", "count": 3}
NOT_YOURS = {"status": 403, "title": "Forbidden", "detail": "Logs, and events of pods, are for the job's owner."}


def test_events_merges_transitions_and_pod_events_by_time(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.answers = [(200, JOB), (200, listed(QUEUED, RAN, shortened=True)), (200, listed(MOUNT))]
    assert cli.main(["events", ID]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert [line.split()[3 if "UTC" in line else 2] for line in lines[1:]] == ["queued", "Kubernetes", "running"]
    assert ("(3 times)" in lines[2], "\x1b" in told.out, "only the latest" in told.err) == (True, False, True)


def test_events_lets_the_service_search_both(logged_in: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    logged_in.answers = [(200, JOB), (200, listed()), (200, listed())]
    assert cli.main(["events", ID, "--search", "a place"]) == 0
    assert capsys.readouterr().out == "No matching entries.\n"
    assert logged_in.queries("/events") == logged_in.queries("/pod-events") == ["search=a+place"]


def test_events_without_the_right_to_pod_events_prints_transitions(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.answers = [(200, JOB), (200, listed(QUEUED)), (403, NOT_YOURS)]
    assert cli.main(["events", ID, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"events": [QUEUED], "events_shortened": False, "pod_events": []}
    assert NOT_YOURS["detail"] in told.err


# A service whose every name is hostile

HOSTILE = "\x1b[2J\x1b]0;t\x07\x9b1m\u202eexe\u2066\u200b\ufeff\r\n\0</script>\ud800=cmd|' /C calc'!A0"
HARMFUL_JOB: dict[str, Any] = {
    **dict.fromkeys(("user", "server", "team", "template", "why", "priority", "gpu_type", "reason"), HOSTILE),
    **{"id": ID, "state": "queued", "position": 1, "gpus": 1, "cpu": 2, "memory_bytes": 3, "preemptible": True},
    **{"nodes": [HOSTILE], "submitted": AT, "started": None, "ended": None, "notice": None},
    "endpoints": [{"name": HOSTILE, "protocol": "http", "url": HOSTILE}, {"name": "ssh", "command": f"ssh {HOSTILE}"}],
    "estimate": {"from": AT, "to": AT, "basis": HOSTILE},
    "stop": {"reason": HOSTILE, "sentence": HOSTILE, "at": AT},
}
NUMBERS = ("total", "free", "most_on_one_node", "unschedulable", "waiting_gpus", "entitled", "used", "borrowed")
SHARE = {**dict.fromkeys(("team", "name", "title", "gpu_type"), HOSTILE), **dict.fromkeys(NUMBERS, 1)}
APPROVAL = {**HARMFUL_JOB, "job": ID, "what": HOSTILE, "state": "waiting", "id": "f" * 16, "kind": "soft-cap"}
HARM: dict[str, Any] = {
    "/hub/api/user": {"name": "mallory"},
    f"jobs/{ID}/events": listed({"at": AT, "state": "queued", "reason": HOSTILE, "detail": HOSTILE}),
    f"jobs/{ID}/keep-alive": {"sentence": HOSTILE},
    f"jobs/{ID}/log": HOSTILE,
    "jobs": listed(HARMFUL_JOB),
    "queue": listed(HARMFUL_JOB),
    "quota": listed(SHARE),
    "cluster": {"gpu_types": [SHARE], "nodes": []},
    "approvals": listed(APPROVAL),
}
WITH_ID = ("show", "kill", "keep-alive", "requeue", "approve", "deny")
AS_TEXT = ["list", "list --all", "show nobody", "queue", "quota", "cluster", "approvals"]
AS_TEXT += [f"{word} {ID}" for word in WITH_ID]
COMMANDS = [*AS_TEXT, *(f"{words} --json" for words in AS_TEXT), f"logs {ID}", f"ssh {ID}"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("refused", [False, True], ids=["answered", "refused"])
@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_text_of_others_never_controls_the_terminal(
    logged_in: Scripted, command: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    no = {"detail": HOSTILE, "title": HOSTILE, "status": 409}
    logged_in.routes = {} if refused else HARM
    logged_in.answers = [(409, no) if refused else (200, HARMFUL_JOB)]
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    cli.main(command.split())
    shown = out.getvalue() + err.getvalue()
    assert shown
    assert "does not" not in shown, "the service has answered"
    assert [ascii(char) for char in shown if not char.isprintable() and char not in "\n\t"] == []
    shown.encode()


def test_drain_waits_until_the_node_is_free(logged_in: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    def node(state: str, jobs: int) -> tuple[int, object]:
        return 200, {"nodes": [{"name": "n1", "state": state, "jobs": jobs}]}

    logged_in.answers = [(204, None), node("ready", 0), node("cordoned", 2), node("cordoned", 1), node("cordoned", 0)]
    assert cli.main(["drain", "n1", "--at", "2031-05-04T12:00:00Z", "--message", "Kernel"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "n1 is closed and free of jobs.\n"
    assert "n1 is closed. Jobs there until 2031-05-04 12:00:00 UTC: 2.\n" in printed.err
    logged_in.answers = [(204, None), node("cordoned", 1), node("ready", 1)]
    assert cli.main(["drain", "n1", "--at", "2031-05-04T12:00:00Z", "--message", "Kernel"]) == 1
    assert "was opened again" in capsys.readouterr().err
    logged_in.answers = [(204, None)]
    assert cli.main(["uncordon", "n1"]) == 0
    assert capsys.readouterr().out == "n1: uncordoned.\n"


# Completion

# Reads command lines, and calls for each what is registered for the command, as bash does when Tab is pressed.
TAB = """
set -e
eval "$("$PYTHON" -m dlspawner.cli completion bash)"
read -ra registered < <(complete -p dlspawner)
for ((at = 0; at < ${#registered[@]}; at++)); do [[ ${registered[at]} == -F ]] && called=${registered[at+1]}; done
while read -ra words; do
  COMP_WORDS=(dlspawner "${words[@]}") COMP_CWORD=${#words[@]} COMPREPLY=()
  $called dlspawner "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" || true
  echo "${COMPREPLY[@]}"
done
"""
COMPLETED = {
    "su": "submit",
    "approv": "approvals approve",
    "show --": "--json --help",
    "logs train --s": "--search",
    "completion z": "zsh",
    "--v": "--version",
    "list nothing": "",
    "list --s": "--server --since --state",
    "list --state pen": "pending-approval",
}


def test_bash_completes_commands_options_and_values() -> None:
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHON": sys.executable}
    line, given = ["bash", "--norc", "-c", TAB], "".join(f"{words}\n" for words in COMPLETED)
    done = subprocess.run(line, env=environ, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = dict(zip(COMPLETED, map(str.split, done.stdout.splitlines()), strict=True))
    assert {words: set(one) for words, one in found.items()} == {
        words: set(one.split()) for words, one in COMPLETED.items()
    }
