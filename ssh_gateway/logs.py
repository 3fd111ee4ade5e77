"""One line per event, with the same fields in the same order every time; no secret and no raw text of a stranger."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

log = logging.getLogger("ssh_gateway")

_PLAIN = re.compile(r"[A-Za-z0-9_.@+:/,\[\]-]{1,200}")
_LONGEST = 200


def line(event: str, **fields: object) -> str:
    """``event=auth conn=3 login=alice+train``; what is not plain ASCII words is cut, quoted and escaped."""
    parts = [f"event={event}", *(f"{name}={_value(value)}" for name, value in fields.items() if value is not None)]
    return " ".join(parts)


def say(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one event."""
    log.log(level, "%s", line(event, **fields))


def to_stderr() -> logging.Handler:
    """Lines that begin with the time in UTC, to the millisecond."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    return handler


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
