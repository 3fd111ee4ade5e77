"""``openapi.json``: the REST resources in one table; their schemas are those of the models that handlers use.

Addresses for the gateway, for jobs, and below internal/ for the Hub are not among them: their clients are in this
repository. A test walks all addresses of the application, and the tests of REST compare every answer that they get.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from dlspawner.manager.http.api.models import requests as q
from dlspawner.manager.http.api.models import responses as r
from dlspawner.manager.http.handlers import JsonHandler

# Not logged in, not allowed, not the leader, not now.
_ALWAYS = (401, 403, 501, 503)
_PLACES: Mapping[str, dict[str, object]] = {
    "id": {"type": "string", "pattern": "^j-[a-z2-7]{12}$"},
    "user": {"type": "string", "maxLength": q.MAX_NAME},
    "server": {"type": "string", "maxLength": q.MAX_NAME},
    "number": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    "node": {"type": "string", "maxLength": q.MAX_NAME},
    "notice": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
}
_ABOUT = """Jobs, quota and queue of dlspawner. Every resource needs a token of the Hub's token page; README.md of
dlspawner/manager says who may do what."""
_HOW = "token …, or Bearer …, with a token of the Hub's token page."
_TOKEN = {"type": "apiKey", "in": "header", "name": "Authorization", "description": _HOW}
Model = type[BaseModel]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address: its query or body, and the models, or the text, of the answers that are no problems.

    ``problems`` are those besides the ones of its query, body and path.
    """

    method: str
    path: str
    name: str
    summary: str
    takes: type[q.Query] | type[q.RequestBody] | None = None
    answers: tuple[Model, ...] | str = ()
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()
    kind: str = "application/json"


TEXT, _JSON, _PLAIN, _STREAM = "text", "application/json", "text/plain", "text/event-stream"
_JOBS, _QUOTAS, _EVENTS = r.ListModel[r.JobModel], r.ListModel[r.QuotaModel], r.ListModel[r.PodEventModel]
_LOGS, _APPROVALS = r.ListModel[r.LogModel], r.ListModel[r.ApprovalModel]
_OK, _MADE, _ENDS, _DONE, _NOT_SO, _REFUSED = (200,), (201, 202), (202, 204), (204,), (409,), (404, 409, 422, 429)
_STARTED = (r.JobDetailModel, r.PreparingModel)
_WAIT = "users/{user}/servers/{server}/pending-job"
OPERATIONS = (
    Operation("GET", "jobs", "ListJobs", "Jobs, the newest first", q.JobsQuery, (_JOBS,)),
    Operation("POST", "jobs", "SubmitJob", "Start a server", q.SubmissionBody, _STARTED, _MADE, _REFUSED),
    Operation("GET", "jobs/{id}", "GetJobDetail", "One job", None, (r.JobDetailModel,)),
    Operation("DELETE", "jobs/{id}", "KillJob", "End a job wherever it stands", None, (), _ENDS, _NOT_SO),
    Operation("GET", "jobs/{id}/events", "ListJobEvents", "Its transitions", q.SearchQuery, (r.EventListModel,)),
    Operation("GET", "jobs/{id}/usage", "GetJobUsage", "Its use over time", q.UsageQuery, (r.UsageModel,)),
    Operation("GET", "jobs/{id}/pod-events", "ListPodEvents", "Events of its pods", q.SearchQuery, (_EVENTS,)),
    Operation("GET", "jobs/{id}/logs", "ListJobLogs", "Its logs", None, (_LOGS,)),
    Operation("GET", "jobs/{id}/log", "GetJobLog", "Its text", q.LogQuery, TEXT, _OK, (410, 429), _PLAIN),
    Operation("POST", "jobs/{id}/cancel", "CancelJob", "End a job that waits or starts", None, (), _ENDS, _NOT_SO),
    Operation("POST", "jobs/{id}/requeue", "RequeueJob", "Start it again", None, _STARTED, _MADE, _REFUSED),
    Operation("POST", "jobs/{id}/keep-alive", "KeepJobAlive", "Keep it", None, (r.KeptAliveModel,), _OK, _NOT_SO),
    Operation(
        "POST", "jobs/{id}/approve", "ApproveJob", "Let it wait", q.DecisionBody, (r.ApprovalModel,), _OK, _NOT_SO
    ),
    Operation("POST", "jobs/{id}/deny", "DenyJob", "It ends", q.DecisionBody, (r.ApprovalModel,), _OK, _NOT_SO),
    Operation("GET", "approvals", "ListApprovals", "Requests, the newest first", q.ApprovalsQuery, (_APPROVALS,)),
    Operation("GET", "cluster", "GetClusterStatus", "GPU types and nodes", None, (r.ClusterModel,)),
    Operation("POST", "nodes/{node}/cordon", "CordonNode", "Close or drain", q.CordonBody, (), _DONE, (404,)),
    Operation("POST", "nodes/{node}/uncordon", "UncordonNode", "Open it again", None, (), _DONE, (404,)),
    Operation("GET", "quota", "GetQuota", "Quota of teams, and its use", None, (_QUOTAS,)),
    Operation("GET", "queue", "GetQueue", "Pending jobs", q.QueueQuery, (r.QueueModel,)),
    Operation("GET", _WAIT, "GetPendingJob", "The pending job of a server", None, (r.PendingJobModel,)),
    Operation("DELETE", _WAIT, "CancelPendingJob", "End it", None, (), _DONE, _NOT_SO),
    Operation("GET", "history/gpu-hours", "GetGpuHours", "GPU-hours by day", q.PeriodQuery, (r.GpuHoursModel,)),
    Operation("GET", "history/gpu-hours.csv", "GetGpuHoursCsv", "As CSV", q.PeriodQuery, TEXT, _OK, (), "text/csv"),
    Operation("GET", "metrics", "GetMetrics", "For Prometheus", None, TEXT, _OK, (), _PLAIN),
    Operation("GET", "idle", "ListIdle", "Unused jobs", None, (r.CullReportModel,)),
    Operation("GET", "keys", "ListKeys", "One's SSH keys", None, (r.KeysModel,)),
    Operation("POST", "keys", "AddKeys", "Add SSH keys", q.KeyBody, (r.AddedKeysModel,), (200, 201), _NOT_SO),
    Operation("DELETE", "keys/{number}", "RemoveKey", "Remove an SSH key", None, (), _DONE),
    Operation("GET", "ssh-settings", "GetSshSettings", "Settings of logins", None, (r.SshSettingsModel,)),
    Operation("PUT", "ssh-settings", "PutSshSettings", "Change them", q.SshSettingsBody, (r.SshSettingsModel,)),
    Operation("GET", "ssh-config", "GetSshConfig", "For one's OpenSSH", None, (r.SshConfigModel,), _OK, (404,)),
    Operation("GET", "notices", "ListNotices", "Notices", q.NoticesQuery, (r.NoticesModel,)),
    Operation("POST", "notices/{notice}/seen", "SeeNotice", "It was read", None, (), _DONE),
    Operation(
        "POST", "notices/{notice}/keep", "KeepByNotice", "Its button", None, (r.KeptByNoticeModel,), _OK, _NOT_SO
    ),
    Operation("GET", "events", "FollowEvents", "Changes", None, (r.ServerSentEventModel,), _OK, (429,), _STREAM),
    Operation("GET", "openapi.json", "GetDescription", "This description", None, (r.DescriptionModel,)),
)


