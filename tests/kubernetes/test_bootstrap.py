"""`dlspawner bootstrap` with the rights that the manifests give it, on a real API server."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.contract.client import Client
from tests.kubernetes.conftest import Kubectl, Scratch

pytestmark = pytest.mark.kubernetes

NAMES = {
    *("proxy-token", "manager-token", "gateway-token", "hub-keys", "gateway-keys"),
    *("login", "hub-database", "manager-database"),
}


def as_account(account: str, namespace: str, kubernetes: Client, kubectl: Kubectl, folder: Path) -> Path:
    """A kubeconfig for one of the namespace's service accounts."""
    config = yaml.safe_load(kubernetes.kubeconfig.read_text())
    token = kubectl("create", "token", account, "-n", namespace).strip()
    config["users"] = [{"name": account, "user": {"token": token}}]
    context = {"cluster": config["clusters"][0]["name"], "user": account, "namespace": namespace}
    config |= {"contexts": [{"name": "it", "context": context}], "current-context": "it"}
    path = folder / f"{account}.conf"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def run(kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlspawner.cli", "bootstrap", f"--kubeconfig={kubeconfig}"]
    return subprocess.run(
        [*command, "--login", "--database=postgresql"], check=False, capture_output=True, text=True, timeout=60
    )


def kept(kubectl: Kubectl, namespace: str) -> dict[str, dict[str, str]]:
    items = json.loads(kubectl("get", "secrets", "-n", namespace, "-o", "json"))["items"]
    return {
        one["metadata"]["name"]: {key: base64.b64decode(value).decode() for key, value in one["data"].items()}
        for one in items
    }


def test_a_second_run_changes_nothing_and_neither_prints_a_value(
    scratch: Scratch, kubernetes: Client, kubectl: Kubectl, tmp_path: Path
) -> None:
    namespace = scratch.product
    kubeconfig = as_account("bootstrap", namespace, kubernetes, kubectl, tmp_path)
    first = run(kubeconfig)
    made = kept(kubectl, namespace)
    second = run(kubeconfig)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert set(made) == NAMES
    assert sorted(first.stdout.splitlines()) == sorted(f"secret {name}: made" for name in NAMES)
    assert sorted(second.stdout.splitlines()) == sorted(f"secret {name}: kept" for name in NAMES)
    assert kept(kubectl, namespace) == made
    printed = first.stdout + first.stderr + second.stdout + second.stderr
    assert not [value for values in made.values() for value in values.values() if value in printed]
    values = [value for name, values in made.items() for key, value in values.items() if key != "url"]
    assert len(set(values)) == len(values), "two secrets are the same"


def test_without_the_right_to_create_secrets_it_says_so(
    scratch: Scratch, kubernetes: Client, kubectl: Kubectl, tmp_path: Path
) -> None:
    done = run(as_account("proxy", scratch.product, kubernetes, kubectl, tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The secrets could not be made: ")
    assert "cannot create resource" in done.stderr
