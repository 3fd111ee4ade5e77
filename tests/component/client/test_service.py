"""The client and a server that is not as it should be: what is asked again, what is not, and how a command ends."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dlspawner import cli
from dlspawner.client import login
from dlspawner.client.service import ClientProblem, Refused, Service, Unreachable
from tests.harness.ports import free_port

HANGS, HALF, LOG = -1, -2, -3  # instead of a status: no answer, a text that breaks off, and a whole one


@dataclass
class Scripted:
    """A server that answers what a test has put down, one after the other; the last one for ever."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def next(self) -> tuple[int, Any]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def server() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.asked.append((self.command, self.path, dict(self.headers.items())))
            status, body = script.next()
            if status == HANGS:
                script.ended.wait(30)
            if status in {0, HANGS}:
                self.close_connection = True
                return
            self.send_response(200 if status in {HALF, LOG} else status)
            if status == 302:
                self.send_header("Location", body)
            kind = (
                "text/plain" if status in {HALF, LOG} else "text/html" if isinstance(body, str) else "application/json"
            )
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_header("Content-Length", str(len(content) + (99 if status == HALF else 0)))
            self.close_connection = status == HALF
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that hangs up; what is printed is the client's alone

    http = Quiet(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    script.ended.set()
    http.shutdown()
    thread.join()
    http.server_close()


def service(server: Scripted) -> Service:
    return Service(server.url, "secret", sleep=lambda _: None)


def test_a_question_is_asked_again_until_somebody_answers(server: Scripted) -> None:
    server.answers = [(0, ""), (503, {"detail": "not yet"}), (200, {"items": []})]
    assert service(server).get("jobs") == {"items": []}
    assert len(server.asked) == 3


def test_submission_without_an_answer_is_repeated(server: Scripted) -> None:
    server.answers = [(0, ""), (201, {"id": "j"})]
    assert service(server).post("jobs", {}, repeats=True) == {"id": "j"}
    assert len(server.asked) == 2


def test_other_requests_are_sent_once(server: Scripted) -> None:
    server.answers = [(0, ""), (200, {})]
    with pytest.raises(Unreachable):
        service(server).post("jobs/j/approve")
    assert len(server.asked) == 1


def test_a_token_goes_to_no_other_address(server: Scripted) -> None:
    server.answers = [(302, f"{server.url}/elsewhere")]
    with pytest.raises(Unreachable, match="as a Hub with dlspawner"):
        service(server).get("jobs")
    assert [path for _, path, _ in server.asked] == ["/services/jobs/api/jobs"]


def test_an_answer_without_a_body_is_one_whatever_kind_it_says(server: Scripted) -> None:
    server.answers = [(202, "")]  # what the Manager says, as tornado does it, while a job stops
    assert service(server).delete("jobs/j") == {}
    assert len(server.asked) == 1


def test_a_page_that_came_in_place_of_a_stop_is_no_answer(server: Scripted) -> None:
    server.answers = [(202, "<html>")]
    with pytest.raises(Unreachable, match="it sent a page"):
        service(server).delete("jobs/j")


NO_ROUTE = [
    pytest.param("/hub/services/jobs/api/jobs", id="on this host"),
    pytest.param("https://hub.example.org/hub/services/jobs/api/jobs", id="on the Hub's own host"),
]


@pytest.mark.parametrize("location", NO_ROUTE)
def test_a_redirect_to_the_hubs_pages_is_no_answer_yet(server: Scripted, location: str) -> None:
    server.answers = [(302, location), (302, location), (200, {"items": []})]
    assert service(server).get("jobs") == {"items": []}
    assert {path for _, path, _ in server.asked} == {"/services/jobs/api/jobs"}, "the token goes nowhere else"


def test_a_redirect_to_the_hubs_pages_stays_one_below_a_prefix(server: Scripted) -> None:
    server.answers = [(302, "/lab/hub/services/jobs/api/jobs"), (200, {"items": []})]
    lab = Service(f"{server.url}/lab", "secret", sleep=lambda _: None)
    assert lab.get("jobs") == {"items": []}


def test_a_login_waits_for_the_way_to_the_service(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    server.answers = [(200, {"name": "alice"}), (302, "/hub/services/jobs/api/jobs?limit=1"), (200, {"items": []})]
    assert cli.main(["login", server.url]) == 0
    told = capsys.readouterr()
    assert told.out == f"Logged in to {server.url} as alice.\n"
    assert "the Hub shows its own pages, 302" in told.err
    assert "It may be starting anew" in told.err


def test_a_no_is_told_in_its_own_words(server: Scripted) -> None:
    server.answers = [(403, {"detail": "Your team may borrow at most 4 GPUs."})]
    with pytest.raises(Refused, match="at most 4") as no:
        service(server).get("jobs")
    assert no.value.code == 1


@pytest.mark.parametrize("body", [[], {}, {"items": 1, "next": None}], ids=["a list", "nothing", "a number"])
def test_an_answer_of_something_else_is_nobodys(server: Scripted, body: Any) -> None:
    server.answers = [(200, body)]
    with pytest.raises(Unreachable, match="as a Hub"):
        list(service(server).items("jobs"))


PAGES = [
    pytest.param(503, id="the proxy, when the Manager is down"),
    pytest.param(502, id="something before the proxy"),
    pytest.param(404, id="the Hub, when the proxy has no route to the Manager yet"),
    pytest.param(403, id="the Hub, to a method that changes something"),
    pytest.param(200, id="a page for browsers"),
]


@pytest.mark.parametrize("status", PAGES)
def test_a_page_in_place_of_the_service_is_no_answer(server: Scripted, status: int) -> None:
    server.answers = [(status, "<html>"), (status, "<html>"), (200, {"id": "j"})]
    assert service(server).post("jobs", {}, repeats=True) == {"id": "j"}
    assert [method for method, _, _ in server.asked] == ["POST"] * 3


@pytest.mark.parametrize("status", PAGES)
def test_nothing_but_pages_is_5_with_a_sentence(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), server.url, "secret")
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    server.answers = [(status, "<html>")]
    assert cli.main(["cluster"]) == 5
    *again, last = capsys.readouterr().err.splitlines()
    assert "the service of its jobs does not" in last
    assert "Jobs that run go on." in last
    assert [line.endswith("Asking again.") for line in again] == [True, True], again
    assert len(server.asked) == 3


def test_what_was_judged_is_not_judged_again(server: Scripted) -> None:
    server.answers = [(403, "<html>"), (200, {})]
    with pytest.raises(Unreachable, match="403"):
        service(server).post("jobs/j/approve")
    assert len(server.asked) == 1


def test_silence_is_told_and_is_5(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), server.url, "secret")
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("dlspawner.client.service.ASK_SECONDS", 0.3)
    server.answers = [(HANGS, "")]
    assert cli.main(["cluster"]) == 5
    assert capsys.readouterr().err.count("does not answer (timed out). Asking again.") == 2


