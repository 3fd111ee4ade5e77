"""dlspawner doctor on a real API server: the manifests' objects, each with one fault made on purpose.

Nothing has to run for that: its own findings about processes that are not there yet are left out.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from dlspawner import cli, doctor
from dlspawner.clients.kubernetes import KubernetesClient
from tests.contract.client import Client
from tests.kubernetes.conftest import Kubectl, Scratch, made_node
from tests.kubernetes.instance import HERE
from tests.kubernetes.manifests import PRODUCT, Object, as_list

pytestmark = pytest.mark.kubernetes

# What holds on a cluster where nothing runs, nothing measures GPUs, and the Hub has no https.
USUAL = {"processes", "prometheus", "secrets", "gateway", "scopes"}


@dataclass
class Installed:
    product: str
    jobs: str
    objects: list[Object]
    kubectl: Kubectl

    def apply(self) -> None:
        arguments = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        self.kubectl(*arguments, input=as_list(self.objects))

    def findings(self) -> set[tuple[str, str]]:
        async def ask() -> doctor.Installation:
            async with await KubernetesClient.connect(os.environ["KUBECONFIG"]) as client:
                return await doctor.look(client, self.product)

        return {(one.check, one.problem) for one in doctor.check(asyncio.run(ask()))}

    def patch(self, namespace: str, what: str, patch: object, kind: str = "strategic") -> None:
        self.kubectl("patch", what, "-n", namespace, f"--type={kind}", "-p", json.dumps(patch))


@pytest.fixture(scope="module")
def installed(scratch: Scratch, kubectl: Kubectl, kubernetes: Client, priority_classes: None) -> Iterator[Installed]:
    """No pod is wanted; the cluster has a node with the GPUs of the demo."""
    text = json.dumps([one for one in scratch.objects if one["kind"] not in {"Job", "PriorityClass"}])
    objects = json.loads(text.replace(f"={PRODUCT}-jobs", f"={scratch.jobs}"))
    for one in objects:
        if one["kind"] in {"Deployment", "StatefulSet"}:
            one["spec"]["replicas"] = 0
    made = Installed(scratch.product, scratch.jobs, objects, kubectl)
    with made_node(kubernetes) as node:
        kubectl("taint", "node", node, "test-")
        made.apply()
        yield made


def test_the_manifests_have_no_problem_but_that_nothing_runs(installed: Installed) -> None:
    """And that homes are for one node, where the tests' cluster has simulated ones beside it."""
    installed.apply()
    assert {check for check, _ in installed.findings()} <= USUAL | {"storage"}


def no_role(it: Installed) -> None:
    it.kubectl("delete", "rolebinding", "hub", "-n", it.jobs)


def no_events(it: Installed) -> None:
    it.kubectl("delete", "role", "manager", "-n", it.product)


def other_resource(it: Installed) -> None:
    cluster = {"gpu_types": {"gpu": {"resource": "example.org/gpu", "cpu_per_gpu": 1, "memory_per_gpu": "2Gi"}}}
    it.patch(
        it.product, "configmap/cluster-config", {"data": {"cluster.yaml": json.dumps(cluster), "teams.yaml": "{}"}}
    )


def wrong_file(it: Installed) -> None:
    it.patch(it.product, "configmap/cluster-config", {"data": {"teams.yaml": "teams: {default: {quotta: {gpu: 8}}}\n"}})


def no_class(it: Installed) -> None:
    classes = {"priority_classes": {"guaranteed": "nowhere", "preemptible": "nowhere-either"}}
    cluster = {"gpu_types": {}, "scheduling": classes}
    it.patch(
        it.product, "configmap/cluster-config", {"data": {"cluster.yaml": json.dumps(cluster), "teams.yaml": "{}"}}
    )


def privileged(it: Installed) -> None:
    it.kubectl("label", "namespace", it.jobs, "--overwrite", "pod-security.kubernetes.io/enforce=privileged")


def one_namespace(it: Installed) -> None:
    arguments = [f"--Manager.namespace={it.product}"]
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]
    it.patch(it.product, "deployment/manager", change, "json")


def variable(it: Installed, process: str, **values: str) -> None:
    env = [{"name": name, "value": value, "valueFrom": None} for name, value in values.items()]
    spec = {"containers": [{"name": process, "env": env}]}
    it.patch(it.product, f"deployment/{process}", {"spec": {"template": {"spec": spec}}})


