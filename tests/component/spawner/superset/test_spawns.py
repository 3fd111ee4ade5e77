"""The same spawn by KubeSpawner and by DLSpawner without templates: what is sent, what is said, what is remembered."""

from __future__ import annotations

from itertools import product

import pytest
from kubespawner import KubeSpawner

from dlspawner.spawner import DLSpawner
from tests.component.spawner.superset.recording import BOTH, NAMES, Run
from tests.component.spawner.superset.rows import PLAIN, ROWS
from tests.harness.spawner_builders import make_spawner

Runs = dict[str, Run]
every_row = pytest.mark.parametrize("row", ROWS)


@every_row
def test_the_configuration_shows(row: str, stock: Runs) -> None:
    """Otherwise two runs without effect would be equal, too."""
    assert stock[row].error == ""
    assert ROWS[row].shown(stock[row]) == dict.fromkeys(ROWS[row].shows, True)
    assert ROWS[row].shown(stock[PLAIN]) == dict.fromkeys(ROWS[row].shows, ROWS[row].changes_nothing)


@every_row
def test_the_same_requests_are_sent(row: str, stock: Runs, ours: Runs) -> None:
    """Every request that changes something, in order, byte for byte; but a deletion names the pod that it means."""
    assert list(map(_without_precondition, ours[row].sent)) == list(map(_without_precondition, stock[row].sent))
    assert stock[row].sent


def _without_precondition(sent: tuple[str, ...]) -> tuple[str, ...]:
    """KubeSpawner has the grace period in the query and in the body; we have the uid in the body."""
    return (*sent[:3], "") if sent[0] == "DELETE" and "/pods/" in sent[1] else sent


@every_row
def test_manifests_state_events_and_forms_are_the_same(row: str, stock: Runs, ours: Runs) -> None:
    theirs, mine = vars(stock[row]).copy(), vars(ours[row]).copy()
    for compared_elsewhere in ("sent", "asked"):
        del theirs[compared_elsewhere], mine[compared_elsewhere]
    assert mine == theirs


USERS = ("Alice", "alice+b", "alice@example.org", "älice", "日本", "a" * 70, "alice--gpu", "a_b.c", "u-1", "-x-")
SERVERS = ("", "gpu", "G.P_U", "x" * 60)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="safe scheme"),
        pytest.param({"slug_scheme": "escape"}, id="old scheme"),
        pytest.param(
            {
                "pod_name_template": "jupyter-{safe_username}--{safe_servername}",
                "pvc_name_template": "claim-{escaped_username}",
            },
            id="old templates",
        ),
    ],
)
def test_the_names_of_unusual_users_and_servers_are_the_same(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[type, list[object]] = {}
    for cls, user, server in product(BOTH, USERS, SERVERS):
        spawner = make_spawner(monkeypatch, user, server, settings=None, cls=cls, config=config)
        names.setdefault(cls, []).append([getattr(spawner, name) for name in NAMES])

    assert names[DLSpawner] == names[KubeSpawner]
    assert len({str(one) for one in names[DLSpawner]}) == len(USERS) * len(SERVERS)


# The verbs of the Hub's Role in Zero-to-JupyterHub (jupyterhub/templates/hub/rbac.yaml); user namespaces need a
# ClusterRole besides.
ALL = ("get", "watch", "list", "create", "delete")
ROLE = {
    "pods": ALL,
    "persistentvolumeclaims": ALL,
    "secrets": ALL,
    "services": ALL,
    "events": ("get", "watch", "list"),
    "namespaces": ALL,
}


def test_nothing_is_asked_that_the_usual_role_forbids(ours: Runs) -> None:
    asked = set().union(*(run.asked for run in ours.values()))

    assert {(verb, resource) for verb, resource in asked if verb not in ROLE[resource]} == set()
    assert {("create", "pods"), ("watch", "pods"), ("create", "secrets"), ("watch", "events")} <= asked
