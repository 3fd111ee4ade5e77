"""Pending jobs, and faults, on a real Kubernetes with quota: tests of the embedded cluster with a Hub of this one.

Its Manager has a PostgreSQL; Hub and Manager reach the API server through a proxy that has bad days. A login that is
too old, the form and the wait page in a browser, and services that are away while users have jobs and wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager import databases, test_faults_hub, test_queue_hub
from tests.component.manager.quota import GPUS
from tests.component.manager.test_faults_hub import (  # noqa: F401  (what is imported is run)
    Cast,
    FaultyHub,
    api,
    cast,
    test_a_node_that_is_gone_keeps_what_its_job_holds_until_the_pod_is_gone_too,
    test_watches_that_break_or_are_too_old_are_there_again,
    test_what_passes_while_pods_are_made_and_stopped_is_not_noticed_and_charged_once,
    test_what_stays_is_one_sentence_and_holds_nothing,
    test_while_kubernetes_is_away_jobs_and_places_are_shown_as_they_were,
    test_while_the_database_is_away_people_read_that_it_is_for_a_while,
    test_while_the_hub_is_away_the_turn_of_who_waits_is_not_lost,
    test_who_is_refused_after_an_answer_was_lost_holds_what_may_still_come_of_it,
    test_who_loses_a_pod_behind_our_back_reads_so_and_who_waits_starts,
)
from tests.component.manager.test_queue_hub import (  # noqa: F401
    browser,
    full,
    nothing_left,
    test_from_the_form_to_the_page_and_from_there_to_the_job,
    test_where_the_hub_wants_a_fresh_login_the_job_waits_for_it_and_holds_nothing,
    test_who_asks_in_the_form_for_what_nobody_may_have_reads_the_most_at_once,
)
from tests.contract.client import Client
from tests.kubernetes.conftest import Image, namespace_of_jobs
from tests.kubernetes.counted import MORE, gpus, node, there

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def hub(kubernetes: Client, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyHub]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    folder = tmp_path_factory.mktemp("waiting")
    (folder / "stale").touch()
    with namespace_of_jobs(kubernetes) as namespace, gpus(kubernetes, folder) as resource:
        extra = [
            MORE.format(image=image("job")),
            test_queue_hub.MORE.format(stale=str(folder / "stale"), resource=resource),
            test_faults_hub.MORE,
        ]
        made = FaultyHub(
            folder,
            **there(kubernetes, namespace),
            resource=resource,
            settings=test_faults_hub.SETTINGS,
            extra="".join(extra),
            away_seconds=3,
        )
        with test_faults_hub.faulty(made):
            yield made


@pytest.fixture
def cast_on_a_node_that_goes(hub: FaultyHub, kubernetes: Client, tmp_path: Path) -> Iterator[Cast]:
    """A simulated node, the only one that takes pods when its job starts."""
    others = [one["metadata"]["name"] for one in kubernetes.get("/api/v1/nodes")["items"]]
    with node(kubernetes, tmp_path, hub.resource, GPUS):
        with cordoned(kubernetes, others):
            made = test_faults_hub.cast_of(hub)
        yield made


@contextlib.contextmanager
def cordoned(kubernetes: Client, nodes: list[str]) -> Iterator[None]:
    for name in nodes:
        kubernetes.patched(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}}, "merge")
    try:
        yield
    finally:
        for name in nodes:
            kubernetes.patched(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}}, "merge")
