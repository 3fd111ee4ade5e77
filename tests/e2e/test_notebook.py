"""A researcher's first hour, in a real browser: log in, choose, watch, work, stop, start again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

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

    page.goto(f"{stack.url}/services/jobs/")
    job = page.locator("section[data-server=work]")
    page.once("dialog", lambda asks: asks.accept())
    job.get_by_role("button", name="Stop").click()
    expect(job).to_have_attribute("data-state", "stopped", timeout=180_000)
    assert job.get_by_role("link", name="Open").count() == 0

    job.get_by_role("button", name="Start again").click()
    page.wait_for_url("**/user/nora/work/lab**", timeout=180_000)
    page.goto(f"{stack.url}/user/nora/work/lab?reset")  # a fresh window, not the notebooks of before
    run_cell(page, "import os; print(open(os.path.expanduser('~/kept.txt')).read())", "still here")


# What a kernel, a terminal and a login have for themselves.
OWN_PREFIXES = ("JUPYTER", "JPY_", "SSH_", "PYDEVD_")
OWN = {"_", "SHLVL", "PWD", "OLDPWD", "TERM", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "PAGER", "GIT_PAGER"}
OWN |= {"MAIL", "MPLBACKEND", "LS_COLORS", "LINES", "COLUMNS", "PYXTERM_DIMENSIONS"}
TERMINAL = """async ([base, line]) => {
  const token = document.cookie.match(/_xsrf=([^;]+)/)[1];
  const made = await fetch(base + "api/terminals", {method: "POST", headers: {"X-XSRFToken": token}});
  const name = (await made.json()).name;
  const socket = new WebSocket(location.origin.replace("http", "ws") + base + "terminals/websocket/" + name);
  socket.onmessage = (event) => {
    if (JSON.parse(event.data)[0] == "setup") socket.send(JSON.stringify(["stdin", line + "\\r"]));
  };
}"""


def test_kernel_terminal_login_and_command_see_the_same_environment_and_programs(
    page: Page, stack: Stack, tmp_path: Path
) -> None:
    person = stack.person("nils")
    client = person.ssh(tmp_path)
    log_in(page, stack, "nils")
    start_from_form(page, stack, "same", "Notebook", gpus=0)
    page.wait_for_url("**/user/nils/same/lab**", timeout=180_000)
    look = "(echo $(for one in python3 jupyter pip tensorboard; do command -v $one; done); env -0) >~/seen-"
    first = "echo 'export FROM_BASHRC=1' | cat - ~/.bashrc >~/new && mv ~/new ~/.bashrc"
    assert client.run("same", first).returncode == 0
    assert client.run("same", look + "command").returncode == 0
    assert client.run("same", text=look + "login; exit").returncode == 0
    run_cell(
        page, f"import subprocess; print('looked', subprocess.run('{look}kernel', shell=True).returncode)", "looked 0"
    )
    page.evaluate(TERMINAL, ["/user/nils/same/", look + "part; mv ~/seen-part ~/seen-terminal"])
    wait_for(lambda: client.run("same", "test -e ~/seen-terminal").returncode == 0, "the terminal has looked")

    seen = {}
    for place in ("kernel", "terminal", "login", "command"):
        programs, _, environment = client.run("same", f"cat ~/seen-{place}").stdout.partition("\n")
        pairs = (text.partition("=")[::2] for text in environment.split("\0") if text)
        plain = {name: value for name, value in pairs if name not in OWN and not name.startswith(OWN_PREFIXES)}
        assert plain.pop("FROM_BASHRC", None) == (None if place == "kernel" else "1")
        seen[place] = programs.split(), plain
    assert len(seen["kernel"][0]) == 4
    for place in ("terminal", "login", "command"):
        assert seen[place] == seen["kernel"], place
    person.stop("same")


# A package that would break the server if the server saw it, with a program.
WHEEL = """
import zipfile
info = "jupyter_server-0.1.dist-info/"
files = {
    "jupyter_server.py": "def main(): print('installed', 6 * 7)\\n",
    info + "METADATA": "Metadata-Version: 2.1\\nName: jupyter_server\\nVersion: 0.1\\n",
    info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    info + "entry_points.txt": "[console_scripts]\\ntry-it = jupyter_server:main\\n",
}
files[info + "RECORD"] = "".join(name + ",,\\n" for name in [*files, info + "RECORD"])
with zipfile.ZipFile("jupyter_server-0.1-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
"""


def test_people_install_packages_and_the_server_stays_as_it_is(page: Page, stack: Stack, tmp_path: Path) -> None:
    person = stack.person("pia")
    client = person.ssh(tmp_path)
    person.launch("packages", template="ipython")
    assert client.run("packages", "python3 -", text=WHEEL).returncode == 0
    installed = client.run("packages", "pip install --no-index ./jupyter_server-0.1-py3-none-any.whl && try-it")
    assert installed.stdout.endswith("installed 42\n"), installed.stdout + installed.stderr
    person.stop("packages")

    person.launch("packages", template="ipython")
    log_in(page, stack, "pia")
    page.goto(f"{stack.url}/user/pia/packages/lab")
    look = "import subprocess, jupyter_server; print(subprocess.getoutput('try-it'), 'by', jupyter_server.__name__)"
    run_cell(page, look, "installed 42 by jupyter_server")
    person.stop("packages")


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
        page.get_by_role("button", name="Stop", exact=True).press("Enter")
        page.wait_for_url("**/services/jobs/")
        wait_for(lambda: not person.server("waits"), "the one that waited is stopped")
    assert person.ready(""), "the default one goes on"
    person.stop("")


@contextlib.contextmanager
def nodes_under_pressure(stack: Stack) -> Iterator[None]:
    """Every node says something that passes, so that only the scheduler waits: an admitted job waits for it."""
    stack.kubectl("taint", "nodes", "--all", f"{PRESSURE}=:NoSchedule")
    try:
        yield
    finally:
        stack.kubectl("taint", "nodes", "--all", f"{PRESSURE}-")
