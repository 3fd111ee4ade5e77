"""A domain for each user and service (JupyterHub.subdomain_host), in a real browser with a real Hub and proxy.

``*.localhost`` is this machine. Browsers hold what a form's answer leads to against the page's policy as well.
A path before all addresses (JupyterHub.base_url) is in test_ingress.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.component.manager.quota import QuotaHub, running
from tests.harness.chromium import FLAGS, LAUNCH, PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.browser]
LOOPBACK = "--host-resolver-rules=MAP *.localhost 127.0.0.1"


class ApartHub(QuotaHub):
    """The Hub, each person and the Manager have a domain of their own."""

    @property
    def home(self) -> str:
        return f"http://hub.localhost:{self.port}"

    @property
    def jobs(self) -> str:
        return f"http://jobs--service.hub.localhost:{self.port}/services/jobs/"

    @property
    def server(self) -> str:
        return f"http://alice.hub.localhost:{self.port}/user/alice/train"

    def env(self) -> dict[str, str]:
        own = {"JUPYTERHUB_HOST": self.home, "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{self.jobs}oauth_callback"}
        return {**super().env(), **own}

    def run(self, name: str, *command: str) -> None:
        super().run(name, *command, *(["--host-routing"] if name == "proxy" else []))

    def start_hub(self) -> None:
        self.extra = f"\nc.JupyterHub.subdomain_host = {self.home!r}\n"
        super().start_hub()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ApartHub]:
    with running(ApartHub(tmp_path)) as made:
        yield made


@pytest.fixture
def page(hub: ApartHub) -> Iterator[Page]:
    """Alice's, logged in; a violation of a content security policy or a missing page or file fails the test."""
    refused: list[str] = []
    lost: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**{**LAUNCH, "args": [*FLAGS, LOOPBACK]})
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: refused.append(said.text) if "Content Security Policy" in said.text else None)
        page.on("response", lambda got: lost.append(got.url) if got.status == 404 else None)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{hub.home}/hub/login")
        page.get_by_label("Username").fill("alice")
        page.get_by_label("Password").fill(hub.password)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        yield page
        browser.close()
    assert (refused, lost) == ([], [])


def chooses(page: Page, hub: ApartHub, server: str, gpus: int) -> None:
    """The Hub's form, sent."""
    page.goto(f"{hub.home}/hub/spawn/alice/{server}")
    page.locator(".job-panel:not([hidden]) [data-option=gpus]").fill(str(gpus))
    page.get_by_role("button", name="Start", exact=True).click()


def state(page: Page, hub: ApartHub, server: str, name: str) -> None:
    """The portal says that this job is in this state."""
    page.goto(hub.jobs)
    row = page.locator(f"section[data-server={server}][data-state={name}]")
    expect(row).to_be_visible(timeout=PATIENCE)


def test_jobs_are_started_stopped_restarted_and_cancelled_at_other_addresses(hub: ApartHub, page: Page) -> None:
    expect(page).to_have_url(hub.jobs, timeout=PATIENCE)

    chooses(page, hub, "train", 8)
    expect(page).to_have_url(re.compile(f"^{re.escape(hub.server)}"), timeout=PATIENCE)
    state(page, hub, "train", "running")
    page.get_by_role("button", name="Stop: train").click()
    expect(page.get_by_role("status").first).to_contain_text(re.compile(r"train (is being stopped|has ended)\."))
    state(page, hub, "train", "stopped")

    page.get_by_role("button", name="Start again: train").click()
    expect(page).to_have_url(re.compile(rf"^({re.escape(hub.home)}|{re.escape(hub.server)})"), timeout=PATIENCE)
    state(page, hub, "train", "running")

    chooses(page, hub, "later", 8)
    expect(page).to_have_url(re.compile(rf"^{re.escape(hub.jobs)}wait/alice/later"), timeout=PATIENCE)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("main")).to_contain_text("cancelled")
    state(page, hub, "train", "running")
    page.get_by_role("link", name="Open: train").click()
    expect(page).to_have_url(re.compile(f"^{re.escape(hub.server)}"), timeout=PATIENCE)
