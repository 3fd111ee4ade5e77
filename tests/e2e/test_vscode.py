"""VS Code in the browser: `make vscode` builds it, and the product then offers the template."""

from __future__ import annotations

import re

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in, start_from_form
from tests.e2e.people import Person, Stack


def command(page: Page, name: str) -> None:
    """From the command palette."""
    page.keyboard.press("F1")
    page.locator(".quick-input-widget input").fill(f">{name}")
    page.locator(".quick-input-list .monaco-list-row", has_text=name).first.click()


def open_file(page: Page, name: str) -> None:
    page.keyboard.press("Control+p")
    page.locator(".quick-input-widget input").fill(name)
    page.locator(".quick-input-list .monaco-list-row", has_text=name).first.click()
    expect(page.locator(".tab.active", has_text=name)).to_be_visible()


@pytest.mark.slow
@pytest.mark.launcher
@pytest.mark.browser
def test_a_file_is_opened_edited_saved_and_run(page: Page, stack: Stack, bob: Person) -> None:
    log_in(page, stack, "vera")
    start_from_form(page, stack, "code", "VS Code", gpus=0)
    page.wait_for_url("**/user/vera/code/**", timeout=180_000)
    workbench = page.locator(".monaco-workbench")
    expect(workbench).to_be_visible(timeout=180_000)

    command(page, "Terminal: Create New Terminal")
    terminal = page.locator(".terminal-wrapper.active textarea")
    terminal.focus()
    page.keyboard.type("echo 'print(1)' > hello.py; env | grep -c JUPYTERHUB_ > token.txt\n")
    open_file(page, "hello.py")
    editor = page.locator(".editor-instance .monaco-editor").first
    expect(editor.locator(".view-lines")).to_contain_text("print(1)")
    editor.locator(".view-lines").click()
    page.keyboard.press("Control+End")
    page.keyboard.type("print(6 * 7)")
    page.keyboard.press("Control+s")
    expect(page.locator(".tab.active.dirty")).to_have_count(0)
    terminal.focus()
    page.keyboard.type("python3 hello.py > said.txt\n")
    open_file(page, "said.txt")
    expect(editor.locator(".view-lines")).to_have_text(re.compile(r"1\s*42"))
    open_file(page, "token.txt")
    expect(editor.locator(".view-lines")).to_have_text("0")

    url = f"{stack.url}/user/vera/code/"
    assert requests.get(url, allow_redirects=False, timeout=60).status_code in {302, 403}
    assert bob.http.get(url, timeout=60).status_code == 403
