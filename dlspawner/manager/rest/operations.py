"""Every operation of the REST resources, in one table: what ``openapi.json`` is made of. PURE.

A test walks all addresses of the application and compares: what is not here, and not among ``internal`` below, which
are for the Hub, the gateway and jobs themselves, fails it. Another asks for each operation once with success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlspawner.manager.query import LIVE, MOST
from dlspawner.manager.rest import schemas
from dlspawner.manager.rest.schemas import (
    BOOLEAN,
    DAY,
    EVENTS,
    NAME,
    PLACE,
    STATES,
    TEXT,
    TIME,
    WHOLE,
    Schema,
    closed,
    one_of,
    page,
    ref,
    several,
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
KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "The same request with the same key is carried out once in 24 hours.",
    where="header",
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
    Parameter("by", one_of(*schemas.ROWS), "What the rows are."),
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
        parameters=(KEY,),
        body=ref("Submission"),
    ),
    Operation("GET", "jobs/{id}", "GetJobDetail", "One job", {200: ref("JobDetail")}, (404,)),
    Operation("DELETE", "jobs/{id}", "KillJob", "End a job wherever it stands", _ENDS, (404, 409)),
    Operation("GET", "jobs/{id}/events", "ListJobEvents", "Its transitions", {200: EVENTS}, (404, 422), (_SEARCH,)),
    Operation(
        *("GET", "jobs/{id}/usage", "GetJobUsage", "What it used over time, where there is a Prometheus"),
        answers={200: schemas.USAGE},
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
        parameters=(KEY,),
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
        body=schemas.DECISION,
    ),
    Operation(
        *("POST", "jobs/{id}/deny", "DenyJob", "It ends", _DECIDED, (400, 404, 409, 413, 415, 422)),
        body=schemas.DECISION,
    ),
    Operation(
        *("GET", "approvals", "ListApprovals", "Requests for approval, the newest first", _ASKED, (422,)),
        parameters=(
            Parameter("mine", one_of("decide", "asked"), "Those to decide, or one's own."),
            Parameter("state", schemas.APPROVAL["state"], "Where it stands.", repeats=True),
            Parameter("kind", schemas.APPROVAL["kind"], "What is asked for.", repeats=True),
            *(Parameter(name, NAME, f"Of this {name} only.") for name in ("team", "user", "job")),
            *_LISTED,
        ),
    ),
    Operation("GET", "cluster", "GetClusterStatus", "GPU types and nodes", {200: schemas.CLUSTER}),
    Operation("GET", "quota", "GetQuota", "What teams may use and use", {200: page(ref("Quota"))}),
    Operation(
        "GET",
        "queue",
        "GetQueue",
        "What waits",
        {200: page(ref("Job"), waiting=several(schemas.SHARES), others=WHOLE)},
        (422,),
        _LISTED,
    ),
    Operation("GET", "wait/{user}/{server}", "GetWait", "What waits for a server", {200: ref("Wait")}, (404,)),
    Operation("DELETE", "wait/{user}/{server}", "CancelWait", "End what waits for a server", {204: None}, (404, 409)),
    Operation("GET", "history/gpu-hours", "GetGpuHours", "GPU-hours by day", {200: ref("GpuHours")}, (422,), _PERIOD),
    Operation(
        *("GET", "history/gpu-hours.csv", "GetGpuHoursCsv", "The same as CSV", {200: TEXT}, (422,), _PERIOD),
        kind="text/csv",
    ),
    Operation(
        *("GET", "metrics", "GetMetrics", "For Prometheus", {200: TEXT}),
        kind="text/plain",
    ),
    Operation("GET", "idle", "ListIdle", "What the latest round has found of unused jobs", {200: schemas.IDLE}),
    Operation("GET", "keys", "ListKeys", "One's SSH keys", {200: schemas.KEYS}),
    Operation(
        *(
            "POST",
            "keys",
            "AddKeys",
            "Add SSH keys",
            {200: schemas.ADDED, 201: schemas.ADDED},
            (400, 409, 413, 415, 422),
        ),
        body=closed({"key": TEXT, "name": TEXT}, optional=frozenset({"name"})),
    ),
    Operation("DELETE", "keys/{number}", "RemoveKey", "Remove an SSH key", {204: None}, (404,)),
    Operation(
        "GET", "ssh-settings", "GetSshSettings", "What one wants of one's SSH logins", {200: schemas.SSH_SETTINGS}
    ),
    Operation(
        *("PUT", "ssh-settings", "PutSshSettings", "Say so", {200: schemas.SSH_SETTINGS}, (400, 413, 415, 422)),
        body=schemas.SSH_SETTINGS,
    ),
    Operation(
        *(
            "GET",
            "ssh-config",
            "GetSshConfig",
            "What one's own OpenSSH needs to know",
            {200: schemas.SSH_CONFIG},
            (403, 404),
        ),
    ),
    Operation(
        *("GET", "notices", "ListNotices", "What one is told", {200: schemas.NOTICES}, (422,)),
        parameters=(
            Parameter("after", TEXT, "The version that is known: wait for another one."),
            Parameter("wait", {"type": "number", "minimum": 0, "maximum": 300}, "At most so many seconds."),
        ),
        waits=True,
    ),
    Operation("POST", "notices/{notice}/seen", "SeeNotice", "It was read", {204: None}, (404,)),
    Operation("POST", "notices/{notice}/keep", "KeepByNotice", "Its button", {200: schemas.KEPT_BY_NOTICE}, (404, 409)),
    Operation(
        *(
            "GET",
            "events",
            "FollowEvents",
            "That something has changed, as server-sent events",
            {200: schemas.NEWS},
            (429,),
        ),
        kind="text/event-stream",
        waits=True,
    ),
    Operation("GET", "openapi.json", "GetDescription", "This description", {200: schemas.DESCRIPTION}),
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
    "id": schemas.JOB_ID,
    "user": NAME,
    "server": NAME,
    "number": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    "notice": schemas.NOTICE,
}
