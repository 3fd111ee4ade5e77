"""Special permissions: the namespace of such jobs, and what their final manifest may use."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from traitlets.config import Config

from dlspawner.core import naming
from dlspawner.core.config import HostPorts, SpecialPermission
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.template import JobPorts, Mounts, PodRole, TeamDataAccess
from dlspawner.core.units import Manifest
from dlspawner.manager.http.api.models.requests import AdmissionBody
from dlspawner.settings import Settings
from dlspawner.spawner import StartRefused, forms, manager_link, owned_objects
from dlspawner.spawner.kube.pods import PodRequests
from tests.component.spawner.conftest import Kept
from tests.harness.http_servers import answering
from tests.harness.spawner_builders import CLUSTER, NOTEBOOK, SETTINGS, TEAMS, make_spawner

ADMIN = replace(
    NOTEBOOK,
    name="admin",
    special=frozenset({SpecialPermission.ROOT, SpecialPermission.HOST_PATHS}),
    pod={
        "securityContext": {"runAsUser": 0},
        "volumes": [{"name": "scratch", "hostPath": {"path": "/scratch"}}],
    },
)
HOST = replace(NOTEBOOK, name="host", special=frozenset({SpecialPermission.HOST_NETWORK}), pod={"hostNetwork": True})
BOTH = Settings((NOTEBOOK, ADMIN, HOST), replace(CLUSTER, special=frozenset(SpecialPermission)), TEAMS)
Make = Callable[..., Any]


async def _answer(request: web.Request) -> web.Response:
    if request.path.endswith(("/account", "/starting")):
        return web.json_response({"job": None, "account": "alice", "uid": 20_001, "gid": 20_001})
    if request.path.endswith("/admission"):
        wanted = AdmissionBody.model_validate_json(await request.read()).ports
        ports = [list(range(20_000 + 100 * pod, 20_000 + 100 * pod + count)) for pod, count in enumerate(wanted)]
        admitted = {"decision": "admit", "sentences": [], "reason": "", "seconds": 60, "nodes": []}
        return web.json_response({**admitted, "ports": ports})
    return web.json_response({"waiting": []})


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes spawners with a second namespace and a Manager."""
    ca = tmp_path / "user_ca.pub"
    ca.write_text("ssh-ed25519 AAAA gateway\n")
    async with answering(_answer) as url:

        def made(found: Settings = BOTH, **config: Any) -> Any:
            given = {"special_namespace": "jobs-special", "ssh_ca_public_key_file": str(ca), **config}
            manager = {"manager_url": url, "manager_token": "manager's token"}
            spawner = make_spawner(monkeypatch, settings=found, config={**manager, **given})
            spawner.config = Config({"KubeSpawner": {"namespace": "jobs"}})
            return spawner

        yield made


async def final(spawner: Any, template: str, change: Manifest | None = None, **options: object) -> Any:
    """The manifest of a request for the pod, after a hook's ``change``."""
    spawner.user_options = {"template": template, **options}
    await spawner.load_user_options()
    pod = spawner.api.api_client.sanitize_for_serialization(await spawner.get_pod_manifest())
    return spawner._final(merge_pod(pod, change or {}))


async def test_only_jobs_with_special_permissions_are_in_the_second_namespace(make: Make) -> None:
    spawner = make()
    await final(spawner, "admin")
    assert (spawner.namespace, spawner.pods.namespace, spawner.pod_key.split("/")[0]) == ("jobs-special",) * 3

    restarted = make()
    restarted.load_state(spawner.get_state())
    assert restarted.namespace == "jobs-special"
    restarted.clear_state()
    assert restarted.namespace == "jobs"
    assert "dlspawner_special" not in restarted.get_state()
    await final(restarted, "ipython")
    assert restarted.namespace == "jobs"


async def test_each_namespace_has_its_own_claim(make: Make) -> None:
    spawner = make(storage_pvc_ensure=True)
    spawner._pvc_exists = True  # KubeSpawner's, of the ordinary job before
    await final(spawner, "admin")
    assert spawner._pvc_exists is False
    spawner._pvc_exists = True
    await final(spawner, "ipython")
    assert spawner._pvc_exists is False
    spawner._pvc_exists = True
    await final(spawner, "ipython")
    assert spawner._pvc_exists is True


