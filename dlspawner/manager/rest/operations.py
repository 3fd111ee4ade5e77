"""Every operation of the REST resources, in one table: what ``openapi.json`` is made of. PURE.

A test walks all addresses of the application and compares: what is not here, and not among ``internal`` below, which
are for the Hub, the gateway and jobs themselves, fails it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlspawner.core.approval import Kind
from dlspawner.core.jobs import State
from dlspawner.manager.approvals import LONGEST_REASON, Standing
from dlspawner.manager.query import LIVE, MOST

Schema = Mapping[str, object]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number", "minimum": 0}
WHOLE: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
OBJECT: Schema = {"type": "object"}
NAME: Schema = {"type": "string", "maxLength": 255}
PLACE: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
JOB_ID: Schema = {"type": "string", "pattern": "^j-[a-z2-7]{12}$"}
STATES = [state.value for state in State]


def maybe(schema: Schema) -> Schema:
    """That or null."""
    return {**schema, "type": [schema["type"], "null"]}


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
    Parameter("state", {"type": "string", "enum": [LIVE, *STATES]}, f"{LIVE}: all but ended.", repeats=True),
    Parameter("template", NAME, "Which template."),
    Parameter("gpu_type", NAME, "Which GPU type; empty: no GPUs."),
    Parameter("server", NAME, "Which server; empty: the default one."),
    Parameter("preemptible", BOOLEAN, "Whether it runs on idle GPUs."),
    Parameter("since", TIME, "Submitted then or later."),
    Parameter("until", TIME, "Submitted before."),
)
KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "The same request with the same key is carried out once in 24 hours.",
    where="header",
)

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
_SHARES = closed({"gpu_type": TEXT, "jobs": WHOLE, "gpus": NUMBER})
_AMOUNTS = closed({"total": NUMBER, "free": NUMBER})
_APPROVAL: Mapping[str, Schema] = {
    **{"id": TEXT, "job": JOB_ID, "kind": {"type": "string", "enum": [kind.value for kind in Kind]}},
    **{"user": TEXT, "server": TEXT, "team": TEXT, "gpus": NUMBER, "gpu_type": maybe(TEXT), "what": TEXT, "why": TEXT},
    **{"asked": TIME, "state": {"type": "string", "enum": [standing.value for standing in Standing]}},
    **{"decided": maybe(TIME), "by": maybe(TEXT), "reason": TEXT},
}
_JOB: Mapping[str, Schema] = {
    **{"id": JOB_ID, "user": TEXT, "server": TEXT, "team": TEXT, "team_title": TEXT, "template": TEXT},
    **{"state": {"type": "string", "enum": STATES}, "reason": TEXT, "why": TEXT},
    **{"position": maybe(WHOLE), "priority": TEXT, "preemptible": BOOLEAN, "gpus": NUMBER, "gpu_type": maybe(TEXT)},
    **{"cpu": NUMBER, "memory_bytes": WHOLE, "nodes": several(maybe(TEXT)), "submitted": TIME},
    **{"started": maybe(TIME), "ended": maybe(TIME), "notice": maybe(TIME), "endpoints": several(ref("Endpoint"))},
    "estimate": maybe(closed({"from": TIME, "to": TIME, "basis": TEXT})),
    "stop": maybe(closed({"reason": TEXT, "sentence": TEXT, "at": maybe(TIME)})),
    "approval": maybe(closed(_APPROVAL)),
}
_DETAIL: Mapping[str, Schema] = {
    **_JOB,
    "requeue": BOOLEAN,
    "pods": several(TEXT),
    "alternatives": several(ref("Alternative")),
    "page": maybe(TEXT),
}
SCHEMAS: Mapping[str, Schema] = {
    "Approval": closed({**_APPROVAL, "may_decide": BOOLEAN}),
    "Problem": {
        "type": "object",
        "properties": {"type": TEXT, "title": TEXT, "status": WHOLE, "detail": TEXT},
        "required": ["type", "title", "status", "detail"],
    },
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
    "Event": closed({"at": TIME, "state": {"type": "string", "enum": STATES}, "reason": TEXT, "detail": TEXT}),
    "Node": closed(
        {
            "name": TEXT,
            "state": {"type": "string", "enum": ["ready", "cordoned", "unhealthy"]},
            "gpus": several(closed({"gpu_type": TEXT, "total": NUMBER, "free": NUMBER})),
            "cpu": _AMOUNTS,
            "memory_bytes": _AMOUNTS,
        }
    ),
    "GpuType": closed(
        {
            **{"name": TEXT, "title": TEXT, "total": NUMBER, "free": NUMBER, "most_on_one_node": NUMBER},
            **{"closed": NUMBER, "waiting_jobs": WHOLE, "waiting_gpus": NUMBER},
        }
    ),
    "Quota": closed(
        {
            **{"team": TEXT, "title": TEXT, "gpu_type": TEXT, "entitled": NUMBER, "used": NUMBER, "borrowed": NUMBER},
            **{"free": NUMBER, "borrow_limit": maybe(WHOLE)},
        }
    ),
}
_CLUSTER = closed({"at": TIME, "gpu_types": several(ref("GpuType")), "nodes": several(ref("Node"))})
_MEASURED = closed({"name": TEXT, "unit": TEXT, "values": several(maybe(NUMBER))})
_USAGE = closed(
    {
        **{"job": JOB_ID, "since": TIME, "until": TIME, "step_seconds": NUMBER},
        **{"times": several(TIME), "series": several(_MEASURED)},
    }
)
# Of each event; what is in ``data`` is JSON itself.
_NEWS = closed(
    {"event": {"type": "string", "enum": ["ready", "changed", "ended"]}, "data": TEXT, "retry": WHOLE},
    optional=frozenset({"event", "data", "retry"}),
)
_SSH_CONFIG = closed({"user": TEXT, "host": TEXT, "port": WHOLE, "servers": several(TEXT), "host_keys": several(TEXT)})
_SSH_SETTINGS = closed({"start_on_connect": BOOLEAN})
_DECISION = {
    "type": "object",
    "properties": {"reason": {"type": "string", "maxLength": LONGEST_REASON}, "request": NAME},
    "additionalProperties": False,
}
_STARTS: Mapping[int, Schema | None] = {201: ref("Submitted"), 202: ref("Submitted")}
_ENDS: Mapping[int, Schema | None] = {202: None, 204: None}
_LISTED = (LIMIT, CURSOR)
_ANY: Mapping[int, Schema | None] = {200: OBJECT}
_ASKED: Mapping[int, Schema | None] = {200: page(ref("Approval"))}
_DECIDED: Mapping[int, Schema | None] = {200: ref("Approval")}
_PERIOD = (
    Parameter("by", {"type": "string", "enum": ["team", "user", "gpu_type"]}, "What the rows are."),
    Parameter("since", {"type": "string", "format": "date"}, "The first day."),
    Parameter("until", {"type": "string", "format": "date"}, "The last day."),
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
        parameters=(KEY,),
        body=ref("Submission"),
    ),
    Operation("GET", "jobs/{id}", "GetJobDetail", "One job", {200: ref("JobDetail")}, (404,)),
    Operation("DELETE", "jobs/{id}", "KillJob", "End a job wherever it stands", _ENDS, (404, 409)),
    Operation("GET", "jobs/{id}/events", "ListJobEvents", "Its transitions", {200: page(ref("Event"))}, (404,)),
    Operation(
        *("GET", "jobs/{id}/usage", "GetJobUsage", "What it used over time, where there is a Prometheus"),
        answers={200: _USAGE},
        problems=(404, 422),
        parameters=tuple(Parameter(name, TEXT, "Of the series.") for name in ("since", "until", "step")),
    ),
    Operation("GET", "jobs/{id}/pod-events", "ListPodEvents", "What Kubernetes tells of it", _ANY, (404,)),
    Operation("GET", "jobs/{id}/logs", "ListJobLogs", "Which logs there are", _ANY, (403, 404)),
    Operation(
        *("GET", "jobs/{id}/log", "GetJobLog", "What it has printed", {200: TEXT}, (403, 404, 410, 422, 429), _LOG),
        kind="text/plain",
    ),
    Operation("POST", "jobs/{id}/cancel", "CancelJob", "End what waits or starts", _ENDS, (404, 409)),
    Operation(
        *("POST", "jobs/{id}/requeue", "RequeueJob", "Start what has ended again", _STARTS),
        problems=(403, 404, 409, 422, 429),
        parameters=(KEY,),
    ),
    Operation("POST", "jobs/{id}/keep-alive", "KeepJobAlive", "Go on although it is not used", _ANY, (404, 409)),
    Operation(
        *(
            "POST",
            "jobs/{id}/approve",
            "ApproveJob",
            "It may wait for its turn",
            _DECIDED,
            (400, 404, 409, 413, 415, 422),
        ),
        body=_DECISION,
    ),
    Operation(
        *("POST", "jobs/{id}/deny", "DenyJob", "It ends", _DECIDED, (400, 404, 409, 413, 415, 422)),
        body=_DECISION,
    ),
    Operation(
        *("GET", "approvals", "ListApprovals", "Requests for approval, the newest first", _ASKED, (422,)),
        parameters=(
            Parameter("mine", {"type": "string", "enum": ["decide", "asked"]}, "Those to decide, or one's own."),
            Parameter("state", _APPROVAL["state"], "Where it stands.", repeats=True),
            Parameter("kind", _APPROVAL["kind"], "What is asked for.", repeats=True),
            *(Parameter(name, NAME, f"Of this {name} only.") for name in ("team", "user", "job")),
            *_LISTED,
        ),
    ),
    Operation("GET", "cluster", "GetClusterStatus", "GPU types and nodes", {200: _CLUSTER}),
    Operation("GET", "quota", "GetQuota", "What teams may use and use", {200: page(ref("Quota"))}),
    Operation(
        "GET",
        "queue",
        "GetQueue",
        "What waits",
        {200: page(ref("Job"), waiting=several(_SHARES), others=WHOLE)},
        (422,),
        _LISTED,
    ),
    Operation("GET", "wait/{user}/{server}", "GetWait", "What waits for a server", _ANY, (404,)),
    Operation("DELETE", "wait/{user}/{server}", "CancelWait", "End what waits for a server", {204: None}, (404,)),
    Operation("GET", "history/gpu-hours", "GetGpuHours", "GPU-hours by day", _ANY, (422,), _PERIOD),
    Operation(
        *("GET", "history/gpu-hours.csv", "GetGpuHoursCsv", "The same as CSV", {200: TEXT}, (422,), _PERIOD),
        kind="text/csv",
    ),
    Operation(
        *("GET", "metrics", "GetMetrics", "For Prometheus", {200: TEXT}),
        kind="text/plain",
    ),
    Operation("GET", "idle", "ListIdle", "What the latest round has found of unused jobs", _ANY),
    Operation("GET", "keys", "ListKeys", "One's SSH keys", _ANY),
    Operation(
        *("POST", "keys", "AddKeys", "Add SSH keys", {200: OBJECT, 201: OBJECT}, (400, 409, 413, 415, 422)),
        body=closed({"key": TEXT, "name": TEXT}, optional=frozenset({"name"})),
    ),
    Operation("DELETE", "keys/{number}", "RemoveKey", "Remove an SSH key", {204: None}, (404,)),
    Operation("GET", "ssh-settings", "GetSshSettings", "What one wants of one's SSH logins", {200: _SSH_SETTINGS}),
    Operation(
        *("PUT", "ssh-settings", "PutSshSettings", "Say so", {200: _SSH_SETTINGS}, (400, 413, 415, 422)),
        body=_SSH_SETTINGS,
    ),
    Operation(
        *("GET", "ssh-config", "GetSshConfig", "What one's own OpenSSH needs to know", {200: _SSH_CONFIG}, (403, 404)),
    ),
    Operation(
        *("GET", "notices", "ListNotices", "What one is told", _ANY, (422,)),
        parameters=(
            Parameter("after", TEXT, "The version that is known: wait for another one."),
            Parameter("wait", {"type": "number", "minimum": 0, "maximum": 300}, "At most so many seconds."),
        ),
        waits=True,
    ),
    Operation("POST", "notices/{notice}/seen", "SeeNotice", "It was read", {204: None}, (404,)),
    Operation("POST", "notices/{notice}/keep", "KeepByNotice", "Its button", _ANY, (404, 409)),
    Operation(
        *("GET", "events", "FollowEvents", "That something has changed, as server-sent events", {200: _NEWS}),
        kind="text/event-stream",
        waits=True,
    ),
    Operation("GET", "openapi.json", "GetDescription", "This description", _ANY),
)

# For the Hub, the gateway and jobs themselves: their own clients are in this repository.
INTERNAL = frozenset(
    {
        *("PUT jobs/{id}", "POST jobs/{id}/released", "GET jobs/{id}/ending", "GET jobs/{id}/log-kept"),
        *("PUT key-suggestions", "PUT kernels"),
        *("POST ssh-starts/{user}/{server}", "GET ssh-starts/{user}/{server}"),
        *("PUT ssh-sessions", "POST ssh-access", "GET users/{user}/keys", "POST users/{user}/keys/{number}/used"),
        *("PUT users/{user}/account", "GET users/{user}/notices", "GET users/{user}/waiting"),
        *("POST users/{user}/interrupted", "PUT users/{user}/starting"),
    }
)
PLACES: Mapping[str, Schema] = {
    "id": JOB_ID,
    "user": NAME,
    "server": NAME,
    "number": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    "notice": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
}
