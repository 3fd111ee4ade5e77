"""README.md's lines for a JupyterHub with its own configuration: no Manager, gateway, PriorityClasses and claims."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.people import wait_for
from tests.harness.spawner_hub import ROOT, Hub, Person, answers, running

# As Zero-to-JupyterHub has it; but pods of the embedded cluster share this machine's ports, and have an address each.
PLAIN = """
c.JupyterHub.bind_url = "{hub.url}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub.hub_port}"
c.JupyterHub.db_url = "sqlite:///{hub.state}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{hub.state}/cookie_secret"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{hub.api_port}"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{hub.password}"
c.Authenticator.allow_all = True
c.JupyterHub.allow_named_servers = True
c.KubeSpawner.namespace = "jobs"
c.KubeSpawner.ip = "$(POD_IP)"
c.KubeSpawner.uid, c.KubeSpawner.fs_gid = 1000, 100
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.pvc_name_template = "claim-{{username}}"
volume = {{"name": "volume-{{username}}", "persistentVolumeClaim": {{"claimName": "{{pvc_name}}"}}}}
c.KubeSpawner.volumes = {{"home": volume}}
c.KubeSpawner.volume_mounts = {{"home": {{"name": volume["name"], "mountPath": "/home/jovyan"}}}}
"""


class PlainHub(Hub):
    def start_cluster(self) -> None:
        self.run("cluster", sys.executable, "-m", "dlspawner.devcluster", f"--state={self.state / 'cluster'}")
        wait_for(self.kubeconfig.exists, "the kubeconfig", 120)

        def nodes() -> bool:
            ready = ["kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s"]
            return subprocess.run(ready, env=self.env(), capture_output=True, check=False).returncode == 0

        wait_for(nodes, "the nodes", 120)

    def start_hub(self) -> None:
        files, config = self.state / "etc", self.state / "jupyterhub_config.py"
        shutil.copytree(ROOT / "templates", files / "templates")
        shutil.copy(ROOT / "hub_config" / "cluster.yaml", files)
        shutil.copy(self.without_limits(), files)
        found = re.search(r"```python\n(c\.JupyterHub\.spawner_class.*?)```", (ROOT / "README.md").read_text(), re.S)
        assert found is not None
        config.write_text(PLAIN.format(hub=self) + found[1].replace("/etc/dlspawner", str(files)))
        self.run("hub", sys.executable, "-m", "jupyterhub", f"--config={config}")
        wait_for(lambda: answers(f"{self.url}/hub/health"), "the Hub", 180)


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with running(PlainHub(tmp_path_factory.mktemp("plain"))) as hub:
        yield Person(hub, "alice")


def test_what_is_missing_is_left_out_with_a_warning(alice: Person) -> None:
    alice.launch("", **{"profile": "gpu", "profile-option-gpu--image": "of an earlier time"})
    for warning in (
        "has no SSH: DLSpawner.ssh_ca_public_key_file is not set",
        "has no default-data: there is no such claim",
        "has no priority: cluster.yaml names the PriorityClass dlspawner-guaranteed",
    ):
        assert f"pod=jobs/jupyter-alice {warning}" in alice.hub.log
    assert not alice.hub.kubectl("get", "services", "-o", "name")
    assert alice.get("/hub/spawn/alice/another").ok, "the form ignores what was saved, too"


def test_an_image_of_ones_own_shows_its_page(alice: Person) -> None:
    alice.launch("own", template="custom")
    assert "ssh" not in alice.get("/user/alice/own/").text.lower()


def test_a_template_that_is_only_for_ssh_is_refused(alice: Person) -> None:
    refused = alice.start("shell", template="ssh")
    assert (refused.status_code, refused.json()["message"]) == (
        403,
        "SSH is not set up on this Hub. Ask an administrator.",
    )
