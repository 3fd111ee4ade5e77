"""The queue through the real Hub, its REST API and a real browser: eight GPUs, and people who want more.

`make test-on-control-planes` runs these on a real control plane too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import GPUS, QuotaHub, running
from tests.component.manager.test_approval_hub import chromium, log_in, send_form
from tests.component.manager.test_ssh_keys_page import Forms
from tests.e2e.people import wait_for
from tests.harness.chromium import PATIENCE
from tests.harness.spawner_hub import Person

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]
# Whose name says so is answered later than a second after the form was sent; whose login is in the file is too old.
# One counted failure would end the Hub (5.5 counts everything, so that nothing would start there).
MORE = """
import asyncio
import jupyterhub
from pathlib import Path
from jupyterhub.auth import Authenticator

async def late(spawner):
    if spawner.user.name.startswith("late"):
        await asyncio.sleep(3)
c.Spawner.pre_spawn_hook = late

async def refresh_user(self, user, handler=None, **more):
    return user.name not in Path({stale!r}).read_text().split()
Authenticator.refresh_user = refresh_user
c.Spawner.consecutive_failure_limit = 1 if jupyterhub.version_info[0] > 5 else 0
c.JupyterHub.load_groups = {{"guests": {{"users": ["guest"]}}}}
c.JupyterHub.load_roles.append({{"name": "guests", "groups": ["guests"], "scopes": ["access:servers!user=marks"]}})
c.Authenticator.refresh_pre_spawn = c.Authenticator.auth_refresh_strict = True
"""
__all__ = ["chromium"]  # a fixture
ADMIN = "an admin password of thirty-two letters"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("queue")
    (folder / "stale").touch()
    extra = MORE.format(stale=str(folder / "stale"))
    with running(QuotaHub(folder, settings=SETTINGS, extra=extra)) as made:
        yield made


@pytest.fixture
def full(hub: QuotaHub) -> str:
    """Somebody has all GPUs."""
    hub.api("POST", "/users/holder")
    hub.start_server("holder", gpus=GPUS)
    wait_for(lambda: hub.ready() == ["holder/"], "all GPUs are held", 60)
    return "holder"


def stop(hub: QuotaHub, user: str) -> None:
    hub.api("DELETE", f"/users/{user}/server")


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context(viewport={"width": 1100, "height": 800}, reduced_motion="reduce") as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        yield page


def ask(person: Person, method: str, user: str = "") -> requests.Response:
    """A program asks about the default server of this user, or its own."""
    url = f"{person.hub.url}/services/jobs/api/users/{user or person.name}/servers//pending-job"
    return requests.request(method, url, headers={"Authorization": f"token {person.token}"}, timeout=30)


class Plain(Person):
    """Somebody at a browser without JavaScript."""

    visit = Person.get

    def __init__(self, hub: QuotaHub, user: str, password: str = "") -> None:
        self.hub = hub
        super(Person, self).__init__(hub, user, password or hub.password)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def place(self, user: str, server: str = "") -> requests.Response:
        return self.get(f"/services/jobs/wait/{user}/{server}")

    def press(self, page: requests.Response, where: str) -> requests.Response:
        action, hidden = next(form for form in Forms(page.text).found if re.search(where, form[0]))
        return self.http.post(self.hub.url + action, data=hidden, timeout=30)


def until_read(person: Plain, path: str, words: str) -> str:
    """A page of the Hub that says these words, once the Manager has answered it in time: it waits for two seconds."""

    def read() -> str:
        text = person.visit(path).text
        return text if words in text else ""

    return wait_for(read, f"{path} says {words}", 60)


def test_wait_page_works_without_javascript(hub: QuotaHub, full: str) -> None:
    hub.add_users(["plain", "other"])
    for user, gpus in (("other", 1), ("plain", 2)):
        assert "in the queue" in hub.refusal(user, hub.start_server(user, gpus=gpus))
    with Plain(hub, "plain") as person:
        page = person.place("plain")
        assert page.status_code == 200
        assert 'id="place">2<' in page.text
        assert "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 2." in page.text
        assert '<noscript><meta http-equiv="refresh"' in page.text
        gone = person.press(page, r"/cancel$")
        assert "It was cancelled before it started." in gone.text
    assert set(hub.jobs()) == {"holder", "other"}
    stop(hub, full)
    wait_for(lambda: hub.ready() == ["other/"], "the other one starts", 60)


@pytest.mark.slow
def test_hub_pages_of_a_waiting_job_say_so_to_its_owner(hub: QuotaHub, full: str) -> None:
    hub.add_users(["marks"])
    hub.start_server("marks", gpus=1)
    wait_for(lambda: hub.jobs().get("marks") == "queued", "it waits", 60)
    hub.stop("hub")  # and what it remembers of the refused start is gone
    hub.start_hub()
    bookmarks = ("/user/marks/lab", "/hub/spawn-pending/marks")
    with Plain(hub, "marks") as owner, Plain(hub, "admin", ADMIN) as admin, Plain(hub, "guest") as guest:
        for person, path in ((person, path) for person in (owner, admin) for path in bookmarks):
            text = until_read(person, path, "The job is queued")
            assert "Number 1 in the queue; it starts automatically. Team Everybody uses 8 of its 8 GPUs" in text
            assert 'data-waits href="/services/jobs/wait/marks/"' in text
        told = guest.visit(bookmarks[0]).text
        assert "The job is not running" in told
        assert "GPUs" not in told
        hub.kill("manager")
        try:
            for page in map(owner.visit, bookmarks):
                assert "The job is not running" in page.text
                assert page.elapsed.total_seconds() < 10
        finally:
            hub.start_manager()
        until_read(owner, bookmarks[0], "The job is queued")  # the new Manager decides
        owner.press(owner.place("marks"), r"/cancel$")
        assert "The job is not running" in owner.visit(bookmarks[0]).text


def test_removed_user_with_a_running_and_a_waiting_job_leaves_nothing(hub: QuotaHub, full: str) -> None:
    """What waits would get the GPUs of what is stopped, and keep the user."""
    assert hub.api("POST", f"/users/{full}/servers/next", {"user_options": {"gpus": 1}}).status_code in {202, 429}
    wait_for(lambda: "queued" in hub.jobs().values() and hub.ready() == [f"{full}/"], "it waits", 60)
    assert hub.api("DELETE", f"/users/{full}").status_code == 204
    wait_for(lambda: not hub.jobs() and not hub.held(), "nothing is left", 60)


def test_where_the_hub_wants_a_fresh_login_the_job_waits_for_it_and_holds_nothing(hub: QuotaHub, full: str) -> None:
    hub.add_users(["weary", "next"])
    hub.start_server("weary", gpus=GPUS)
    wait_for(lambda: hub.jobs().get("weary") == "queued", "it waits", 60)
    with Plain(hub, "weary") as person:
        (hub.state / "stale").write_text("weary")
        stop(hub, full)
        wait_for(lambda: hub.jobs() == {"weary": "login-required"}, "the Hub has refused to start it", 60)
        page = person.place("weary")
        assert "needs you to log in" in page.text
        assert "/hub/login?next=/services/jobs/wait/weary/" in requests.utils.unquote(page.text)
        assert hub.start_server("next", gpus=GPUS).status_code in {201, 202}, "what it waits for is free for others"
        wait_for(lambda: hub.ready() == ["next/"], "the next one runs", 60)
        (hub.state / "stale").write_text("")
        person.press(page, r"/go-on$")
    wait_for(lambda: hub.jobs().get("weary") == "queued", "it is in its place", 60)
    stop(hub, "next")
    wait_for(lambda: hub.ready() == ["weary/"], "it has started", 60)


@pytest.mark.longer
@pytest.mark.browser
@pytest.mark.parametrize("user", ["quick", pytest.param("late", marks=pytest.mark.slow)])
def test_from_the_form_to_the_page_and_to_the_job(hub: QuotaHub, full: str, browser: Page, user: str) -> None:
    hub.add_users([f"{user}-ahead", user])
    hub.start_server(f"{user}-ahead", gpus=GPUS)
    wait_for(lambda: hub.jobs().get(f"{user}-ahead") == "queued", "somebody waits already", 60)
    complaints: list[str] = []
    browser.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    log_in(browser, hub, user)
    send_form(browser, hub, user)
    browser.wait_for_url(re.compile(rf"/services/jobs/wait/{user}/$"))
    expect(browser.locator("#place")).to_have_text("2")
    expect(browser.get_by_text("Team Everybody uses 8 of its 8 GPUs")).to_be_visible()
    with Plain(hub, f"{user}-ahead") as ahead:
        ahead.press(ahead.place(f"{user}-ahead"), r"/cancel$")
    expect(browser.locator("#place")).to_have_text("1")
    expect(browser.get_by_role("status")).to_have_text("Number 1 in the queue")
    stop(hub, full)
    browser.wait_for_url(re.compile(rf"/user/{user}/"))
    assert [text for text in complaints if "429" not in text and "404" not in text] == []
