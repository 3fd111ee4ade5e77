"""The same spawn by KubeSpawner and by DLSpawner without templates: what is sent, what is said, what is remembered."""

from __future__ import annotations

import pytest
from kubespawner import KubeSpawner

from dlspawner.spawner import DLSpawner
from tests.component.spawner.superset.recording import OTHER, Run
from tests.component.spawner.superset.rows import PLAIN, ROWS

Runs = dict[str, Run]
every_row = pytest.mark.parametrize("row", ROWS)


@every_row
def test_the_configuration_shows(row: str, stock: Runs) -> None:
    """Two empty things would be equal too."""
    run, plain = stock[row], stock["nothing is configured"]
    if ROWS[row].value is OTHER:
        assert run.at(ROWS[row].shows) != plain.at(ROWS[row].shows)
        return
    assert run.error == ""
    assert ROWS[row].shows_in(run), run.at(ROWS[row].shows)
    assert ROWS[row].shows_in(plain) == ROWS[row].changes_nothing


@every_row
def test_the_same_is_sent(row: str, stock: Runs, ours: Runs) -> None:
    """Every request that changes something, in order, byte for byte; but a deletion names the pod that it means."""
    assert list(map(_without_precondition, ours[row].sent)) == list(map(_without_precondition, stock[row].sent))
    assert bool(stock[row].sent) == ROWS[row].starts


def _without_precondition(sent: tuple[str, ...]) -> tuple[str, ...]:
    """KubeSpawner says the grace period twice, in the query and in the body; we say the uid in the body."""
    return (*sent[:3], "") if sent[0] == "DELETE" and "/pods/" in sent[1] else sent


@every_row
def test_the_same_manifests_are_made(row: str, stock: Runs, ours: Runs) -> None:
    assert ours[row].manifests == stock[row].manifests


@every_row
def test_the_same_is_said_and_remembered(row: str, stock: Runs, ours: Runs) -> None:
    theirs, mine = vars(stock[row]).copy(), vars(ours[row]).copy()
    for compared_elsewhere in ("sent", "manifests", "asked"):
        del theirs[compared_elsewhere], mine[compared_elsewhere]
    assert mine == theirs


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if not ROWS[row].starts])
def test_the_other_starts_are_the_same_too(row: str, every_start: dict[type, Runs]) -> None:
    theirs, mine = vars(every_start[KubeSpawner][row]), vars(every_start[DLSpawner][row])
    theirs, mine = (
        {**one, "sent": list(map(_without_precondition, one["sent"])), "asked": ()} for one in (theirs, mine)
    )

    assert theirs["sent"]
    assert theirs["error"] == ""
    assert mine == theirs


# The verbs that Zero-to-JupyterHub's Role gives the Hub (jupyterhub/templates/hub/rbac.yaml), and for namespaces its
# ClusterRole, which whoever enables user namespaces has to add.
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


def test_the_plain_row_is_one_of_them() -> None:
    assert ROWS["nothing is configured"] is PLAIN
    assert len(ROWS) > 100