def no_prometheus(it: Installed) -> None:
    variable(it, "manager", DLSPAWNER_PROMETHEUS_URL="http://prometheus.monitoring:9090")


def nothing_listens(it: Installed) -> None:
    variable(it, "gateway", DLSPAWNER_PUBLIC_URL="http://127.0.0.1:1/")


def few_ports(it: Installed) -> None:
    change = [{"op": "replace", "path": "/spec/egress/4/ports/0/endPort", "value": 31000}]
    it.patch(it.product, "networkpolicy/gateway", change, "json")


FAULTS = {
    few_ports: ("node-ports", "the NetworkPolicy gateway admits NodePorts 30000 to 31000, and the cluster's are 3"),
    no_role: ("rights", "hub may not create pods in JOBS"),
    no_events: ("rights", "manager may not create events in PRODUCT"),
    other_resource: ("gpu-types", "no node has GPUs of the type gpu"),
    wrong_file: ("files", "teams:1: teams.default.quotta: there is no such key"),
    no_class: ("priority-classes", "there is no PriorityClass nowhere"),
    privileged: ("namespaces", "JOBS does not enforce restricted"),
    one_namespace: ("namespaces", "jobs and the product share a namespace"),
    no_prometheus: ("prometheus", "Prometheus does not answer at http://prometheus.monitoring:9090"),
    nothing_listens: ("web", "the Hub does not answer at http://127.0.0.1:1/"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_named(installed: Installed, fault: object) -> None:
    installed.apply()
    before = installed.findings()
    fault(installed)  # type: ignore[operator]
    check, problem = FAULTS[fault]  # type: ignore[index]
    problem = problem.replace("JOBS", installed.jobs).replace("PRODUCT", installed.product)
    new = installed.findings() - before
    assert any(one == check and said.startswith(problem) for one, said in new), new
    assert {one for one, _ in new} <= {check, "rights"}, "in another namespace there are no rights"


def test_defaults_of_zero_to_jupyterhub_are_named(installed: Installed, capsys: pytest.CaptureFixture[str]) -> None:
    """A Hub with `DLSpawner` in its own extraConfig and nothing else changed, as the command itself tells it."""
    values = yaml.safe_load((HERE / "z2jh" / "values.yaml").read_text())
    data = {"values.yaml": base64.b64encode(yaml.safe_dump(values).encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": data}
    installed.apply()
    installed.kubectl("apply", "-n", installed.product, "-f", "-", input=json.dumps(secret))
    command = ["doctor", f"--namespace={installed.product}", f"--kubeconfig={os.environ['KUBECONFIG']}"]
    try:
        assert cli.main([*command, "--json"]) == 1
        told = json.loads(capsys.readouterr().out)["problems"]
        assert cli.main(command) == 1
    finally:
        installed.kubectl("delete", "secret", "hub", "-n", installed.product)
    theirs = [one["problem"] for one in told if one["check"] == "zero-to-jupyterhub"]
    assert theirs == [
        "cull.enabled is true",
        "hub.consecutiveFailureLimit is 5",
        "hub.concurrentSpawnLimit is 64",
        "scheduling.userScheduler.enabled is true",
        "singleuser.cloudMetadata.blockWithIptables is true",
        'singleuser.storage.type is "dynamic"',
        'hub.networkPolicy.interNamespaceAccessLabels is "ignore"',
        "singleuser.uid and singleuser.fsGid hold for jobs",
    ]
    lacking = [one["problem"] for one in told if one["check"] == "scopes"]
    assert [sentence.split(" lacks ")[0] for sentence in lacking] == ["the service jobs", "the service ssh-gateway"]
    assert "remedy: set it to false" in capsys.readouterr().out


def test_an_account_without_the_rights_is_told_so(
    installed: Installed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.apply()
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for user in config["users"]:
        user["user"] = {"token": installed.kubectl("create", "token", "gateway", "-n", installed.product).strip()}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    command = ["doctor", "--json", f"--namespace={installed.product}", f"--kubeconfig={tmp_path / 'kubeconfig'}"]
    assert cli.main(command) == 1
    told = json.loads(capsys.readouterr().out)["problems"]
    assert {"Secrets could not be read", "Nodes could not be read"} <= {one["problem"] for one in told}
