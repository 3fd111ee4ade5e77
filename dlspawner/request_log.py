"""Log lines as JSON, and the id of the request that they belong to.

* ``--log-format=json`` of Manager and gateway, and ``DLSPAWNER_LOG_FORMAT=json`` for the Hub, make each line one JSON
  object: ``time``, ``level``, ``logger``, ``message``, ``request`` and ``exception`` where there is one, and under
  ``fields`` what the message says as ``name=value``.
* A request id comes with the header ``X-Request-ID``, from an ingress or a script, or is made here. It goes from the
  Hub to the Manager in the same header, and onto the pod as an annotation. Any client can send a header: what is not an
  id of letters and digits is replaced.

Durations are in the traces, which are optional (`tracing`).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from contextvars import ContextVar
from datetime import UTC, datetime

HEADER = "X-Request-ID"
ANNOTATION = "dlspawner.dev/request-id"
request_id: ContextVar[str] = ContextVar("request_id", default="")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELD = re.compile(r'(?:^|\s)([a-z][a-z_]*)=("(?:[^"\\]|\\.)*"|[^\s"]+)')


def accept(given: str | None) -> str:
    """Returns the id of a request, current until its task ends: the given one, or a new one where that is no id."""
    found = given if given and _ID.fullmatch(given) else secrets.token_hex(8)
    request_id.set(found)
    return found


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a format that is given is not used."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if request := request_id.get():
            line["request"] = request
        if fields := {name: _value(text) for name, text in _FIELD.findall(message)}:
            line["fields"] = fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _value(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text
