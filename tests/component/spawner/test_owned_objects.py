"""A pod's Secret and Services: their content, and how they are created, kept and replaced."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from dlspawner.core import naming
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch import pod_set
from dlspawner.core.naming import PodIdentity
from dlspawner.spawner import owned_objects, pages
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import PodRequests
from tests.component.spawner.conftest import Kept
from tests.harness.spawner_builders import Answered, make_spawner

JOB = PodIdentity(
    "j-aaaaaaaaaaaa", "alice", "train", "vision", "ssh", 0, ssh_host_key="ssh-ed25519 AAAA", ssh_login="alice"
)
POD: dict[str, Any] = {
    "metadata": {"name": "jupyter-alice--train", "uid": "pod-1", "labels": naming.job_labels(JOB)},
    "spec": {
        "containers": [
            {"name": "notebook", "env": [{"name": "HOME", "value": "/home/al"}], "securityContext": {"runAsUser": 1234}}
        ],
        "volumes": [{"name": "job-files", "secret": {"secretName": "jupyter-alice--train-ssh"}}],
    },
}
KEY = owned_objects.make_host_key()


def the_secret(key: owned_objects.HostKey = KEY, pod: Mapping[str, Any] = POD) -> dict[str, Any]:
    return owned_objects.secret(pod, JOB, owned_objects.SecretFiles(key, "ssh-ed25519 CA", "<p>hello</p>"), 2299)


def text(manifest: Mapping[str, Any], key: str) -> str:
    return base64.b64decode(manifest["data"][key]).decode()


def test_the_secret_has_the_files_of_sshd() -> None:
    secret = the_secret()

    assert secret["metadata"]["name"] == "jupyter-alice--train-ssh"
    assert text(secret, "principals") == "j-aaaaaaaaaaaa\n"
    assert text(secret, "user_ca.pub") == "ssh-ed25519 CA"
    assert "alice:x:1234:1234:alice:/home/al:/etc/dlspawner/shell\n" in text(secret, "passwd")
    assert "alice:x:1234:\n" in text(secret, "group")
    assert text(secret, "sshd_config").endswith("\nPort 2299\n")
    assert text(secret, "index.html") == "<p>hello</p>"
    assert text(secret, "start").startswith("#!/bin/sh\n")


def test_an_image_of_the_user_gets_the_bundled_shell() -> None:
    pod = {**POD, "spec": {**POD["spec"], "volumes": [*POD["spec"]["volumes"], *launch_pod.volumes(bundled=True)]}}

    assert "alice:x:1234:1234:alice:/home/al:/dl/bin/shell\n" in text(the_secret(pod=pod), "passwd")


def test_private_keys_are_not_printed() -> None:
    assert "PRIVATE" not in repr(KEY)


def test_the_service_is_the_pods_and_selects_this_job_only() -> None:
    service = owned_objects.ssh_service(POD, JOB, owned_objects.USUAL_SSH)

    owner = {"apiVersion": "v1", "kind": "Pod", "name": "jupyter-alice--train", "uid": "pod-1"}
    assert (service["metadata"]["ownerReferences"], service["spec"]["type"]) == ([owner], "NodePort")
    assert service["metadata"]["labels"][naming.JOB_LABEL] == JOB.id
    assert service["spec"]["selector"] == {naming.JOB_LABEL: JOB.id}
    assert service["spec"]["ports"] == [{"name": "ssh", "port": 2222, "targetPort": 2222, "protocol": "TCP"}]


def test_only_a_pod_that_mounts_its_secret_needs_one() -> None:
    assert owned_objects.wants_secret(POD)
    assert not owned_objects.wants_secret({**POD, "spec": {"containers": []}})


def pods(api: Any) -> PodRequests:
    watch: Any = None
    return PodRequests(api, "jobs", "jupyter-alice--train", watch, logging.getLogger("children"), 1, 1, 5)


async def test_a_secret_that_exists_is_kept() -> None:
    api = Kept()

    first = await owned_objects.ensure_secret(pods(api), the_secret())
    again = await owned_objects.ensure_secret(pods(api), the_secret(owned_objects.make_host_key()))

    assert first == again == KEY.public


async def test_a_leftover_of_an_earlier_pod_is_replaced() -> None:
    api = Kept()
    earlier = {**POD, "metadata": {**POD["metadata"], "uid": "pod-0"}}
    await owned_objects.ensure_secret(pods(api), the_secret(owned_objects.make_host_key(), earlier))

    assert await owned_objects.ensure_secret(pods(api), the_secret()) == KEY.public
    assert api.objects["secret/jupyter-alice--train-ssh"]["metadata"]["ownerReferences"][0]["uid"] == "pod-1"


async def test_a_secret_whose_answer_was_lost_is_kept() -> None:
    class Lost(Kept):
        def on_create(self, *given: Any) -> Answered:
            if super().on_create(*given).status == 201:
                raise ClientPayloadError
            return Answered({}, 409)

    assert await owned_objects.ensure_secret(pods(Lost()), the_secret()) == KEY.public


RUNNING = {**POD, "status": {"containerStatuses": [{"name": "notebook", "state": {"running": {}}}]}}
WAITING = {**POD, "status": {"containerStatuses": [{"name": "notebook", "state": {"waiting": {}}}]}}


async def make(spawner: Any, api: Kept, pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first poll after a restart of the Hub."""
    monkeypatch.setattr(type(spawner), "pods", property(lambda _: pods(api)))
    monkeypatch.setattr(pages, "job_page", lambda *_: "")
    monkeypatch.setattr(type(spawner), "_user_ca", lambda _: "ssh-ed25519 CA")
    annotations = {**pod["metadata"].get("annotations", {}), **naming.job_annotations(JOB)}
    metadata = {**pod["metadata"], "annotations": annotations}
    await spawner._ensure_owned_objects({**pod, "metadata": metadata})


