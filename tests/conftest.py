"""Rules of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.kubernetes import planes

# Properties say nothing about time: a busy machine that makes examples slowly is no failure.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

COMPLETE = "DLSPAWNER_TESTS_COMPLETE"  # set by the Makefile, which installs everything that tests need

# What takes minutes, the longest first. Begun last, one of these would have the machine for itself.
LONGEST = ("test_quota_storm.py", "test_restarts.py", "test_jupyterhub_5_5.py", "test_stop_while_starting.py")
# Files whose tests share nothing, so that each of them may run beside the others.
APART = ("test_quota_storm.py", "test_jupyterhub_5_5.py")


class Scheduling(LoadFileScheduling):
    """A file's tests on one worker, in the order of the collection; those of `APART` each by itself."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if file.endswith(APART) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """For ``--dist loadfile``."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever order others have chosen, the longest come first."""
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


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
