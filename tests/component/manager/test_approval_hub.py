"""Approvals through the real Hub and a real browser."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.component.manager.api_client import TEAMS
from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for
from tests.harness.chromium import LAUNCH, PATIENCE

pytestmark = pytest.mark.slow
SETTINGS = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=20")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    """Jobs with more than two GPUs need an approval by vera or victor."""
    with running(QuotaHub(tmp_path_factory.mktemp("approval"), settings=SETTINGS, teams=TEAMS % (2, 6))) as made:
        yield made
        made.check_logs()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        yield browser
        browser.close()


@contextlib.contextmanager
def at(browser: Browser, hub: QuotaHub, user: str) -> Iterator[Page]:
    """Somebody at a browser of their own."""
    context = browser.new_context(viewport={"width": 1100, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    log_in(page, hub, user)
    yield page
    context.close()


def log_in(page: Page, hub: QuotaHub, user: str) -> None:
    page.goto(f"{hub.url}/hub/login")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(hub.env()["DLSPAWNER_ADMIN_PASSWORD"] if user == "admin" else hub.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def send_form(page: Page, hub: QuotaHub, user: str, gpus: int = 1) -> None:
    page.goto(f"{hub.url}/hub/spawn/{user}")
    page.locator(".job-panel:not([hidden]) [data-option=gpus]").fill(str(gpus))
    page.get_by_role("button", name="Start", exact=True).click()


def test_approval_from_the_form_to_the_running_job(hub: QuotaHub, chromium: Browser) -> None:
    with at(chromium, hub, "alice") as alice, at(chromium, hub, "vera") as vera:
        send_form(alice, hub, "alice", gpus=3)
        expect(alice.get_by_role("heading", name="needs approval")).to_be_visible()
        expect(alice.locator("main")).to_contain_text("vera or victor can approve it for team Everybody.")
        expect(alice.locator("main")).to_contain_text("Would start now, without an approval")
        expect(alice.locator("main")).to_contain_text("2 GPUs of type gpu")
        assert hub.jobs() == {"alice": "pending-approval"}

        vera.reload()
        expect(vera.get_by_text("1 request waits for your approval.")).to_be_visible()
        vera.get_by_role("link", name="See them").click()
        vera.get_by_label(re.compile("^Reason, for alice")).fill("The paper is due.")
        vera.get_by_role("button", name="Approve 3 GPUs of type gpu for alice").click()
        expect(vera.get_by_text("You have approved 3 GPUs of type gpu for alice.")).to_be_visible()
        expect(vera.get_by_text("No request needs your approval.")).to_be_visible()
        expect(vera.locator("main")).to_contain_text("By vera: “The paper is due.”")

        # Her page goes where the job is by itself.
        alice.wait_for_url(re.compile(r"/(user/alice|hub/spawn-pending/alice|hub/user/alice)"))
    wait_for(lambda: hub.ready() == ["alice/"], "it runs", 60)
    assert hub.held() == 3
    hub.api("DELETE", "/users/alice/server")
    wait_for(lambda: not hub.jobs(), "it has ended", 60)
