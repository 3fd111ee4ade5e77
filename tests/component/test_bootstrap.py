"""The command that makes the shared secrets."""

from __future__ import annotations

import argparse
import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import crypto

from dlspawner import bootstrap, cli
from dlspawner.clients import kubernetes
from dlspawner.devcluster.api import server


class Namespace:
    """Keeps created Secrets."""

    namespace = "dlspawner"

    def __init__(self) -> None:
        self.secrets: dict[str, Mapping[str, Any]] = {}

    async def create(self, kind: kubernetes.ResourceKind, manifest: Mapping[str, Any], namespace: str) -> None:
        assert (kind, namespace) == (kubernetes.SECRETS, "dlspawner")
        if manifest["metadata"]["name"] in self.secrets:
            raise kubernetes.Conflict("already exists", status=409)
        self.secrets[manifest["metadata"]["name"]] = manifest

    def value(self, name: str, key: str) -> str:
        return base64.b64decode(self.secrets[name]["data"][key]).decode()


async def test_an_interrupted_run_is_completed_by_the_next() -> None:
    there = Namespace()
    making = bootstrap.wanted(login=True, database_server="db")
    await bootstrap.make(there, "dlspawner", dict(list(making.items())[:3]))  # type: ignore[arg-type] # a stand-in
    before = dict(there.secrets)
    made = await bootstrap.make(there, "dlspawner", making)  # type: ignore[arg-type] # a stand-in
    assert [name for name, new in made.items() if not new] == list(before)
    assert set(there.secrets) == set(making)
    assert {name: there.secrets[name] for name in before} == before


async def test_the_url_of_a_database_has_its_password() -> None:
    there = Namespace()
    await bootstrap.make(there, "dlspawner", bootstrap.wanted(login=False, database_server="db:5433"))  # type: ignore[arg-type] # a stand-in
    password = there.value("hub-database", "password")
    assert there.value("hub-database", "url") == f"postgresql+psycopg://hub:{password}@db:5433/hub"


@pytest.mark.parametrize(
    ("login", "database", "more"),
    [(False, "", set()), (True, "", {"login"}), (False, "db", {"hub-database", "manager-database"})],
)
def test_which_secrets_are_made(login: bool, database: str, more: set[str]) -> None:
    always = {"proxy-token", "manager-token", "gateway-token", "hub-keys", "gateway-keys"}
    assert set(bootstrap.wanted(login, database)) == always | more
    assert set(bootstrap.wanted(login, database, "gateway-keys")) == {"gateway-keys"}


def test_without_a_cluster_the_command_fails_with_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    given = argparse.Namespace(namespace="", kubeconfig=Path("/nowhere"), login=False, database="", only="")
    assert bootstrap.main(given) == 1
    assert capsys.readouterr().err.startswith("The secrets could not be made: cannot configure the Kubernetes client")


async def test_a_second_run_changes_nothing_and_neither_prints_a_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    command = ["bootstrap", f"--kubeconfig={kubeconfig}", "--namespace=default", "--login", "--database=db"]

    async def run() -> tuple[list[str], dict[str, dict[str, str]]]:
        """The lines that were printed, and the Secrets afterwards."""
        assert await asyncio.to_thread(cli.main, command) == 0
        kept = await client.list(kubernetes.SECRETS, "default")
        return sorted(capsys.readouterr().out.splitlines()), {one["metadata"]["name"]: one["data"] for one in kept}

    api = await server.start(tmp_path)
    async with await kubernetes.KubernetesClient.connect(kubeconfig) as client:
        printed, made = await run()
        assert printed == sorted(f"secret {name}: made" for name in made)
        assert await run() == (sorted(f"secret {name}: kept" for name in made), made)
    await api.stop()
    values = [value for data in made.values() for key, value in data.items() if key != "url"]
    assert len(set(values)) == len(values), "two secrets are the same"


async def test_the_hub_reads_with_the_old_crypt_key_and_writes_with_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = (bootstrap.wanted(login=False, database_server="")["hub-keys"]()["crypt-key"] for _ in range(2))

    def keeper(keys: str) -> crypto.CryptKeeper:
        monkeypatch.setenv("JUPYTERHUB_CRYPT_KEY", keys)
        return crypto.CryptKeeper()

    before, both = keeper(old), keeper(f"{new};{old}")
    assert both.fernet.decrypt(before.fernet.encrypt(b"state")) == b"state"
    assert keeper(new).fernet.decrypt(both.fernet.encrypt(b"state")) == b"state"
