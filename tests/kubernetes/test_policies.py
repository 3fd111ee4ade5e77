"""The allowed connections by the manifests' NetworkPolicies: these ways, and no other.

What the policies are judged by is what pods have: labels, ports by name, an address. `manifests.reaches` is the engine;
jobs are rendered by the spawner from the shipped templates.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import yaml

from dlspawner.core import naming
from tests.harness.spawner_builders import make_spawner
from tests.kubernetes import deploy
from tests.kubernetes.conftest import BASE, Kubectl
from tests.kubernetes.jobs import shipped
from tests.kubernetes.manifests import JOBS, Address, Object, Peer, Pod, of_kind, pods, reaches

pytestmark = pytest.mark.kubernetes

JOB = Pod(
    "job",
    JOBS,
    naming.job_labels(naming.PodIdentity("j-aaaaaaaaaaaa", "alice", "", "default", "ipython", 0)),
    {"notebook-port": 8888, "ssh": 2222},
    "10.244.0.3",
)
OTHER_JOB = Pod("other job", JOBS, JOB.labels, JOB.ports, "10.244.0.4")
STRANGER = Pod("stranger", "default", {"app": "x"}, {"http": 80}, "10.244.0.5")
# Pod networks as clusters have them, with one beside the nodes' addresses.
POD_ADDRESSES = ("10.244.0.5", "10.0.0.9", "10.9.8.6", "172.17.0.5", "192.168.3.4", "100.64.1.2", "fd00:10:244::5")
NODE, LAPTOP, METADATA = Address("10.9.8.7"), Address("203.0.113.9"), Address("169.254.169.254")
TRANSLATED = Address("64:ff9b::169.254.169.254")  # METADATA behind a NAT64
PORTS = {22, 53, 80, 443, 2222, 5432, 6443, 8000, 8001, 8080, 8081, 8082, 8888, 9090, 10250, 30000, 31234, 32767}

REACHES: dict[tuple[str, str], set[int]] = {
    ("proxy", "hub"): {8081},
    ("proxy", "manager"): {8082},
    ("proxy", "job"): {8888},
    ("hub", "proxy"): {8001},
    ("hub", "manager"): {8082},
    ("hub", "job"): {8888},
    ("hub", "postgresql"): {5432},
    ("manager", "hub"): {8081},
    ("manager", "postgresql"): {5432},
    ("gateway", "hub"): {8081},
    ("gateway", "manager"): {8082},
    ("gateway", "job"): {2222},
    ("node", "job"): {2222},  # what came through a NodePort
    ("job", "hub"): {8081},
    ("job", "manager"): {8082},
    ("job", "laptop"): PORTS,  # the internet
}
INWARD = {"proxy": {8000}, "gateway": {2222}}  # the ways in for all clients
# The API server, wherever it is; the gateway goes to the jobs' NodePorts as well.
API, NODE_PORTS = {443, 6443}, {30000, 31234, 32767}
OUTWARD = {"hub": API, "manager": API, "bootstrap": API, "gateway": API | NODE_PORTS}


@pytest.fixture(scope="module")
def deployed(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The demo where the person has named their one node."""
    directory = deploy.overlay(tmp_path_factory.mktemp("overlay"), "x", "7", nodes=[NODE.ip])
    return list(yaml.safe_load_all(kubectl("kustomize", str(directory))))


def test_network_policies_allow_these_ways_and_no_other(deployed: list[Object]) -> None:
    inside = [*pods(deployed), JOB]
    outside: dict[str, Peer] = {"laptop": LAPTOP, "node": NODE, "metadata": METADATA, "stranger": STRANGER}
    outside["translated"] = TRANSLATED
    peers: dict[str, Peer] = {pod.name: pod for pod in inside} | outside
    expected = dict(REACHES)
    for place in outside:
        expected |= {(place, name): ports for name, ports in INWARD.items()}
        expected |= {(name, place): ports for name, ports in OUTWARD.items()}
    found = {
        (source, target): allowed
        for source in peers
        for target in peers
        if source != target
        and (source not in outside or target not in outside)
        and (allowed := reaches(deployed, peers[source], peers[target], PORTS))
    }
    assert found == expected


