"""A job as JSON, and what a query asks for: pure."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dlspawner.core.config import PRIORITIES
from dlspawner.core.decisions import Estimate
from dlspawner.core.job import JobState
from dlspawner.core.template import Endpoint, EndpointProtocol, Template
from dlspawner.manager.http.api import jobs
from dlspawner.manager.http.api.models.responses import as_json
from dlspawner.manager.model import job_history
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import JobHistory, JobTransition
from dlspawner.manager.model.records import StopReason

AT = datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
KEPT = JobHistory(
    *("j-aaaaaaaaaaaa", "alice", "train", "vision", "tiny", 10, False, False, JobState.RUNNING, "running"),
    *("gpu", 1500, 250, 2**30, ("n1", None), AT, AT, None, None),
)
SSH = Template(
    "tiny", "Tiny", endpoints=(Endpoint("ssh", 2222, EndpointProtocol.SSH), Endpoint("api", 80, EndpointProtocol.TCP))
)
SETTING = jobs.ViewContext("/", ("gate.example", 2222), PRIORITIES, {"tiny": SSH})


def test_amounts_are_numbers_and_times_are_utc() -> None:
    local = replace(KEPT, submitted=AT.astimezone(timezone(timedelta(hours=9))))
    view = jobs.job_view(local, SETTING)
    shown = json.loads(as_json(view))
    assert (shown["gpus"], shown["cpu"], shown["memory_bytes"]) == (1.5, 0.25, 2**30)
    assert (shown["submitted"], shown["ended"]) == ("2031-05-01T12:30:00Z", None)
    assert shown["nodes"] == ["n1", None]


@pytest.mark.parametrize(("level", "name"), [(100, "prod"), (10, "test"), (7, "7")])
def test_priority_is_a_name_or_the_number_of_a_removed_level(level: int, name: str) -> None:
    assert jobs.job_view(replace(KEPT, priority=level), SETTING).priority == name


def endpoints(kept: JobHistory, setting: jobs.ViewContext) -> list[Any]:
    return [json.loads(as_json(one)) for one in jobs.endpoint_views(kept, setting)]


def test_endpoints_of_the_template() -> None:
    [page, ssh, tcp] = endpoints(replace(KEPT, user="a b", server="x/y"), SETTING)
    assert page == {"name": "notebook", "protocol": "http", "url": "/user/a%20b/x%2Fy/"}
    api = {"name": "api", "protocol": "tcp", "port": 80}
    command = "ssh -p 2222 -L 8080:localhost:80 'a b+x/y@gate.example'"
    assert (ssh["login"], tcp) == ("a b+x/y", {**api, "forward": command, "address": "localhost:8080"})
    assert endpoints(KEPT, replace(SETTING, gateway=None))[2] == api
    alone = Template("tiny", "Tiny", endpoints=SSH.endpoints[1:])
    assert endpoints(KEPT, replace(SETTING, templates={"tiny": alone}))[1:] == [api], "it has no sshd"
    assert jobs.endpoint_views(replace(KEPT, template="gone"), SETTING)[1:] == []


IDLE = replace(KEPT, stop=StopReason(EventReason.IDLE, "Idle."))
WHYS: dict[str, tuple[JobHistory, jobs.LiveStatus | None, str]] = {
    "queued": (replace(KEPT, state=JobState.QUEUED), jobs.LiveStatus("No GPU.", 3), "No GPU."),
    "stopping": (replace(IDLE, state=JobState.STOPPING), None, "Idle."),
    "an unknown reason": (replace(KEPT, state=JobState.ENDED, reason="new"), None, "It has ended."),
    "starting": (replace(KEPT, state=JobState.STARTING), None, job_history.GOING),
    "stopping without a reason": (replace(KEPT, state=JobState.STOPPING), None, job_history.ENDING),
    "running": (KEPT, None, ""),
}


@pytest.mark.parametrize(("kept", "live", "why"), WHYS.values(), ids=WHYS)
def test_why_of_a_job(kept: JobHistory, live: jobs.LiveStatus | None, why: str) -> None:
    assert jobs.job_view(kept, SETTING, live).why == why


def test_estimate_has_its_basis() -> None:
    known = jobs.LiveStatus("No GPU.", 1, Estimate(AT, AT + timedelta(hours=1), 12))
    told = jobs.job_view(replace(KEPT, state=JobState.QUEUED), SETTING, known)
    assert json.loads(as_json(told))["estimate"] == {
        "from": "2031-05-01T12:30:00Z",
        "to": "2031-05-01T13:30:00Z",
        "basis": "an estimate from how long 12 such jobs ran",
    }
    assert jobs.job_view(KEPT, SETTING).estimate is None


def test_events_do_not_name_foreign_jobs() -> None:
    found = [
        JobTransition(AT, JobState.QUEUED, "nodes-reserved", "victims=j-x"),
        JobTransition(AT, JobState.ENDED, "cancelled", "by alice"),
    ]
    assert [one.detail for one in jobs.event_views(found, all_details=False)] == ["", "by alice"]
    assert [one.detail for one in jobs.event_views(found, all_details=True)] == ["victims=j-x", "by alice"]
