"""Managers as processes: who answers the Hub, who stands by, and what is no question."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import requests

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.core.link import derive_hub_token
from tests.component.manager.manager_harness import NAMESPACE, Office, make_namespace, prepare, wants
from tests.component.manager.world import free_port, manager_environment, process, wait_for
from tests.contract.conftest import Server

NO_HUB = "http://127.0.0.1:9/hub/api"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The administrators' files, and a cluster with one node."""
    made = tmp_path_factory.mktemp("office")
    prepare(made)
    server = Server(made / "cluster")
    server.start()

    there, over = threading.Event(), threading.Event()

    async def furnish() -> None:
        async with await KubernetesClient.connect(server.kubeconfig) as cluster:
            await make_namespace(cluster)
            await Office(made, "", cluster).make_node()
            there.set()
            await asyncio.to_thread(over.wait)  # and the node reports

    # In a thread: a test session may have an event loop of its own here.
    thread = threading.Thread(target=lambda: asyncio.run(furnish()))
    thread.start()
    assert there.wait(60)
    yield made
    over.set()
    thread.join()
    server.stop()


def files(folder: Path) -> tuple[str, ...]:
    """Settings that are needed to decide."""
    return (
        f"--Manager.cluster_file={folder / 'cluster.yaml'}",
        f"--Manager.teams_file={folder / 'teams.yaml'}",
        f"--Manager.templates_dir={folder}",
        "--Manager.namespace=jobs",
    )


@contextlib.contextmanager
def manager(folder: Path, db_url: str, *more: str) -> Iterator[tuple[str, Popen[bytes]]]:
    """Its address, and the process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        **manager_environment(url, NO_HUB, "secret-token"),
        "KUBECONFIG": str(folder / "cluster" / "kubeconfig"),
        "PATH": os.environ["PATH"],
    }
    settings = more or (*files(folder), "--Manager.lease_seconds=3")
    command = [sys.executable, "-W", "error", "-m", "dlspawner.manager", f"--db-url={db_url}", *settings]
    with process(command, folder / f"{port}.log", env=env) as child:
        wait_for(lambda: requests.get(f"{url}/services/jobs/health", timeout=5).ok)
        yield url, child
    assert "Traceback" not in (folder / f"{port}.log").read_text()


def put(url: str, user: str = "alice", gpus: int = 1, **changes: Any) -> requests.Response:
    question = wants(user, gpus)
    body: dict[str, Any] = {
        "user": question.user,
        "server": "",
        "team": "default",
        "template": "tiny",
        "preemptible": False,
        "priority": "",
        "requeue": False,
        "request_milliseconds": 3000,
        "namespace": NAMESPACE,
        "pods": list(question.pods),
    }
    headers = {"Authorization": f"token {changes.pop('token', derive_hub_token('secret-token'))}"}
    path = f"{url}/services/jobs/api/internal/jobs/{question.job}/admission"
    return requests.put(path, json={**body, **changes}, headers=headers, timeout=30)


def is_up(url: str, what: str) -> bool:
    return requests.get(f"{url}/services/jobs/{what}", timeout=30).ok


def test_one_answers_the_other_stands_by_and_takes_over_when_the_first_is_killed(folder: Path, db_url: str) -> None:
    with manager(folder, db_url) as (first, killed):
        wait_for(lambda: put(first, gpus=8).status_code == 200)
        with manager(folder, db_url) as (second, _):
            standing_by = put(second)
            assert standing_by.status_code == 503
            assert "does not decide now" in standing_by.json()["detail"]
            assert standing_by.headers["Connection"] == "close", "or a client would keep asking this one"
            assert (is_up(first, "ready"), is_up(second, "ready"), is_up(second, "health")) == (True, False, True)
            killed.kill()
            wait_for(lambda: put(second).status_code == 200)
            assert is_up(second, "ready")
            answer = put(second, "bob").json()
            assert (answer["decision"], answer["reason"]) == ("wait", "team-quota")


@pytest.fixture(scope="module")
def asked(folder: Path) -> Iterator[str]:
    with manager(folder, f"sqlite:///{folder / 'asked.sqlite'}") as (url, _):
        yield url


def test_only_the_hub_may_ask(asked: str) -> None:
    for token in ("secret-token", "another"):
        assert put(asked, token=token).status_code == 403


def test_a_manifest_that_cannot_be_charged_is_refused_and_breaks_nothing(asked: str) -> None:
    wait_for(lambda: put(asked, gpus=0).status_code == 200)
    answer = put(asked, pods=[{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "-1"}}}]}}]).json()
    assert (answer["decision"], answer["reason"]) == ("refuse", "malformed")
    answer = put(asked, pods=[{"spec": {"containers": "x"}}]).json()
    assert answer["decision"] == "refuse"


def test_a_manager_without_files_decides_nothing_and_says_so(folder: Path, tmp_path: Path) -> None:
    with manager(folder, f"sqlite:///{tmp_path / 'm.sqlite'}", "--log-level=INFO") as (url, _):
        answer = put(url)
        assert answer.status_code == 501
        assert "decides about no jobs" in answer.json()["detail"]
        assert is_up(url, "ready"), "it has the keys"
        headers = {"Authorization": f"token {derive_hub_token('secret-token')}"}
        waiting = requests.get(f"{url}/services/jobs/api/internal/users/alice/waiting", headers=headers, timeout=30)
        assert waiting.status_code in {200, 501}, "the Hub's home page does not wait"


def test_a_way_that_the_network_policies_forbid_and_that_is_open_is_told(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as forbidden:
        address = f"127.0.0.1:{forbidden.getsockname()[1]}"
        with manager(
            folder, f"sqlite:///{tmp_path / 'm.sqlite'}", *files(folder), f"--Manager.forbidden_address={address}"
        ) as (url, _):
            log = folder / f"{url.rpartition(':')[2]}.log"
            said = f"No network plug-in enforces the NetworkPolicies: {address} answers"
            wait_for(lambda: said in log.read_text())
