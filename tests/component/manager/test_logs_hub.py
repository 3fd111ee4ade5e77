"""What is promised of logs, on any cluster: a job that prints its environment is read while it runs, and after."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench.spawn import RESPONDER
from tests.component.manager.quota import TEMPLATE, QuotaHub, running
from tests.component.manager.rest import SCOPES, RestHub
from tests.e2e.people import wait_for

# Ends three seconds after it is asked to: of one that is gone at once, on a busy machine, the end may be lost.
PROGRAM = 'import os, time; [print(f"{name}={value}", flush=True) for name, value in os.environ.items()]\n'
PROGRAM += RESPONDER.replace("os._exit(0)", "(time.sleep(3), os._exit(0))")

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
    """One with a template whose jobs print their environment, and one whose jobs end when told to."""

    def prepare(self) -> None:
        super().prepare()
        noisy = {**TEMPLATE, "title": "Noisy", "command": ["python3", "-u", "-S", "-c", PROGRAM]}
        noisy["grace_period_seconds"] = 10
        for name, template in (("noisy", noisy), ("later", LATER)):
            (self.templates / "jobs" / f"{name}.yaml").write_text(json.dumps(template))


def its_log_outlives_a_job_and_holds_no_token(hub: RestHub) -> None:
    answer = hub.api("POST", "/users/alice/server", {"user_options": {"template": "noisy", "gpus": 1}})
    assert answer.status_code in {201, 202}, answer.text
    job = hub.until("alice", "running", seconds=120)
    token = token_of(hub)

    def log(user: str = "alice") -> str:
        return hub.ask(user, "GET", f"jobs/{job['id']}/log?tail=0").text

    wait_for(lambda: "JUPYTERHUB_API_TOKEN=[secret]" in log(), "its environment", 60)
    assert "JUPYTERHUB_USER=alice" in log("vera")
    assert token not in log()
    for user, status in (("bob", 404), ("lars", 404), ("admin", 403)):
        assert hub.ask(user, "GET", f"jobs/{job['id']}/log").status_code == status
    assert hub.api("DELETE", "/users/alice/server").status_code in {202, 204}
    hub.until("alice", "ended", seconds=120)

    def kept() -> list[dict[str, Any]]:
        return list(hub.ask("alice", "GET", f"jobs/{job['id']}/logs").json()["items"])

    wait_for(lambda: any(one["whole"] for one in kept()), "all of it is written down, a moment after the end", 60)
    assert "JUPYTERHUB_API_TOKEN=[secret]" in log()
    assert token not in log()
    assert "node" in hub.ask("alice", "GET", f"jobs/{job['id']}/pod-events").text


def token_of(hub: QuotaHub) -> str:
    """The API token in the pod's own manifest."""
    found = re.search(r'"name": "JUPYTERHUB_API_TOKEN",\s*"value": "(\w+)"', hub.kubectl("get", "pods", "-o", "json"))
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_its_log_outlives_a_job_and_holds_no_token(tmp_path: Path) -> None:
    made = NoisyHub(tmp_path, db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}", extra=SCOPES)
    with running(made):
        made.move_in()
        its_log_outlives_a_job_and_holds_no_token(made)


@pytest.mark.slow
def test_hub_that_was_killed_while_it_waited_for_a_log_deletes_the_pod_later(tmp_path: Path) -> None:
    made = NoisyHub(tmp_path, db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}", extra=SCOPES)
    with running(made) as hub:
        made.move_in()
        answer = hub.api("POST", "/users/bob/server", {"user_options": {"template": "later", "gpus": 1}})
        assert answer.ok, answer.text
        wait_for(lambda: hub.ready() == ["bob/"], "it runs", 60)
        hub.kill("manager")  # so that the Hub waits for it
        hub.kubectl("exec", "jupyter-bob", "-c", "notebook", "--", "touch", "/tmp/end")
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
        job = made.until("bob", "ended", seconds=120)
        assert made.ask("bob", "GET", f"jobs/{job['id']}/log?tail=0").text == "so much\n"
        wait_for(lambda: "jupyter-bob" not in hub.kubectl("get", "pods") and not hub.servers(), "nothing is left", 60)
