"""Special permissions in real containers: each is in effect in the second namespace, and refused in the ordinary one.

How a job comes to be approved, and that the Hub makes it there, is shown with the embedded cluster
(tests/e2e/test_launcher.py); here pods are what the spawner makes of templates that ask.

Ports of the host, by a Hub with its Manager.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dlspawner.core.config import SpecialPermission
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.launch.security import permission_uses
from dlspawner.core.template import TeamDataAccess, Template
from dlspawner.core.units import Manifest
from dlspawner.settings import Settings
from tests.bench.spawn import RESPONDER
from tests.component.manager.quota import TEMPLATE
from tests.component.manager.rest import RestHub
from tests.component.spawner.test_special import _answer
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.http_servers import answering
from tests.kubernetes import counted
from tests.kubernetes.conftest import Image, Kubectl
from tests.kubernetes.jobs import SMALL, TEAMS, Job, JobBuilder, shipped
from tests.unit.core.test_permissions import USES, ordinary

pytestmark = pytest.mark.kubernetes

ALICE = 11_001  # of the authenticator: none that the Manager gives
ROOT = {"runAsUser": 0, "allowPrivilegeEscalation": True, "capabilities": {"drop": []}}
AS_ROOT: Manifest = {"containers": [{"name": "notebook", "securityContext": ROOT}]}
PRIVILEGED = {"runAsUser": 0, "privileged": True}


def templates(scratch: str) -> dict[str, Template]:
    """The shell, as templates with special permissions make it."""
    found = shipped().template("ssh")
    assert found is not None
    shell = replace(found, mounts=replace(found.mounts, team_data=TeamDataAccess.NONE))
    volume = {"name": "scratch", "hostPath": {"path": scratch, "type": "DirectoryOrCreate"}}
    mounted = {"containers": [{"name": "notebook", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}]}
    asked: dict[str, tuple[set[SpecialPermission], Manifest]] = {
        "root": ({SpecialPermission.ROOT}, AS_ROOT),
        "privileged": (
            {SpecialPermission.ROOT, SpecialPermission.PRIVILEGED},
            {"containers": [{"name": "notebook", "securityContext": PRIVILEGED}]},
        ),
        "host-network": ({SpecialPermission.HOST_NETWORK}, {"hostNetwork": True}),
        "host-paths": (
            {SpecialPermission.ROOT, SpecialPermission.HOST_PATHS},
            merge_pod({**AS_ROOT, "volumes": [volume]}, mounted),
        ),
    }
    return {
        name: replace(shell, name=name, special=frozenset(special), pod=merge_pod(shell.pod, pod))
        for name, (special, pod) in asked.items()
    }


NAMES = tuple(templates("/"))


@dataclass
class SpecialJobBuilder(JobBuilder):
    """The second namespace, in which the spawner puts jobs by itself."""

    ordinary: str = ""
    manager: str = ""
    made: Any = None

    def spawner(self, person: str, uid: int, server: str) -> Any:
        self.made = super().spawner(person, uid, server)
        self.made.namespace, self.made.special_namespace = self.ordinary, self.namespace
        self.made.manager_url, self.made.manager_token = self.manager, "token"
        return self.made

    async def final(self, template: str) -> Job:
        """A job, after the judgement on its final manifest."""
        job = await self.render("alice", ALICE, template, **SMALL)
        assert self.made.namespace == self.namespace
        job.pod = self.made._final(job.pod)
        return job


@pytest.fixture
def second(kubernetes: Client) -> Iterator[str]:
    """A namespace as components/special makes it."""
    with kubernetes.namespace("special", {"pod-security.kubernetes.io/enforce": "privileged"}) as name:
        yield name


@pytest.fixture
async def builder(  # noqa: PLR0917 - fixtures
    kubernetes: Client,
    kubectl: Kubectl,
    jobs_namespace: str,
    second: str,
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[SpecialJobBuilder]:
    cluster = replace(shipped().cluster, special=frozenset(SpecialPermission))
    settings = Settings(tuple(templates(f"/var/tmp/{second}").values()), cluster, TEAMS)
    async with answering(_answer) as manager:
        yield SpecialJobBuilder(
            *(kubernetes, kubectl, second, image("job"), tmp_path, monkeypatch),
            settings=settings,
            ordinary=jobs_namespace,
            manager=manager,
        )


async def runs(builder: SpecialJobBuilder, template: str) -> Job:
    """A job with a shell that stays, and answers ssh."""
    return builder.stays(await builder.final(template))


async def test_root_is_root_with_the_capabilities_that_a_package_manager_needs(builder: SpecialJobBuilder) -> None:
    job = await runs(builder, "root")
    assert job.run("id -u") == "0"
    assert job.run("touch /tmp/f && chown 7:7 /tmp/f && stat -c %u /tmp/f") == "7"
    assert job.run("apt-get --version >/dev/null && touch /usr/bin/more-of-it && echo written") == "written"
    # And no more than that.
    assert job.run("mount -t tmpfs none /mnt 2>/dev/null || echo refused") == "refused"
    assert job.ssh("id", "-u") == "0"


async def test_privileged_is_privileged(builder: SpecialJobBuilder) -> None:
    job = await runs(builder, "privileged")
    assert job.run("mount -t tmpfs none /mnt && echo mounted") == "mounted"
    assert int(job.run("ls /dev | wc -l")) > 20, "the node's devices"


async def test_the_network_is_the_node_s_with_the_cluster_s_names(builder: SpecialJobBuilder) -> None:
    job = await runs(builder, "host-network")
    status = builder.kubernetes.get(job.path)["status"]
    assert status["podIP"] == status["hostIP"]
    assert job.run("id -u") == str(ALICE), "and nothing else is special about it"
    assert "svc.cluster.local" in job.run("cat /etc/resolv.conf")
    assert job.ssh("echo", "here") == "here"


async def test_a_path_is_the_node_s_and_the_same_for_two_jobs(builder: SpecialJobBuilder) -> None:
    one, other = await runs(builder, "host-paths"), await runs(builder, "host-paths")
    one.run("echo from-one > /scratch/file")
    assert other.run("cat /scratch/file") == "from-one"
    other.run("rm -rf /scratch/*")


@pytest.mark.parametrize("template", NAMES)
async def test_the_ordinary_namespace_refuses_the_same_pod(template: str, builder: SpecialJobBuilder) -> None:
    job = await builder.final(template)
    pods = "/api/v1/namespaces/{}/pods"
    answer = builder.kubernetes.request("POST", pods.format(builder.ordinary), job.pod, query={"dryRun": "All"})
    assert answer.code == 403, answer.raw.decode()
    assert 'violates PodSecurity "restricted' in answer.json["message"]
    answer = builder.kubernetes.request("POST", pods.format(builder.namespace), job.pod, query={"dryRun": "All"})
    assert answer.code == 201, answer.raw.decode()


@pytest.mark.parametrize("change", [change for change, _ in USES.values()], ids=list(USES))
def test_the_judgement_is_never_looser_than_pod_security(
    change: Manifest, kubernetes: Client, jobs_namespace: str
) -> None:
    """Kubernetes' own *restricted* refuses each use of a permission, and admits all else."""
    pod = merge_pod(ordinary(), change)
    for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]:
        container.setdefault("image", "localhost/none:1")
    for volume in pod["spec"]["volumes"]:
        if set(volume) == {"name"}:
            volume["emptyDir"] = {}
    pods = f"/api/v1/namespaces/{jobs_namespace}/pods"
    answer = kubernetes.request("POST", pods, pod, query={"dryRun": "All"})
    refused = answer.code == 403 and "violates PodSecurity" in answer.json["message"]
    if refused:
        assert permission_uses(pod), answer.json["message"]
    if not permission_uses(pod):
        assert answer.code == 201, answer.raw.decode()


