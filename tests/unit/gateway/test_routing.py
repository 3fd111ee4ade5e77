"""From login names to jobs, and the sentences of refusals."""

from __future__ import annotations

import pytest

from ssh_gateway.core.routing import (
    JobCondition,
    JobEndpoint,
    LoginName,
    find_job,
    is_jump,
    jump_server,
    parse_logins,
    printable,
    refusal,
)

URL = "http://hub.example/"


def job(server: str, condition: JobCondition = JobCondition.READY, created: str = "") -> JobEndpoint:
    return JobEndpoint(server, condition, created)


@pytest.mark.parametrize(
    ("written", "meant"),
    {
        "a user and a server": ("alice+train", [LoginName("alice", "train")]),
        "a plus and nothing is the default server": ("alice+", [LoginName("alice", "")]),
        "a user alone leaves the server open": ("alice", [LoginName("alice", None)]),
        "the last plus separates, because names may hold one": ("al+ice+train", [LoginName("al+ice", "train")]),
        "a Hub may keep capitals": ("Alice+Train", [LoginName("Alice", "Train"), LoginName("alice", "Train")]),
    }.values(),
)
def test_login_name_is_parsed(written: str, meant: list[LoginName]) -> None:
    assert list(parse_logins(written, written)) == meant


def test_login_name_as_typed_comes_before_the_folded_one() -> None:
    assert parse_logins("Ａlice＋x", "Alice+x") == (LoginName("Ａlice＋x", None), LoginName("alice", "x"))
    assert parse_logins("al\u00adice", "alice") == (LoginName("alice", None),)


@pytest.mark.parametrize(
    "written",
    ["", "+", "+train", "../x", "alice+a/b", "al\x00ice", "al\nice+x", "al\x1b[31mice", "a" * 256, "\u202eecila", " "],
)
def test_invalid_login_name_means_no_login(written: str) -> None:
    assert parse_logins(written, written) == ()


def test_exact_name_wins_over_lower_case() -> None:
    assert find_job("Train", [job("train"), job("Train")]) == job("Train")
    assert find_job("TRAIN", [job("train")]) == job("train")
    assert find_job("train", [job("Train")]) is None


def test_successor_of_a_stopping_job_is_found() -> None:
    old, new = job("train", JobCondition.STOPPING, "2026-01-02"), job("train", JobCondition.STARTING, "2026-01-01")
    assert find_job("train", [old, new]) == new


def test_oldest_live_job_is_found() -> None:
    own, later = job("train", JobCondition.STARTING, "2026-01-01"), job("train", JobCondition.READY, "2026-01-02")
    assert find_job("train", [later, own]) == own


STARTING, STOPPING, WITHOUT_SSH = JobCondition.STARTING, JobCondition.STOPPING, JobCondition.WITHOUT_SSH
AGAIN = "http://hub.example/hub/spawn/alice"
# The server of a login, the jobs of its user, and what is said; one more server of the user, `idle`, does not run.
OBSTACLES: dict[str, tuple[str, list[JobEndpoint], str | None]] = {
    "a ready job has none": ("train", [job("train")], None),
    "a typing error": ("trian", [job("eval"), job("train")], "no job trian; yours: train, eval"),
    "only what one could enter is offered": (
        "x",
        [job("a", STOPPING), job("b", WITHOUT_SSH), job("c", STARTING)],
        "no job x; yours: c",
    ),
    "long lists are cut": (
        "x",
        [job(f"job{n}") for n in range(10)],
        "no job x; yours: job0, job1, job2, job3, job4, job5, job6, job7 and 2 more",
    ),
    "nothing runs": ("x", [], "no job x; you have none that runs: start one at http://hub.example/hub/home"),
    "it exists and is stopped": ("idle", [job("eval")], f"idle is not running: start it at {AGAIN}/idle; yours: eval"),
    "no default server": ("", [], "your default server is not running: start it at http://hub.example/hub/spawn"),
    "the default server is listed in words": ("x", [job("")], "no job x; yours: the default server"),
    "it is on its way": ("train", [job("train", STARTING)], "train is starting: try again in a moment"),
    "it is going away": (
        "train",
        [job("train", STOPPING)],
        f"train is stopping: wait until it is gone, then start it again at {AGAIN}/train",
    ),
    "it has no ssh": ("tb", [job("tb", WITHOUT_SSH)], "tb offers no SSH: its template has no ssh endpoint"),
    "control characters do not reach the terminal": ("\x1b]0;x\x07", [job("a")], "no job ?]0;x?; yours: a"),
}


@pytest.mark.parametrize(("server", "jobs", "sentence"), OBSTACLES.values(), ids=OBSTACLES)
def test_refusal_names_the_obstacle(server: str, jobs: list[JobEndpoint], sentence: str | None) -> None:
    assert refusal("alice", server, jobs, ("idle",), URL) == sentence


@pytest.mark.parametrize(
    ("host", "server"),
    {
        "a job's name": ("train", "train"),
        "the login of the job": ("alice+train", "train"),
        "the login of the default server": ("alice+", ""),
        "a job of another user": ("bob+train", None),
        "a path": ("../train", None),
    }.values(),
)
def test_jump_host_is_a_server(host: str, server: str | None) -> None:
    assert jump_server(host, "alice") == server


def test_only_port_22_is_a_jump() -> None:
    assert is_jump("train", 22)
    assert is_jump("10.0.0.1", 22)
    assert not is_jump("train", 8888)
    assert not is_jump("localhost", 22)


def test_printable_text_is_short_ascii() -> None:
    assert printable("ä\n" + "x" * 100) == "??" + "x" * 62 + "…"
