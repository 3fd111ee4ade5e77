"""Engines that are uninstalled underneath a real Hub, a Hub of its own for each: jobs that waited start without them.

On real control planes alone (`make test-on-control-planes`), with the real engines. None of them comes back.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import running
from tests.component.manager.test_gang_hub import SCHEDULER, SCHEDULERS, GangHub
from tests.component.manager.test_kueue_hub import WAITS, KueueHub, stop, told, until_told
from tests.e2e.people import wait_for
from tests.kubernetes import engines

pytestmark = pytest.mark.real


@pytest.mark.parametrize("first", ["definitions", "controllers"])
def test_jobs_that_waited_in_kueue_start_without_it(tmp_path: Path, first: str) -> None:
    with running(KueueHub(tmp_path, settings=SETTINGS)) as hub:
        hub.add_users(["goes", "stays", "late"])
        hub.start_server("goes", gpus=1)
        wait_for(lambda: hub.ready() == ["goes/"], "a job runs")
        hub.start_server("stays", gpus=1)
        until_told(hub, "stays", 1, WAITS)
        before = hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'stays'")
        if first == "definitions":
            hub.kueue.uninstall()
            until_told(hub, "stays", 1, re.compile("Kueue does not take this job now. It keeps its place"))
        else:
            hub.kueue.uninstall_controllers_first()
            hub.start_server("late", gpus=1)
            until_told(hub, "late", 2, re.compile("Kueue does not take this job now. It keeps its place"))
        cluster = hub.config / "cluster.yaml"
        cluster.write_text(cluster.read_text().replace("scheduler: {name: kueue, priority_classes: {prod: high}}", ""))
        wait_for(lambda: "Kueue" not in told(hub, "stays")[2], "the native queue has it")
        stop(hub, "goes")
        wait_for(lambda: hub.ready() == ["stays/"], "it runs when there is room")
        assert hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'stays'") == before
        if first == "controllers":
            hub.kueue.take_finalizers_off()
        kinds = ["api-resources", "--api-group=kueue.x-k8s.io", "-o", "name"]
        wait_for(lambda: not hub.kubectl(*kinds), "no finalizer holds an object back", 60)
        hub.clear()
        hub.check_logs()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_jobs_that_waited_for_a_scheduler_of_gangs_start_without_it(tmp_path: Path, name: str) -> None:
    with running(GangHub(tmp_path, settings=SETTINGS, name=name)) as hub:
        hub.add_users(["three", "four"])
        hub.launch("four", template="several", workers=3, gpus=1)
        wait_for(lambda: hub.ready() == ["four/"], "it runs", 120)
        hub.launch("three", template="several", workers=2, gpus=1)
        wait_for(lambda: "has no place for it yet: " in hub.why("three"), "the engine says why it waits", 120)
        before = hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'three'")
        engines.uninstall(name, hub.engine)
        gone = "has no place for it yet: " if name == "gang" else f"{name.capitalize()} does not take this job now."
        wait_for(lambda: gone in hub.why("three"), "it is not lost, and says what is missing", 120)
        cluster = hub.config / "cluster.yaml"
        cluster.write_text(cluster.read_text().replace(SCHEDULER % (name, SCHEDULERS[name]), ""))
        wait_for(lambda: "place for it yet" not in hub.why("three"), "the native queue has it", 120)
        assert hub.ready() == ["four/"], "the running job continues"
        assert hub.api("DELETE", "/users/four/server").ok
        wait_for(lambda: hub.ready() == ["three/"], "it runs when there is room", 180)
        assert hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'three'") == before
        assert {pod["spec"]["schedulerName"] for pod in hub.pods()} == {"default-scheduler"}
        hub.clear()
        hub.check_logs()
