"""``openapi.json``: the description of the REST resources, made of the table of operations.

Every operation of the REST resources, in one table: what ``openapi.json`` is made of. PURE.

A test walks all addresses of the application and compares: what is not here, and not among ``internal`` below, which
are for the Hub, the gateway and jobs themselves, fails it. Another asks for each operation once with success.

What the REST resources take and answer, as JSON Schema: what ``openapi.json`` is made of. PURE.

Objects are closed: what an answer holds and is not written here fails a test. GPUs and cores are numbers, 1 is a whole
one; memory is in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version

from dlspawner.core.idle import Cause
from dlspawner.core.job import JobState
from dlspawner.core.scheduling.limits import ApprovalKind
from dlspawner.manager.http.api.models import LIVE
from dlspawner.manager.http.api.models import MAX_LIMIT as MOST
from dlspawner.manager.http.handlers import JsonHandler
from dlspawner.manager.model import notice as notice_model
from dlspawner.manager.model.approval_request import LONGEST_REASON, ApprovalState

# Answers of every resource: not logged in, not allowed, not the leader, not now.
_ALWAYS = (401, 403, 501, 503)
_PROBLEM = "application/problem+json"
_ABOUT = """Jobs, quota and queue of dlspawner. Every resource needs a token of the Hub's token page; README.md of
dlspawner/manager says who may do what."""


class OpenApiHandler(JsonHandler):
    """The description, without login: it contains nothing of this cluster."""

    def get(self) -> None:
        self.reply(document(f"{self.manager.service.prefix}api"))


def document(address: str) -> dict[str, object]:
    """The description of resources that are at this address."""
    paths: dict[str, dict[str, object]] = {}
    for one in OPERATIONS:
        paths.setdefault(f"/{one.path}", {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dlspawner", "version": version("dlspawner"), "description": _ABOUT},
        "servers": [{"url": address}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "token …, or Bearer …, with a token of the Hub's token page.",
                }
            },
        },
    }


def _operation(one: Operation) -> dict[str, object]:
    told: dict[str, object] = {
        "operationId": one.name,
        "summary": one.summary,
        "responses": {
            **{str(status): _answer(status, one.kind, schema) for status, schema in one.answers.items()},
            **{str(status): _answer(status, _PROBLEM, ref("Problem")) for status in sorted({*_ALWAYS, *one.problems})},
        },
    }
    parameters = [_place(name) for name in re.findall(r"{(\w+)}", one.path)] + [_parameter(p) for p in one.parameters]
    if parameters:
        told["parameters"] = parameters
    if one.body is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": one.body}}}
    return told


def _answer(status: int, kind: str, schema: Schema | None) -> dict[str, object]:
    told: dict[str, object] = {"description": HTTPStatus(status).phrase}
    return told if schema is None else {**told, "content": {kind: {"schema": schema}}}


def _place(name: str) -> dict[str, object]:
    return {"name": name, "in": "path", "required": True, "schema": PLACES[name]}


def _parameter(one: Parameter) -> dict[str, object]:
    schema = {"type": "array", "items": one.schema} if one.repeats else one.schema
    return {"name": one.name, "in": one.where, "description": one.help, "schema": schema}


Schema = Mapping[str, object]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number", "minimum": 0}
WHOLE: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
DAY: Schema = {"type": "string", "format": "date"}
NAME: Schema = {"type": "string", "maxLength": 255}
PLACE: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
NOTICE: Schema = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
JOB_ID: Schema = {"type": "string", "pattern": "^j-[a-z2-7]{12}$"}
ROWS = ("team", "user", "gpu_type")  # of GPU-hours
_CHANGES = ("queue", "cluster", "notices", "hub", "more")
STATES = [state.value for state in JobState]


def maybe(schema: Schema) -> Schema:
    """Returns the schema of the value or null."""
    return {**schema, "type": [schema["type"], "null"]}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def of(schema: Schema, help_: str) -> Schema:
    """Returns the schema with a description."""
    return {**schema, "description": help_}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def several(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def closed(properties: Mapping[str, Schema], *, optional: frozenset[str] = frozenset()) -> Schema:
    """An object with these properties and no others."""
    required = sorted(set(properties) - optional)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def page(schema: Schema, **more: Schema) -> Schema:
    return closed({"items": several(schema), "next": maybe(TEXT), **more})


SHARES = closed({"gpu_type": TEXT, "jobs": WHOLE, "gpus": NUMBER})
_AMOUNTS = closed({"total": NUMBER, "free": NUMBER})
APPROVAL: Mapping[str, Schema] = {
    **{"id": TEXT, "job": JOB_ID, "kind": one_of(*(kind.value for kind in ApprovalKind))},
    **{"user": TEXT, "server": TEXT, "team": TEXT, "gpus": NUMBER, "gpu_type": maybe(TEXT), "what": TEXT, "why": TEXT},
    **{"asked": TIME, "state": one_of(*(standing.value for standing in ApprovalState))},
    **{"decided": maybe(TIME), "by": maybe(TEXT), "reason": TEXT},
}
_JOB: Mapping[str, Schema] = {
    **{"id": JOB_ID, "user": TEXT, "server": TEXT, "team": TEXT, "team_title": TEXT, "template": TEXT},
    **{"state": one_of(*STATES), "reason": TEXT, "why": TEXT},
    **{"position": maybe(WHOLE), "priority": TEXT, "preemptible": BOOLEAN, "gpus": NUMBER, "gpu_type": maybe(TEXT)},
    **{"cpu": NUMBER, "memory_bytes": WHOLE, "nodes": several(maybe(TEXT)), "submitted": TIME},
    **{"started": maybe(TIME), "ended": maybe(TIME), "notice": maybe(TIME), "endpoints": several(ref("Endpoint"))},
    "estimate": maybe(closed({"from": TIME, "to": TIME, "basis": TEXT})),
    "stop": maybe(closed({"reason": TEXT, "sentence": TEXT, "at": maybe(TIME)})),
    "approval": maybe(closed(APPROVAL)),
}
_DETAIL: Mapping[str, Schema] = {
    **_JOB,
    "requeue": BOOLEAN,
    "pods": several(TEXT),
    "alternatives": several(ref("Alternative")),
    "page": maybe(TEXT),
}
# GPU-hours of one day, or of all days, by what the rows are.
_HOURS: Mapping[str, Schema] = {
    "requested": of(NUMBER, "GPU-hours from submit to the end."),
    "allocated": of(NUMBER, "GPU-hours from being let in until its pods are gone."),
    "measured": of(NUMBER, "GPU-hours of those held for which it is known what they computed."),
    "used": of(maybe(NUMBER), "GPU-hours of those measured that computed; null where nothing was measured."),
    "reclaimed": of(NUMBER, "GPU-hours after a stop for being unused."),
}


def _gpu_hours(by: str) -> Schema:
    row = {by: TEXT, **_HOURS}
    free = dict.fromkeys(("total", "free", "unschedulable", "fragmented"), of(NUMBER, "GPU-hours."))
    return closed(
        {
            **{"by": one_of(by), "since": DAY, "until": DAY},
            **{"items": several(closed({"day": DAY, **row})), "totals": several(closed(row))},
            "free": several(closed({"day": DAY, "gpu_type": TEXT, **free})),
        }
    )


SCHEMAS: Mapping[str, Schema] = {
    "Approval": closed({**APPROVAL, "may_decide": BOOLEAN}),
    "Problem": closed({"type": TEXT, "title": TEXT, "status": WHOLE, "detail": TEXT}),
    "Endpoint": closed(
        {"name": TEXT, "protocol": TEXT, "url": TEXT, "port": WHOLE, "login": TEXT, "command": maybe(TEXT)}
        | {"forward": TEXT, "address": TEXT},
        optional=frozenset({"url", "port", "login", "command", "forward", "address"}),
    ),
    "Alternative": closed({"gpus": NUMBER, "gpu_type": maybe(TEXT), "preemptible": BOOLEAN}),
    "Job": closed(_JOB),
    "JobDetail": closed(_DETAIL),
    "Preparing": closed({"id": {"type": "null"}, "user": TEXT, "server": TEXT, "state": TEXT, "why": TEXT}),
    "Submitted": {"anyOf": [ref("JobDetail"), ref("Preparing")]},
    "Submission": closed(
        {
            "server": NAME,
            "user": {**NAME, "minLength": 1},
            "options": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
        },
        optional=frozenset({"server", "user"}),
    ),
    "Event": closed({"at": TIME, "state": one_of(*STATES), "reason": TEXT, "detail": TEXT}),
    "Node": closed(
        {
            "name": TEXT,
            "state": one_of("ready", "cordoned", "unhealthy"),
            "gpus": several(closed({"gpu_type": TEXT, "total": NUMBER, "free": NUMBER})),
            "cpu": _AMOUNTS,
            "memory_bytes": _AMOUNTS,
        }
    ),
    "GpuType": closed(
        {
            **{"name": TEXT, "title": TEXT, "total": NUMBER, "free": NUMBER, "most_on_one_node": NUMBER},
            **{"unschedulable": NUMBER, "waiting_jobs": WHOLE, "waiting_gpus": NUMBER},
        }
    ),
    "Quota": closed(
        {
            **{"team": TEXT, "title": TEXT, "gpu_type": TEXT, "entitled": NUMBER, "used": NUMBER, "borrowed": NUMBER},
            **{"free": NUMBER, "borrow_limit": maybe(WHOLE)},
        }
    ),
    "PodEvent": closed({"at": TIME, "reason": TEXT, "sentence": TEXT, "count": of(WHOLE, "How often.")}),
    "Log": closed(
        {
            **{
                "pod": TEXT,
                "container": TEXT,
                "run": of(WHOLE, "1 is the container's first start."),
                "running": BOOLEAN,
            },
            "kept": of(BOOLEAN, "Whether there is anything of it in the Manager's database."),
            "size": of(maybe(WHOLE), "Of what is kept, in bytes."),
            "read": of(maybe(TIME), "When it was read last."),
            "whole": of(BOOLEAN, "Whether it was read to its end."),
            "shortened": of(BOOLEAN, "Whether only its end is kept."),
        }
    ),
    "Kept": closed(
        {
            "until": of(maybe(TIME), "Nothing stops it for being unused before; null: nothing does at all."),
            "longest": of(BOOLEAN, "Whether asking again does not help."),
            "sentence": TEXT,
        }
    ),
    "Wait": closed(
        {
            **{"job": JOB_ID, "state": one_of("queued", "pending-approval", "login-required", "starting")},
            "position": of(WHOLE, "Its place, from 1; where it would be, while it is not in the queue."),
            "waiting": of(WHOLE, "How many wait for the same."),
            **{"why": TEXT, "submitted": TIME, "alternatives": several(ref("Alternative")), "page": TEXT},
        }
    ),
    "GpuHours": {"anyOf": [_gpu_hours(by) for by in ROWS]},
    "Unused": closed(
        {
            **{"job": JOB_ID, "user": TEXT, "server": TEXT, "team": TEXT, "template": TEXT, "preemptible": BOOLEAN},
            "holds": of(TEXT, "What it keeps from others, in words."),
            "verdict": of({"type": "string", "pattern": "^(keep|stop|would-stop|warned-[0-9]+)$"}, "As it was judged."),
            "why": one_of(*(why.value for why in Cause)),
            **{"idle": BOOLEAN, "since": of(maybe(TIME), "Since when it is not used.")},
            "window_seconds": of(maybe(NUMBER), "For how long it may be unused; null: for ever."),
            "used": closed(
                {
                    **dict.fromkeys(("http", "kernel", "kernels_told", "ssh", "ssh_told", "kept"), maybe(TIME)),
                    "ssh_open": BOOLEAN,
                }
            ),
            "gpus": several(closed({"memory_bytes": NUMBER, "busy": maybe(TIME)})),
        }
    ),
    "Key": closed(
        {
            **{"id": WHOLE, "key": of(TEXT, "As in authorized_keys."), "fingerprint": TEXT, "name": TEXT},
            **{"added": TIME, "last_used": maybe(TIME)},
        }
    ),
    "Notice": closed(
        {
            **{"id": NOTICE, "kind": one_of(*(kind.value for kind in notice_model.NoticeKind))},
            **{"level": one_of("info", "warning", "error"), "sentence": TEXT},
            "text": of(TEXT, "The sentence with {when} where until belongs."),
            **{"job": of(TEXT, "Empty in what administrators are told."), "user": TEXT, "server": TEXT},
            **{"posted": TIME, "until": maybe(TIME), "ends": of(maybe(TIME), "When it says nothing any more.")},
            "keep": of(BOOLEAN, "Whether there is a button."),
            "seen": BOOLEAN,
            "page": of(maybe(TEXT), "Of ours, that says more."),
        }
    ),
    "News": {
        "anyOf": [
            closed(
                {
                    "jobs": several(closed(dict.fromkeys(("id", "user", "server", "state", "reason"), TEXT))),
                    **dict.fromkeys(_CHANGES, of({"type": "boolean", "const": True}, "There when it has changed.")),
                },
                optional=frozenset({"jobs", *_CHANGES}),
            ),
            closed({"detail": of(TEXT, "Why the stream has ended.")}),
        ]
    },
}
EVENTS = page(ref("Event"), shortened=of(BOOLEAN, "Whether only the latest are told, as there are very many."))
CLUSTER = closed({"at": TIME, "gpu_types": several(ref("GpuType")), "nodes": several(ref("Node"))})
_MEASURED = closed({"name": TEXT, "unit": TEXT, "values": several(maybe(NUMBER))})
USAGE = closed(
    {
        **{"job": JOB_ID, "since": TIME, "until": TIME, "step_seconds": NUMBER},
        **{"times": several(TIME), "series": several(_MEASURED)},
    }
)
# Of each event.
NEWS = closed(
    {
        "event": one_of("ready", "changed", "ended"),
        "data": {**TEXT, "contentMediaType": "application/json", "contentSchema": ref("News")},
        "retry": of(WHOLE, "Milliseconds until whoever lost the stream comes back."),
    },
    optional=frozenset({"event", "data", "retry"}),
)
SSH_CONFIG = closed({"user": TEXT, "host": TEXT, "port": WHOLE, "servers": several(TEXT), "host_keys": several(TEXT)})
SSH_SETTINGS = closed({"start_on_connect": BOOLEAN})
DECISION = {
    "type": "object",
    "properties": {"reason": {"type": "string", "maxLength": LONGEST_REASON}, "request": NAME},
    "additionalProperties": False,
}
IDLE = closed(
    {
        "at": of(TIME, "Of the latest round."),
        "dry_run": of(BOOLEAN, "Whether jobs are only reported."),
        "gpus_unknown": of(maybe(TEXT), "Why the use of GPUs is not known; null where it is."),
        "jobs": several(ref("Unused")),
    }
)
NOTICES = closed({"version": of(TEXT, "To be sent as after."), "notices": several(ref("Notice"))})
KEPT_BY_NOTICE = closed({"said": TEXT})
KEYS = closed({"keys": several(ref("Key"))})
ADDED = closed({"keys": several(ref("Key")), "known": of(several(ref("Key")), "Those that were there before.")})
# OpenAPI says what is in these two; no other answer is free.
_OPEN_API: Schema = {"type": "object", "description": "As in OpenAPI 3.1."}
DESCRIPTION = closed(
    {
        "openapi": one_of("3.1.0"),
        "info": closed({"title": TEXT, "version": TEXT, "description": TEXT}),
        "servers": several(closed({"url": TEXT})),
        "security": several(closed({"token": several(TEXT)})),
        "paths": _OPEN_API,
        "components": closed({"schemas": _OPEN_API, "securitySchemes": _OPEN_API}),
    }
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """In the query, or a header where it says so."""

    name: str
    schema: Schema
    help: str
    where: str = "query"
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address; ``answers`` are those that are not problems."""

    method: str
    path: str
    name: str
    summary: str
    answers: Mapping[int, Schema | None]
    problems: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    kind: str = "application/json"
    waits: bool = False  # whether it may take minutes, or never ends


LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}, "How many a page has.")
CURSOR = Parameter("cursor", TEXT, "What the page before gave as next.")
FILTERS = (
    Parameter("user", NAME, "Whose."),
    Parameter("team", NAME, "Which team pays."),
    Parameter("state", one_of(LIVE, *STATES), f"{LIVE}: all but ended.", repeats=True),
    Parameter("template", NAME, "Which template."),
    Parameter("gpu_type", NAME, "Which GPU type; empty: no GPUs."),
    Parameter("server", NAME, "Which server; empty: the default one."),
    Parameter("preemptible", BOOLEAN, "Whether it runs on idle GPUs."),
    Parameter("since", TIME, "Submitted then or later."),
    Parameter("until", TIME, "Submitted before."),
)
_SEARCH = Parameter("search", {"type": "string", "maxLength": 200}, "Only those with these words.")
_LOG = (
    Parameter("pod", NAME, "Its name or uid; empty: any."),
    Parameter("container", NAME, "Empty: the person's own program."),
    Parameter("run", WHOLE, "Its first start is 1."),
    Parameter("previous", BOOLEAN, "The run before the newest."),
    Parameter("tail", WHOLE, "The last lines, 1,000 unless said; 0: all that is kept."),
    Parameter("search", {"type": "string", "maxLength": 200}, "Only lines with these words."),
    Parameter("follow", BOOLEAN, "Go on with what is printed, for ten minutes at most; not with tail or search."),
    Parameter("place", PLACE, "A name of yours for where a followed log ends."),
    Parameter("after", PLACE, "Go on at the place of this name; with follow."),
)
_STARTS: Mapping[int, Schema | None] = {201: ref("Submitted"), 202: ref("Submitted")}
_ENDS: Mapping[int, Schema | None] = {202: None, 204: None}
_LISTED = (LIMIT, CURSOR)
_ASKED: Mapping[int, Schema | None] = {200: page(ref("Approval"))}
_DECIDED: Mapping[int, Schema | None] = {200: ref("Approval")}
_PERIOD = (
    Parameter("by", one_of(*ROWS), "What the rows are."),
    Parameter("since", DAY, "The first day."),
    Parameter("until", DAY, "The last day."),
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "jobs", "ListJobs", "Jobs, the newest first", {200: page(ref("Job"))}, (422,), (*FILTERS, *_LISTED)
    ),
    Operation(
        *(
            "POST",
            "jobs",
            "SubmitJob",
            "Start a server with options",
            _STARTS,
            (400, 403, 404, 409, 413, 415, 422, 429),
        ),
        body=ref("Submission"),
    ),
    Operation("GET", "jobs/{id}", "GetJobDetail", "One job", {200: ref("JobDetail")}, (404,)),
    Operation("DELETE", "jobs/{id}", "KillJob", "End a job wherever it stands", _ENDS, (404, 409)),
    Operation("GET", "jobs/{id}/events", "ListJobEvents", "Its transitions", {200: EVENTS}, (404, 422), (_SEARCH,)),
    Operation(
        *("GET", "jobs/{id}/usage", "GetJobUsage", "What it used over time, where there is a Prometheus"),
        answers={200: USAGE},
        problems=(404, 422),
        parameters=tuple(Parameter(name, TEXT, "Of the series.") for name in ("since", "until", "step")),
    ),
    Operation(
        "GET",
        "jobs/{id}/pod-events",
        "ListPodEvents",
        "What Kubernetes tells of it",
        {200: page(ref("PodEvent"))},
        (403, 404, 422),
        (_SEARCH,),
    ),
    Operation("GET", "jobs/{id}/logs", "ListJobLogs", "Which logs there are", {200: page(ref("Log"))}, (403, 404)),
    Operation(
        *("GET", "jobs/{id}/log", "GetJobLog", "What it has printed", {200: TEXT}, (403, 404, 410, 422, 429), _LOG),
        kind="text/plain",
    ),
    Operation("POST", "jobs/{id}/cancel", "CancelJob", "End what waits or starts", _ENDS, (404, 409)),
    Operation(
        *("POST", "jobs/{id}/requeue", "RequeueJob", "Start what has ended again", _STARTS),
        problems=(403, 404, 409, 422, 429),
    ),
    Operation(
        *("POST", "jobs/{id}/keep-alive", "KeepJobAlive", "Go on although it is not used"),
        answers={200: ref("Kept")},
        problems=(404, 409),
    ),
    Operation(
        *(
            "POST",
            "jobs/{id}/approve",
            "ApproveJob",
            "It may wait for its turn",
            _DECIDED,
            (400, 404, 409, 413, 415, 422),
        ),
        body=DECISION,
    ),
    Operation(
        *("POST", "jobs/{id}/deny", "DenyJob", "It ends", _DECIDED, (400, 404, 409, 413, 415, 422)),
        body=DECISION,
    ),
    Operation(
        *("GET", "approvals", "ListApprovals", "Requests for approval, the newest first", _ASKED, (422,)),
        parameters=(
            Parameter("mine", one_of("decide", "asked"), "Those to decide, or one's own."),
            Parameter("state", APPROVAL["state"], "Where it stands.", repeats=True),
            Parameter("kind", APPROVAL["kind"], "What is asked for.", repeats=True),
            *(Parameter(name, NAME, f"Of this {name} only.") for name in ("team", "user", "job")),
            *_LISTED,
        ),
    ),
    Operation("GET", "cluster", "GetClusterStatus", "GPU types and nodes", {200: CLUSTER}),
    Operation("GET", "quota", "GetQuota", "What teams may use and use", {200: page(ref("Quota"))}),
    Operation(
        "GET",
        "queue",
        "GetQueue",
        "What waits",
        {200: page(ref("Job"), waiting=several(SHARES), others=WHOLE)},
        (422,),
        _LISTED,
    ),
    Operation(
        "GET",
        "users/{user}/servers/{server}/pending-job",
        "GetPendingJob",
        "What waits for a server",
        {200: ref("Wait")},
        (404,),
    ),
    Operation(
        "DELETE",
        "users/{user}/servers/{server}/pending-job",
        "CancelPendingJob",
        "End what waits for a server",
        {204: None},
        (404, 409),
    ),
    Operation("GET", "history/gpu-hours", "GetGpuHours", "GPU-hours by day", {200: ref("GpuHours")}, (422,), _PERIOD),
    Operation(
        *("GET", "history/gpu-hours.csv", "GetGpuHoursCsv", "The same as CSV", {200: TEXT}, (422,), _PERIOD),
        kind="text/csv",
    ),
    Operation(
        *("GET", "metrics", "GetMetrics", "For Prometheus", {200: TEXT}),
        kind="text/plain",
    ),
    Operation("GET", "idle", "ListIdle", "What the latest round has found of unused jobs", {200: IDLE}),
    Operation("GET", "keys", "ListKeys", "One's SSH keys", {200: KEYS}),
    Operation(
        *(
            "POST",
            "keys",
            "AddKeys",
            "Add SSH keys",
            {200: ADDED, 201: ADDED},
            (400, 409, 413, 415, 422),
        ),
        body=closed({"key": TEXT, "name": TEXT}, optional=frozenset({"name"})),
    ),
    Operation("DELETE", "keys/{number}", "RemoveKey", "Remove an SSH key", {204: None}, (404,)),
    Operation("GET", "ssh-settings", "GetSshSettings", "What one wants of one's SSH logins", {200: SSH_SETTINGS}),
    Operation(
        *("PUT", "ssh-settings", "PutSshSettings", "Say so", {200: SSH_SETTINGS}, (400, 413, 415, 422)),
        body=SSH_SETTINGS,
    ),
    Operation(
        *(
            "GET",
            "ssh-config",
            "GetSshConfig",
            "What one's own OpenSSH needs to know",
            {200: SSH_CONFIG},
            (403, 404),
        ),
    ),
    Operation(
        *("GET", "notices", "ListNotices", "What one is told", {200: NOTICES}, (422,)),
        parameters=(
            Parameter("after", TEXT, "The version that is known: wait for another one."),
            Parameter("wait", {"type": "number", "minimum": 0, "maximum": 300}, "At most so many seconds."),
        ),
        waits=True,
    ),
    Operation("POST", "notices/{notice}/seen", "SeeNotice", "It was read", {204: None}, (404,)),
    Operation("POST", "notices/{notice}/keep", "KeepByNotice", "Its button", {200: KEPT_BY_NOTICE}, (404, 409)),
    Operation(
        *(
            "GET",
            "events",
            "FollowEvents",
            "That something has changed, as server-sent events",
            {200: NEWS},
            (429,),
        ),
        kind="text/event-stream",
        waits=True,
    ),
    Operation("GET", "openapi.json", "GetDescription", "This description", {200: DESCRIPTION}),
)

# For the gateway and jobs themselves, as internal/ is for the Hub: their own clients are in this repository.
INTERNAL = frozenset(
    {
        *("PUT key-suggestions", "PUT kernels"),
        *("POST ssh-starts/{user}/{server}", "GET ssh-starts/{user}/{server}"),
        *("PUT ssh-sessions", "POST ssh-access", "GET users/{user}/keys", "POST users/{user}/keys/{number}/used"),
    }
)
PLACES: Mapping[str, Schema] = {
    "id": JOB_ID,
    "user": NAME,
    "server": NAME,
    "number": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    "notice": NOTICE,
}
