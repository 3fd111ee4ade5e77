"""Logs through a real Hub, on the embedded cluster."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.spawn import RESPONDER
from tests.component.manager.logs_story import its_log_outlives_a_job_and_holds_no_token, offer
from tests.component.manager.quota import TEMPLATE, running
from tests.component.manager.rest import SCOPES, RestHub
from tests.e2e.people import wait_for

pytestmark = pytest.mark.slow


# A Manager that is slow to read what has ended, as on a busy machine.
SLOW = """
import asyncio
from dlspawner.manager.app import main
from dlspawner.manager.logs.collector import LogCollector

read = LogCollector.read

async def slowly(self, key):
    await asyncio.sleep(2)
    await read(self, key)

LogCollector.read = slowly
main()
"""
BRIEF = {**TEMPLATE, "title": "Brief", "command": ["sh", "-c", "echo so much; exit 3"]}
# Ends when there is this file.
ENDS = """
import os, threading, time
def end():
    while not os.path.exists("/tmp/end"):
        time.sleep(0.1)
    print("so much", flush=True)
    os._exit(3)
threading.Thread(target=end).start()
"""
# Its node does not start it again: while the Hub is away it would, and the newest log would be of another run.
LATER = {**TEMPLATE, "title": "Later", "command": ["python3", "-S", "-c", ENDS + RESPONDER]}
LATER["pod"] = {"restartPolicy": "Never"}


class NoisyHub(RestHub):
    """One with the template that prints its environment, and one whose jobs end at once."""

    def prepare(self) -> None:
        super().prepare()
        offer(self)
        for name, template in (("brief", BRIEF), ("later", LATER)):
            (self.templates / "jobs" / f"{name}.yaml").write_text(json.dumps(template))


@contextlib.contextmanager
def noisy(state: Path, program: str = "") -> Iterator[NoisyHub]:
    """With another Manager's program, where there is one."""
    made = NoisyHub(state, db_url=f"sqlite:///{state / 'manager.sqlite'}", extra=SCOPES)
    if program:
        (state / "manager.py").write_text(program)
        made.manager_program = (str(state / "manager.py"),)
    with running(made):
        made.move_in()
        yield made


def end(hub: NoisyHub, user: str) -> None:
    """A job of the template that waits for it ends by itself."""
    hub.kubectl("exec", f"jupyter-{user}", "-c", "notebook", "--", "touch", "/tmp/end")


def test_its_log_outlives_a_job_and_holds_no_token(tmp_path: Path) -> None:
    with noisy(tmp_path) as hub:
        its_log_outlives_a_job_and_holds_no_token(hub)


@pytest.mark.real
def test_log_of_a_finished_job_is_complete_though_it_is_read_slowly(tmp_path: Path) -> None:
    with noisy(tmp_path, SLOW) as hub:
        for template, user in (("brief", "alice"), ("later", "bob")):
            answer = hub.api("POST", f"/users/{user}/server", {"user_options": {"template": template, "gpus": 1}})
            assert answer.ok or template == "brief", answer.text  # which has ended before the answer, or after it
            if template == "later":
                wait_for(lambda: hub.ready() == ["bob/"], "it runs", 60)
                end(hub, user)
            job = hub.until(user, "ended", seconds=120)
            assert hub.ask(user, "GET", f"jobs/{job['id']}/log?tail=0").text == "so much\n"
        assert "although not all of its log" not in hub.log


@pytest.mark.real
def test_hub_that_was_killed_while_it_waited_for_a_log_deletes_the_pod_later(tmp_path: Path) -> None:
    with noisy(tmp_path) as hub:
        answer = hub.api("POST", "/users/bob/server", {"user_options": {"template": "later", "gpus": 1}})
        assert answer.ok, answer.text
        wait_for(lambda: hub.ready() == ["bob/"], "it runs", 60)
        hub.kill("manager")  # so that the Hub waits for it
        end(hub, "bob")
        wait_for(lambda: "ended: exit_code=3" in hub.log, "the Hub has seen that it has ended", 60)
        hub.kill("hub")
        assert "jupyter-bob" in hub.kubectl("get", "pods")
        before = len(hub.log)
        hub.start_hub()
        wait_for(lambda: "/log-kept" in hub.log[before:], "the Hub asks for it again", 60)
        time.sleep(10)  # as long as another Manager may take to act when one has died
        told = len((tmp_path / "manager.log").read_text())
        hub.start_manager()
        wait_for(lambda: "leading: jobs=" in (tmp_path / "manager.log").read_text()[told:], "it acts", 60)
        job = hub.until("bob", "ended", seconds=120)
        assert hub.ask("bob", "GET", f"jobs/{job['id']}/log?tail=0").text == "so much\n"
        wait_for(lambda: "jupyter-bob" not in hub.kubectl("get", "pods") and not hub.servers(), "nothing is left", 60)
