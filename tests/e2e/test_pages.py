"""The Hub's pages as people see them here: accessible, light and dark, as wide as a phone, and nothing jumps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import choose, log_in
from tests.e2e.people import Person, Stack, wait_for
from tests.harness.accessible import DRAWN, JUMPS, SEEN_ONCE, TOO_WIDE, VIEWS, violations
from tests.harness.chromium import PATIENCE

PICTURES = Path("build/pages")
# Pages that load themselves again after a while, and would do so during a check.
STILL = "const later = setTimeout; window.setTimeout = (what, wait) => wait >= 3000 ? 0 : later(what, wait);"
STUBBORN = "trap '' TERM; while :; do sleep 1; done"


@dataclass
class Looks:
    """The problems of the visited pages."""

    page: Page
    stack: Stack
    wrong: list[str] = field(default_factory=list)

    def at(self, path: str, name: str, says: str) -> None:
        """A page that is opened, of which nothing jumps meanwhile."""
        self.page.goto(f"{self.stack.url}/{path}")
        expect(self.page.locator("body").get_by_text(says, exact=True).first, name).to_be_visible()
        self.page.evaluate(DRAWN)
        jumped = self.page.evaluate("window.jumped")
        self.wrong += [f"{name} jumps by {jumped}: {self.page.evaluate('window.moved')}"] if jumped > SEEN_ONCE else []
        self.here(name, says)

    def here(self, name: str, says: str) -> None:
        """The page as it is, in each view; ``says`` is what only this page says: its heading or a sentence."""
        for view, wishes in VIEWS.items():
            self.page.set_viewport_size(wishes["viewport"])
            self.page.emulate_media(color_scheme=wishes.get("color_scheme", "light"), reduced_motion="reduce")
            said = self.page.locator("body").get_by_text(says, exact=True).first
            expect(said, f"{name}, {view}").to_be_visible()
            self.page.screenshot(path=PICTURES / f"{name}-{view}.png", full_page=True)
            found = violations(Axe().run(self.page).response)
            wide = self.page.evaluate(TOO_WIDE)
            found += [f"it is {wide} pixels too wide"] if wide > 0 else []
            self.wrong += [f"{name}, {view}: {one}" for one in found]
        self.wrong += [f"{name} has no title of its own"] if self.page.title() == "JupyterHub" else []
        self.page.set_viewport_size(VIEWS["light"]["viewport"])


@pytest.fixture
def looks(browser: Browser, stack: Stack) -> Iterator[Looks]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    context = browser.new_context()
    context.add_init_script(STILL)
    context.add_init_script(JUMPS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    yield Looks(page, stack)
    context.close()


@pytest.fixture(scope="module")
def iris(stack: Stack) -> Iterator[Person]:
    """A user with a job in every state."""
    person = stack.person("iris")
    of_all = {"template": "custom", "image": stack.image, "gpus": 0}
    person.launch("work", **of_all)
    person.launch("stops", command=STUBBORN, **of_all)
    person.start("fails", **(of_all | {"command": "echo no data found; exit 3"}))
    wait_for(lambda: not person.server("fails").get("pending") and not person.ready("fails"), "it failed", 60)
    person.launch("full", template="custom", image=stack.image, gpus=4)
    person.start("waits", template="custom", image=stack.image, gpus=8)
    yield person
    for pod in stack.kubectl("get", "pods", "-o", "name", "-l", "dlspawner.dev/server=stops").split():
        stack.kubectl("delete", pod, "--grace-period=0", "--force", "--ignore-not-found")
    for job in person.jobs():
        if job["server"] == "waits" and job["state"] == "queued":
            person.manager("DELETE", f"/jobs/{job['id']}")  # or it starts when the others stop
    for server in ("work", "full"):
        person.stop(server)


@pytest.mark.slow
@pytest.mark.browser
def test_every_page_of_the_hub_is_accessible_and_fits(looks: Looks, stack: Stack, iris: Person) -> None:
    page = looks.page
    looks.at("hub/login", "login", "Sign in")
    page.get_by_label("Username").fill("iris")
    page.locator("#password_input").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Invalid").wait_for()
    looks.here("login-failed", "Invalid username or password")
    log_in(page, stack, "iris")
    looks.at("hub/stop-pending", "not-there", "Jupyter has lots of moons, but this is not one...")
    looks.at("hub/spawn/iris/new", "spawn", "Start a job")
    iris.api("DELETE", "/users/iris/servers/stops")  # its program does not listen
    looks.at("hub/spawn-pending/iris/stops", "stop-pending", "The job is being stopped")
    looks.at("hub/user/iris/old/", "not-running", "The job is not running")
    looks.at("hub/spawn-pending/iris/fails", "failed", "The job was not started")
    looks.at("hub/user/iris/waits/", "waits", "waits is queued")  # it leads on to the place in the queue
    looks.at("hub/admin", "forbidden", "Action is not authorized with current scopes; requires any of [admin-ui]")
    looks.at("services/jobs/wait/iris/waits", "wait", "waits is queued")
    looks.at("user/iris/work/", "job-page", "The job is running. Connect to it by SSH:")
    looks.at("hub/token", "token", "Request new API token")
    page.get_by_role("button", name="Request new API token").click()
    page.get_by_text("Your new API Token").wait_for()
    looks.here("token-made", "Your new API Token")
    # Nothing new is told of the start: the page stays what it is when it is opened.
    told = 'data: {"progress": 0, "message": "Server requested"}\n\n'
    page.route(re.compile("/progress"), lambda route: route.fulfill(body=told, content_type="text/event-stream"))
    choose(page, stack, "slow", "Notebook")
    page.locator(".job-panel:not([hidden]) [data-option=gpus]").fill("0")
    with page.expect_request_finished(lambda request: "/progress" in request.url):
        page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="Starting slow")).to_be_visible()
    expect(page.locator("#progress-message"), "the page knows more").not_to_have_text("Server requested")
    looks.here("spawn-pending", "Starting slow")
    expect(page.locator("#progress-steps [aria-current=step]"), "where it stands").to_have_count(1)
    passed = page.locator("#progress-steps .done").count()
    assert page.locator("#progress-logs").is_visible() == (passed >= 3), "a log is there once a container is"
    page.unroute_all()
    page.goto(f"{stack.url}/hub/logout")  # a page of its own only where the Hub logs people in without asking
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    wait_for(lambda: iris.ready("slow"), "it started", 120)
    iris.stop("slow")
    assert not looks.wrong, "\n".join(looks.wrong)


@pytest.mark.slow
@pytest.mark.browser
def test_pages_of_new_users_and_of_admins_are_accessible(looks: Looks, stack: Stack, iris: Person) -> None:
    log_in(looks.page, stack, "newcomer")
    looks.here("home-empty", "No jobs yet.")
    looks.at("hub/spawn/newcomer", "spawn-default", "Start a job")
    looks.page.context.clear_cookies()
    log_in(looks.page, stack, "admin")
    looks.page.goto(f"{stack.url}/hub/admin")
    looks.page.get_by_text(re.compile("iris")).first.wait_for()
    looks.here("admin", "Add Users")
    assert not looks.wrong, "\n".join(looks.wrong)


@pytest.mark.slow
@pytest.mark.browser
def test_form_opens_without_javascript(browser: Browser, stack: Stack) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(60_000)
    log_in(page, stack, "noor")
    page.get_by_label("Start a new job").fill("train")
    page.get_by_role("button", name="Choose what to run").click()
    expect(page).to_have_url(f"{stack.url}/hub/spawn/noor/train")
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_visible()
    page.goto(f"{stack.url}/hub/home")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    context.close()
