"""Unused jobs on a real control plane: the GPUs are those of a simulated node, the Prometheus is a real one."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.edges.test_manager.test_idle_story import SECONDS, WHO, StoryHub, story

pytestmark = pytest.mark.kubernetes
RESOURCE = f"idle-{secrets.token_hex(3)}.example.com/gpu"


@pytest.fixture
def node(kubernetes: Client, tmp_path: Path) -> Iterator[None]:
    """One with GPUs that nobody else's pods go to."""
    name = f"idle-{secrets.token_hex(4)}"
    taint = {"key": "nvidia.com/gpu", "value": name, "effect": "NoSchedule"}
    described = {"name": name, "cpu": 8, "memory": "16Gi", "gpus": {RESOURCE: 8}, "taints": [taint]}
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": [described]}))
    command = [sys.executable, "-m", "dlspawner.devcluster.node", f"--kubeconfig={kubernetes.kubeconfig}"]
    command += [f"--state={tmp_path / 'node'}", f"--nodes={tmp_path / 'nodes.yaml'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline().startswith("Nodes ready:")
            yield
        finally:
            process.terminate()
            process.wait(20)
            kubernetes.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def hub(node: None, kubernetes: Client, jobs_namespace: str, tmp_path: Path) -> Iterator[StoryHub]:
    state = tmp_path / "hub"
    state.mkdir()
    cluster = {"cluster": kubernetes.kubeconfig, "namespace": jobs_namespace, "resource": RESOURCE}
    with (
        story(state, "metrics_age_seconds: 30, keep_alive_seconds: 600, dry_run: false", **cluster) as made,
        made.metered(),
    ):
        yield made


def test_an_unused_job_is_stopped_and_started_again_with_one_click_and_one_that_is_kept_or_works_goes_on(
    hub: StoryHub,
) -> None:
    hub.start({**{name: WHO[name] for name in ("alice", "bob")}, "carol": {"template": "short", "gpus": 1}})
    wait_for(lambda: hub.told("alice") and hub.told("carol"), "they are warned", SECONDS)
    assert "It is kept for 1 min, longer while it is used." in hub.keep("carol")
    assert hub.told("carol") == []
    wait_for(lambda: "alice/" not in hub.servers(), "the other's is stopped", SECONDS)
    assert hub.warned("alice") == ["50", "90"]
    wait_for(lambda: hub.warned("carol").count("50") == 2, "hers goes on until she is warned anew", SECONDS)
    wait_for(lambda: "jupyter-alice" not in hub.kubectl("get", "pods", "-o", "name"), "its GPUs are free", 120)
    assert (hub.judged("bob")["verdict"], hub.judged("bob")["why"]) == ("keep", "used")
    hub.start_again("alice")
    assert hub.gpus_of("alice") == "2"
    assert {"alice/", "bob/"} <= set(hub.ready())
