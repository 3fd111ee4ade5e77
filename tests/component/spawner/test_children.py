"""A pod's Secret and Services: their content, and how they are created, kept and replaced."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from dlspawner.core import naming
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.naming import PodIdentity
from dlspawner.spawner import owned_objects, pages
from dlspawner.spawner.kube.pods import PodRequests
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
    assert "alice:x:1234:1234:alice:/home/al:/bin/bash\n" in text(secret, "passwd")
    assert "alice:x:1234:\n" in text(secret, "group")
    assert text(secret, "sshd_config").endswith("\nPort 2299\n")
    assert text(secret, "index.html") == "<p>hello</p>"
    assert text(secret, "start").startswith("#!/bin/sh\n")


def test_an_image_of_the_user_gets_the_bundled_shell() -> None:
    pod = {**POD, "spec": {**POD["spec"], "volumes": [*POD["spec"]["volumes"], *launch_pod.volumes(bundled=True)]}}

    assert "alice:x:1234:1234:alice:/home/al:/dl/bin/shell\n" in text(the_secret(pod=pod), "passwd")


def test_private_keys_are_not_printed() -> None:
    assert "PRIVATE" not in repr(KEY)


def test_the_pod_owns_its_children() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "jupyter-alice--train", "uid": "pod-1"}

    for child in (the_secret(), owned_objects.ssh_service(POD, JOB, owned_objects.USUAL_SSH)):
        assert child["metadata"]["ownerReferences"] == [owner]
        assert child["metadata"]["labels"][naming.JOB_LABEL] == JOB.id


def test_the_service_selects_this_job_only() -> None:
    spec = owned_objects.ssh_service(POD, JOB, owned_objects.USUAL_SSH)["spec"]

    assert spec["type"] == "NodePort"
    assert spec["selector"] == {naming.JOB_LABEL: JOB.id}
    assert spec["ports"] == [{"name": "ssh", "port": 2222, "targetPort": 2222, "protocol": "TCP"}]


def test_only_a_pod_that_mounts_its_secret_needs_one() -> None:
    assert owned_objects.wants_secret(POD)
    assert not owned_objects.wants_secret({**POD, "spec": {"containers": []}})


class Api:
    """The Secrets of an API server: names are unique, deletions can insist on a uid."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.created = 0

    async def create_namespaced_secret(self, _namespace: str, manifest: dict[str, Any], **_: bool) -> Answered:
        name = manifest["metadata"]["name"]
        if name in self.objects:
            return Answered({}, 409)
        self.created += 1
        uid = f"secret-{self.created}"
        self.objects[name] = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
        return Answered(self.objects[name], 201)

    async def read_namespaced_secret(self, name: str, _namespace: str, **_: bool) -> Answered:
        return Answered(self.objects[name]) if name in self.objects else Answered({}, 404)

    async def delete_namespaced_secret(self, name: str, _namespace: str, body: dict[str, Any], **_: bool) -> Answered:
        assert body["preconditions"]["uid"] == self.objects[name]["metadata"]["uid"]
        return Answered(self.objects.pop(name))


def pods(api: Any) -> PodRequests:
    watch: Any = None
    return PodRequests(api, "jobs", "jupyter-alice--train", watch, logging.getLogger("children"), 1, 1, 5)


async def test_a_secret_that_exists_is_kept() -> None:
    api = Api()

    first = await owned_objects.ensure_secret(pods(api), the_secret())
    again = await owned_objects.ensure_secret(pods(api), the_secret(owned_objects.make_host_key()))

    assert first == again == KEY.public
    assert api.created == 1


async def test_a_leftover_of_an_earlier_pod_is_replaced() -> None:
    api = Api()
    earlier = {**POD, "metadata": {**POD["metadata"], "uid": "pod-0"}}
    await owned_objects.ensure_secret(pods(api), the_secret(owned_objects.make_host_key(), earlier))

    assert await owned_objects.ensure_secret(pods(api), the_secret()) == KEY.public
    assert api.objects["jupyter-alice--train-ssh"]["metadata"]["ownerReferences"][0]["uid"] == "pod-1"


async def test_a_secret_whose_answer_was_lost_is_kept() -> None:
    class Lost(Api):
        async def create_namespaced_secret(self, namespace: str, manifest: dict[str, Any], **_: bool) -> Answered:
            answer = await super().create_namespaced_secret(namespace, manifest)
            if self.created == 1 and answer.status == 201:
                raise ClientPayloadError
            return answer

    api = Lost()

    assert await owned_objects.ensure_secret(pods(api), the_secret()) == KEY.public
    assert api.created == 1


