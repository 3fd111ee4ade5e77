"""The same on JupyterHub 5.5, which Zero-to-JupyterHub ships: the comparison, the spawner in a real Hub, also
in one that is killed, the queue, and the pages."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions

import pytest

from tests.harness.spawner_hub import JUPYTERHUB_5_5 as OTHER
from tests.harness.spawner_hub import ROOT

TESTS = {
    "tests/component/spawner/superset": ("-m", "not slow"),
    "tests/component/spawner/test_hub.py": (),
    "tests/component/spawner/test_restarts.py": ("-k", "with_templates and not survive"),
    "tests/component/manager/test_queue_hub.py": ("-k", "not late"),
    "tests/e2e/test_pages.py": (),
}


@pytest.mark.slow
@pytest.mark.skipif(not OTHER.exists(), reason="JupyterHub 5.5 is not installed: the environment of `make test` has it")
@pytest.mark.parametrize("tests", TESTS)
def test_it_is_the_same_on_jupyterhub_5_5(tests: str) -> None:
    assert [found.version for found in distributions(name="jupyterhub", path=[str(OTHER)])] == ["5.5.0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *TESTS[tests], tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(OTHER), "JUPYTERHUB_PATH": str(OTHER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
