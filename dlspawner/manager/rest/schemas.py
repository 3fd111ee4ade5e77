"""What the REST resources take and answer, as JSON Schema: what ``openapi.json`` is made of. PURE.

Objects are closed: what an answer holds and is not written here fails a test. GPUs and cores are numbers, 1 is a whole
one; memory is in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlspawner.core.approval import ApprovalKind
from dlspawner.core.idle import Cause
from dlspawner.core.jobs import JobState
from dlspawner.manager import notices
from dlspawner.manager.approvals import LONGEST_REASON, ApprovalState

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
    """That or null."""
    return {**schema, "type": [schema["type"], "null"]}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def of(schema: Schema, help_: str) -> Schema:
    """That, with what it means."""
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
    "asked": of(NUMBER, "GPU-hours from submit to the end."),
    "held": of(NUMBER, "GPU-hours from being let in until its pods are gone."),
    "measured": of(NUMBER, "GPU-hours of those held for which it is known what they computed."),
    "used": of(maybe(NUMBER), "GPU-hours of those measured that computed; null where nothing was measured."),
    "reclaimed": of(NUMBER, "GPU-hours after a stop for being unused."),
}


def _gpu_hours(by: str) -> Schema:
    row = {by: TEXT, **_HOURS}
    free = dict.fromkeys(("total", "free", "closed", "fragmented"), of(NUMBER, "GPU-hours."))
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
            **{"closed": NUMBER, "waiting_jobs": WHOLE, "waiting_gpus": NUMBER},
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
            **{"job": JOB_ID, "state": one_of("queued", "waiting-approval", "waiting-login", "starting")},
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
            **{"id": NOTICE, "kind": one_of(*(kind.value for kind in notices.NoticeKind))},
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
