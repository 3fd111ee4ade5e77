"""Every row is recorded once, by both spawners; the tests compare what was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kubespawner import KubeSpawner

from dlspawner.spawner import DLSpawner
from tests.component.spawner.superset.recording import Run, record
from tests.component.spawner.superset.rows import ROWS


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[type, dict[str, Run]]:
    return record(ROWS, tmp_path_factory.mktemp("superset"))


@pytest.fixture(scope="session")
def stock(runs: dict[type, dict[str, Run]]) -> dict[str, Run]:
    return runs[KubeSpawner]


@pytest.fixture(scope="session")
def ours(runs: dict[type, dict[str, Run]]) -> dict[str, Run]:
    return runs[DLSpawner]


@pytest.fixture(scope="session")
def every_start(tmp_path_factory: pytest.TempPathFactory) -> dict[type, dict[str, Run]]:
    """The rows of which only the manifests are compared otherwise."""
    light = {row: replace(ROWS[row], starts=True) for row in ROWS if not ROWS[row].starts}
    return record(light, tmp_path_factory.mktemp("every-start"))
