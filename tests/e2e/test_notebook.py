"""A researcher's first hour, in a real browser: log in, choose, watch, work, stop, start again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in, run_cell, start_from_form
from tests.e2e.people import Stack, wait_for

PRESSURE = "node.kubernetes.io/tests"


def test_a_notebook_runs_with_the_gpus_that_were_given_and_keeps_its_files(page: Page, stack: Stack) -> None:
    log_in(page, stack, "nora")
    start_from_form(page, stack, "work", "Notebook", gpus=2)
    page.wait_for_url("**/user/nora/work/lab**", timeout=180_000)

    said = run_cell(page, "import os; print('GPUs:', os.environ.get('NVIDIA_VISIBLE_DEVICES', 'unset'))", "GPUs:")
    given = said.removeprefix("GPUs:").strip()
    if stack.device_plugin:
        assert given != "void"
        assert len(given.split(",")) == 2
    else:
        assert given == "unset", "left to the device plugin, which this cluster's pretended GPUs have not"
    pod = json.loads(stack.kubectl("get", "pods", "-l", "dlspawner.dev/server=work", "-o", "json"))["items"][0]
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert [amount for name, amount in limits.items() if name.endswith("/gpu")] == ["2"]
    run_cell(page, "open(os.path.expanduser('~/kept.txt'), 'w').write('still here'); print('written')", "written")

    page.goto(f"{stack.url}/hub/home")
    job = page.locator("section.job[data-server=work]")
    job.get_by_role("button", name="Stop").click()
    expect(job).to_have_attribute("data-state", "stopped", timeout=180_000)
    assert job.get_by_role("link", name="Open").count() == 0

    job.get_by_role("button", name="Start again").click()
    page.wait_for_url("**/user/nora/work/lab**", timeout=180_000)
    page.goto(f"{stack.url}/user/nora/work/lab?reset")  # a fresh window, not the notebooks of before
    run_cell(page, "import os; print(open(os.path.expanduser('~/kept.txt')).read())", "still here")


@pytest.mark.longer
def test_the_button_on_the_progress_page_stops_the_job_that_starts_and_no_other(page: Page, stack: Stack) -> None:
    person = stack.person("olga")
    person.launch("", template="ssh")
    with nodes_under_pressure(stack):
        assert person.start("waits", template="ssh", gpus=1).status_code in {201, 202}
        log_in(page, stack, "olga")
        page.goto(f"{stack.url}/hub/spawn-pending/olga/waits")
        # A late reader finds the obstacle in the page, hears it once, and has nothing raw unfolded.
        full = "No node of the kind that the job asks for takes jobs"
        expect(page.locator("#progress-message")).to_contain_text(full)
        expect(page.get_by_role("status").first).to_contain_text(full)
        expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "10")
        expect(page.locator("#progress-log")).to_be_hidden()
        page.get_by_role("button", name="Stop this job").press("Enter")
        page.wait_for_url("**/hub/home")
        wait_for(lambda: not person.server("waits"), "the one that waited is stopped")
    assert person.ready(""), "the default one goes on"
    person.stop("")
    person.close()


@contextlib.contextmanager
def nodes_under_pressure(stack: Stack) -> Iterator[None]:
    """Every node says something that passes, so that only the scheduler waits: an admitted job waits for it."""
    stack.kubectl("taint", "nodes", "--all", f"{PRESSURE}=:NoSchedule")
    try:
        yield
    finally:
        stack.kubectl("taint", "nodes", "--all", f"{PRESSURE}-")
