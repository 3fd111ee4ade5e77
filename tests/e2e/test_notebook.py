"""A researcher's first hour, in a real browser: log in, choose, watch, work, stop, start again."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import requests
from playwright.sync_api import Page, expect

from tests.e2e.browsing import log_in, run_cell, start_from_form
from tests.e2e.people import Person, Stack, wait_for


def test_a_notebook_runs_with_the_gpus_that_were_given_and_keeps_its_files(page: Page, stack: Stack) -> None:
    log_in(page, stack, "nora")
    start_from_form(page, stack, "work", "Notebook", gpus=2)
    page.wait_for_url("**/user/nora/work/lab**", timeout=60_000)

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
    expect(job).to_have_attribute("data-state", "stopped", timeout=60_000)
    assert job.get_by_role("link", name="Open").count() == 0

    job.get_by_role("button", name="Start again").click()
    page.wait_for_url("**/user/nora/work/lab**", timeout=60_000)
    page.goto(f"{stack.url}/user/nora/work/lab?reset")  # a fresh window, not the notebooks of before
    run_cell(page, "import os; print(open(os.path.expanduser('~/kept.txt')).read())", "still here")


def test_no_gpu_is_visible_where_none_was_asked(page: Page, stack: Stack) -> None:
    log_in(page, stack, "nick")
    start_from_form(page, stack, "cpu", "Notebook", gpus=0)
    page.wait_for_url("**/user/nick/cpu/lab**", timeout=60_000)
    run_cell(page, "import os; print('GPUs:', os.environ['NVIDIA_VISIBLE_DEVICES'])", "GPUs: void")


def test_progress_is_told_while_the_job_starts(stack: Stack) -> None:
    person = stack.person("pat")
    with ThreadPoolExecutor() as pool:
        started = pool.submit(person.start, "slow", template="ipython", gpus=1)
        wait_for(lambda: person.server("slow").get("pending") == "spawn", "it starts")
        told = messages(person, "slow")
        assert started.result().status_code in {201, 202}
    nodes = stack.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    assert any(f"on {node}" in message for message in told for node in nodes), told
    assert "ready" in told[-1]
    person.stop("slow")
    person.close()


def test_the_button_on_the_progress_page_stops_the_job_that_starts_and_no_other(page: Page, stack: Stack) -> None:
    person = stack.person("olga")
    person.launch("", template="ssh")
    names = (f"eight-{number}" for number in itertools.count())
    waiting = next(name for name in names if waits(person, name, template="ssh", gpus=8))
    log_in(page, stack, "olga")
    page.goto(f"{stack.url}/hub/spawn-pending/olga/{waiting}")
    # Whoever comes late finds what holds it up in the page, hears it once, and has nothing raw unfolded.
    full = "No node has enough free"
    expect(page.locator("#progress-message")).to_contain_text(full, timeout=30_000)
    expect(page.get_by_role("status").first).to_contain_text(full, timeout=30_000)
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "10")
    expect(page.locator("#progress-log")).to_be_hidden()
    page.get_by_role("button", name="Stop this job").press("Enter")
    page.wait_for_url("**/hub/home")
    wait_for(lambda: not person.server(waiting), "the one that waited is stopped")
    assert person.ready(""), "the default one goes on"
    for server in person.api("GET", "/users/olga").json()["servers"]:
        person.stop(server)
    person.close()


def waits(person: Person, server: str, **options: object) -> bool:
    """Start it; whether no node has room for it."""
    assert person.start(server, **options).status_code in {201, 202}
    where = ("get", "pods", "-l", f"dlspawner.dev/server={server}", "-o", "json")

    def settled() -> list[str]:
        pods = json.loads(person.stack.kubectl(*where))["items"]
        found = [one for pod in pods for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
        return [str(one["status"]) for one in found]

    return wait_for(settled, f"the scheduler has looked at {server}") == ["False"]


def messages(person: Person, server: str) -> list[str]:
    """Everything the progress page says until the job is ready."""
    url = f"{person.stack.url}/hub/api/users/{person.name}/servers/{server}/progress"
    headers = {"Authorization": f"token {person.token}"}
    told: list[str] = []
    with requests.get(url, headers=headers, stream=True, timeout=60) as events:
        for line in events.iter_lines():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                told.append(event.get("message", ""))
                if event.get("ready") or event.get("failed"):
                    break
    return told
