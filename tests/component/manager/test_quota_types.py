"""Several GPU types at once through the real Hub: two of one resource told apart by label, and another vendor's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.component.manager.quota import QuotaHub, Sampler, running
from tests.e2e.people import wait_for

pytestmark = pytest.mark.slow
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
QUOTA = {"a100": 3, "v100": 1, "mi300": 2}
RESOURCE = {"a100": NVIDIA, "v100": NVIDIA, "mi300": AMD}
PRODUCT = "nvidia.com/gpu.product"
NODES = [
    {"name": "a100-node", "cpu": 8, "gpus": {NVIDIA: 8}, "labels": {PRODUCT: "A100"}},
    {"name": "v100-node", "cpu": 8, "gpus": {NVIDIA: 8}, "labels": {PRODUCT: "V100"}},
    {"name": "mi300-node", "cpu": 8, "gpus": {AMD: 8}},
]
SHARE = {"cpu_per_gpu": "50m", "memory_per_gpu": "64Mi"}
CLUSTER = {
    "gpu_types": {
        "a100": {"resource": NVIDIA, "node_selector": {PRODUCT: "A100"}, **SHARE},
        "v100": {"resource": NVIDIA, "node_selector": {PRODUCT: "V100"}, **SHARE},
        "mi300": {"resource": AMD, **SHARE},
    },
    "cpu_only": {"cpu": {"default": "100m"}, "memory": {"default": "64Mi"}},
    "defaults": {"template": "tiny"},
}
TEAMS = {"teams": {"default": {"title": "Everybody", "quota": QUOTA}}}


class TypesHub(QuotaHub):
    """The same Hub on three nodes with another type each."""

    def prepare(self) -> None:
        super().prepare()
        self.nodes = self.state / "nodes.json"
        self.nodes.write_text(json.dumps({"nodes": NODES}))
        (self.config / "cluster.yaml").write_text(json.dumps(CLUSTER))
        (self.config / "teams.yaml").write_text(json.dumps(TEAMS))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("types")
    made = TypesHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=("--Manager.lease_seconds=3",))
    with running(made):
        yield made


def pod(hub: QuotaHub, user: str) -> Any:
    return json.loads(hub.kubectl("get", "pod", f"jupyter-{user}", "-o", "json"))


def test_every_type_has_a_quota_of_its_own_however_many_ask_at_once(hub: QuotaHub) -> None:
    wanted = {f"{kind}-{number}": kind for kind, most in QUOTA.items() for number in range(most + 2)}
    hub.add_users([*wanted])
    with contextlib.ExitStack() as stack:
        samplers = {resource: stack.enter_context(Sampler(hub, resource)) for resource in (NVIDIA, AMD)}
        for user, kind in wanted.items():
            assert hub.start_server(user, gpus=1, gpu_type=kind).status_code in {201, 202, 429}
        wait_for(lambda: len(hub.ready()) == sum(QUOTA.values()), "as many run as may", 120)
        wait_for(lambda: len(hub.servers()) == sum(QUOTA.values()), "the others wait", 60)
    got = [name.split("-")[0] for name in hub.ready()]
    assert {kind: got.count(kind) for kind in QUOTA} == QUOTA
    assert {resource: sampler.most for resource, sampler in samplers.items()} == {NVIDIA: 4, AMD: 2}
    for name in hub.ready():
        found = pod(hub, name.rstrip("/"))
        kind = name.split("-")[0]
        assert found["spec"]["nodeName"] == f"{kind}-node"
        assert found["spec"]["containers"][0]["resources"]["limits"][RESOURCE[kind]] == "1"
    waits = next(user for user in wanted if user.startswith("mi300") and f"{user}/" not in hub.servers())
    said = hub.refusal(waits, hub.start_server(waits, gpus=1, gpu_type="mi300"))
    assert said.startswith("Team Everybody uses 2 of its 2 GPUs of type mi300; this job needs 1.")
    assert "Traceback" not in hub.log
