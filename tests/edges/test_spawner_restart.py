"""What a restarted Hub makes of KubeSpawner's own children of a pod; in a real Hub: test_spawner_restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlspawner.spawner import restart
from tests.edges.spawner_builders import Answered, Client, make_spawner

POD: dict[str, Any] = {
    "metadata": {"name": "jupyter-alice", "namespace": "jobs", "uid": "pod-1"},
    "spec": {"containers": [{"name": "notebook", "ports": [{"name": "notebook-port", "containerPort": 8888}]}]},
}


class Api(Client):
    """Keeps what was created; what is there already is answered with 409."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, Any]] = {}

    async def _create(self, kind: str, body: dict[str, Any]) -> Answered:
        if kind in self.kept:
            return Answered({"message": "it exists"}, 409)
        self.kept[kind] = body
        return Answered(body, 201)

    async def create_namespaced_secret(self, _: str, body: dict[str, Any], **__: Any) -> Answered:
        return await self._create("secret", body)

    async def create_namespaced_service(self, _: str, body: dict[str, Any], **__: Any) -> Answered:
        return await self._create("service", body)

    async def read_namespaced_secret(self, *_: Any, **__: Any) -> Answered:
        found = self.kept.get("secret")
        return Answered(found, 200) if found else Answered({"message": "not found"}, 404)

    async def read_namespaced_service(self, *_: Any, **__: Any) -> Answered:
        return Answered(self.kept["service"], 200)

    delete_namespaced_secret = delete_namespaced_service = Client.__init__


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    files = {}
    for name in ("keyfile", "certfile", "cafile", "hub-ca"):
        files[name] = str(tmp_path / name)
        (tmp_path / name).write_text(f"the {name}\n")
    made = make_spawner(monkeypatch, settings=None, config={"internal_ssl": True})
    made.internal_trust_bundles = {"hub-ca": files["hub-ca"]}
    made.api, made.made_certs = Api(), 0

    async def create_certs() -> dict[str, str]:
        made.made_certs += 1
        return files

    monkeypatch.setattr(made, "create_certs", create_certs)
    return made


async def test_the_secret_and_service_of_internal_ssl_are_made_and_the_pod_owns_them(spawner: Any) -> None:
    await restart.mend(spawner, POD)

    owners = [spawner.api.kept[kind]["metadata"]["ownerReferences"][0]["uid"] for kind in ("secret", "service")]
    assert owners == ["pod-1", "pod-1"]
    assert {"ssl.key", "ssl.crt", "notebooks-ca_trust.crt"} == set(spawner.api.kept["secret"]["data"])
    assert spawner.api.kept["service"]["spec"]["ports"][0]["targetPort"] == 8888


async def test_certificates_that_are_there_are_not_replaced(spawner: Any) -> None:
    await restart.mend(spawner, POD)
    before = json.dumps(spawner.api.kept)
    await restart.mend(spawner, POD)

    assert spawner.made_certs == 1
    assert json.dumps(spawner.api.kept) == before
