"""Log lines: one per event, with the same fields in the same order; no secrets and no raw text from clients."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from dlspawner.request_log import JsonFormatter

BURST = 1000
PER_SECOND = 10.0


@dataclass(slots=True)
class LogBudget:
    """The log lines that one connection may write: a burst of `BURST`, then `PER_SECOND`."""

    left: float = BURST
    at: float = 0.0
    suppressed: int = 0

    def take(self, now: float) -> bool:
        """Takes one line from the budget; False if none is left. ``now`` comes from any monotonic clock."""
        self.left = min(BURST, self.left + max(0.0, now - self.at) * PER_SECOND)
        self.at = now
        if self.left < 1:
            self.suppressed += 1
            return False
        self.left -= 1
        return True


log = logging.getLogger("ssh_gateway")

_PLAIN = re.compile(r"[A-Za-z0-9_.@+:/,\[\]-]{1,200}")
_LONGEST = 200
_FRAMES = 12
_failures = LogBudget()
# The messages of these errors are about code; messages of other errors may quote received data, such as a token.
_ABOUT_CODE = (AttributeError, NameError, TypeError)


def line(event: str, **fields: object) -> str:
    """Returns ``event=auth conn=3 login=alice+train``; values other than plain words are cut, quoted and escaped."""
    parts = [f"event={event}", *(f"{name}={_value(value)}" for name, value in fields.items() if value is not None)]
    return " ".join(parts)


def say(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    log.log(level, "%s", line(event, **fields))


def say_failed(problem: BaseException, **fields: object) -> None:
    """Logs an internal error at a task's root in one line, with its traceback and those of its causes.

    The number of such lines is limited, because a client that found a way to cause an error can repeat it. The next
    line has the number of those that were left out.
    """
    if not _failures.take(time.monotonic()):
        return
    fields["unlogged"], _failures.suppressed = _failures.suppressed or None, 0
    why = problem if isinstance(problem, _ABOUT_CODE) else None
    said = line("failed", **fields, error=type(problem).__name__, why=why)
    log.error("%s traceback=%s", said, json.dumps("; ".join(reversed([_way(one) for one in _causes(problem)]))))


def to_stderr(as_json: bool = False) -> logging.Handler:
    """Logs to stderr; lines begin with the time in UTC, to the millisecond, or are JSON objects."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else formatter)
    return handler


def _causes(problem: BaseException) -> list[BaseException]:
    """Returns an error and its causes, at most three in all."""
    found = [problem]
    while len(found) < 3 and (cause := found[-1].__cause__ or found[-1].__context__) is not None:
        found.append(cause)
    return found


def _way(problem: BaseException) -> str:
    """Returns the innermost calls through which an error was raised, in their order."""
    frames = traceback.extract_tb(problem.__traceback__)[-_FRAMES:]
    calls = [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(problem).__name__}: {' > '.join(calls)}"


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
