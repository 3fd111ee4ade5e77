"""Starts and owned objects after a restart of the Hub; in a real Hub: test_restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub import orm

from dlspawner.core import naming
from dlspawner.core.naming import PodIdentity
from dlspawner.spawner import DLSpawner, lifecycle, owned_objects, recovery
from dlspawner.spawner.kube.errors import StartRefused
from tests.component.spawner.conftest import Kept
from tests.harness.spawner_builders import make_spawner

POD: dict[str, Any] = {
    "metadata": {"name": "jupyter-alice", "namespace": "jobs", "uid": "pod-1"},
    "spec": {"containers": [{"name": "notebook", "ports": [{"name": "notebook-port", "containerPort": 8888}]}]},
}


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    files = {}
    for name in ("keyfile", "certfile", "cafile", "hub-ca"):
        files[name] = str(tmp_path / name)
        (tmp_path / name).write_text(f"the {name}\n")
    made = make_spawner(monkeypatch, settings=None, config={"internal_ssl": True})
    made.internal_trust_bundles = {"hub-ca": files["hub-ca"]}
    made.api, made.made_certs = Kept(), 0

    async def create_certs() -> dict[str, str]:
        made.made_certs += 1
        return files

    monkeypatch.setattr(made, "create_certs", create_certs)
    return made


async def test_the_secret_and_service_of_internal_ssl_are_made_once_and_owned_by_the_pod(spawner: Any) -> None:
    await recovery.repair_stock_objects(spawner, POD)

    owners = [
        spawner.api.objects[f"{kind}/jupyter-alice"]["metadata"]["ownerReferences"][0]["uid"]
        for kind in ("secret", "service")
    ]
    assert owners == ["pod-1", "pod-1"]
    assert {"ssl.key", "ssl.crt", "notebooks-ca_trust.crt"} == set(spawner.api.objects["secret/jupyter-alice"]["data"])
    assert spawner.api.objects["service/jupyter-alice"]["spec"]["ports"][0]["targetPort"] == 8888

    before = json.dumps(spawner.api.objects)
    spawner.api.asked.clear()
    await recovery.repair_stock_objects(spawner, POD)
    assert spawner.made_certs == 1
    assert spawner.api.asked == ["read secret", "read service"]
    assert json.dumps(spawner.api.objects) == before


async def test_a_repair_waits_for_others_and_is_done_once(
    spawner: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owned_objects, "_MENDED_AT_ONCE", 1)
    spawner.k8s_api_request_retry_timeout = 0
    async with owned_objects.repair_slot(60):
        assert not await spawner._repair_owned_objects(POD)
    assert spawner.api.asked == []
    assert "other pods are checked first" in caplog.text

    assert await spawner._repair_owned_objects(POD)
    spawner.api.asked.clear()
    assert await spawner._repair_owned_objects(POD)
    assert spawner.api.asked == []


JOB = PodIdentity("j-aaaaaaaaaaaa", "alice", "", "vision", "ssh", 0)


def a_job() -> dict[str, Any]:
    metadata = {"labels": naming.job_labels(JOB), "annotations": naming.job_annotations(JOB)}
    return {**POD, "metadata": {**POD["metadata"], **metadata}}


class Resumed:
    """A resumed start whose pod runs as soon as it ``may``; its owned objects can be made at the third try."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pod: dict[str, Any], tries: float = 3) -> None:
        self.may, self.tries, self.waited = asyncio.Event(), 0, tries

        async def at_once(*_: Any) -> bool:
            return True

        async def ensure(_spawner: Any, found: Any) -> None:
            self.tries += 1
            if self.tries < self.waited:
                raise StartRefused("not now", reason="cluster-error")
            self.may.set()

        async def until_running(*_: Any) -> None:
            await self.may.wait()

        monkeypatch.setattr(lifecycle, "delays", lambda **_: iter([0.0] * 10_000))
        monkeypatch.setattr(DLSpawner, "_wait_for_pods", at_once)
        monkeypatch.setattr(DLSpawner, "_until_accepting", at_once)
        monkeypatch.setattr(DLSpawner, "_until_running", until_running)
        monkeypatch.setattr(DLSpawner, "_ensure_owned_objects", ensure)
        monkeypatch.setattr(DLSpawner, "_is_alive", lambda _: True)
        monkeypatch.setattr(DLSpawner, "_get_pod_url", lambda *_: "http://10.0.0.1:8888")
        monkeypatch.setattr(DLSpawner, "pod", lambda _: pod)


