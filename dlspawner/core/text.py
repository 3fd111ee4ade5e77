"""Texts for users: quotations, names of resources, amounts, times, lists. PURE.

* A quotation is one short line that a user's program or an administrator's rule has written, without anything that
  looks like a token. Text of Kubernetes itself is not quoted, except the message of an unknown scheduler; modules that
  use these functions read the facts in it and report them in their own words.
* ``{when}`` marks the place of the time in a notice; a notice without it ends with the time. JupyterLab does the same
  in the reader's time zone (``jupyter_extension``).
* Names, titles and reasons may hold any characters. Templates escape those of HTML; `escape_hidden` spells out
  characters that are invisible, change the direction of writing, or are not allowed in a page.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

ASK = "ask an administrator"

# Of a job that waits, on the Hub's pages and the Manager's.
LOG_IN_AGAIN = "It can start now: log in to the Hub again."
RESERVED = "Starting: its resources are reserved."
AS_REQUESTED_NEVER = "Queued, but it cannot start as requested."

# JupyterHub's tokens are 32 characters, a service account's are hundreds.
_SECRET = re.compile(r"[A-Za-z0-9_+/=-]{32,}(?:\.[A-Za-z0-9_+/=-]+)*")
_LONGEST_QUOTATION = 200  # characters
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # a terminal's colours and cursor
_PLAIN = {
    "cpu": "CPUs",
    "memory": "memory",
    "ephemeral-storage": "disk space",
    "storage": "storage",
    "pods": "pods",
    "services": "Services",
    "services.nodeports": "NodePorts",
    "persistentvolumeclaims": "claims",
    "secrets": "Secrets",
}


def quoted(text: str, longest: int = _LONGEST_QUOTATION) -> str:
    """The beginning of what a rule says, on one line."""
    flat = _flat(text)
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


# Lines in the log of a program that fails: those that are no reason, in Jupyter's format and logging's; those that are.
_CHATTER = re.compile(r"\[[IDW] |\S{0,40} ?\S{0,40} ?\[?(?:INFO|DEBUG|WARNING)\b")
_ERROR = re.compile(
    r"\S*(?:Error|Exception|Interrupt|Exit)\b|\[[EC] |.*\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|[Ff]atal|panic)\b"
)
_DISKS = (
    (re.compile(r".*(?:No space left|Errno 28\b|ENOSPC|disk is full)"), "is full"),
    (re.compile(r".*(?:[Qq]uota exceeded|Errno 122\b|EDQUOT)"), "has reached its quota"),
    (re.compile(r".*(?:[Rr]ead-only file ?system|Errno 30\b|EROFS)"), "cannot be written to"),
)


def last_words(text: str) -> str:
    """Returns the last words of a failed container: from its last error on, else the end, without later chatter."""
    lines = [line for line in _SEQUENCE.sub("", text).splitlines() if line.strip()]
    while len(lines) > 1 and _CHATTER.match(lines[-1]):
        lines.pop()
    for number, line in reversed(list(enumerate(lines))):
        ends_traceback = number and lines[number - 1][0].isspace() and not line[0].isspace()
        if ends_traceback or _ERROR.match(line):
            return quoted("\n".join(lines[number:]))
    flat = _flat("\n".join(lines))
    return flat if len(flat) <= _LONGEST_QUOTATION else f"… {flat[-_LONGEST_QUOTATION:]}"


def without_last_words(sentence: str) -> str:
    """A sentence about an end without what the program said, which is for those who may read its log."""
    return re.sub(r" (?:\(“.*”\)|after “.*”)", "", sentence)


def disk_problem(said: str) -> tuple[str, str] | None:
    """Returns the problem of a disk that a program could not write to, and the program's line about it."""
    for line in reversed(said.splitlines()):
        for words, what in _DISKS:
            if words.match(line):
                return what, quoted(line)
    return None


def ended_by(code: int) -> str:
    """An exit code in words. Above 128 it is a signal's number, as far as there are so many signals."""
    number = code - 128
    if not 1 <= number <= 64:
        return f"exit code {code}"
    name = next((f" ({one.name})" for one in signal.Signals if one == number), "")
    return f"signal {number}{name}"


