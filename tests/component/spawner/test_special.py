"""Special permissions in the spawner: which namespace a job is in, and what its final manifest may use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from traitlets.config import Config

from dlspawner import settings
from dlspawner.core.config import SpecialPermission
from dlspawner.core.template import Mounts, TeamDataAccess
from dlspawner.settings import Settings
from dlspawner.spawner import StartRefused, forms, manager_link
from tests.component.spawner.test_asking import answering
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
ROOT = Path(__file__).parents[3]
Make = Callable[..., Any]


async def _answer(request: web.Request) -> web.Response:
    if request.path.endswith(("/account", "/starting")):
        return web.json_response({"job": None, "uid": 20_001, "gid": 20_001})
    return web.json_response({"waiting": []})


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Make]:
    """A spawner with a second namespace and a Manager that says who people are, and that nothing waits."""
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


async def final(
    spawner: Any, template: str, change: Callable[[dict[str, Any]], object] | None = None, **options: object
) -> Any:
    """The manifest that would be sent, after a hook's ``change``."""
    spawner.user_options = {"template": template, **options}
    await spawner.load_user_options()
    pod = spawner.api.api_client.sanitize_for_serialization(await spawner.get_pod_manifest())
    if change:
        change(pod)
    return spawner._final(pod)


async def test_a_job_with_special_permissions_is_in_the_second_namespace_and_the_next_one_is_not(make: Make) -> None:
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


async def test_each_namespace_has_a_claim_of_its_own_that_is_made_with_the_first_job_there(make: Make) -> None:
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


async def test_a_start_that_chooses_an_ordinary_template_comes_back_by_itself(make: Make) -> None:
    spawner = make()
    await final(spawner, "admin")
    await final(spawner, "ipython")
    assert spawner.namespace == "jobs"


async def test_what_the_template_asks_for_is_in_the_manifest(make: Make) -> None:
    pod = await final(make(), "admin")
    assert pod["spec"]["securityContext"]["runAsUser"] == 0
    assert {"name": "scratch", "hostPath": {"path": "/scratch"}} in pod["spec"]["volumes"]
    host = await final(make(), "host")
    assert (host["spec"]["hostNetwork"], host["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


async def test_the_manager_is_told_what_is_to_be_approved(make: Make) -> None:
    spawner = make()
    pod = await final(spawner, "admin")
    asked = manager_link.admission_request(pod, spawner._launch.job, spawner.namespace, 3, ADMIN)
    assert (asked["special"], asked["image"]) == (["host_paths", "root"], "example.org/jobs:1")
    ordinary = await final(spawner, "ipython")
    assert "special" not in manager_link.admission_request(
        ordinary, spawner._launch.job, spawner.namespace, 3, NOTEBOOK
    )


def _privileged(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["securityContext"]["privileged"] = True


def _host_network(pod: dict[str, Any]) -> None:
    pod["spec"]["hostNetwork"] = True


def _side(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"].append({"name": "side", "image": "x"})


@pytest.mark.parametrize(
    ("template", "change", "words"),
    [
        ("ipython", _privileged, "container notebook: privileged (privileged containers)"),
        ("ipython", _host_network, "hostNetwork (the host's network)"),
        ("ipython", _side, "container side: allowPrivilegeEscalation, container side: keeping capabilities"),
        ("admin", _host_network, "hostNetwork (the host's network)"),
        ("host", _privileged, "container notebook: privileged (privileged containers)"),
    ],
)
async def test_what_a_hook_adds_and_the_template_does_not_ask_for_is_refused(
    make: Make, template: str, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(StartRefused) as refused:
        await final(make(), template, change)
    assert words in refused.value.message
    assert refused.value.message.startswith("The job would have more rights than its template")
    assert (refused.value.reason, refused.value.status_code) == ("special-permission", 403)


async def test_what_kubespawner_is_configured_with_is_judged_as_well(make: Make) -> None:
    volumes = [{"name": "etc", "hostPath": {"path": "/etc"}}]
    with pytest.raises(StartRefused, match=r"volume etc \(hostPath\) \(host paths\)"):
        await final(make(volumes=volumes), "ipython")


async def test_what_the_cluster_has_switched_off_meanwhile_is_refused(make: Make) -> None:
    off = replace(BOTH, cluster=replace(BOTH.cluster, special=frozenset({SpecialPermission.ROOT})))
    with pytest.raises(StartRefused, match=r"volume scratch \(hostPath\) \(host paths\)"):
        await final(make(off), "admin")


async def test_without_a_second_namespace_a_hook_is_kubernetes_to_judge_as_before(make: Make) -> None:
    pod = await final(make(special_namespace=""), "ipython", _privileged)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"] is True


SHIPPED = settings.load(ROOT / "templates" / "jobs", ROOT / "hub_config" / "cluster.yaml")
CHOICES: dict[str, dict[str, object]] = {"custom": {"image": "debian:12", "command": "sleep 60"}}


@pytest.mark.parametrize("template", [one.name for one in SHIPPED.templates])
async def test_no_shipped_template_has_more_rights_than_it_asks_for(make: Make, template: str) -> None:
    spawner = make(SHIPPED, ssh_image="example.org/ssh:1")
    assert await final(spawner, template, **CHOICES.get(template, {}))
    assert spawner.namespace == "jobs"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"special_namespace": ""}, "special-namespace"),
        ({"enable_user_namespaces": True}, "special-namespace"),
        ({"manager_url": ""}, "special-approval"),
        ({"manager_token": ""}, "special-approval"),
    ],
)
async def test_without_a_place_or_anybody_to_approve_it_such_a_template_starts_nothing(
    make: Make, config: dict[str, Any], reason: str
) -> None:
    spawner = make(**config)
    before = spawner.namespace
    with pytest.raises(StartRefused) as refused:
        await final(spawner, "admin")
    assert refused.value.reason == reason
    assert "special permissions (root, host paths)" in refused.value.message
    assert spawner.namespace == before


async def test_progress_goes_on_while_nobody_watches_the_other_namespace(make: Make) -> None:
    spawner = make()
    await final(spawner, "admin")
    assert spawner.pod_reflector is None
    async with asyncio.timeout(60):
        await spawner._changed_or_started()


def test_the_form_says_what_is_different_about_such_a_job() -> None:
    assert forms.note(NOTEBOOK) == ""
    assert forms.note(ADMIN) == (
        "Its jobs have special permissions (root, host paths): an administrator approves each start. "
        "Their home directory is another one than that of your other jobs."
    )
    homeless = replace(HOST, mounts=Mounts(home=TeamDataAccess.NONE))
    assert forms.note(homeless).endswith("approves each start.")
    panels = forms.panels(BOTH, SETTINGS.teams.teams, "ipython", {})
    assert "approves each start" in next(one.description for one in panels if one.name == "admin")
