"""From the page Jobs to a job that starts, and to its end, by the keys of a keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in
from tests.e2e.people import Person, Stack, wait_for
from tests.harness.accessible import SHOWN

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TEAMS = ("vision", "language")
# What can be chosen for the template that is chosen, from top to bottom, as users see it.
SEEN = """(fields) => fields.filter((one) => one.checkVisibility()) // not the folded ones
  .map((one) => [one.dataset.option, one.getBoundingClientRect()])
  .filter(([, box]) => box.height)
  .sort(([, one], [, other]) => Math.abs(one.top - other.top) < 5 ? one.left - other.left : one.top - other.top)
  .map(([name]) => name)"""


@pytest.fixture
def kit(stack: Stack) -> Iterator[Person]:
    """A user of two teams, with the choice of the paying one."""
    person, admin = stack.person("kit"), stack.person("admin")
    for team in TEAMS:
        assert admin.api("POST", f"/groups/{team}").status_code in {201, 409}
        assert admin.api("POST", f"/groups/{team}/users", {"users": ["kit"]}).ok
    yield person
    if person.server("keys"):
        person.stop("keys")
    for team in TEAMS:
        admin.api("DELETE", f"/groups/{team}/users", {"users": ["kit"]})


def tab(page: Page) -> str | None:
    """The Tab key, after which the focus is visible; the option that it is at, if it is at one."""
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    if not focused.count():  # the browser's own
        return None
    assert focused.evaluate(SHOWN), focused.evaluate("(one) => one.outerHTML")
    return focused.get_attribute("data-option")


def tab_to(page: Page, selector: str) -> list[str]:
    """With the Tab key alone; the options that it came by."""
    came_by = []
    for _ in range(60):
        option = tab(page)
        came_by += [option] if option else []
        if page.locator(f":focus:is({selector})").count():
            return came_by
    raise AssertionError(f"no key leads to {selector}")


def test_a_template_gpus_and_a_team_are_chosen_and_the_job_started_and_stopped(
    page: Page, stack: Stack, kit: Person
) -> None:
    page.emulate_media(reduced_motion="reduce")
    log_in(page, stack, "kit")
    tab_to(page, "#new-job-name")
    page.keyboard.type("keys")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Start a job")).to_be_visible()

    tab_to(page, "input[name=template]")
    for _ in range(page.locator("input[name=template]").count()):
        if page.locator(":focus").get_attribute("value") == "ssh":
            break
        page.keyboard.press("ArrowDown")
    expect(page.locator("#template-ssh")).to_be_checked()
    order = list(dict.fromkeys(page.locator("[data-option]").evaluate_all(SEEN)))  # a choice of cards is one stop
    came_by = tab_to(page, "[data-option=gpus]")
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    came_by += tab_to(page, "[data-option=team]")
    page.keyboard.type("Language")
    came_by += tab_to(page, "[data-option=preemptible]")
    page.keyboard.press("Space")
    expect(page.locator("#job-summary"), "what is requested, while it is typed").to_contain_text("1 GPU of type")
    came_by += tab_to(page, "form [type=submit]")
    assert came_by == order, "the keyboard goes as the eyes do"
    page.keyboard.press("Enter")

    wait_for(lambda: kit.ready("keys"), "it runs", 180)
    chosen = kit.server("keys")["user_options"]
    wanted = {"template": "ssh", "gpus": 1, "team": "language", "preemptible": True}
    assert {name: chosen.get(name) for name in wanted} == wanted

    page.goto(f"{stack.url}/services/jobs/")
    page.on("dialog", lambda dialog: dialog.accept())
    tab_to(page, "button[aria-label='Stop: keys']")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text(re.compile("keys (is being stopped|has ended)"))
    wait_for(lambda: not kit.ready("keys"), "it is stopped", 120)