# Ports of the host, through a Hub and its Manager


@dataclass
class NetworkHub(RestHub):
    """With a template on the host's network, and ports for two jobs."""

    special: str = ""

    def prepare(self) -> None:
        responder = RESPONDER.replace("8888", 'int(os.environ["DLSPAWNER_PORT_NOTEBOOK"])')
        self.own_templates = {
            "host": {
                **TEMPLATE,
                "command": ["python3", "-S", "-c", responder],
                "ports": [{"name": "nccl", "count": 2}],
                "special_permissions": ["host_network"],
                "pod": {"hostNetwork": True},
            },
        }
        super().prepare()
        with (self.config / "cluster.yaml").open("a") as cluster:
            cluster.write("special_permissions: [host_network]\nhost_ports: {range: 20000-20007}\n")

    def env(self) -> dict[str, str]:
        return {**super().env(), "DLSPAWNER_SPECIAL_NAMESPACE": self.special}

    def start_approved(self, server: str) -> str:
        """The id of a job that an administrator has approved, and that answers the Hub."""
        answer = self.ask("alice", "POST", "jobs", {"server": server, "options": {"template": "host", "gpus": 0}})
        assert answer.status_code in {201, 202}, answer.text
        job = str(answer.json()["id"] or wait_for(lambda: self.job("alice", server).get("id"), "its job"))
        wait_for(lambda: self.job("alice", server)["state"] == "pending-approval", "its request")
        approved = self.ask("admin", "POST", f"jobs/{job}/approve", {"reason": "To try it."})
        assert approved.status_code == 200, approved.text
        wait_for(lambda: f"alice/{server}" in self.ready(), f"{server} answers the Hub", 120)
        return job


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, second: str, image: Image, tmp_path: Path) -> Iterator[NetworkHub]:
    settings = ("--Manager.lease_seconds=3", f"--Manager.special_namespace={second}")
    given = (NetworkHub, kubernetes, jobs_namespace, image("job"), tmp_path)
    with counted.hub(*given, settings=settings, special=second) as made:
        yield made


def test_jobs_on_the_host_s_network_share_a_node_by_their_own_ports(hub: NetworkHub, kubectl: Kubectl) -> None:
    given: dict[str, list[int]] = {}
    for server in ("one", "two"):
        job = hub.start_approved(server)
        (ports,) = hub.ask("alice", "GET", f"jobs/{job}").json()["ports"]
        given[server] = [number for numbers in ports.values() for number in numbers]
        pod = f"jupyter-alice--{server}"
        told = kubectl("-n", hub.special, "exec", pod, "--", "printenv", "DLSPAWNER_PORTS", "DLSPAWNER_PORTS_NCCL")
        assert told.split() == [",".join(map(str, given[server])), ",".join(map(str, ports["nccl"]))]
    pods = json.loads(kubectl("-n", hub.special, "get", "pods", "-o", "json"))["items"]
    declared = [
        sorted(port["hostPort"] for one in pod["spec"]["containers"] for port in one.get("ports", ())) for pod in pods
    ]
    assert declared == list(given.values())
    assert sorted(number for numbers in given.values() for number in numbers) == list(range(20000, 20008))
    assert len({pod["status"]["hostIP"] for pod in pods}) == 1
    hub.clear()
