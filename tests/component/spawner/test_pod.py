"""The pod of a template, merged over KubeSpawner's; without templates: superset/."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.launch.options import BUILT_IN
from dlspawner.core.launch.pod import disable_gpus_by_default
from dlspawner.settings import Settings
from dlspawner.spawner import StartRefused
from tests.harness.spawner_builders import BATCH, CLUSTER, SETTINGS, TEAMS, make_spawner


async def launched(spawner: Any, tmp_path: Path, **options: object) -> dict[str, Any]:
    """The manifest that would be created for these user options."""
    ca = tmp_path / "user_ca.pub"
    ca.write_text("ssh-ed25519 AAAA gateway\n")
    spawner.ssh_ca_public_key_file = str(ca)
    spawner.user_options = options
    await spawner.load_user_options()
    pod = await spawner.get_pod_manifest()
    return disable_gpus_by_default(spawner.api.api_client.sanitize_for_serialization(pod), CLUSTER.gpu_resources)


def container(pod: dict[str, Any], name: str = "notebook") -> dict[str, Any]:
    return next(one for one in pod["spec"]["containers"] if one["name"] == name)


async def test_the_pod_names_its_job_and_keeps_kubespawners_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spawner = make_spawner(monkeypatch, server="train")
    pod = await launched(spawner, tmp_path, template="ipython", gpus=2)

    job = naming.read_job(pod["metadata"])
    assert job is not None
    assert (job.user, job.server, job.team, job.template, job.gpus) == ("alice", "train", "vision", "ipython", 2)
    assert job.ssh_login == "alice"
    assert (job.ssh_host_key or "").startswith("ssh-ed25519 AAAA")
    assert job.log_dir == "/home/alice/logs"
    assert pod["metadata"]["name"] == "jupyter-alice--train"
    assert pod["metadata"]["labels"]["component"] == "singleuser-server"
    assert {"name": "notebook-port", "containerPort": 8888} in container(pod)["ports"]
    assert pod["spec"]["enableServiceLinks"] is False


def limits_and_requests(pod: dict[str, Any], name: str = "notebook") -> tuple[str | None, str | None]:
    resources = container(pod, name)["resources"]
    limit, request = (resources.get(kind, {}).get("ephemeral-storage") for kind in ("limits", "requests"))
    return limit, request


@pytest.mark.parametrize(
    ("config", "template", "expected"),
    [
        ({}, None, ("20Gi", "1Gi")),
        ({"ephemeral_storage_limit": "500Mi"}, None, ("500Mi", "500Mi")),
        ({"ephemeral_storage_limit": ""}, None, (None, "1Gi")),
        ({"ephemeral_storage_limit": "", "ephemeral_storage_guarantee": ""}, None, (None, None)),
        ({}, {"limits": {"ephemeral-storage": "100Mi"}}, ("100Mi", None)),
        ({}, {"requests": {"ephemeral-storage": "9Gi"}}, (None, "9Gi")),
        ({"extra_resource_limits": {"ephemeral-storage": "2Gi"}}, None, ("2Gi", None)),
    ],
)
async def test_a_job_may_write_so_much_to_its_nodes_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Any, template: Any, expected: tuple[str | None, str | None]
) -> None:
    own = {"containers": [{"name": "notebook", "resources": template}]} if template else {}
    changed = [replace(one, pod=own) if one.name == "ipython" else one for one in SETTINGS.templates]
    settings = replace(SETTINGS, templates=tuple(changed))
    spawner = make_spawner(monkeypatch, settings=settings, config=config)
    pod = await launched(spawner, tmp_path, template="ipython")
    assert limits_and_requests(pod) == expected


async def test_every_start_is_another_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spawner = make_spawner(monkeypatch)
    first = naming.read_job((await launched(spawner, tmp_path, template="ipython"))["metadata"])
    second = naming.read_job((await launched(spawner, tmp_path, template="ipython"))["metadata"])

    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert first.ssh_host_key != second.ssh_host_key


async def test_the_saved_job_id_is_the_id_of_the_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spawner = make_spawner(monkeypatch)
    spawner.start().cancel()
    made = naming.read_job((await launched(spawner, tmp_path, template="ipython"))["metadata"])

    assert made is not None
    assert made.id == spawner.orm_spawner.state["dlspawner_job"]


@pytest.mark.parametrize("given", [[], 7, {"user_options": ["x"]}, {"template": "ipython", "gpus": 99}], ids=repr)
def test_invalid_options_are_refused_with_sentences(given: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused) as refused:
        make_spawner(monkeypatch).check_options(given)

    assert 400 <= refused.value.status_code < 500
    assert all(sentence.strip().endswith(".") for sentence in refused.value.sentences)


def test_the_port_of_the_login_proxy_is_refused_for_a_web_server(monkeypatch: pytest.MonkeyPatch) -> None:
    template = replace(BATCH, options=(*BATCH.options, BUILT_IN["http_port"]))
    spawner = make_spawner(monkeypatch, settings=Settings((template,), CLUSTER, TEAMS), config={"port": 8889})
    given = {"template": "custom", "image": "debian:12", "command": "id"}

    assert spawner.check_options({**given, "http_port": 8888}).choices.get("http_port") == 8888
    with pytest.raises(StartRefused, match="must not be 8889: the job answers the Hub there"):
        spawner.check_options({**given, "http_port": 8889})


def test_options_as_jupyterhub_5_stores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = make_spawner(monkeypatch).check_options({"user_options": {"template": "tensorboard"}})

    assert wish.template.name == "tensorboard"


def test_blocked_users_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused, match="may not start"):
        make_spawner(monkeypatch, "mallory").check_options({"template": "ipython"})
