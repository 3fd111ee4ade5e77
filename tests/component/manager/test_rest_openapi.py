"""openapi.json describes every address and every answer of the Manager."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from dlspawner.manager.http.api.models.responses import NewsModel
from dlspawner.manager.http.api.openapi import INTERNAL, OPERATIONS, Operation, document
from tests.component.manager import metrics, rest
from tests.component.manager.addresses import PREFIX, addresses
from tests.component.manager.quota import TEMPLATE
from tests.component.manager.rest import RestHub
from tests.component.manager.test_page import make_key
from tests.contract.client import Client

EXAMPLES = int(os.environ.get("DLSPAWNER_EXAMPLES", "6"))  # of each operation and each kind of data
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
ASKING = ("alice", "vera", "admin")
# Unused for half a minute, its person is told that it will be stopped.
BRIEF = {
    **TEMPLATE,
    "title": "Brief",
    "options": {"gpus": {"default": 0, "max": 8}, "gpu_type": {}, "team": {}},
    "idle": {"window_seconds": 60, "dry_run": False},
}


def test_described_operations_are_the_existing_ones() -> None:
    api = [one for one in addresses() if one.path.startswith("api/") and not one.path.startswith("api/internal/")]
    there = {f"{one.method} {one.path.removeprefix('api/')}" for one in api}
    described = {f"{one.method} {one.path}" for one in OPERATIONS}
    assert there - described - INTERNAL == set(), "add it to openapi.OPERATIONS"
    assert (described | INTERNAL) - there == set(), "it is not there any more"
    assert described & INTERNAL == set()


def test_version_is_that_of_the_package() -> None:
    info = document("")["info"]
    assert isinstance(info, dict)
    assert info["version"] == version("dlspawner")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestHub]:
    folder, settings = tmp_path_factory.mktemp("openapi"), ["--Manager.cull_every=1"]
    with contextlib.ExitStack() as stack:
        if metrics.installed("prometheus"):
            url = stack.enter_context(metrics.prometheus(tmp_path_factory.mktemp("prometheus")))
            settings.append(f"--GpuMetrics.prometheus_url={url}")
        for made in rest.made(folder, settings=tuple(settings), teams=rest.CAPPED, own_templates={"brief": BRIEF}):
            yield made
            made.clear()
            made.check_logs()


@pytest.fixture(scope="module")
def jobs(hub: RestHub) -> list[str]:
    """Jobs of alice's: one that has ended, one that runs and one that waits."""
    ended = hub.runs("alice", 1, "ended")["id"]
    hub.ask("alice", "DELETE", f"jobs/{ended}")
    hub.until("alice", "ended", "ended")
    runs = hub.runs("alice", 3, "runs")["id"]
    waits = hub.waits("alice", 2, "waits")
    rest.wait_for(lambda: hub.ask("alice", "POST", f"jobs/{runs}/keep-alive").ok, "somebody has looked who uses it")
    return [ended, runs, waits]


def test_description_is_public(hub: RestHub) -> None:
    assert hub.ask(None, "GET", "openapi.json").json() == document(f"{PREFIX}api")


# Operations that end or start jobs get only a job with which they cannot; test_rest_jobs has the others.
_OF_HTTP = (
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "expect",
)  # what is wrong there never gets to us
_JOBS = {"KillJob": slice(0, 1), "CancelJob": slice(0, 1), "RequeueJob": slice(1, 2)}


def described(operation: Operation) -> Any:
    """An operation as schemathesis reads it from the description."""
    schema = schemathesis.openapi.from_dict(document(f"{PREFIX}api"))
    schema.config.max_stream_events = 1  # of a stream that never ends the answer is its beginning
    return schema[f"/{operation.path}"][operation.method]


