"""A start whose name is held by an earlier pod that does not go, through a real Hub that exits at the first failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlspawner.spawner.kube.errors import COUNTS_REFUSALS
from dlspawner.spawner.kube.pods import STILL_ENDING
from tests.component.spawner.test_base import RESPONDER
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, new_name, running

CONFIG = f"""
c.DLSpawner.templates_dir = ""
c.KubeSpawner.cmd = ["python3", "-S", "-c", {RESPONDER!r}]
c.KubeSpawner.start_timeout = 15
c.Spawner.consecutive_failure_limit = 1
"""


@pytest.mark.slow
@pytest.mark.skipif(COUNTS_REFUSALS, reason="JupyterHub 5.5 counts every refusal: the limit has to be 0 there")
def test_a_pod_that_a_finalizer_holds_is_told_of_and_not_counted(tmp_path: Path) -> None:
    with running(Hub(tmp_path, extra=CONFIG)) as hub:
        person = Person(hub, new_name("eve"))
        person.launch("")
        name = person.pod_name("")
        holding = json.dumps({"metadata": {"finalizers": ["example.org/held"]}})
        hub.kubectl("patch", "pod", name, "--type=merge", "-p", holding)
        hub.kubectl("delete", "pod", name, "--wait=false")
        wait_for(lambda: not person.server("").get("ready"), "the Hub has noticed", 90)
        wait_for(lambda: not person.server("").get("pending"), "its stop is over", 90)

        person.start("")
        told = [event["message"] for event in person.progress("") if event.get("failed")]
        wait_for(lambda: not person.server("").get("pending"), "the start has ended", 90)

        assert STILL_ENDING in " ".join(told)
        assert hub.running["hub"].poll() is None, "the Hub has not counted it"
        freed = json.dumps({"metadata": {"finalizers": None}})
        hub.kubectl("patch", "pod", name, "--type=merge", "-p", freed)
        person.launch("")
        person.stop("")
