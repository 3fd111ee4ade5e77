"""One line per event, with the same fields in the same order every time; no secret and no raw text of a stranger."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

BURST = 1000
PER_SECOND = 10.0


@dataclass(slots=True)
class LogBudget:
    """The lines that one connection may have: `BURST` at once, `PER_SECOND` for ever."""

    left: float = BURST
    at: float = 0.0
    suppressed: int = 0

    def take(self, now: float) -> bool:
        """Whether there is one more; ``now`` is any clock that never goes back."""
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
# Their words are about code; those of other errors may quote what somebody sent, such as a token.
_ABOUT_CODE = (AttributeError, NameError, TypeError)


def line(event: str, **fields: object) -> str:
    """``event=auth conn=3 login=alice+train``; what is not plain ASCII words is cut, quoted and escaped."""
    parts = [f"event={event}", *(f"{name}={_value(value)}" for name, value in fields.items() if value is not None)]
    return " ".join(parts)


def say(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one event."""
    log.log(level, "%s", line(event, **fields))


def say_failed(problem: BaseException, **fields: object) -> None:
    """Log an error of the gateway's own at a task's root, with its traceback, and those of its causes, in one line.

    Of so many that they would fill the log, some: whoever found a way to cause one may do so again and again. How many
    more there were, the next line tells.
    """
    if not _failures.take(time.monotonic()):
        return
    fields["unlogged"], _failures.suppressed = _failures.suppressed or None, 0
    why = problem if isinstance(problem, _ABOUT_CODE) else None
    said = line("failed", **fields, error=type(problem).__name__, why=why)
    log.error("%s traceback=%s", said, json.dumps("; ".join(reversed([_way(one) for one in _causes(problem)]))))


def to_stderr() -> logging.Handler:
    """Lines that begin with the time in UTC, to the millisecond."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    return handler


def _causes(problem: BaseException) -> list[BaseException]:
    """An error and what it came of, at most three in all."""
    found = [problem]
    while len(found) < 3 and (cause := found[-1].__cause__ or found[-1].__context__) is not None:
        found.append(cause)
    return found


def _way(problem: BaseException) -> str:
    """Where an error was raised, and through which calls: the last ones, in their order."""
    frames = traceback.extract_tb(problem.__traceback__)[-_FRAMES:]
    calls = [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(problem).__name__}: {' > '.join(calls)}"


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