def validated(hub: RestHub, case: Any, who: str) -> Any:
    """An answer, which is one of those that are described."""
    headers = {"Authorization": f"token {hub.token(who)}"}
    answer = case.call_and_validate(
        base_url=f"{hub.manager_url()}{PREFIX}api", headers=headers, checks=CHECKS, timeout=60
    )
    assert answer.status_code != 200 or "+00:00" not in answer.text, "times end in Z"
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_answers_to_generated_requests_are_as_described(
    hub: RestHub, jobs: list[str], operation: Operation, mode: GenerationMode
) -> None:
    """Valid and invalid data; ids are mostly those of real jobs."""
    if operation.name == "GetJobUsage":
        metrics.program("prometheus")  # skips the test where there is none
    found = described(operation)

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
        who=st.sampled_from(ASKING),
    )
    def ask(case: Any, job: str | None, who: str) -> None:
        if job is not None and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = job
        if operation.waits and isinstance(case.query, dict):
            case.query.pop("wait", None)  # minutes, if it says so
        for name in _OF_HTTP:
            (case.headers or {}).pop(name, None)
        validated(hub, case, who)

    ask()


@dataclass(frozen=True)
class Asked:
    """A request that succeeds."""

    who: str = "alice"
    places: Mapping[str, object] = field(default_factory=dict)
    query: Mapping[str, object] = field(default_factory=dict)
    body: Mapping[str, object] | None = None


def of(job: str, who: str = "alice") -> Asked:
    return Asked(who, {"id": job})


@dataclass
class Scene:
    """What has to exist before a request can succeed."""

    hub: RestHub
    runs: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def node(self) -> Asked:
        """A node on which nothing runs; asked for by an administrator."""
        cluster, name = Client(self.hub.kubeconfig), f"spare-{next(self.numbers)}"
        cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

        def seen() -> bool:
            return any(one["name"] == name for one in self.hub.ask("admin", "GET", "cluster").json()["nodes"])

        rest.wait_for(seen, "the Manager knows the node")
        return Asked("admin", {"node": name}, body={"reason": "New kernel", "drain_at": "2031-05-04T12:00:00Z"})

    def waits(self) -> tuple[str, str]:
        """A job of alice's that waits, and its server."""
        server = f"waits-{next(self.numbers)}"
        return self.hub.waits("alice", 2, server), server

    def asks(self) -> str:
        """One that waits for an approval."""
        return self.hub.waits("alice", 4, f"asks-{next(self.numbers)}", "pending-approval")

    def cancelled(self) -> str:
        """One that has ended, and can be started again."""
        job, _ = self.waits()
        assert self.hub.ask("alice", "POST", f"jobs/{job}/cancel").ok
        return job

    def key(self) -> int:
        answer = self.hub.ask("alice", "POST", "keys", {"key": make_key()})
        return int(answer.json()["keys"][0]["id"])

    def keys(self) -> Asked:
        """For them, when there is one."""
        self.key()
        return Asked()

    def notice(self) -> str:
        """Of something that was denied."""
        assert self.hub.ask("vera", "POST", f"jobs/{self.asks()}/deny", {"reason": "No."}).ok
        return next(one["id"] for one in self.notices() if one["kind"] == "denied")

    def notices(self) -> list[dict[str, Any]]:
        return list(self.hub.ask("alice", "GET", "notices").json()["notices"])

    def brief(self) -> None:
        """A job that nobody uses is there, or comes."""
        if self.hub.job("alice", "brief").get("state") not in {"starting", "running", "stopping"}:
            options = {"template": "brief", "gpus": 0}
            answer = self.hub.ask("alice", "POST", "jobs", {"server": "brief", "options": options})
            assert answer.ok, answer.text

    def warning(self) -> str:
        """A notice with a button, for some seconds at least."""
        found: list[str] = []

        def told() -> bool:
            self.brief()
            soon = datetime.now(UTC) + timedelta(seconds=10)
            for one in self.notices():
                if one["keep"] and datetime.fromisoformat(one["until"]) > soon:
                    found.append(one["id"])
            return bool(found)

        rest.wait_for(told, "the brief job will be stopped", 120)
        return found[0]


@pytest.fixture(scope="module")
def scene(hub: RestHub, jobs: list[str]) -> Scene:
    made = Scene(hub, jobs[1])
    made.brief()  # half a minute before its notice is needed, if we are lucky
    return made


