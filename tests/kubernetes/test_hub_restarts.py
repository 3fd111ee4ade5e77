"""A Hub that is killed again and again on a real API server comes back to every pod; a simulated node runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import machines
from tests.contract.client import Client
from tests.harness.restarted import World, hub_of, storm, with_tiny
from tests.harness.spawner_hub import running

pytestmark = pytest.mark.kubernetes


def test_fifty_starts_survive_kills_at_any_moment(kubernetes: Client, jobs_namespace: str, tmp_path: Path) -> None:
    hub, node = tmp_path / "hub", tmp_path / "node"
    hub.mkdir()
    node.mkdir()
    with machines.simulated(kubernetes, node) as machine:
        extra = "c.KubeSpawner.storage_class = 'standard'\n"  # claims that the node binds
        extra += f"c.KubeSpawner.node_selector = {machine.placement['nodeSelector']!r}\n"
        extra += f"c.KubeSpawner.tolerations = {machine.placement['tolerations']!r}\n"
        made = hub_of(
            hub, extra, templates=with_tiny(tmp_path), namespace=jobs_namespace, cluster=kubernetes.kubeconfig
        )
        with running(made, cluster=False):
            world = World(made, "storm", templates=True)
            assert world.api("POST", f"/users/{world.user}").status_code == 201
            storm(world, 3, servers=50, kills=3, longest=8)
