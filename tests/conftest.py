"""Rules of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

COMPLETE = "DLSPAWNER_TESTS_COMPLETE"  # set by the Makefile, which installs everything that tests need


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip says that something is missing on this machine. Where everything was installed, that is a failure."""
    report = yield
    if report.skipped and os.environ.get(COMPLETE) and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests on a real cluster run on the one of $KUBECONFIG, and nowhere else."""
    if item.get_closest_marker("kubernetes") and not os.environ.get("KUBECONFIG"):
        pytest.skip("no KUBECONFIG: `make test-kubernetes` starts a cluster")


# What shares an expensive fixture and so stays in one of the processes that run the suite; anything else goes by file.
_TOGETHER = ("tests/contract", "tests/e2e", "tests/edges/superset", "tests/gateway")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        file = item.location[0]
        group = next((folder for folder in _TOGETHER if file.startswith(f"{folder}/")), file)
        item.add_marker(pytest.mark.xdist_group(group))