async def test_the_owned_objects_of_a_waiting_pod_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed = Resumed(monkeypatch, a_job())
    async with asyncio.timeout(30):
        url = await make_spawner(monkeypatch).start_again()

    assert (url, resumed.tries) == ("http://10.0.0.1:8888", 3)


OTHER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A spawner of a Hub's database with tokens of two users."""
    session = orm.new_session_factory("sqlite:///:memory:")()
    for role in ("user", "token", "server"):
        session.add(orm.Role(name=role, scopes=[]))
    session.add(orm.OAuthClient(identifier="jupyterhub"))
    alice, bob = orm.User(name="alice"), orm.User(name="bob")
    session.add_all([alice, bob])
    session.commit()
    made = make_spawner(monkeypatch, settings=None)
    made.orm_spawner = orm.Spawner(name="", user=alice)
    session.add(made.orm_spawner)
    session.commit()
    for user, secret in ((alice, "f" * 32), (bob, OTHER)):
        orm.APIToken.new(secret, user=user, scopes=[])
    yield made
    session.close()


def with_token(secret: str | None) -> dict[str, Any]:
    environment = [{"name": "JUPYTERHUB_API_TOKEN", "value": secret}] if secret else []
    return {**POD, "spec": {"containers": [{"name": "notebook", "env": environment}]}}


@pytest.mark.parametrize(
    ("secret", "is_saved"),
    [
        pytest.param("f" * 32, True, id="with a token of its user"),
        pytest.param("e" * 32, False, id="with a revoked token"),
        pytest.param(OTHER, False, id="with a token of another user"),
        pytest.param(None, True, id="without a token"),
    ],
)
def test_a_pod_of_our_name_after_a_restart(secret: str | None, is_saved: bool, saved: Any) -> None:
    assert saved._is_saved(with_token(secret)) is is_saved


async def test_an_earlier_pod_is_not_the_pod_of_a_resumed_start(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Resumed(monkeypatch, with_token("e" * 32))
    with pytest.raises(StartRefused, match="found an earlier one"):
        await asyncio.wait_for(saved.start_again(), 30)


async def test_a_job_without_its_service_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Resumed(monkeypatch, a_job(), tries=float("inf")).may.set()
    monkeypatch.setattr(lifecycle, "delays", lambda **_: iter([0.01] * 100_000))
    made = make_spawner(monkeypatch, config={"http_service_type": "nodeport", "start_timeout": 1})
    async with asyncio.timeout(30):
        with pytest.raises(StartRefused, match="no way to it"):
            await made.start_again()


async def test_a_server_whose_route_fails_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    polled = []

    async def nothing(*_: Any) -> Any:
        """It is up."""

    async def no_route(*_: Any) -> None:
        raise ConnectionRefusedError

    async def at(_: Any) -> str:
        return "http://10.0.0.1:8888"

    monkeypatch.setattr(DLSpawner, "start_again", at)
    monkeypatch.setattr(DLSpawner, "save_state", lambda _: None)
    monkeypatch.setattr(DLSpawner, "server", SimpleNamespace())
    made = make_spawner(monkeypatch)
    made.stop_polling, made.start_polling = (lambda: None), (lambda: polled.append(True))
    made.user._wait_up, made.user.settings = nothing, {"proxy": SimpleNamespace(add_user=no_route)}
    with pytest.raises(ConnectionRefusedError):
        await recovery._resumed(made)

    assert polled == [True]
