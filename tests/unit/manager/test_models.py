"""What the REST API's models refuse, and the sentence that names the field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dlspawner.core.config import SpecialPermission
from dlspawner.core.job import JobState
from dlspawner.manager.http.api import models
from dlspawner.manager.http.api.models import explain
from dlspawner.manager.model.job_history import JobCursor, JobFilter

AT = datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
ADMISSION: dict[str, Any] = {
    **{"user": "alice", "server": "", "team": "vision", "template": "tiny", "preemptible": False, "priority": ""},
    **{"requeue": False, "request_milliseconds": 60_000, "namespace": "jobs", "pods": [{"spec": {}}]},
}
KEYS = [{"key": "x", "source": "y"}]

BODIES: dict[str, tuple[type[BaseModel], dict[str, Any], str]] = {
    "no key": (models.KeyBody, {}, "The field 'key' is missing."),
    "unknown field": (models.KeyBody, {"key": "x", "owner": "b"}, "There is no field 'owner'; known are key, name."),
    "number for text": (models.KeyBody, {"key": 5}, "The field 'key': input should be a valid string."),
    "null for text": (models.KeyBody, {"key": None}, "The field 'key': input should be a valid string."),
    "two problems": (models.KeyBody, {"name": 1}, "The field 'key' is missing. The field 'name': input should be"),
    "text for true": (models.SshSettingsBody, {"start_on_connect": "yes"}, "should be a valid boolean"),
    "a suggestion that is no object": (models.SuggestedKeysBody, {"keys": ["x"]}, "The field 'keys.0'"),
    "unknown field of a suggestion": (models.SuggestedKeysBody, {"keys": [{"key": "", "x": 1}]}, "'keys.0.x'"),
    "too many suggestions": (models.SuggestedKeysBody, {"keys": KEYS * 21}, "at most 20 items"),
    "a key pair of one": (models.SshAccessBody, {"keys": [["alice"]]}, "The field 'keys.0.1' is missing."),
    "a fingerprint that is a number": (models.SshAccessBody, {"keys": [["alice", 1]]}, "'keys.0.1'"),
    "a key pair that is text": (models.SshAccessBody, {"keys": ["alice"]}, "The field 'keys.0'"),
    "too many key pairs": (models.SshAccessBody, {"keys": [["a", "b"]] * 1001}, "at most 1000 items"),
    "a session of three": (models.SshSessionsBody, {"gateway": "g", "sessions": [["a", "", 1]]}, "'sessions.0.3'"),
    "kernels without seconds": (models.KernelsBody, {"busy": True}, "The field 'seconds' is missing."),
    "endless seconds": (models.KernelsBody, {"busy": True, "seconds": float("inf")}, "should be a finite number"),
    "a reason of 501 characters": (models.DecisionBody, {"reason": "x" * 501}, "at most 500 characters"),
    "an option that is a list": (models.SubmissionBody, {"options": {"gpus": [1]}}, "'options.gpus': must be text, a"),
    "an option that is no number": (models.SubmissionBody, {"options": {"gpus": float("nan")}}, "'options.gpus'"),
    "no options": (models.SubmissionBody, {"options": None}, "'options': input should be an object"),
    "too many options": (models.SubmissionBody, {"options": {str(n): 1 for n in range(101)}}, "at most 100 items"),
    "a name with a NUL": (models.SubmissionBody, {"server": "x\0", "options": {}}, "'server': a name has no NUL"),
    "a name of 256": (models.SubmissionBody, {"server": "x" * 256, "options": {}}, "at most 255 characters"),
    "an empty user": (models.SubmissionBody, {"user": "", "options": {}}, "'user': string should have at least 1"),
    "half a range": (models.UidRangeBody, {"first_uid": 20_000}, "The field 'last_uid' is missing."),
    "a uid of text": (models.UidRangeBody, {"first_uid": "20000", "last_uid": 30_000}, "'first_uid'"),
    "a uid of true": (models.UidRangeBody, {"first_uid": True, "last_uid": 3}, "'first_uid'"),
    "root's uid": (models.UidRangeBody, {"first_uid": 0, "last_uid": 3}, "greater than 0"),
    "a range backwards": (models.UidRangeBody, {"first_uid": 5, "last_uid": 4}, "first_uid is larger than last_uid."),
    "a uid of 32 bits": (models.UidRangeBody, {"first_uid": 5, "last_uid": 2**31}, "less than or equal to 2147483647"),
    "a uid too many": (models.UidRangeBody, {"first_uid": 5, "last_uid": 6, "uid": 0}, "no field 'uid'"),
    "an admission without pods": (models.AdmissionBody, {**ADMISSION, "pods": []}, "'pods'"),
    "a pod that is a number": (models.AdmissionBody, {**ADMISSION, "pods": [1]}, "'pods.0'"),
    "an admission of no user": (models.AdmissionBody, {**ADMISSION, "user": ""}, "'user'"),
    "1 for true": (models.AdmissionBody, {**ADMISSION, "preemptible": 1}, "'preemptible'"),
    "an unknown permission": (models.AdmissionBody, {**ADMISSION, "special": ["kvm"]}, "'root', 'privileged', "),
}


@pytest.mark.parametrize(("model", "body", "sentence"), BODIES.values(), ids=BODIES)
def test_wrong_body_names_its_field(model: type[BaseModel], body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate_json(json.dumps(body))
    assert sentence in explain(refused.value, "field", model)


QUERIES: dict[str, tuple[type[BaseModel], dict[str, list[str]], str]] = {
    "unknown parameter": (models.JobsQuery, {"stat": ["live"]}, "There is no parameter 'stat'; known are cursor, gpu_"),
    "unknown state": (models.JobsQuery, {"state": ["ended", "alive"]}, "'state.1': no such state; known are live"),
    "no entries": (models.JobsQuery, {"limit": ["0"]}, "'limit': input should be greater than or equal to 1"),
    "too many entries": (models.JobsQuery, {"limit": ["501"]}, "'limit': input should be less than or equal to 500"),
    "a limit that is a word": (models.ApprovalsQuery, {"limit": ["ten"]}, "'limit': input should be a valid integer"),
    "twice": (models.JobsQuery, {"limit": ["2", "3"]}, "'limit': can be given once"),
    "no time": (models.JobsQuery, {"since": ["yesterday"]}, "'since': input should be a valid datetime"),
    "a time before all days": (models.JobsQuery, {"since": ["0001-01-01T00:00:00+23:59"]}, "'since': must be a time"),
    "maybe": (models.JobsQuery, {"preemptible": ["maybe"]}, "'preemptible': input should be a valid boolean"),
    "a cursor of nothing": (models.JobsQuery, {"cursor": ["xyz"]}, "'cursor': must be what the page before gave"),
    "a cursor before all days": (
        models.JobsQuery,
        {"cursor": ["WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzIzOjU5IiwgImoiXQ=="]},
        "'cursor': must be",
    ),
    "a cursor with half a character": (
        models.ApprovalsQuery,
        {"cursor": ["WyIyMDMxLTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgIlx1ZDgwMCJd"]},
        "'cursor': must be",
    ),
    "a name with a NUL": (models.JobsQuery, {"user": ["\0"]}, "'user': a name has no NUL"),
    "a cursor before the queue": (models.QueueQuery, {"cursor": ["-1"]}, "'cursor': input should be greater than"),
    "a state of the queue": (models.QueueQuery, {"state": ["live"]}, "There is no parameter 'state'"),
    "another's requests": (models.ApprovalsQuery, {"mine": ["yours"]}, "'mine': input should be '', 'decide' or"),
    "a state of no approval": (models.ApprovalsQuery, {"state": ["maybe"]}, "'state.0': input should be 'waiting',"),
    "a kind of no approval": (models.ApprovalsQuery, {"kind": ["x"]}, "'kind.0': input should be"),
    "too many words": (models.SearchQuery, {"search": ["x" * 201]}, "at most 200 characters"),
    "lines before the end": (models.LogQuery, {"tail": ["-1"]}, "'tail': input should be greater than"),
    "tail of a followed log": (models.LogQuery, {"follow": ["true"], "tail": ["5"]}, "leave out both"),
    "search in a followed log": (models.LogQuery, {"follow": ["true"], "search": ["x"]}, "leave out both"),
    "a place in no followed log": (models.LogQuery, {"place": ["a" * 32]}, "place and after need follow"),
    "a place of letters": (models.LogQuery, {"follow": ["true"], "after": ["here"]}, "'after': string should match"),
    "no step": (models.UsageQuery, {"step": ["60s"]}, "'step': input should be a valid integer"),
    "a short step": (models.UsageQuery, {"step": ["14"]}, "'step': input should be greater than or equal to 15"),
    "unknown rows": (models.PeriodQuery, {"by": ["person"]}, "'by': input should be 'team', 'user' or 'gpu_type'"),
    "no day": (models.PeriodQuery, {"since": ["yesterday"]}, "'since': must be a day such as 2026-11-22"),
    "no day of a year": (models.PeriodQuery, {"since": ["2030-13-01"]}, "'since': input should be a valid date"),
    "a day before all days": (models.PeriodQuery, {"since": ["0001-01-01T00:00:00+14:00"]}, "'since': must be a day"),
    "a wait backwards": (models.NoticesQuery, {"wait": ["-1"]}, "'wait': input should be greater than or equal to 0"),
    "a wait of minutes": (models.NoticesQuery, {"wait": ["301"]}, "'wait': input should be less than or equal to 300"),
    "a wait that is no number": (models.NoticesQuery, {"wait": ["nan"]}, "'wait': input should be a finite number"),
}


@pytest.mark.parametrize(("model", "query", "sentence"), QUERIES.values(), ids=QUERIES)
def test_wrong_query_names_its_parameter(model: type[BaseModel], query: dict[str, list[str]], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(query)
    assert sentence in explain(refused.value, "parameter", model)


def test_filter_of_jobs_has_what_the_query_names() -> None:
    query = {"user": ["alice"], "gpu_type": [""], "since": ["2031-05-01T12:30:00+02:00"], "preemptible": ["true"]}
    wanted = models.JobsQuery.model_validate(query).job_filter()
    assert wanted == JobFilter(user="alice", gpu_type="", preemptible=True, since=AT - timedelta(hours=2))


def test_live_jobs_are_in_every_state_but_ended() -> None:
    for words, states in ((["live"], set(JobState) - {JobState.ENDED}), (["live", "ended"], set(JobState))):
        assert models.JobsQuery.model_validate({"state": words}).job_filter().states == states


def test_cursor_leads_back_to_its_place() -> None:
    place = JobCursor(AT + timedelta(microseconds=7), "j-aaaaaaaaaaaa")
    assert models.read_cursor(models.write_cursor(place)) == place


def test_time_without_a_zone_is_utc_and_a_day_may_be_a_time() -> None:
    assert models.UsageQuery.model_validate({"since": ["2031-05-01T12:30:00"]}).since == AT
    assert str(models.PeriodQuery.model_validate({"since": ["2030-03-01T23:30:00-01:00"]}).since) == "2030-03-02"


def test_long_names_of_unknown_fields_are_cut() -> None:
    with pytest.raises(ValidationError) as refused:
        models.KeyBody.model_validate_json(json.dumps({"key": "x", "y" * 10_000: 1}))
    assert len(explain(refused.value, "field", models.KeyBody)) < 200


def test_seconds_before_and_beyond_are_cut() -> None:
    seconds = [models.KernelsBody.model_validate_json(f'{{"busy": true, "seconds": {n}}}').seconds for n in (-1, 1e300)]
    assert seconds == [0.0, 10 * 366 * 86400.0]


def test_permissions_of_an_admission_are_read() -> None:
    body = models.AdmissionBody.model_validate_json(json.dumps({**ADMISSION, "special": ["host_network"]}))
    assert body.special == (SpecialPermission.HOST_NETWORK,)
