"""The client of the service: which requests it repeats, what it takes for an answer, and the exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlspawner import cli
from dlspawner.client import login
from dlspawner.client.service import Service, Unreachable
from tests.component.client.conftest import CLOSES, HALF, HANGS, Scripted
from tests.harness.ports import free_port

EMPTY = (200, {"items": []})


def service(server: Scripted, prefix: str = "") -> Service:
    return Service(server.url + prefix, "secret", sleep=lambda _: None)


def methods(server: Scripted) -> list[str]:
    return [method for method, _, _ in server.asked]


def test_reads_and_submissions_are_repeated_until_they_are_answered(server: Scripted) -> None:
    server.answers = [(CLOSES, ""), (503, {"detail": "not yet"}), EMPTY]
    assert service(server).get("jobs") == {"items": []}
    server.answers = [(CLOSES, ""), (201, {"id": "j"})]
    assert service(server).post("jobs", {}, repeats=True) == {"id": "j"}
    assert methods(server) == ["GET"] * 3 + ["POST"] * 2


@pytest.mark.parametrize(("status", "words"), [(CLOSES, "does not answer"), (403, "403")], ids=["closed", "a page"])
def test_other_requests_are_sent_once(server: Scripted, status: int, words: str) -> None:
    server.answers = [(status, "<html>"), (200, {})]
    with pytest.raises(Unreachable, match=words):
        service(server).post("jobs/j/approve")
    assert methods(server) == ["POST"]


def test_deletion_may_be_answered_without_a_body_and_not_with_a_page(server: Scripted) -> None:
    server.answers = [(202, ""), (202, "<html>")]
    assert service(server).delete("jobs/j") == {}
    with pytest.raises(Unreachable, match="it sent a page"):
        service(server).delete("jobs/j")


def test_redirect_elsewhere_is_refused_and_not_followed(server: Scripted) -> None:
    server.answers = [(302, f"{server.url}/elsewhere")]
    with pytest.raises(Unreachable, match="as a Hub with dlspawner"):
        service(server).get("jobs")
    assert [path for _, path, _ in server.asked] == ["/services/jobs/api/jobs"], "the token goes nowhere else"


@pytest.mark.parametrize(
    ("location", "prefix"),
    [
        ("/hub/services/jobs/api/jobs", ""),
        ("https://hub.example.org/hub/services/jobs/api/jobs", ""),
        ("/lab/hub/services/jobs/api/jobs", "/lab"),
    ],
    ids=["on this host", "on the Hub's own host", "below a prefix"],
)
def test_redirect_to_the_pages_of_the_hub_is_repeated(server: Scripted, location: str, prefix: str) -> None:
    server.answers = [(302, location), (302, location), EMPTY]
    assert service(server, prefix).get("jobs") == {"items": []}
    assert {path for _, path, _ in server.asked} == {f"{prefix}/services/jobs/api/jobs"}


@pytest.mark.parametrize("body", [[], {}, {"items": 1, "next": None}], ids=["a list", "nothing", "a number"])
def test_answer_of_another_form_is_no_hub(server: Scripted, body: Any) -> None:
    server.answers = [(200, body)]
    with pytest.raises(Unreachable, match="as a Hub"):
        list(service(server).items("jobs"))


def test_pages_of_a_list_are_followed_to_the_end(server: Scripted) -> None:
    server.answers = [(200, {"items": [1], "next": "c&d"}), (200, {"items": [2], "next": None})]
    assert list(service(server).items("jobs", {"limit": "1"})) == [1, 2]
    assert server.queries("/jobs")[1] == "limit=1&cursor=c%26d"


PAGES = [
    pytest.param(503, id="the proxy while the Manager is down"),
    pytest.param(404, id="the Hub before the proxy has a route to the Manager"),
    pytest.param(200, id="a page for browsers"),
]


@pytest.mark.parametrize("status", PAGES)
def test_page_in_place_of_an_answer_is_repeated_and_then_5(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    logged_in.answers = [(status, "<html>"), (status, "<html>"), (200, {"id": "j"})]
    assert service(logged_in).post("jobs", {}, repeats=True) == {"id": "j"}
    logged_in.asked.clear()
    capsys.readouterr()
    logged_in.answers = [(status, "<html>")]
    assert cli.main(["cluster"]) == 5
    *again, last = capsys.readouterr().err.splitlines()
    assert "the service of its jobs does not" in last
    assert "Jobs that run go on." in last
    assert [line.endswith("Asking again.") for line in again] == [True, True], again
    assert len(logged_in.asked) == 3


def test_silent_service_is_reported_with_status_5(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlspawner.client.service.ASK_SECONDS", 0.3)
    logged_in.answers = [(HANGS, "")]
    assert cli.main(["cluster"]) == 5
    assert capsys.readouterr().err.count("does not answer (timed out). Asking again.") == 2


@pytest.mark.parametrize(
    ("log", "printed", "told"),
    [((HALF, "first\nsec"), "first\n", "stopped answering in the middle"), ((CLOSES, ""), "", "does not answer")],
    ids=["breaks off", "is not sent"],
)
def test_log_without_its_end_is_5(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str], log: tuple[int, str], printed: str, told: str
) -> None:
    logged_in.answers = [(200, {"id": "j-aaaaaaaaaaaa"}), log]
    assert cli.main(["logs", "j-aaaaaaaaaaaa"]) == 5
    out, err = capsys.readouterr()
    assert (out.startswith(printed), told in err) == (True, True)


@pytest.mark.parametrize(("status", "code"), [(404, 3), (401, 4), (403, 1), (422, 1), (500, 1), (503, 5)])
def test_exit_code_follows_from_the_status_and_the_sentence_is_told(
    logged_in: Scripted, capsys: pytest.CaptureFixture[str], status: int, code: int
) -> None:
    logged_in.answers = [(status, {"detail": "Your team may borrow at most 4 GPUs."})]
    assert cli.main(["quota"]) == code
    assert ("at most 4 GPUs" in capsys.readouterr().err) is (status != 401)


def test_token_that_the_hub_refuses_is_4(logged_in: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    logged_in.answers = [(403, {"status": 403, "message": "Forbidden"})]  # as JupyterHub says it
    assert cli.main(["list"]) == 4
    assert "token is not taken" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:PORT", f"https://{'a' * 64}.example"])
def test_unreachable_hub_is_5(home: Path, url: str) -> None:
    login.keep(
        login.kept_file({"XDG_CONFIG_HOME": str(home / ".config")}), url.replace("PORT", str(free_port())), "secret"
    )
    assert cli.main(["quota"]) == 5