async def test_a_restarted_hub_makes_one_request_for_a_running_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Kept()
    await owned_objects.ensure_service(pods(api), owned_objects.ssh_service(POD, JOB, owned_objects.USUAL_SSH))
    api.asked.clear()
    await make(make_spawner(monkeypatch, server="train"), api, RUNNING, monkeypatch)

    assert api.asked == ["read service"]


async def test_a_restarted_hub_announces_a_new_host_key_before_it_makes_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Kept()
    await make(make_spawner(monkeypatch, server="train"), api, WAITING, monkeypatch)

    assert api.asked == ["read secret", "patch pod", "create secret", "read service", "create service"]
    announced = api.objects["pod/jupyter-alice--train"]["metadata"]["annotations"][naming.SSH_HOST_KEY_ANNOTATION]
    assert text(api.objects["secret/jupyter-alice--train-ssh"], owned_objects.PUBLIC_HOST_KEY).strip() == announced


@pytest.mark.parametrize("refused", ["pod", "secret"])
async def test_what_the_cluster_refuses_of_several_pods_is_the_reason_of_the_start(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodRequests, "networking", property(lambda pods: pods.api))

    class Full(Kept):
        def on_create(self, kind: str, *given: Any) -> Answered:
            said = "exceeded quota: jobs, requested: pods=1, used: pods=3, limited: pods=3"
            return Answered({"message": said}, 403) if kind == refused else super().on_create(kind, *given)

    roles = (pod_set.Role("chief", 1, {}), pod_set.Role("worker", 2, {}))
    first = pod_set.as_first(POD, pod_set.PodSet(roles), "jupyter-alice--train-pods", "x")
    files = owned_objects.SecretFiles(KEY, "ssh-ed25519 CA", "")
    with pytest.raises(StartRefused, match="quota"):
        await owned_objects.ensure_job_objects(
            pods(Full()), first, JOB, files, owned_objects.USUAL_SSH, gpu_resources=(), new=True
        )


async def test_further_pods_of_a_restarted_hub_announce_the_new_host_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodRequests, "networking", property(lambda pods: pods.api))
    roles = (pod_set.Role("chief", 1, {}), pod_set.Role("worker", 1, {}))
    metadata = {**POD["metadata"], "annotations": {}}
    first = pod_set.as_first({**WAITING, "metadata": metadata}, pod_set.PodSet(roles), "jupyter-alice--train-pods", "x")
    api = Kept()
    await make(make_spawner(monkeypatch, server="train"), api, first, monkeypatch)

    public = text(api.objects["secret/jupyter-alice--train-ssh"], owned_objects.PUBLIC_HOST_KEY).strip()
    worker = api.objects["pod/jupyter-alice--train----worker-0"]["metadata"]
    assert worker["annotations"][naming.SSH_HOST_KEY_ANNOTATION] == public


async def test_the_node_port_of_a_web_server_is_the_one_of_the_service() -> None:
    class Services(Kept):
        def on_create(self, kind: str, namespace: str, manifest: dict[str, Any]) -> Answered:
            ports = [{**port, "nodePort": 31000} for port in manifest["spec"]["ports"]]
            return super().on_create(kind, namespace, {**manifest, "spec": {**manifest["spec"], "ports": ports}})

    services = Services()

    assert await owned_objects.ensure_http_service(pods(services), POD, JOB, 8888) == 31000
    assert await owned_objects.ensure_http_service(pods(services), POD, JOB, 8888) == 31000, "found again"
    made = services.objects["service/jupyter-alice--train-http"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "pod-1"
    assert made["spec"]["selector"] == {naming.JOB_LABEL: JOB.id}
    assert made["spec"]["ports"][0]["targetPort"] == 8888


@pytest.mark.parametrize(
    ("host", "url"), [("192.0.2.7", "http://192.0.2.7:31000"), ("2001:db8::7", "http://[2001:db8::7]:31000")]
)
def test_url_of_a_web_server_with_a_node_port(host: str, url: str) -> None:
    assert owned_objects.http_url({"status": {"hostIP": host}}, 31000) == url
