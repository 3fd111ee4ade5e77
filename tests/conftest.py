"""Rules of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.kubernetes import planes

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


def pytest_sessionfinish() -> None:
    """The real control planes of this worker are for all of its tests."""
    planes.stop_all()