async def test_the_manifest_has_the_permissions_of_the_template(make: Make) -> None:
    pod = await final(make(), "admin")
    assert pod["spec"]["securityContext"]["runAsUser"] == 0
    assert {"name": "scratch", "hostPath": {"path": "/scratch"}} in pod["spec"]["volumes"]
    host = await final(make(), "host")
    assert (host["spec"]["hostNetwork"], host["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


async def test_the_admission_request_names_the_permissions(make: Make) -> None:
    spawner = make()
    pod = await final(spawner, "admin")
    request = manager_link.admission_request(pod, spawner._launch.job, spawner.namespace, 3, ADMIN)
    assert (request["special"], request["image"]) == (["host_paths", "root"], "example.org/jobs:1")
    ordinary = await final(spawner, "ipython")
    assert "special" not in manager_link.admission_request(
        ordinary, spawner._launch.job, spawner.namespace, 3, NOTEBOOK
    )


async def test_a_job_on_the_host_s_network_is_made_with_the_ports_that_it_was_admitted_with(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodRequests, "networking", property(lambda pods: pods.api))
    cluster = replace(BOTH.cluster, host_ports=HostPorts(20_000, 24_000))
    several = PodRole("chief"), PodRole("worker", 1)
    host = replace(HOST, ports=(JobPorts("nccl", 2),), roles=several, mounts=Mounts(team_data=TeamDataAccess.NONE))
    spawner = make(replace(BOTH, templates=(host,), cluster=cluster))
    spawner.api = Kept()
    pod = await spawner._create(await final(spawner, "host", gpus=0))
    files = owned_objects.SecretFiles(owned_objects.make_host_key(), "", "")
    job, endpoint = naming.read_job(pod["metadata"]), owned_objects.USUAL_SSH
    assert job is not None
    await owned_objects.ensure_owned_objects(spawner.pods, pod, job, files, endpoint)
    await owned_objects.ensure_further_pods(spawner.pods, pod, job, endpoint, (), new=True)
    (notebook,) = pod["spec"]["containers"]
    ports = {one.get("name"): one["hostPort"] for one in notebook["ports"]}
    assert ports == {"ssh": 20_000, "notebook-port": 20_001, "nccl": 20_002, None: 20_003}
    assert spawner._get_pod_port(pod) == 20_001
    made = spawner.api.objects
    (worker,) = (name for name in made if name.startswith("pod/") and "worker" in name)
    assert {one["hostPort"] for one in made[worker]["spec"]["containers"][0]["ports"]} == {20_100, 20_101, 20_102}
    services = [one["spec"].get("ports") or () for name, one in made.items() if name.startswith("service/")]
    assert sorted(port["targetPort"] for ports in services for port in ports) == [20_000, 20_100]
    (secret,) = (one["data"] for name, one in made.items() if name.startswith("secret/"))
    assert "Host worker-0\n    Port 20100\n" in base64.b64decode(secret["job_ssh_config"]).decode()


async def test_a_job_that_starts_with_some_of_its_pods_asks_for_no_ports_of_the_host(make: Make) -> None:
    several = PodRole("chief"), PodRole("worker", 3, least=1)
    grows = replace(ADMIN, roles=several, mounts=Mounts(team_data=TeamDataAccess.NONE))
    cluster = replace(BOTH.cluster, host_ports=HostPorts(20_000, 24_000))
    spawner = make(replace(BOTH, templates=(grows,), cluster=cluster))
    spawner.api = Kept()
    await spawner._create(await final(spawner, grows.name, gpus=0))


PRIVILEGED: Manifest = {"spec": {"containers": [{"name": "notebook", "securityContext": {"privileged": True}}]}}
HOST_NETWORK: Manifest = {"spec": {"hostNetwork": True}}
SIDECAR: Manifest = {"spec": {"containers": [{"name": "side", "image": "x"}]}}


@pytest.mark.parametrize(
    ("template", "change", "words"),
    [
        ("ipython", PRIVILEGED, "container notebook: privileged (privileged containers)"),
        ("ipython", SIDECAR, "container side: allowPrivilegeEscalation, container side: keeping capabilities"),
        ("admin", HOST_NETWORK, "hostNetwork (the host's network)"),
    ],
)
async def test_permissions_that_a_hook_adds_are_refused(
    make: Make, template: str, change: Manifest, words: str
) -> None:
    with pytest.raises(StartRefused) as refused:
        await final(make(), template, change)
    assert words in refused.value.message
    assert refused.value.message.startswith("The job would have more rights than its template")
    assert (refused.value.reason, refused.value.status_code) == ("special-permission", 403)


async def test_permissions_of_kubespawners_configuration_are_refused(make: Make) -> None:
    volumes = [{"name": "etc", "hostPath": {"path": "/etc"}}]
    with pytest.raises(StartRefused, match=r"volume etc \(hostPath\) \(host paths\)"):
        await final(make(volumes=volumes), "ipython")


async def test_permissions_that_the_cluster_file_no_longer_allows_are_refused(make: Make) -> None:
    off = replace(BOTH, cluster=replace(BOTH.cluster, special=frozenset({SpecialPermission.ROOT})))
    with pytest.raises(StartRefused, match=r"volume scratch \(hostPath\) \(host paths\)"):
        await final(make(off), "admin")


async def test_without_a_second_namespace_hooks_are_not_checked(make: Make) -> None:
    pod = await final(make(special_namespace=""), "ipython", PRIVILEGED)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"] is True


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"special_namespace": ""}, "special-namespace"),
        ({"enable_user_namespaces": True}, "special-namespace"),
        ({"manager_url": ""}, "special-approval"),
        ({"manager_token": ""}, "special-approval"),
    ],
)
async def test_special_templates_need_a_second_namespace_and_a_manager(
    make: Make, config: dict[str, Any], reason: str
) -> None:
    spawner = make(**config)
    before = spawner.namespace
    with pytest.raises(StartRefused) as refused:
        await final(spawner, "admin")
    assert refused.value.reason == reason
    assert "special permissions (root, host paths)" in refused.value.message
    assert spawner.namespace == before


def test_the_form_explains_special_permissions() -> None:
    assert forms.note(NOTEBOOK) == ""
    assert forms.note(ADMIN) == (
        "Its jobs have special permissions (root, host paths): an administrator approves each start. "
        "Their home directory is another one than that of your other jobs."
    )
    homeless = replace(HOST, mounts=Mounts(home=TeamDataAccess.NONE))
    assert forms.note(homeless).endswith("approves each start.")
    panels = forms.panels(BOTH, SETTINGS.teams.teams, "ipython", {})
    assert "approves each start" in next(one.description for one in panels if one.name == "admin")
