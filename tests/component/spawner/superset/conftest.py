"""Every row is recorded once by both spawners."""

from __future__ import annotations

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
