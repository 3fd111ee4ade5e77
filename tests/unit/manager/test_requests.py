"""What the REST API's models refuse, and the sentence that names the field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dlspawner.core.config import SpecialPermission
from dlspawner.core.job import JobState
from dlspawner.manager.http.api.models import requests
from dlspawner.manager.http.api.models.requests import explain
from dlspawner.manager.model.job_history import JobCursor, JobFilter

AT = datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
ADMISSION: dict[str, Any] = {
    **{"user": "alice", "server": "", "team": "vision", "template": "tiny", "preemptible": False, "priority": ""},
    **{"requeue": False, "request_milliseconds": 60_000, "namespace": "jobs", "pods": [{"spec": {}}]},
}

BODIES: dict[str, tuple[type[BaseModel], dict[str, Any], str]] = {
    "no key": (requests.KeyBody, {}, "The field 'key' is missing."),
    "unknown field": (requests.KeyBody, {"key": "x", "owner": "b"}, "There is no field 'owner'; known are key, name."),
    "number for text": (requests.KeyBody, {"key": 5}, "The field 'key': input should be a valid string."),
    "two problems": (requests.KeyBody, {"name": 1}, "The field 'key' is missing. The field 'name': input should be"),
    "text for true": (requests.SshSettingsBody, {"start_on_connect": "yes"}, "should be a valid boolean"),
    "unknown field of a suggestion": (requests.SuggestedKeysBody, {"keys": [{"key": "", "x": 1}]}, "'keys.0.x'"),
    "a key pair of one": (requests.SshAccessBody, {"keys": [["alice"]]}, "The field 'keys.0.1' is missing."),
    "a session of three": (requests.SshSessionsBody, {"gateway": "g", "sessions": [["a", "", 1]]}, "'sessions.0.3'"),
    "kernels without seconds": (requests.KernelsBody, {"busy": True}, "The field 'seconds' is missing."),
    "endless seconds": (requests.KernelsBody, {"busy": True, "seconds": float("inf")}, "should be a finite number"),
    "a reason of 501 characters": (requests.DecisionBody, {"reason": "x" * 501}, "at most 500 characters"),
    "an option that is a list": (
        requests.SubmissionBody,
        {"options": {"gpus": [1]}},
        "'options.gpus': must be text, a",
    ),
    "an option that is no number": (requests.SubmissionBody, {"options": {"gpus": float("nan")}}, "'options.gpus'"),
    "too many options": (requests.SubmissionBody, {"options": {str(n): 1 for n in range(101)}}, "at most 100 items"),
    "an empty user": (requests.SubmissionBody, {"user": "", "options": {}}, "'user': string should have at least 1"),
    "a uid of true": (requests.UidRangeBody, {"first_uid": True, "last_uid": 3}, "'first_uid'"),
    "root's uid": (requests.UidRangeBody, {"first_uid": 0, "last_uid": 3}, "greater than 0"),
    "a range backwards": (requests.UidRangeBody, {"first_uid": 5, "last_uid": 4}, "first_uid is larger than last_uid."),
    "a uid of 32 bits": (
        requests.UidRangeBody,
        {"first_uid": 5, "last_uid": 2**31},
        "less than or equal to 2147483647",
    ),
    "an admission without pods": (requests.AdmissionBody, {**ADMISSION, "pods": []}, "'pods'"),
    "ports of no pod": (requests.AdmissionBody, {**ADMISSION, "ports": [1, 2]}, "a number for each pod"),
    "1 for true": (requests.AdmissionBody, {**ADMISSION, "preemptible": 1}, "'preemptible'"),
    "an unknown permission": (requests.AdmissionBody, {**ADMISSION, "special": ["kvm"]}, "'root', 'privileged', "),
}


@pytest.mark.parametrize(("model", "body", "sentence"), BODIES.values(), ids=BODIES)
def test_wrong_body_names_its_field(model: type[BaseModel], body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate_json(json.dumps(body))
    assert sentence in explain(refused.value, "field", model)


QUERIES: dict[str, tuple[type[BaseModel], dict[str, list[str]], str]] = {
    "unknown parameter": (
        requests.JobsQuery,
        {"stat": ["live"]},
        "There is no parameter 'stat'; known are cursor, gpu_",
    ),
    "unknown state": (requests.JobsQuery, {"state": ["ended", "alive"]}, "'state.1': no such state; known are live"),
    "too many entries": (requests.JobsQuery, {"limit": ["501"]}, "'limit': input should be less than or equal to 500"),
    "a limit that is a word": (requests.ApprovalsQuery, {"limit": ["ten"]}, "'limit': input should be a valid integer"),
    "twice": (requests.JobsQuery, {"limit": ["2", "3"]}, "'limit': can be given once"),
    "no time": (requests.JobsQuery, {"since": ["yesterday"]}, "'since': input should be a valid datetime"),
    "a time before all days": (requests.JobsQuery, {"since": ["0001-01-01T00:00:00+23:59"]}, "'since': must be a time"),
    "a cursor of nothing": (requests.JobsQuery, {"cursor": ["xyz"]}, "'cursor': must be what the page before gave"),
    "a cursor before all days": (
        requests.JobsQuery,
        {"cursor": ["WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzIzOjU5IiwgImoiXQ=="]},
        "'cursor': must be",
    ),
    "a cursor with half a character": (
        requests.ApprovalsQuery,
        {"cursor": ["WyIyMDMxLTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgIlx1ZDgwMCJd"]},
        "'cursor': must be",
    ),
    "a name with a NUL": (requests.JobsQuery, {"user": ["\0"]}, "'user': a name has no NUL"),
    "another's requests": (requests.ApprovalsQuery, {"mine": ["yours"]}, "'mine': input should be '', 'decide' or"),
    "a state of no approval": (requests.ApprovalsQuery, {"state": ["maybe"]}, "'state.0': input should be 'waiting',"),
    "tail of a followed log": (requests.LogQuery, {"follow": ["true"], "tail": ["5"]}, "leave out both"),
    "search in a followed log": (requests.LogQuery, {"follow": ["true"], "search": ["x"]}, "leave out both"),
    "a place in no followed log": (requests.LogQuery, {"place": ["a" * 32]}, "place and after need follow"),
    "a place of letters": (requests.LogQuery, {"follow": ["true"], "after": ["here"]}, "'after': string should match"),
    "a short step": (requests.UsageQuery, {"step": ["14"]}, "'step': input should be greater than or equal to 15"),
    "unknown rows": (requests.PeriodQuery, {"by": ["person"]}, "'by': input should be 'team', 'user' or 'gpu_type'"),
    "no day": (requests.PeriodQuery, {"since": ["yesterday"]}, "'since': must be a day such as 2026-11-22"),
    "a day before all days": (requests.PeriodQuery, {"since": ["0001-01-01T00:00:00+14:00"]}, "'since': must be a day"),
    "a wait of minutes": (
        requests.NoticesQuery,
        {"wait": ["301"]},
        "'wait': input should be less than or equal to 300",
    ),
    "a wait that is no number": (requests.NoticesQuery, {"wait": ["nan"]}, "'wait': input should be a finite number"),
}


@pytest.mark.parametrize(("model", "query", "sentence"), QUERIES.values(), ids=QUERIES)
def test_wrong_query_names_its_parameter(model: type[BaseModel], query: dict[str, list[str]], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(query)
    assert sentence in explain(refused.value, "parameter", model)


def test_filter_of_jobs_has_what_the_query_names() -> None:
    query = {"user": ["alice"], "gpu_type": [""], "since": ["2031-05-01T12:30:00+02:00"], "preemptible": ["true"]}
    wanted = requests.JobsQuery.model_validate(query).job_filter()
    assert wanted == JobFilter(user="alice", gpu_type="", preemptible=True, since=AT - timedelta(hours=2))


def test_live_jobs_are_in_every_state_but_ended() -> None:
    for words, states in ((["live"], set(JobState) - {JobState.ENDED}), (["live", "ended"], set(JobState))):
        assert requests.JobsQuery.model_validate({"state": words}).job_filter().states == states


def test_cursor_leads_back_to_its_place() -> None:
    place = JobCursor(AT + timedelta(microseconds=7), "j-aaaaaaaaaaaa")
    assert requests.read_cursor(requests.write_cursor(place)) == place


def test_time_without_a_zone_is_utc_and_a_day_may_be_a_time() -> None:
    assert requests.UsageQuery.model_validate({"since": ["2031-05-01T12:30:00"]}).since == AT
    assert str(requests.PeriodQuery.model_validate({"since": ["2030-03-01T23:30:00-01:00"]}).since) == "2030-03-02"


def test_long_names_of_unknown_fields_are_cut() -> None:
    with pytest.raises(ValidationError) as refused:
        requests.KeyBody.model_validate_json(json.dumps({"key": "x", "y" * 10_000: 1}))
    assert len(explain(refused.value, "field", requests.KeyBody)) < 200


def test_seconds_before_and_beyond_are_cut() -> None:
    seconds = [
        requests.KernelsBody.model_validate_json(f'{{"busy": true, "seconds": {n}}}').seconds for n in (-1, 1e300)
    ]
    assert seconds == [0.0, 10 * 366 * 86400.0]


def test_permissions_of_an_admission_are_read() -> None:
    body = requests.AdmissionBody.model_validate_json(json.dumps({**ADMISSION, "special": ["host_network"]}))
    assert body.special == (SpecialPermission.HOST_NETWORK,)