_BY = {"by": "gpu_type"}
SCRIPTS: Mapping[str, Callable[[Scene], Asked]] = {
    "ListJobs": lambda _: Asked("admin", query={"limit": 500}),
    "SubmitJob": lambda _: Asked(body={"server": "submitted", "options": {"template": "tiny", "gpus": 3}}),
    "GetJobDetail": lambda scene: of(scene.asks(), "vera"),
    "KillJob": lambda scene: of(scene.waits()[0]),
    "ListJobEvents": lambda scene: of(scene.runs),
    "GetJobUsage": lambda scene: of(scene.runs),
    "ListPodEvents": lambda scene: of(scene.runs, "vera"),
    "ListJobLogs": lambda scene: of(scene.runs, "vera"),
    "GetJobLog": lambda scene: of(scene.runs, "vera"),
    "CancelJob": lambda scene: of(scene.waits()[0], "admin"),
    "RequeueJob": lambda scene: of(scene.cancelled()),
    "KeepJobAlive": lambda scene: of(scene.runs),
    "ApproveJob": lambda scene: Asked("vera", {"id": scene.asks()}, body={"reason": "The paper is due."}),
    "DenyJob": lambda scene: Asked("admin", {"id": scene.asks()}, body={}),
    "ListApprovals": lambda scene: Asked("vera", query={"job": scene.asks()}),
    "GetClusterStatus": lambda _: Asked(),
    "CordonNode": lambda scene: scene.node(),
    "UncordonNode": lambda scene: replace(scene.node(), body=None),
    "GetQuota": lambda _: Asked("admin"),
    "GetQueue": lambda _: Asked("vera"),
    "GetPendingJob": lambda scene: Asked(places={"user": "alice", "server": scene.waits()[1]}),
    "CancelPendingJob": lambda scene: Asked("admin", {"user": "alice", "server": scene.waits()[1]}),
    "GetGpuHours": lambda _: Asked(query=_BY),
    "GetGpuHoursCsv": lambda _: Asked(query=_BY),
    "GetMetrics": lambda _: Asked("admin"),
    "ListIdle": lambda _: Asked("admin"),
    "ListKeys": lambda scene: scene.keys(),
    "AddKeys": lambda _: Asked(body={"key": make_key(), "name": "laptop"}),
    "RemoveKey": lambda scene: Asked(places={"number": scene.key()}),
    "GetSshSettings": lambda _: Asked(),
    "PutSshSettings": lambda _: Asked("vera", body={"start_on_connect": True}),
    "GetSshConfig": lambda _: Asked(),
    "ListNotices": lambda scene: Asked(query={"after": scene.notice()}),
    "SeeNotice": lambda scene: Asked(places={"notice": scene.notice()}),
    "KeepByNotice": lambda scene: Asked(places={"notice": scene.warning()}),
    "FollowEvents": lambda _: Asked("vera"),
    "GetDescription": lambda _: Asked(),
}
LISTS = ("items", "keys", "notices", "jobs")


def test_every_operation_has_a_successful_request() -> None:
    assert set(SCRIPTS) == {one.name for one in OPERATIONS}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_successful_answers_are_as_described(scene: Scene, operation: Operation) -> None:
    """Field by field: objects are closed, so one that is not described fails."""
    if operation.name == "GetJobUsage":
        metrics.program("prometheus")  # skips the test where there is none
    asked = SCRIPTS[operation.name](scene)
    more = {} if asked.body is None else {"body": dict(asked.body), "media_type": "application/json"}
    case = described(operation).Case(path_parameters=dict(asked.places), query=dict(asked.query), **more)
    answer = validated(scene.hub, case, asked.who)
    assert answer.status_code in operation.statuses, answer.text
    if operation.kind == "application/json" and answer.status_code == 200:
        empty = [name for name in LISTS if answer.json().get(name) == []]
        assert empty == [], "that shows nothing of what is in it"


def test_events_are_as_described(scene: Scene) -> None:
    """What is in the data of server-sent events, which schemathesis does not read."""
    headers = {"Authorization": f"token {scene.hub.token('alice')}"}
    url = f"{scene.hub.manager_url()}{PREFIX}api/events"
    with requests.get(url, headers=headers, timeout=60, stream=True) as answer:
        lines = answer.iter_lines(chunk_size=1, decode_unicode=True)
        told = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        assert next(told) == {}
        job, _ = scene.waits()
        for news in told:
            jsonschema.validate(news, NewsModel.model_json_schema(mode="serialization"))
            if job in {one["id"] for one in news.get("jobs", ())}:
                break
