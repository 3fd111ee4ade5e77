"""The page after a logout, which JupyterHub shows only with automatic logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from tests.harness.accessible import PHONE, TOO_WIDE, VIEWS, violations
from tests.harness.chromium import LAUNCH, PATIENCE
from tests.harness.spawner_hub import Hub, running

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PICTURES = Path("build/pages")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(Hub(tmp_path, extra="c.Authenticator.auto_login = True\n"), cluster=False) as made:
        yield made


def test_the_page_is_accessible_and_fits(hub: Hub) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        for view, wishes in {**VIEWS, "night": {"viewport": PHONE, "color_scheme": "dark"}}.items():
            page = browser.new_context(**wishes).new_page()
            page.goto(f"{hub.url}/hub/logout", timeout=PATIENCE)
            expect(page.get_by_text("Successfully logged out.")).to_be_visible(timeout=PATIENCE)
            page.screenshot(path=PICTURES / f"logout-{view}.png", full_page=True)
            found = violations(Axe().run(page).response)
            found += ["it is too wide"] if page.evaluate(TOO_WIDE) > 0 else []
            wrong += [f"{view}: {one}" for one in found]
        browser.close()
    assert not wrong, "\n".join(wrong)