class Counting(Api):
    """What is asked, in order; Services are kept beside the Secrets."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.announced: str | None = None

    async def _kept(self, verb: str, kind: str, *given: Any) -> Answered:
        self.asked.append(f"{verb} {kind}")
        if verb == "create":
            manifest = given[1]
            named = {**manifest["metadata"], "name": f"{kind}/{manifest['metadata']['name']}"}
            return await super().create_namespaced_secret(given[0], {**manifest, "metadata": named})
        return await super().read_namespaced_secret(f"{kind}/{given[0]}", given[1])

    async def create_namespaced_secret(self, *given: Any, **_: bool) -> Answered:
        return await self._kept("create", "secret", *given)

    async def read_namespaced_secret(self, *given: Any, **_: bool) -> Answered:
        return await self._kept("read", "secret", *given)

    async def create_namespaced_service(self, *given: Any, **_: bool) -> Answered:
        return await self._kept("create", "service", *given)

    async def read_namespaced_service(self, *given: Any, **_: bool) -> Answered:
        return await self._kept("read", "service", *given)

    async def delete_namespaced_service(self, *_: Any, **__: Any) -> Answered:
        raise AssertionError("nothing is another pod's")

    async def patch_namespaced_pod(self, _name: str, _namespace: str, change: dict[str, Any], **_: bool) -> Answered:
        self.asked.append("annotate")
        self.announced = change["metadata"]["annotations"][naming.SSH_HOST_KEY_ANNOTATION]
        return Answered({})


RUNNING = {**POD, "status": {"containerStatuses": [{"name": "notebook", "state": {"running": {}}}]}}
WAITING = {**POD, "status": {"containerStatuses": [{"name": "notebook", "state": {"waiting": {}}}]}}


async def make(spawner: Any, api: Api, pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first poll after a restart of the Hub."""
    monkeypatch.setattr(type(spawner), "pods", property(lambda _: pods(api)))
    monkeypatch.setattr(pages, "job_page", lambda *_: "")
    monkeypatch.setattr(type(spawner), "_user_ca", lambda _: "ssh-ed25519 CA")
    annotations = naming.job_annotations(JOB)
    metadata = {**pod["metadata"], "annotations": annotations}
    await spawner._ensure_children({**pod, "metadata": metadata})


async def test_a_restarted_hub_makes_one_request_for_a_running_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Counting()
    await owned_objects.ensure_service(pods(api), owned_objects.ssh_service(POD, JOB, owned_objects.USUAL_SSH))
    api.asked.clear()
    await make(make_spawner(monkeypatch, server="train"), api, RUNNING, monkeypatch)

    assert api.asked == ["read service"]


async def test_a_restarted_hub_announces_a_new_host_key_before_it_makes_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Counting()
    await make(make_spawner(monkeypatch, server="train"), api, WAITING, monkeypatch)

    assert api.asked == ["read secret", "annotate", "create secret", "read service", "create service"]
    assert text(api.objects["secret/jupyter-alice--train-ssh"], owned_objects.PUBLIC_HOST_KEY).strip() == api.announced


async def test_few_pods_are_repaired_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_objects, "_MENDED_AT_ONCE", 2)
    inside, most = 0, 0

    async def mend() -> None:
        nonlocal inside, most
        async with owned_objects.mending(60):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(mend() for _ in range(10)))
    assert most == 2


async def test_the_node_port_of_a_web_server_is_the_one_of_the_service() -> None:
    class Services(Api):
        async def create_namespaced_service(self, namespace: str, manifest: dict[str, Any], **_: bool) -> Answered:
            ports = [{"name": "http", "nodePort": 31000, **manifest["spec"]["ports"][0]}]
            return await super().create_namespaced_secret(
                namespace, {**manifest, "spec": {**manifest["spec"], "ports": ports}}
            )

        read_namespaced_service = Api.read_namespaced_secret
        delete_namespaced_service = Api.delete_namespaced_secret

    services = Services()

    assert await owned_objects.ensure_http_service(pods(services), POD, JOB, 8888) == 31000
    assert await owned_objects.ensure_http_service(pods(services), POD, JOB, 8888) == 31000, "found again"
    made = services.objects["jupyter-alice--train-http"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "pod-1"
    assert made["spec"]["selector"] == {naming.JOB_LABEL: JOB.id}
    assert made["spec"]["ports"][0]["targetPort"] == 8888


@pytest.mark.parametrize(
    ("host", "url"), [("192.0.2.7", "http://192.0.2.7:31000"), ("2001:db8::7", "http://[2001:db8::7]:31000")]
)
def test_url_of_a_web_server_with_a_node_port(host: str, url: str) -> None:
    assert owned_objects.http_url({"status": {"hostIP": host}}, 31000) == url
