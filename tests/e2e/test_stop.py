"""What a job may still do when it is stopped: a real kernel with a cell that runs, and a real SSH session."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import requests
from playwright.sync_api import Page

from tests.e2e.browsing import log_in, run_cell
from tests.e2e.people import Person, Stack

# A cell in the middle of its work, which needs longer to save it than the 2.5 seconds that Jupyter itself allows.
CELL = """
import atexit, os, time
os.chdir(os.path.expanduser("~"))
def bye(): open("at-exit", "w").write("left in order")
atexit.register(bye)
print("working", flush=True)
try:
    time.sleep(600)
finally:
    time.sleep(4)
    open("checkpoint", "w").write("saved")
"""
PROGRAM = "cd; trap 'echo saved > from-ssh; exit 5' HUP; echo working; while :; do sleep 0.1; done"


@pytest.mark.longer
def test_kernel_and_ssh_session_may_save_their_work_at_a_stop(page: Page, stack: Stack, tmp_path: Path) -> None:
    person = stack.person("vera")
    person.launch("work", template="ipython", gpus=0)
    log_in(page, stack, "vera")
    page.goto(f"{stack.url}/user/vera/work/lab")
    run_cell(page, CELL, "working")

    client = person.ssh(tmp_path)
    line = ["ssh", "-F", str(client.config), "-tt", f"{client.login('work')}@gateway", PROGRAM]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert b"working" in session.stdout.readline()
        person.stop("work")
        said = session.stdout.read().decode()
    assert "This job is being stopped." in said

    person.launch("work", template="ipython", gpus=0)
    assert contents(person, "work", "checkpoint") == "saved"
    assert contents(person, "work", "at-exit") == "left in order"
    assert contents(person, "work", "from-ssh") == "saved\n"
    person.stop("work")


def contents(person: Person, server: str, path: str) -> str:
    """A file in the home directory, as the job's JupyterLab reads it."""
    url = f"{person.stack.url}/user/{person.name}/{server}/api/contents/{path}"
    answer = requests.get(url, headers={"Authorization": f"token {person.token}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["content"])