def test_the_managers_probe_goes_where_the_policies_forbid(deployed: list[Object]) -> None:
    (manager,) = (one for one in of_kind(deployed, "Deployment") if one["metadata"]["name"] == "manager")
    (container,) = manager["spec"]["template"]["spec"]["containers"]
    assert "--Manager.forbidden_address=proxy-api:8001" in container["args"]
    peers = {pod.name: pod for pod in pods(deployed)}
    assert reaches(deployed, peers["manager"], peers["proxy"], PORTS) == set()


def test_jobs_do_not_reach_each_other(deployed: list[Object]) -> None:
    assert reaches(deployed, JOB, OTHER_JOB, PORTS) == set()


@pytest.mark.parametrize("ip", POD_ADDRESSES)
@pytest.mark.parametrize("manifests", ["demo", "deployed"])
def test_a_stranger_s_pod_reaches_no_job_whatever_its_address(
    manifests: str, ip: str, request: pytest.FixtureRequest
) -> None:
    assert reaches(request.getfixturevalue(manifests), replace(STRANGER, ip=ip), JOB, PORTS) == set()


def test_unnamed_node_reaches_no_job(demo: list[Object], kubectl: Kubectl) -> None:
    for objects in (demo, list(yaml.safe_load_all(kubectl("kustomize", str(BASE))))):
        assert reaches(objects, NODE, JOB, PORTS) == set()
        assert reaches(objects, LAPTOP, JOB, PORTS) == set()


def test_every_pod_may_ask_the_cluster_s_dns(demo: list[Object]) -> None:
    for pod in [*pods(demo), JOB]:
        allowed = [
            (entry["protocol"], entry["port"])
            for one in of_kind(demo, "NetworkPolicy")
            if one["metadata"]["namespace"] == pod.namespace and one["metadata"]["name"] in {"dns", "product"}
            for rule in one["spec"]["egress"]
            for entry in rule["ports"]
            if entry["port"] == 53
        ]
        assert allowed == [("UDP", 53), ("TCP", 53)], pod.name


OPTIONS: dict[str, dict[str, object]] = {
    "ipython": {},
    "distributed": {},
    "ssh": {},
    "files": {},
    "tensorboard": {"log_dir": "runs"},
    "custom": {"image": "example.org/a:1"},
}


@pytest.mark.parametrize("template", OPTIONS)
async def test_a_rendered_job_is_reached_at_the_ports_it_has(
    template: str, deployed: list[Object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {one.name for one in shipped().templates} == set(OPTIONS)
    job = await rendered(template, monkeypatch, tmp_path)
    assert job.ports == (JOB.ports if template != "tensorboard" else {"notebook-port": JOB.ports["notebook-port"]})
    product = {pod.name: pod for pod in pods(deployed)}
    ssh = {job.ports["ssh"]} if "ssh" in job.ports else set()
    for name, allowed in {"proxy": {8888}, "hub": {8888}, "gateway": ssh, "manager": set()}.items():
        assert reaches(deployed, product[name], job, PORTS) == allowed, name
    assert reaches(deployed, NODE, job, PORTS) == ssh
    assert reaches(deployed, JOB, job, PORTS) == set()
    assert reaches(deployed, job, product["hub"], PORTS) == {8081}
    assert reaches(deployed, job, LAPTOP, PORTS) == PORTS


async def rendered(template: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Pod:
    """A shipped template's pod as a start would create it, and what policies see of it."""
    authority = folder / "user_ca.pub"
    authority.write_text("ssh-ed25519 AAAA gateway\n")
    config = {"namespace": JOBS, "ssh_ca_public_key_file": str(authority), "ssh_image": "x/ssh:7"}
    spawner = make_spawner(monkeypatch, settings=shipped(), config=config)
    spawner.user.get_auth_state = AsyncMock(return_value={"uid": 5000})
    spawner.user_options = {"template": template, **OPTIONS[template]}
    await spawner.load_user_options()
    pod = spawner.api.api_client.sanitize_for_serialization(await spawner.get_pod_manifest())
    ports = {
        port["name"]: port["containerPort"] for each in pod["spec"]["containers"] for port in each.get("ports", ())
    }
    return Pod("rendered", JOBS, pod["metadata"]["labels"], ports, "10.244.0.6")
