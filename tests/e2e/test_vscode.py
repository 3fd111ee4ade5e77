"""VS Code in the browser: `make vscode` builds it, and the product then offers the template."""

from __future__ import annotations

import re

import pytest
import requests
from playwright.sync_api import Locator, Page, expect

from tests.e2e.browsing import log_in, start_from_form
from tests.e2e.people import Person, Stack


def open_file(page: Page, name: str) -> Locator:
    """From the explorer; the text of its editor."""
    page.locator(".explorer-folders-view .monaco-list-row", has_text=name).dblclick()
    expect(page.locator(".tab.active", has_text=name)).to_be_visible()
    return page.locator(".editor-instance .view-lines").first


@pytest.mark.slow
@pytest.mark.launcher
@pytest.mark.browser
def test_a_file_is_opened_edited_saved_and_run(page: Page, stack: Stack, bob: Person) -> None:
    log_in(page, stack, "vera")
    start_from_form(page, stack, "code", "VS Code", gpus=0)
    page.wait_for_url("**/user/vera/code/**", timeout=180_000)
    expect(page.locator(".monaco-workbench")).to_be_visible(timeout=180_000)

    page.locator(".explorer-folders-view .monaco-list-row", has_text=".profile").wait_for()
    page.keyboard.press("Control+Backquote")
    terminal = page.locator(".terminal-wrapper.active textarea")
    terminal.focus()
    page.keyboard.type("echo 'print(1)' > hello.py; env | grep -c JUPYTERHUB_ > token.txt\n")
    expect(open_file(page, "token.txt")).to_have_text("0")
    editor = open_file(page, "hello.py")
    expect(editor).to_have_text("print(1)")
    editor.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("print(6 * 7)")
    expect(editor).to_contain_text("7)")
    page.keyboard.press("Control+s")
    terminal.focus()
    page.keyboard.type(
        "until grep -q 7 hello.py; do sleep 1; done; python3 hello.py > said.txt\n"
    )  # saved a little later
    expect(open_file(page, "said.txt")).to_have_text(re.compile(r"1\s*42"))

    url = f"{stack.url}/user/vera/code/"
    assert requests.get(url, allow_redirects=False, timeout=60).status_code in {302, 403}
    assert bob.http.get(url, timeout=60).status_code == 403
