"""The page of SSH keys as people use it: without JavaScript over plain HTTP, and in a real browser."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import asyncssh
import pytest
import requests
from playwright.sync_api import Page, expect, sync_playwright
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import HTTPError

from dlspawner.manager.http.handlers import ManagerHandler
from tests.component.manager.world import World
from tests.harness.chromium import LAUNCH, PATIENCE

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
    """Somebody at a browser without JavaScript."""

    def __init__(self, world: World, person: str) -> None:
        self.world = world
        self.session = requests.Session()
        login = self.session.get(f"{world.public}/hub/login", timeout=30)
        (form,) = [fields for action, fields in Forms(login.text).found if "login" in action]
        data = {**form, "username": person, "password": "any"}
        # No spawn after login: straight to the page.
        answer = self.session.post(f"{world.public}/hub/login?next=/hub/token", data=data, timeout=30)
        assert answer.ok, answer.text

    def open(self, query: str = "") -> requests.Response:
        return self.session.get(f"{self.world.jobs}/keys{query}", timeout=30)

    def submit(self, page: requests.Response, where: str, **fields: str) -> requests.Response:
        """Send the first form whose address matches."""
        action, hidden = next(form for form in Forms(page.text).found if re.search(where, form[0]))
        return self.session.post(self.world.public + action, data={**hidden, **fields}, timeout=30)


@pytest.fixture
def browser(world: World, person: str) -> Iterator[Browser]:
    browser = Browser(world, person)
    yield browser
    browser.session.close()


def test_the_services_address_leads_to_the_page_after_login(browser: Browser) -> None:
    answer = browser.session.get(f"{browser.world.jobs}/", timeout=30)
    assert (answer.status_code, answer.url) == (200, f"{browser.world.jobs}/keys")


def test_without_login_the_page_leads_to_the_hub(world: World) -> None:
    answer = requests.get(f"{world.jobs}/keys", timeout=30)
    assert "/hub/login" in answer.url


def test_an_empty_page_says_what_to_run(browser: Browser) -> None:
    page = browser.open()
    assert page.status_code == 200
    assert "ssh-keygen -t ed25519" in page.text
    assert "cat ~/.ssh/id_ed25519.pub" in page.text


def test_a_key_is_added_shown_and_removed_by_forms(browser: Browser) -> None:
    added = browser.submit(browser.open(), r"/keys$", key=make_key("my laptop"), name="")
    assert added.history[0].status_code == 303
    assert "Added <strong>my laptop</strong>" in added.text
    removed = browser.submit(added, r"/remove$")
    assert "The key was removed. SSH sessions that it let in end within a minute." in removed.text
    assert "my laptop" not in removed.text


def test_several_keys_and_known_ones_are_reported(browser: Browser) -> None:
    first, second = make_key("one"), make_key("two")
    browser.submit(browser.open(), r"/keys$", key=first)
    page = browser.submit(browser.open(), r"/keys$", key=f"{first}\n{second}")
    assert "Added <strong>two</strong>" in page.text
    assert "You had this key already, as <strong>one</strong>" in page.text


def test_a_wrong_key_is_explained_and_what_was_typed_is_kept(browser: Browser) -> None:
    page = browser.submit(browser.open(), r"/keys$", key="ssh-dss AAAAB3", name="old")
    assert page.status_code == 422
    assert "DSA keys can no longer be trusted" in page.text
    assert "ssh-dss AAAAB3</textarea>" in page.text
    assert 'value="old"' in page.text


def test_a_private_key_is_neither_shown_again_nor_logged(browser: Browser) -> None:
    private = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    secret = private.splitlines()[2]
    page = browser.submit(browser.open(), r"/keys$", key=private)
    assert page.status_code == 422
    assert "It was not stored" in page.text
    assert secret not in page.text
    for log in ("manager.log", "hub.log"):
        assert secret not in (browser.world.directory / log).read_text()
    assert secret.encode() not in (browser.world.directory / "manager.sqlite").read_bytes()


def test_hostile_names_are_shown_as_text(browser: Browser) -> None:
    page = browser.submit(browser.open(), r"/keys$", key=make_key(HOSTILE))
    assert "<script>alert" not in page.text
    assert "<img src=x" not in page.text
    assert "&lt;script&gt;alert(1)" in page.text
    wrong = browser.submit(page, r"/keys$", key=f"</textarea>{HOSTILE}", name=HOSTILE)
    assert "<script>alert" not in wrong.text
    assert "</textarea>&#34;" not in wrong.text


def test_only_scripts_of_the_templates_get_the_nonce(browser: Browser) -> None:
    page = browser.submit(browser.open(), r"/keys$", key=make_key("<script src=//evil.example></script>"))
    policy = page.headers["Content-Security-Policy"]
    (nonce,) = re.findall(r"script-src 'nonce-([^']+)'", policy)
    assert "unsafe-inline" not in policy
    scripts = re.findall(r"<script[^>]*>", page.text)
    assert scripts
    assert all(f'nonce="{nonce}"' in script for script in scripts)
    assert nonce not in browser.open().text


def test_a_form_without_its_value_changes_nothing(browser: Browser) -> None:
    page = browser.open()
    forged = browser.session.post(f"{browser.world.jobs}/keys", data={"key": make_key("forged")}, timeout=30)
    assert forged.status_code == 403
    assert "load it again" in forged.text
    other = Browser(browser.world, "mallory")
    (theirs,) = {fields["_xsrf"] for _, fields in Forms(other.open().text).found}
    other.session.close()
    stolen = browser.session.post(
        f"{browser.world.jobs}/keys", data={"key": make_key("forged"), "_xsrf": theirs}, timeout=30
    )
    assert stolen.status_code == 403
    assert "forged" not in browser.open().text
    assert page.ok


def test_one_cannot_remove_or_import_what_is_anothers(browser: Browser, world: World, person: str) -> None:
    headers = {"Authorization": f"token {world.token('victim')}"}
    body = {"key": make_key("victims")}
    (key,) = requests.post(f"{world.jobs}/api/keys", json=body, headers=headers, timeout=30).json()["keys"]
    page = browser.submit(browser.open(), r"/keys$", key=make_key("own"))
    xsrf = Forms(page.text).found[0][1]["_xsrf"]
    for path in (f"keys/{key['id']}/remove", "keys/suggestions/1/import"):
        browser.session.post(f"{world.jobs}/{path}", data={"_xsrf": xsrf}, timeout=30)
    kept = requests.get(f"{world.jobs}/api/keys", headers=headers, timeout=30).json()["keys"]
    assert key in kept


def test_what_was_done_is_said_once_and_by_no_link(browser: Browser) -> None:
    added = browser.submit(browser.open(), r"/keys$", key=make_key("my laptop"))
    assert (added.url, "Added <strong>" in added.text) == (f"{browser.world.jobs}/keys", True)
    assert 'role="status"' not in browser.open().text, "once"
    (number,) = re.findall(r"keys/(\d+)/remove", added.text)
    forged = browser.open(f"?removed=1&saved=1&added={number}&known={number}")
    assert 'role="status"' not in forged.text


def test_what_somebody_else_has_done_in_the_same_browser_is_not_said(browser: Browser, world: World) -> None:
    page = browser.submit(browser.open(), r"/keys$", key=make_key("one"))
    action, hidden = next(form for form in Forms(page.text).found if form[0].endswith("/remove"))
    answer = browser.session.post(world.public + action, data=hidden, timeout=30, allow_redirects=False)
    assert answer.status_code == 303
    other = Browser(world, "mallory")
    (said,) = [cookie for cookie in browser.session.cookies if cookie.name == "dlspawner-keys-said"]
    other.session.cookies.set_cookie(said)
    assert 'role="status"' not in other.open().text
    other.session.close()
    assert "The key was removed." in browser.open().text


def test_a_key_found_by_a_job_is_offered_and_imported(browser: Browser, world: World, person: str) -> None:
    headers = {"Authorization": f"token {world.server_token(person, 'train')}"}
    body = {"keys": [{"key": make_key(HOSTILE), "source": "~/.ssh/id_ed25519.pub<script>"}]}
    assert requests.put(f"{world.jobs}/api/key-suggestions", json=body, headers=headers, timeout=30).status_code == 204
    page = browser.open()
    assert "Found in your home directory" in page.text
    assert "<script>alert" not in page.text
    assert ".pub<script>" not in page.text
    done = browser.submit(page, r"/import$")
    assert "Found in your home directory" not in done.text
    assert "Added <strong>" in done.text


def test_a_body_that_is_no_text_is_a_problem_of_the_asker(browser: Browser) -> None:
    for data in (b"\xff\xfe", b"key=%ff", b"a=" + b"x" * 200_000):
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = browser.session.post(f"{browser.world.jobs}/keys", data=data, headers=headers, timeout=30)
        assert 400 <= answer.status_code < 500


def test_a_forged_login_ends_in_a_sentence(world: World) -> None:
    answer = requests.get(f"{world.jobs}/oauth_callback?code=forged&state=forged", timeout=30)
    assert answer.status_code == 403
    assert "The login did not complete" in answer.text


def test_nobody_writes_lines_of_their_own_into_the_log(world: World) -> None:
    word = uuid.uuid4().hex
    told = f"error=x&error_description=a%0A[I {word}] decision=approved"
    assert requests.get(f"{world.jobs}/oauth_callback?{told}", timeout=30).status_code == 403
    found = [line for line in (world.directory / "manager.log").read_text().splitlines() if word in line]
    assert found
    assert all("login not completed" in line for line in found)


@pytest.mark.parametrize("error", [ValueError("no"), HTTPError(400, "no")], ids=["a fault", "a refusal of tornado's"])
def test_what_is_logged_of_faults_is_without_the_query(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    handler = ManagerHandler.__new__(ManagerHandler)
    line = RequestStartLine("GET", "/services/jobs/keys?code=secret", "HTTP/1.1")
    handler.request = HTTPServerRequest(start_line=line, headers=HTTPHeaders({"Host": "hub"}))
    handler.log_exception(type(error), error, None)
    assert "GET /services/jobs/keys" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(("accept", "kind"), [("text/html,*/*", "text/html"), ("*/*", "application/problem+json")])
def test_an_address_that_is_not_there_is_told_to_people_and_programs(world: World, accept: str, kind: str) -> None:
    answer = requests.get(f"{world.jobs}/nothing", headers={"Accept": accept}, timeout=30)
    assert answer.status_code == 404
    assert answer.headers["Content-Type"].startswith(kind)
    assert "There is nothing at this address" in answer.text


# In Debian's Chromium


@pytest.fixture
def page(world: World) -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(**LAUNCH)
        page = chromium.new_context(viewport={"width": 1200, "height": 1000}, reduced_motion="reduce").new_page()
        page.set_default_timeout(PATIENCE)
        yield page
        chromium.close()


@pytest.mark.slow
@pytest.mark.browser
def test_in_a_browser(page: Page, world: World, person: str) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    pictures = Path("build/manager")
    pictures.mkdir(parents=True, exist_ok=True)
    page.goto(f"{world.jobs}/keys")
    page.fill("#username_input", person)
    page.fill("#password_input", "any")
    page.press("#password_input", "Enter")
    expect(page.get_by_role("heading", name="SSH keys", exact=True)).to_be_visible()
    page.screenshot(path=pictures / "keys-empty.png", full_page=True)

    key = make_key(HOSTILE)
    page.get_by_label("Public key").fill(f"{key}\n{make_key('alice@laptop')}")
    page.get_by_role("button", name="Add", exact=True).press("Enter")
    expect(page.get_by_role("status")).to_contain_text("alice@laptop")
    remove = page.get_by_role("button", name=re.compile("^Remove "))
    expect(remove).to_have_count(2)

    headers = {"Authorization": f"token {world.server_token(person, 'train')}"}
    found = {"keys": [{"key": make_key("alice@desk"), "source": "~/.ssh/id_ed25519.pub"}]}
    requests.put(f"{world.jobs}/api/key-suggestions", json=found, headers=headers, timeout=30)
    page.goto(f"{world.jobs}/keys")
    page.screenshot(path=pictures / "keys.png", full_page=True)
    page.get_by_role("button", name="Toggle dark mode").click()
    page.screenshot(path=pictures / "keys-dark.png", full_page=True)
    page.get_by_role("button", name="Import alice@desk").click()
    expect(remove).to_have_count(3)

    page.get_by_role("button", name="Remove alice@laptop").click()
    expect(remove).to_have_count(2)
    page.get_by_label("Public key").fill("ssh-ed25519 " + base64.b64encode(b"rubbish").decode())
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("damaged")
    page.set_viewport_size({"width": 390, "height": 1400})
    page.screenshot(path=pictures / "keys-phone.png", full_page=True)
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    # The one complaint that Chromium makes of the answer 422 itself.
    assert [text for text in complaints if "422" not in text] == []
