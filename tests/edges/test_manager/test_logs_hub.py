"""Logs through a real Hub, on the embedded cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.bench.spawn import RESPONDER
from tests.edges.test_manager.logs_story import its_log_outlives_a_job_and_holds_no_token, offer
from tests.edges.test_manager.quota import TEMPLATE, running
from tests.edges.test_manager.rest import SCOPES, RestHub

pytestmark = pytest.mark.slow


# A Manager that is slow to read what has ended, as on a busy machine.
SLOW = """
import asyncio
from dlspawner.manager.app import main
from dlspawner.manager.logs.keeper import LogKeeper

read = LogKeeper._read

async def slowly(self, key):
    await asyncio.sleep(2)
    await read(self, key)

LogKeeper._read = slowly
main()
"""
BRIEF = {**TEMPLATE, "title": "Brief", "command": ["sh", "-c", "echo so much; exit 3"]}
ENDS = 'import os, threading; threading.Timer(8, lambda: (print("so much", flush=True), os._exit(3))).start()\n'
LATER = {**TEMPLATE, "title": "Later", "command": ["python3", "-S", "-c", ENDS + RESPONDER]}


class NoisyHub(RestHub):
    """One with the template that prints its environment, and one whose jobs end at once."""

    def prepare(self) -> None:
        super().prepare()
        offer(self)
        for name, template in (("brief", BRIEF), ("later", LATER)):
            (self.templates / "jobs" / f"{name}.yaml").write_text(json.dumps(template))
        (self.state / "slow.py").write_text(SLOW)
        self.manager_program = (str(self.state / "slow.py"),)


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoisyHub]:
    state = tmp_path_factory.mktemp("noisy")
    made = NoisyHub(state, db_url=f"sqlite:///{state / 'manager.sqlite'}", extra=SCOPES)
    with running(made):
        made.move_in()
        yield made


def test_its_log_outlives_a_job_and_holds_no_token(hub: NoisyHub) -> None:
    its_log_outlives_a_job_and_holds_no_token(hub)


@pytest.mark.real
@pytest.mark.parametrize("template", ["brief", "later"])
def test_a_job_that_ends_by_itself_has_its_whole_log_however_slowly_it_is_read(hub: NoisyHub, template: str) -> None:
    answer = hub.api("POST", "/users/alice/server", {"user_options": {"template": template, "gpus": 1}})
    assert answer.ok == (template == "later"), answer.text
    job = hub.until("alice", "ended", seconds=120)
    assert hub.ask("alice", "GET", f"jobs/{job['id']}/log?tail=0").text == "so much\n"
    assert "although not all of its log" not in hub.log
