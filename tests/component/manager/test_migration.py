"""hub_config/MIGRATION.md, step by step: its own lines, a Hub that is restarted for each, and servers that run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dlspawner.spawner.kube.pods import variable
from tests.component.manager import quota
from tests.component.manager.quota import QuotaHub
from tests.component.spawner.test_plain_hub import PLAIN
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import ROOT, Person, answers

GUIDE = (ROOT / "hub_config" / "MIGRATION.md").read_text()
# A Hub as an administrator had it, on the embedded cluster.
STOCK = (
    PLAIN
    + """
c.JupyterHub.cleanup_servers = False
c.JupyterHub.services, c.JupyterHub.load_roles = [], []
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.namespace = "{hub.namespace}"
c.KubeSpawner.environment = {{"POD_IP": {{"valueFrom": {{"fieldRef": {{"fieldPath": "status.podIP"}}}}}}}}
c.KubeSpawner.cmd = ["python3", "-S", "-c", {responder!r}]
c.KubeSpawner.args = []
large = {{"environment": {{"SIZE": "large"}}}}
c.KubeSpawner.profile_list = [
    {{"display_name": "Small", "slug": "small", "default": True}},
    {{"display_name": "Large", "slug": "large", "kubespawner_override": large}},
]
"""
)


def lines(title: str, language: str = "python") -> str:
    """The guide's block that begins with this comment."""
    (found,) = re.findall(rf"```{language}\n(# {title}.*?)```", GUIDE, re.S)
    return str(found)


@dataclass
class MovingHub(QuotaHub):
    """Its configuration is that of a step."""

    step: int = 0

    def start_manager(self, name: str = "manager", port: int = 0) -> None:
        if self.step == 3:
            super().start_manager(name, port)

    def start_hub(self) -> None:
        if self.step == 3:
            self.extra = f"c.KubeSpawner.storage_pvc_ensure = True\n{lines('step 3')}{lines('keep uid 1000')}"
            super().start_hub()
            return
        config, files = self.state / "jupyterhub_config.py", self.state / "etc"
        ours = re.sub(r"c\.(DLSpawner\.|KubeSpawner\.storage_pvc).*\n", "", quota.EXTRA)
        text = STOCK.format(hub=self, responder=quota.RESPONDER) + ours + (lines("step 1") if self.step else "")
        if self.step == 2:
            files.mkdir()
            shutil.copytree(self.templates, files / "templates", symlinks=True)
            shutil.copy(self.config / "cluster.yaml", files)
            shutil.copy(self.without_limits(), files)
            text += "del c.KubeSpawner.profile_list\n" + lines("step 2").replace("/etc/dlspawner", str(files))
        config.write_text(text)
        self.run("hub", sys.executable, "-m", "jupyterhub", f"--config={config}")
        wait_for(lambda: answers(f"{self.url}/hub/health"), "the Hub", 180)

    def take(self, step: int) -> None:
        self.stop("hub")
        self.step = step
        self.start_manager()
        self.start_hub()

    def env(self) -> dict[str, str]:
        return {**super().env(), "JUPYTERHUB_CRYPT_KEY": "ab" * 32}

    def pod(self, person: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", "pod", f"jupyter-{person}", "-o", "json")))

    def note(self, person: str) -> str:
        return self.kubectl("exec", f"jupyter-{person}", "--", "sh", "-c", 'cat "$HOME/note"').strip()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[MovingHub]:
    with quota.running(MovingHub(tmp_path)) as made:
        yield made


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """The pod is the one from before, untouched."""
    own = ("uid", "deletionTimestamp")
    return [before["metadata"].get(one) for one in own] == [after["metadata"].get(one) for one in own]


def test_each_step_takes_running_servers_saved_options_and_homes_over(hub: MovingHub) -> None:
    alice, bob = Person(hub, "alice"), Person(hub, "bob")
    alice.launch("", profile="large")
    bob.launch("", profile="large")
    hub.kubectl("exec", "jupyter-alice", "--", "sh", "-c", "echo kept >/home/jovyan/note")
    first, bobs = hub.pod("alice"), hub.pod("bob")

    hub.take(1)
    assert alice.ready("")
    assert same(first, hub.pod("alice"))
    alice.stop("")
    alice.launch("")
    second = hub.pod("alice")
    assert variable(second, "SIZE") == "large", "what was saved holds"
    assert "dlspawner.dev/job" not in second["metadata"]["labels"]

    hub.take(2)
    assert alice.ready("")
    assert same(second, hub.pod("alice"))
    alice.stop("")
    alice.launch("")
    third = hub.pod("alice")
    assert third["metadata"]["labels"]["dlspawner.dev/template"] == "tiny", "a saved profile is ignored"
    assert variable(third, "SIZE") is None
    assert hub.note("alice") == "kept"

    hub.take(3)
    wait_for(lambda: hub.jobs() == {"alice": "running"}, "the Manager has taken the job over", 120)
    assert alice.ready("")
    assert bob.ready("")
    assert same(third, hub.pod("alice"))
    assert same(bobs, hub.pod("bob")), "a server of a profile goes on without the Manager"
    alice.stop("")
    assert alice.start("").status_code == 403, "an account from before has no numbers until its person logs in"
    Person(hub, "alice").launch("")
    last = hub.pod("alice")["spec"]
    assert (last["securityContext"]["runAsUser"], last["securityContext"]["runAsGroup"]) == (1000, 100)
    assert hub.note("alice") == "kept"
