"""What people do in their browser, step by step."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.e2e.people import Stack

# A cell for code that needs TensorBoard's packages: people's own Python has none until they install them.
WITH_SERVERS_PYTHON = (
    "import os, shutil, subprocess; python = os.path.join(os.path.dirname(shutil.which('jupyter-lab')), 'python3'); "
    "print(subprocess.run([python, '-c', {!r}], capture_output=True, text=True))"
)


def log_in(page: Page, stack: Stack, name: str) -> None:
    """Through the Hub's own login form."""
    page.goto(f"{stack.url}/hub/login")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(stack.password(name))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def choose(page: Page, stack: Stack, server: str, title: str, **values: object) -> None:
    """From the page Jobs to the filled-in form."""
    page.goto(f"{stack.url}/services/jobs/")
    page.get_by_label("Start a new job").fill(server)
    page.get_by_role("button", name="Choose what to run").click()
    page.locator("label.btn", has_text=re.compile(rf"^\s*{re.escape(title)}\b")).click()
    page.locator(".job-panel:not([hidden]) details").evaluate_all("all => all.forEach((one) => (one.open = true))")
    for name, value in values.items():
        page.locator(f".job-panel:not([hidden]) [data-option={name}]").fill(str(value))


def start_from_form(page: Page, stack: Stack, server: str, title: str, **values: object) -> None:
    choose(page, stack, server, title, **values)
    page.get_by_role("button", name="Start", exact=True).click()


def run_cell(page: Page, code: str, until: str) -> str:
    """Type `code` into a new notebook, run it, and return the output, which must contain `until`.

    An error of the code ends the wait.
    """
    launcher = page.locator(".jp-LauncherCard[data-category=Notebook]", has_text="Python 3").first
    launcher.or_(page.locator(".jp-NotebookPanel:visible")).first.wait_for()
    if page.locator(".jp-NotebookPanel:visible").count() == 0:
        launcher.click()
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=180_000)
    cell = page.locator(".jp-NotebookPanel:visible .jp-CodeCell").last
    cell.locator(".cm-content").click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")
    outputs = page.locator(".jp-NotebookPanel:visible .jp-OutputArea-output")
    output, error = outputs.filter(has_text=until).last, outputs.and_(page.locator("[data-mime-type$='jupyter.error']"))
    output.or_(error).first.wait_for(timeout=180_000)
    assert not error.count(), error.all_inner_texts()
    return output.inner_text()