class OpenApiHandler(JsonHandler):
    """The description, without login: it contains nothing of this cluster."""

    def get(self) -> None:
        self.reply(r.DescriptionModel.model_validate(document(f"{self.manager.service.prefix}api")))


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def document(address: str) -> dict[str, Any]:
    """The description of resources that are at this address."""
    used: dict[tuple[Any, Any], None] = dict.fromkeys(
        [(r.ProblemModel, "serialization"), (r.NewsModel, "serialization")]
    )
    for one in OPERATIONS:
        used |= {(one.takes, "validation"): None} if one.takes else {}
        used |= dict.fromkeys((answer, "serialization") for answer in one.answers if one.answers != TEXT)
    template = "#/components/schemas/{model}"
    found, definitions = models_json_schema(list(used), ref_template=template, schema_generator=_WithoutTitles)
    schemas, refs = definitions["$defs"], {model: reference for (model, _), reference in found.items()}
    paths: dict[str, dict[str, object]] = {}
    for one in OPERATIONS:
        paths.setdefault(f"/{one.path}", {})[one.method.lower()] = _operation(one, refs, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dlspawner", "version": version("dlspawner"), "description": _ABOUT},
        "servers": [{"url": address}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {name: one for name, one in schemas.items() if not name.endswith("Query")},
            "securitySchemes": {"token": _TOKEN},
        },
    }


def _operation(one: Operation, refs: Mapping[Any, Any], schemas: Mapping[str, Any]) -> dict[str, object]:
    told: dict[str, object] = {"operationId": one.name, "summary": one.summary}
    places = re.findall(r"{(\w+)}", one.path)
    problems = {*_ALWAYS, *one.problems, *((400, 404) if places else ()), *((400, 422) if one.takes else ())}
    parameters = [{"name": name, "in": "path", "required": True, "schema": _PLACES[name]} for name in places]
    if one.takes is not None and issubclass(one.takes, q.RequestBody):
        problems |= {413, 415}
        told["requestBody"] = {"required": True, "content": {_JSON: {"schema": refs[one.takes]}}}
    elif one.takes is not None:
        named = schemas[one.takes.__name__]["properties"]
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in named.items()]
    if parameters:
        told["parameters"] = parameters
    options = [{"type": "string"}] if one.answers == TEXT else [refs[answer] for answer in one.answers]
    schema = options[0] if len(options) == 1 else {"anyOf": options}
    content = {"content": {one.kind: {"schema": schema}}} if options else {}
    problem = {"content": {"application/problem+json": {"schema": refs[r.ProblemModel]}}}
    told["responses"] = {
        str(status): {"description": HTTPStatus(status).phrase, **(content if status in one.statuses else problem)}
        for status in (*one.statuses, *sorted(problems))
    }
    return told
