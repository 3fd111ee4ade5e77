"""dlspawner doctor: findings that need no cluster; those made on one are in tests/kubernetes/test_doctor.py."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from dlspawner import doctor, settings
from dlspawner.core.config import StorageConfig
from dlspawner.doctor import Installation
from dlspawner.manager.db import engine

BASE = Path(__file__).parents[2] / "hub_config" / "kubernetes" / "base"
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def manifests(*files: str) -> list[dict[str, Any]]:
    return [one for name in files for one in yaml.safe_load_all((BASE / f"{name}.yaml").read_text())]


def healthy() -> Installation:
    """The base's processes, one available pod each."""
    workloads = {
        one["metadata"]["name"]: {**one, "status": {"availableReplicas": 1}}
        for one in manifests("proxy", "hub", "manager", "gateway")
        if one["kind"] == "Deployment"
    }
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    keys = {"metadata": {"creationTimestamp": "2026-11-01T00:00:00Z"}}
    variable = {"name": "DLSPAWNER_PROMETHEUS_URL", "value": "http://prometheus.monitoring:9090"}
    workloads["manager"]["spec"]["template"]["spec"]["containers"][0]["env"].append(variable)
    published(workloads, "https://hub.example.org/")
    return Installation(
        "dlspawner", NOW, workloads, labels={"dlspawner-jobs": enforced}, secrets={"gateway-keys": keys}
    )


def published(workloads: dict[str, Any], url: str, processes: tuple[str, ...] = ("gateway", "hub")) -> None:
    """The Hub's address for people, as an overlay sets it."""
    for name in processes:
        env = workloads[name]["spec"]["template"]["spec"]["containers"][0]["env"]
        env[:] = [*(one for one in env if one["name"] != "DLSPAWNER_PUBLIC_URL")]
        env.append({"name": "DLSPAWNER_PUBLIC_URL", "value": url})


def found(**changed: Any) -> list[tuple[str, str, str]]:
    problems = doctor.check(dataclasses.replace(healthy(), **changed))
    assert all(one.remedy for one in problems)
    return [(one.check, one.problem, one.cause) for one in problems]


def test_a_healthy_installation_has_no_problem() -> None:
    assert found() == []


def test_what_is_needed_is_what_the_manifests_give() -> None:
    where = {"dlspawner": "product", "dlspawner-jobs": "jobs", None: "everywhere"}
    given = {
        (one["metadata"]["name"].removeprefix("dlspawner-"), where[one["metadata"].get("namespace")], group, kind, verb)
        for one in manifests("access")
        if one["kind"] in {"Role", "ClusterRole"} and one["metadata"]["name"] != "bootstrap"
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(*right[:4], verb) for right in doctor.RIGHTS for verb in right[4]} == given


def test_a_process_that_is_away_is_found_with_the_reason_of_its_pods() -> None:
    workload = healthy().workloads["manager"]
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    ended = {"message": "The database was made by a newer version of dlspawner."}
    pod = {
        "metadata": {"labels": workload["spec"]["selector"]["matchLabels"]},
        "status": {"containerStatuses": [{"state": {"waiting": waiting}, "lastState": {"terminated": ended}}]},
    }
    workloads = {**healthy().workloads, "manager": {**workload, "status": {}}}
    cause = "CrashLoopBackOff: The database was made by a newer version of dlspawner."
    assert found(workloads=workloads, pods=(pod,)) == [("processes", "manager is not available", cause)]


def test_an_image_that_cannot_be_pulled_is_named_once() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    status = {"containerStatuses": [{"image": "registry.example.org/job:2", "state": waiting}]}
    pods = tuple({"metadata": {"name": name}, "status": status} for name in "ab")
    problem = "the image registry.example.org/job:2 cannot be pulled"
    assert found(job_pods=pods) == [("images", problem, "ImagePullBackOff: Back-off pulling image")]


@pytest.mark.parametrize(
    ("ports", "used", "problem"),
    [
        ((30000, 32767), 2491, ""),
        ((30000, 32767), 2492, "2492 of the cluster's 2768 NodePorts are in use"),
        (
            (30000, 40000),
            0,
            "the NetworkPolicy gateway admits NodePorts 30000 to 32767, and the cluster's are 30000 to 40000",
        ),
    ],
)
def test_node_ports_that_run_out_or_are_forbidden_are_found(ports: tuple[int, int], used: int, problem: str) -> None:
    policies = {one["metadata"]["name"]: one for one in manifests("network-product")}
    services = ({"spec": {"ports": [{"nodePort": 30000 + number} for number in range(used)]}}, {"spec": {}})
    told = found(node_ports=ports, services=services, policies=policies)
    assert [one[:2] for one in told] == ([("node-ports", problem)] if problem else [])


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        (doctor.SCOPES["jobs"], ""),
        (doctor.SCOPES["jobs"][1:], "the service jobs lacks the scopes servers"),
        (None, "the Hub does not know the token of the service jobs"),
    ],
)
def test_scopes_are_what_the_hub_says(held: tuple[str, ...] | None, problem: str) -> None:
    told = found(held={"jobs": held if held is None else frozenset(held)})
    assert [one[:2] for one in told] == ([("scopes", problem)] if problem else [])


