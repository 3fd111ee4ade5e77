"""openapi.json is what the Manager does: every address is in it, and no answer is one that it does not promise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from dlspawner.manager.rest.openapi import document
from dlspawner.manager.rest.operations import INTERNAL, OPERATIONS, Operation
from tests.edges.test_manager import metrics, rest
from tests.edges.test_manager.addresses import PREFIX, addresses
from tests.edges.test_manager.rest import RestHub

EXAMPLES = int(os.environ.get("DLSPAWNER_EXAMPLES", "6"))  # of each operation and each kind of data
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


def test_every_resource_is_described_and_everything_described_is_there() -> None:
    there = {f"{one.method} {one.path.removeprefix('api/')}" for one in addresses() if one.path.startswith("api/")}
    described = {f"{one.method} {one.path}" for one in OPERATIONS}
    assert there - described - INTERNAL == set(), "add it to rest/operations.py"
    assert (described | INTERNAL) - there == set(), "it is not there any more"
    assert described & INTERNAL == set()


def test_names_of_operations_are_unique() -> None:
    names = [one.name for one in OPERATIONS]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestHub]:
    folder, settings = tmp_path_factory.mktemp("openapi"), ["--Manager.idle_look_seconds=1"]
    with contextlib.ExitStack() as stack:
        if metrics.installed("prometheus"):
            url = stack.enter_context(metrics.prometheus(tmp_path_factory.mktemp("prometheus")))
            settings.append(f"--GpuMetrics.prometheus_url={url}")
        for made in rest.made(folder, settings=tuple(settings)):
            yield made
            made.clear()
            for name in ("hub", "manager"):
                assert "Traceback" not in (made.state / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def jobs(hub: RestHub) -> list[str]:
    """Jobs of alice's: one that has ended, one that runs and one that waits."""
    ended = hub.runs("alice", 1, "ended")["id"]
    hub.ask("alice", "DELETE", f"jobs/{ended}")
    hub.until("alice", "ended", "ended")
    runs = hub.runs("alice", 3, "runs")["id"]
    waits = hub.ask("alice", "POST", "jobs", {"server": "waits", "options": {"template": "tiny", "gpus": 2}})
    assert waits.status_code == 202
    rest.wait_for(lambda: hub.ask("alice", "POST", f"jobs/{runs}/keep-alive").ok, "somebody has looked who uses it")
    return [ended, runs, waits.json()["id"]]


def test_anybody_may_read_the_description(hub: RestHub) -> None:
    assert hub.ask(None, "GET", "openapi.json").json() == document(f"{PREFIX}api")


# Those that end or start jobs know only one with which they cannot; test_rest_submit asks them of others.
_OF_HTTP = (
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "expect",
)  # what is wrong there never gets to us
_JOBS = {"KillJob": slice(0, 1), "CancelJob": slice(0, 1), "RequeueJob": slice(1, 2)}


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_no_answer_is_other_than_described(
    hub: RestHub, jobs: list[str], operation: Operation, mode: GenerationMode
) -> None:
    """Of data that fit the description, and of data that do not; ids are those of real jobs half of the time."""
    if operation.name == "GetJobUsage":
        metrics.program("prometheus")  # skips the test where there is none
    schema = schemathesis.openapi.from_dict(document(f"{PREFIX}api"))
    schema.config.max_stream_events = 1  # of a stream that never ends the answer is its beginning
    found = schema[f"/{operation.path}"][operation.method]
    headers = {"Authorization": f"token {hub.token('alice')}"}

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=found.as_strategy(generation_mode=mode),
        job=st.sampled_from([None, *jobs[_JOBS.get(operation.name, slice(None))]]),
    )
    def ask(case: Any, job: str | None) -> None:
        if job is not None and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = job
        if operation.waits and isinstance(case.query, dict):
            case.query.pop("wait", None)  # minutes, if it says so
        for name in _OF_HTTP:
            (case.headers or {}).pop(name, None)
        answer = case.call_and_validate(
            base_url=f"{hub.manager_url()}{PREFIX}api", headers=headers, checks=CHECKS, timeout=60
        )
        assert answer.status_code != 200 or "+00:00" not in answer.text, "times end in Z"

    ask()
