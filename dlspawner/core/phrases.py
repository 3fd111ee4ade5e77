"""How what Kubernetes says becomes words for people: names of resources, short quotations, lists.

A quotation is what a person's own program, or an administrator's own rule, has written: one short line of it, without
anything that looks like a token. What Kubernetes itself writes is never quoted; the modules that use these functions
read the facts in it and say them in their own words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

ASK = "ask an administrator"

# JupyterHub's tokens are 32 characters, a service account's are hundreds.
_SECRET = re.compile(r"[A-Za-z0-9_+/=-]{32,}(?:\.[A-Za-z0-9_+/=-]+)*")
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


def quoted(text: str, longest: int = 200) -> str:
    """The beginning of what a rule says, on one line."""
    flat = _flat(text)
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def last_words(text: str, longest: int = 200) -> str:
    """The end of what a container wrote: the cause of a failure is rarely at its beginning."""
    flat = _flat(text)
    return flat if len(flat) <= longest else f"… {flat[-longest:]}"


def _flat(text: str) -> str:
    plain = "".join(one if one.isprintable() else " " for one in _SEQUENCE.sub("", text))
    return _SECRET.sub("…", " ".join(plain.split()))


def resource(name: str, gpus: Collection[str] = ()) -> str:
    """A resource, as the scheduler or a quota names it, in words; ``gpus`` are the resources that are GPUs."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    return "GPUs" if plain in gpus else _PLAIN.get(plain, plain)


def listed(words: Iterable[str]) -> str:
    """``a, b and c``, each word once; nothing of nothing."""
    once = list(dict.fromkeys(words))
    return " and ".join(part for part in (", ".join(once[:-1]), *once[-1:]) if part)


def duration(seconds: float) -> str:
    """About how long: to the minute from one minute on."""
    hours, minutes = divmod(round(seconds / 60) if round(seconds) >= 60 else 0, 60)
    if not hours and not minutes:
        return _count(max(1, round(seconds)), "second")
    return listed(_count(count, unit) for count, unit in ((hours, "hour"), (minutes, "minute")) if count)


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' if count > 1 else ''}"