def test_a_log_that_breaks_off_is_5(server: Scripted, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), server.url, "secret")
    server.answers = [(200, {"id": "j-aaaaaaaaaaaa"}), (HALF, "first\nsec")]
    assert cli.main(["logs", "j-aaaaaaaaaaaa"]) == 5
    told = capsys.readouterr()
    assert told.out.startswith("first\n")
    assert "stopped answering in the middle" in told.err


def test_a_log_that_nobody_can_send_is_5(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), server.url, "secret")
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    server.answers = [(200, {"id": "j-aaaaaaaaaaaa"}), (0, "")]
    assert cli.main(["logs", "j-aaaaaaaaaaaa"]) == 5
    assert "does not answer" in capsys.readouterr().err


def test_pages_are_followed_to_the_end(server: Scripted) -> None:
    server.answers = [(200, {"items": [1], "next": "c&d"}), (200, {"items": [2], "next": None})]
    assert list(service(server).items("jobs", {"limit": "1"})) == [1, 2]
    assert server.asked[1][1].endswith("?limit=1&cursor=c%26d")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DLSPAWNER_URL", raising=False)
    monkeypatch.delenv("DLSPAWNER_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize(("status", "code"), [(404, 3), (401, 4), (403, 1), (422, 1), (500, 1), (503, 5)], ids=str)
def test_exit_codes_say_what_went_wrong(
    server: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), server.url, "secret")
    server.answers = [(status, {"detail": "No."})]
    assert cli.main(["quota"]) == code


def test_a_token_that_the_hub_does_not_know_is_4(
    server: Scripted, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), server.url, "secret")
    server.answers = [(403, {"status": 403, "message": "Forbidden"})]  # as JupyterHub says it
    assert cli.main(["list"]) == 4
    assert "token is not taken" in capsys.readouterr().err


def test_nobody_there_is_5_and_not_logged_in_4(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 4
    assert "dlspawner login" in capsys.readouterr().err
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), f"http://127.0.0.1:{free_port()}", "secret")
    assert cli.main(["list"]) == 5


def test_a_login_is_readable_for_its_owner_alone(server: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    server.answers = [(200, {"name": "alice"}), (200, {"items": [], "next": None})]
    assert cli.main(["login", f"{server.url}/hub/home"]) == 0
    file = home / "dlspawner" / "login.json"
    assert (file.stat().st_mode & 0o777, json.loads(file.read_text())) == (
        0o600,
        {"url": server.url, "token": "secret"},
    )


def test_a_kept_token_is_not_sent_to_another_hub(server: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), "https://hub.example.org", "secret")
    monkeypatch.setenv("DLSPAWNER_URL", server.url)
    server.answers = [(200, {})]
    assert cli.main(["quota"]) == 4
    assert server.asked == []


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("hub.example.org", "https://hub.example.org"),
        ("https://hub.example.org/lab/hub/home?x=1", "https://hub.example.org/lab"),
        ("http://127.0.0.1:8000/services/jobs/", "http://127.0.0.1:8000"),
        ("https://hub.example.org/lab/hub", "https://hub.example.org/lab"),
    ],
)
def test_any_page_of_the_hub_will_do(given: str, url: str) -> None:
    assert login.url_of(given) == url


NO_ADDRESSES = [
    *("ftp://hub", "file:///etc/passwd", "https://", "https://me:pw@hub.example.org"),
    *("https://[x", "https://hub:99999", "https://hub:x", "https://hub.example.org/l\u00e4b", "https://\u5b57.example"),
    *("https://hub .example.org", "https://hub.example.org/\x7f"),
]


@pytest.mark.parametrize("given", NO_ADDRESSES, ids=ascii)
def test_other_addresses_are_none_of_a_hub(given: str) -> None:
    with pytest.raises(ClientProblem, match="no address of a Hub"):
        login.url_of(given)


def test_a_login_that_cannot_be_kept_is_told(
    server: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "dlspawner").write_text("a file where the folder should be")
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    server.answers = [(200, {"name": "alice"}), (200, {"items": [], "next": None})]
    assert cli.main(["login", server.url]) == 1
    told = capsys.readouterr()
    assert (told.out, "secret" in told.err) == ("", False)
    assert f"{home / 'dlspawner' / 'login.json'} cannot be written: " in told.err
    assert "DLSPAWNER_TOKEN" in told.err, "what works without a file"


def test_a_host_that_no_resolver_takes_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    login.keep(login.kept_file({"XDG_CONFIG_HOME": str(home)}), f"https://{'a' * 64}.example", "secret")
    assert cli.main(["quota"]) == 5