@pytest.mark.parametrize(("url", "said"), [("http://hub.example.org/", 1), ("http://127.0.0.1:8000/", 0)])
def test_a_hub_that_is_not_asked_for_scopes_is_said(url: str, said: int) -> None:
    workloads = dict(healthy().workloads)
    published(workloads, url)
    cause = f"{url} is not https, and tokens go nowhere in the clear"
    assert [(one[0], one[2]) for one in found(workloads=workloads)] == [("scopes", cause)] * said


def test_a_hub_that_does_not_know_of_https_is_found() -> None:
    workloads = dict(healthy().workloads)
    published(workloads, "http://proxy/", ("hub",))
    told = ("web", "the cookie of a login is sent by http as well")
    assert [one[:2] for one in found(workloads=workloads)] == [told]


def test_old_keys_are_found() -> None:
    metadata: dict[str, Any] = {"creationTimestamp": "2025-01-01T00:00:00Z"}
    keys = {"gateway-keys": {"metadata": metadata}}
    told = "the Secret gateway-keys was last changed 696 days ago"
    assert [one[:2] for one in found(secrets=keys)] == [("secrets", told)]
    metadata["managedFields"] = [{"time": "2026-11-01T00:00:00Z"}, {"time": "2025-01-01T00:00:00Z"}, {}]
    assert found(secrets=keys) == []
    assert [one[:2] for one in found(secrets={})] == [("secrets", "there is no Secret gateway-keys")]


def test_what_may_not_be_read_is_a_problem_and_passes_no_check() -> None:
    assert found(secrets={}, unread=("Secrets",)) == [
        ("access", "Secrets could not be read", "this account lacks the right")
    ]


@pytest.mark.parametrize(("seconds", "off"), [(-20, False), (-300, True), (20, False), (120, True)])
def test_a_node_with_another_clock_is_found(seconds: int, off: bool) -> None:
    node = {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    renewed = (NOW + timedelta(seconds=seconds)).isoformat()
    lease = {"metadata": {"name": "a"}, "spec": {"renewTime": renewed}}
    assert [one[0] for one in found(nodes=(node,), leases=(lease,))] == ["clocks"] * off


@pytest.mark.parametrize(("mode", "nodes", "warned"), [("Once", 1, 0), ("Once", 2, 1), ("Many", 2, 0)])
def test_homes_of_one_node_in_a_larger_cluster_are_a_warning(mode: str, nodes: int, warned: int) -> None:
    alone = settings.load(None)
    cluster = dataclasses.replace(
        alone.cluster, gpu_types=(), storage=StorageConfig(access_modes=(f"ReadWrite{mode}",))
    )
    manifests = tuple({"metadata": {"name": name}} for name in "ab"[:nodes])
    assert [one[0] for one in found(files=dataclasses.replace(alone, cluster=cluster), nodes=manifests)] == [
        "storage"
    ] * warned


def test_a_database_of_another_version_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'manager.sqlite'}"
    assert "cannot be read" in doctor._ask_database(url)
    opened = engine.open_engine(url, 1)
    engine.upgrade(opened)
    assert doctor._ask_database(url) == ""
    with opened.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert doctor._ask_database(url).startswith("the Manager's database has another schema: 9999, not ")


async def test_an_address_without_the_gateway_behind_it_is_found() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        said = b"SSH-2.0-dlspawner\r\n"
        assert await doctor._ask_gateway("127.0.0.1", port) == ""
        assert await doctor._ask_web(f"http://127.0.0.1:{port}/", NOW) == ""
        said = b"HTTP/1.1 400 Bad Request\r\n"
        assert "no SSH server" in await doctor._ask_gateway("127.0.0.1", port)
        assert "does not answer" in await doctor._ask_web(f"https://127.0.0.1:{port}/", NOW)
    assert "does not answer" in await doctor._ask_gateway("127.0.0.1", port)
