"""The Hub's home page while the Manager does not answer."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.component.manager.quota import QuotaHub, running
from tests.component.manager.test_approval_hub import SETTINGS, CappedHub, waits
from tests.e2e.people import wait_for
from tests.harness.chromium import LAUNCH, PATIENCE
from tests.harness.spawner_hub import Person

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("home")
    with running(CappedHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=SETTINGS)) as made:
        yield made
        assert "Traceback" not in made.log


@contextlib.contextmanager
def frozen(hub: QuotaHub) -> Iterator[None]:
    """The Manager has every connection and answers nothing."""
    manager = hub.running["manager"]
    manager.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        manager.send_signal(signal.SIGCONT)


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        made = browser.new_page()
        made.set_default_timeout(PATIENCE)
        yield made
        browser.close()


def home(page: Page, hub: QuotaHub, person: Person) -> Locator:
    """The only card on this person's home page."""
    if not page.context.cookies():
        page.goto(f"{hub.url}/hub/login")
        page.get_by_label("Username").fill(person.name)
        page.get_by_label("Password").fill(hub.password)
        page.get_by_role("button", name="Sign in").click()
    page.goto(f"{hub.url}/hub/home")
    card = page.locator("section.job")
    expect(card).to_have_count(1)
    return card


def test_waiting_job_is_not_shown_as_stopped_while_the_manager_does_not_answer(hub: QuotaHub, page: Page) -> None:
    alice = Person(hub, "alice")
    waits(hub, alice, server="train")

    def answers() -> bool:
        return home(page, hub, alice).locator(".badge").inner_text() == "waiting"

    wait_for(answers, "the Manager answers in time", 60)
    away = page.get_by_role("status").filter(has_text="does not answer")
    expect(away).to_have_count(0)

    with frozen(hub):
        card = home(page, hub, alice)
        expect(away).to_contain_text("neither your jobs in the queue nor your notices are shown")
        expect(card.locator(".badge")).to_have_text("not running")
        expect(card.get_by_role("link", name="Start")).to_be_visible()
        expect(card.get_by_role("button", name="Remove")).to_have_count(0)
    wait_for(answers, "the Manager answers again", 60)
    expect(away).to_have_count(0)
