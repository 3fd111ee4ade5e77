"""One product for the whole session; tests share it and use people and servers of their own names."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.deployed import WANTED, deployed
from tests.e2e.people import Person, Stack
from tests.e2e.stack import ROOT, running
from tests.harness.chromium import LAUNCH, PATIENCE
from tests.kubernetes.contour import SECRETS


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The launcher's product, or the one that manifests or the chart deploy on a real cluster."""
    with deployed() if WANTED else launched() as stack:
        yield stack


@contextlib.contextmanager
def launched() -> Iterator[Stack]:
    """Its state lies in the checkout, as with `make run`: jobs have a /tmp of their own and could not see it there."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="e2e-", dir=build) as folder, running(Path(folder) / "state") as stack:
        yield stack


@pytest.fixture
def alice(stack: Stack) -> Person:
    return stack.person("alice")


@pytest.fixture
def bob(stack: Stack) -> Person:
    return stack.person("bob")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of a module, not of the session: while it lives, Playwright's own event loop runs, and no asyncio test can."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A browser window of its own."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, ignore_https_errors=WANTED in SECRETS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    yield page
    context.close()