def _flat(text: str) -> str:
    plain = "".join(one if one.isprintable() else " " for one in _SEQUENCE.sub("", text))
    return _SECRET.sub("…", " ".join(plain.split()))


def resource(name: str, gpus: Collection[str] = ()) -> str:
    """A resource, as the scheduler or a quota names it, in words; ``gpus`` are the resources that are GPUs."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    return "GPUs" if plain in gpus else _PLAIN.get(plain, plain)


def listed(words: Iterable[str], last: str = "and") -> str:
    """``a, b and c``, each word once; nothing of nothing."""
    once = list(dict.fromkeys(words))
    return f" {last} ".join(part for part in (", ".join(once[:-1]), *once[-1:]) if part)


def duration(seconds: float) -> str:
    """About how long: to the minute from one minute on."""
    hours, minutes = divmod(round(seconds / 60) if round(seconds) >= 60 else 0, 60)
    if not hours and not minutes:
        return _count(max(1, round(seconds)), "second")
    return listed(_count(count, unit) for count, unit in ((hours, "hour"), (minutes, "minute")) if count)


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' if count > 1 else ''}"


def amount(milli: int) -> int | float:
    """Thousandths as people count."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def queue_place(position: int) -> str:
    """The place of a queued job, from 1."""
    return f"Number {position} in the queue; it starts automatically."


WHEN = "{when}"


def with_time(text: str, until: datetime | None, now: datetime) -> str:
    """The sentence as it is read at ``now``."""
    if until is None:
        return " ".join(text.replace(WHEN, "").split())
    when = moment(until, now)
    return text.replace(WHEN, when) if WHEN in text else f"{text} ({when})"


def moment(until: datetime, now: datetime) -> str:
    """A time soon to come: on the clock, and how far away."""
    seconds = (until - now).total_seconds()
    if seconds <= 0:
        return "now"
    if seconds < 60:
        return "in less than a minute"
    utc = until.astimezone(UTC)
    clock = utc.strftime("at %H:%M UTC" if seconds < 43200 else "on %d %B at %H:%M UTC")
    return f"{clock}, in {_span(seconds)}"


def minutes(span: timedelta) -> str:
    """A span as people set it: ``1 minute``, ``1.5 minutes``."""
    many = span.total_seconds() / 60
    return f"{many:g} minute{'' if many == 1 else 's'}"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        many = round(seconds / size)
        if many >= 2 or size == 60:
            return f"{max(1, many)} {unit}{'s' if many > 1 else ''}"
    raise AssertionError("a minute is the smallest unit")


def show(value: object) -> str:
    """A value of unknown origin, short and without control characters, for a sentence."""
    if isinstance(value, str):
        text = "".join(letter if letter.isprintable() else "�" for letter in value[:41])
        return f"“{text[:40]}…”" if len(text) > 40 else f"“{text}”"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) < 10**40 else "a huge number"
    if isinstance(value, float):
        return str(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


# Control characters other than tab and line end; what turns the direction of writing; Unicode's own line ends; what
# has no width; letters that look like nothing at all: Hangul's fillers, the blank of Braille, the joiner of graphemes,
# the two vowels of Khmer that are never written. Those that join letters (U+200C, U+200D) are left: whole languages,
# and smileys, are written with them.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
# What chooses between forms of the letter before it is writing there, and hides behind every other one: emoji and
# mathematics have sixteen of them, ideographs these and 240 more, Mongolian four. Of two only the first can choose.
_SYMBOLS = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u23ff\u2460-\u24ff\u25a0-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_FORMS = (
    rf"(?<![{_SYMBOLS}{_IDEOGRAPHS}])(?!(?<=[0-9#*])\ufe0f\u20e3)[\ufe00-\ufe0f]",
    rf"(?<![{_IDEOGRAPHS}])[\U000e0100-\U000e01ef]",
    "(?<![\u1820-\u1878\u1880-\u18aa])[\u180b-\u180d\u180f]",
)
_HIDES = re.compile("|".join((f"[{_HIDDEN}]", *_FORMS)))


def escape_hidden(text: str) -> str:
    """The same text, in which every letter that hides is spelled out, such as ``\\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDES.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
