"""The page of SSH keys, without JavaScript over plain HTTP; test_portal_browser looks at it in a browser."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser

import asyncssh
import pytest
import requests
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import HTTPError

from dlspawner.manager.http.handlers import ManagerHandler
from tests.component.manager.real_hub import RealHub

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def make_key(comment: str = "laptop") -> str:
    return asyncssh.generate_private_key("ssh-ed25519", comment=comment).export_public_key().decode().strip()


class Forms(HTMLParser):
    """The forms of a page: where each posts to, and its hidden fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append((given.get("action", ""), {}))
        elif tag == "input" and self.found and given.get("name"):
            self.found[-1][1][given["name"]] = given.get("value", "")


class Browser:
    """A browser without JavaScript, logged in."""

    def __init__(self, real_hub: RealHub, person: str) -> None:
        self.real_hub = real_hub
        self.session = requests.Session()
        login = self.session.get(f"{real_hub.public}/hub/login", timeout=30)
        (form,) = [fields for action, fields in Forms(login.text).found if "login" in action]
        data = {**form, "username": person, "password": "any"}
        # No spawn after login: straight to the page.
        answer = self.session.post(f"{real_hub.public}/hub/login?next=/hub/token", data=data, timeout=30)
        assert answer.ok, answer.text

    def open(self, query: str = "") -> requests.Response:
        return self.session.get(f"{self.real_hub.jobs}/keys{query}", timeout=30)

    def submit(self, page: requests.Response, where: str, **fields: str) -> requests.Response:
        """Send the first form whose address matches."""
        action, hidden = next(form for form in Forms(page.text).found if re.search(where, form[0]))
        return self.session.post(self.real_hub.public + action, data={**hidden, **fields}, timeout=30)


@pytest.fixture
def browser(real_hub: RealHub, person: str) -> Iterator[Browser]:
    browser = Browser(real_hub, person)
    yield browser
    browser.session.close()


def test_key_is_added_shown_and_removed_by_forms(browser: Browser) -> None:
    empty = browser.session.get(f"{browser.real_hub.jobs}/", timeout=30)
    assert empty.url == f"{browser.real_hub.jobs}/keys", "a Manager without jobs has this page alone"
    assert "ssh-keygen -t ed25519" in empty.text
    key = make_key("my laptop")
    added = browser.submit(empty, r"/keys$", key=key, name="")
    assert added.history[0].status_code == 303
    assert "Added <strong>my laptop</strong>" in added.text
    assert 'role="status"' not in browser.open().text, "once"
    (number,) = re.findall(r"keys/(\d+)/remove", added.text)
    assert 'role="status"' not in browser.open(f"?removed=1&saved=1&added={number}&known={number}").text
    again = browser.submit(browser.open(), r"/keys$", key=f"{key}\n{make_key('two')}")
    assert "Added <strong>two</strong>" in again.text
    assert "You had this key already, as <strong>my laptop</strong>" in again.text
    removed = browser.submit(again, r"/remove$")
    assert "The key was removed. SSH sessions that it let in end within a minute." in removed.text
    assert len(re.findall(r"keys/(\d+)/remove", removed.text)) == 1


def test_rejected_key_is_explained_and_the_input_kept(browser: Browser) -> None:
    page = browser.submit(browser.open(), r"/keys$", key="ssh-dss AAAAB3", name="old")
    assert page.status_code == 422
    assert "DSA keys can no longer be trusted" in page.text
    assert "ssh-dss AAAAB3</textarea>" in page.text
    assert 'value="old"' in page.text


def test_private_key_is_neither_shown_nor_stored_nor_logged(browser: Browser) -> None:
    private = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    secret = private.splitlines()[2]
    page = browser.submit(browser.open(), r"/keys$", key=private)
    assert page.status_code == 422
    assert "It was not stored" in page.text
    assert secret not in page.text
    for log in ("manager.log", "hub.log"):
        assert secret not in (browser.real_hub.directory / log).read_text()
    assert secret.encode() not in (browser.real_hub.directory / "manager.sqlite").read_bytes()


def test_key_found_by_a_job_is_offered_and_imported(browser: Browser, real_hub: RealHub, person: str) -> None:
    headers = {"Authorization": f"token {real_hub.server_token(person, 'train')}"}
    body = {"keys": [{"key": make_key(HOSTILE), "source": "~/.ssh/id_ed25519.pub<script>"}]}
    assert (
        requests.put(f"{real_hub.jobs}/api/key-suggestions", json=body, headers=headers, timeout=30).status_code == 204
    )
    page = browser.open()
    assert "Found in your home directory" in page.text
    assert "<script>alert" not in page.text
    assert ".pub<script>" not in page.text
    done = browser.submit(page, r"/import$")
    assert "Found in your home directory" not in done.text
    assert "Added <strong>" in done.text


def test_request_cannot_forge_log_lines(real_hub: RealHub) -> None:
    word = uuid.uuid4().hex
    told = f"error=x&error_description=a%0A[I {word}] decision=approved"
    assert requests.get(f"{real_hub.jobs}/oauth_callback?{told}", timeout=30).status_code == 403
    found = [line for line in (real_hub.directory / "manager.log").read_text().splitlines() if word in line]
    assert found
    assert all("login not completed" in line for line in found)


@pytest.mark.parametrize("error", [ValueError("no"), HTTPError(400, "no")], ids=["a fault", "a refusal of tornado's"])
def test_logged_fault_has_no_query(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    handler = ManagerHandler.__new__(ManagerHandler)
    line = RequestStartLine("GET", "/services/jobs/keys?code=secret", "HTTP/1.1")
    handler.request = HTTPServerRequest(start_line=line, headers=HTTPHeaders({"Host": "hub"}))
    handler.log_exception(type(error), error, None)
    assert "GET /services/jobs/keys" in caplog.text
    assert "secret" not in caplog.text
