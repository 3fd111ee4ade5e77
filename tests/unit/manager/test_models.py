"""What the REST API's models refuse, and the sentence that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dlspawner.core.config import SpecialPermission
from dlspawner.manager.http.api import models
from dlspawner.manager.http.api.models import explain

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
