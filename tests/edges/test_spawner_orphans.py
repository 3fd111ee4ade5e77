"""Which pods belong to no server, and when they are ended; in a real Hub: test_spawner_restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner.spawner.orphans import Orphans, owned, without_server

ADDRESS = "http://hub:8081/hub/api"


def pod(address: str = ADDRESS, person: str | None = "alice", **parts: Any) -> dict[str, Any]:
    env = [{"name": "JUPYTERHUB_API_URL", "value": address}]
    return {
        "metadata": {
            "uid": parts.get("uid", "u1"),
            "annotations": {"hub.jupyter.org/username": person} if person else None,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if parts.get("ending") else {}),
        },
        "spec": {"containers": [{"name": "notebook", "env": env}]},
        "status": {"phase": parts.get("phase", "Running")},
    }


@pytest.mark.parametrize(
    ("case", "found", "orphan"),
    [
        ("a pod of nobody", pod(), True),
        ("one that waits for a node", pod(phase="Pending"), True),
        ("another Hub's", pod("http://other:8081/hub/api"), False),
        ("one without a person", pod(person=None), False),
        ("one that is ending", pod(ending=True), False),
        ("one that has ended and is kept", pod(phase="Failed"), False),
    ],
)
def test_a_pod_without_a_server(case: str, found: dict[str, Any], orphan: bool) -> None:
    assert list(without_server({"jobs/p": found}, set(), ADDRESS, keep_ended=True)) == ["jobs/p"] * orphan, case


def test_a_pod_that_has_ended_is_kept_only_where_the_administrator_said_so() -> None:
    assert list(without_server({"jobs/p": pod(phase="Failed")}, set(), ADDRESS, keep_ended=False)) == ["jobs/p"]


def test_the_pods_of_servers_that_are_or_may_become() -> None:
    def server(name: str, **state: Any) -> Any:
        return SimpleNamespace(pod_key=f"jobs/{name}", **{"server": None, "pending": None, **state})

    spawners = {"": server("runs", server=object()), "b": server("stops", pending="stop"), "c": server("stopped")}
    assert owned({1: SimpleNamespace(spawners=spawners)}) == {"jobs/runs", "jobs/stops"}
    assert list(without_server({"jobs/runs": pod()}, {"jobs/runs"}, ADDRESS, keep_ended=False)) == []


def test_it_is_ended_when_it_had_no_server_all_the_time() -> None:
    orphans = Orphans(900)

    assert orphans.due({"jobs/p": pod()}, 100.0) == (["jobs/p"], [])
    assert orphans.due({"jobs/p": pod()}, 999.0) == ([], [])
    assert orphans.due({"jobs/p": pod()}, 1000.0) == ([], ["jobs/p"])


def test_a_server_in_between_or_another_pod_begins_the_time_again() -> None:
    orphans = Orphans(900)
    orphans.due({"jobs/p": pod()}, 100.0)
    orphans.due({}, 500.0)

    assert orphans.due({"jobs/p": pod()}, 1000.0) == (["jobs/p"], [])
    assert orphans.due({"jobs/p": pod(uid="u2")}, 1900.0) == (["jobs/p"], [])
