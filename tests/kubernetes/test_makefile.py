"""The variables that `make` hands to the suites for a foreign cluster, and its refusals."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.instance import PROJECT

# What the `make` that runs us may have told its recipes.
OURS = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CLUSTER", "PORT", "SSH_PORT", "STATE", "BIN"}


def make(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Without what it would install: that is there, or the tests would not run."""
    installed = [f"--assume-old=.venv/{name}" for name in (".jobs", ".tests")]
    outer = {name: value for name, value in os.environ.items() if name not in OURS}
    return subprocess.run(
        ["make", "--no-print-directory", *installed, *arguments],
        cwd=PROJECT,
        env=outer | (env or {}),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def program(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def suites(tmp_path: Path) -> str:
    """A `pytest` that only tells what it was given."""
    program(tmp_path / "suites" / "pytest", 'echo "$DLSPAWNER_KUBECTL $KUBECONFIG"')
    return f"BIN={tmp_path / 'suites'}"


def test_somebody_s_cluster_is_tested_with_their_kubectl(suites: str, tmp_path: Path) -> None:
    theirs = program(tmp_path / "theirs" / "kubectl", "")
    settings = {"PATH": f"{tmp_path / 'theirs'}:{os.environ['PATH']}", "KUBECONFIG": "/their/config"}
    settings["DLSPAWNER_KUBECTL"] = ""
    done = make("--silent", "test-kubernetes", "CLUSTER=kubeconfig", suites, env=settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{theirs} /their/config"] * 3


def test_the_kubectl_that_they_name_comes_first(suites: str, tmp_path: Path) -> None:
    named = program(tmp_path / "kubectl-1.34", "")
    settings = {"DLSPAWNER_KUBECTL": named, "KUBECONFIG": "/their/config"}
    done = make("--silent", "test-kubernetes", "CLUSTER=kubeconfig", suites, env=settings)
    assert done.stdout.splitlines() == [f"{named} /their/config"] * 3, done.stderr


def test_without_a_kubectl_it_says_so(suites: str) -> None:
    done = make("test-kubernetes", "CLUSTER=kubeconfig", suites, env={"DLSPAWNER_KUBECTL": "/nowhere/kubectl"})
    assert done.returncode == 2
    assert done.stdout.strip() == "kubectl 1.24 or newer is needed, in PATH or as DLSPAWNER_KUBECTL."


@pytest.mark.parametrize("given", ["PORT=9000", "SSH_PORT=9022"])
def test_ports_that_kubernetes_would_not_use_are_refused(given: str, suites: str) -> None:
    for done in (
        make("run", "CLUSTER=kubernetes", suites, given),
        make("run", "CLUSTER=kubernetes", suites, env=dict([given.split("=")])),
    ):
        assert done.returncode == 2
        assert "the ports are 30080 and 30022" in done.stdout


@pytest.mark.parametrize(("target", "wanted"), [("run", False), ("bench-kubernetes", False), ("test-kubernetes", True)])
def test_only_tests_make_the_images_of_tests(target: str, wanted: bool) -> None:
    printed = make("--dry-run", target, *(["CLUSTER=kubernetes"] if target == "run" else [])).stdout
    assert "tests.kubernetes" in printed
    assert ("--test-images" in printed) is wanted
