"""How what Kubernetes says becomes words for people: names of resources, short quotations, lists.

A quotation is what a person's own program, or an administrator's own rule, has written: one short line of it, without
anything that looks like a token. What Kubernetes itself writes is never quoted; the modules that use these functions
read the facts in it and say them in their own words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

# JupyterHub's tokens are 32 characters, a service account's are hundreds.
_SECRET = re.compile(r"[A-Za-z0-9_+/=-]{32,}(?:\.[A-Za-z0-9_+/=-]+)*")
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
    return _SECRET.sub("…", " ".join(text.split()))


def resource(name: str, gpus: Collection[str] = ()) -> str:
    """A resource, as the scheduler or a quota names it, in words; ``gpus`` are the resources that are GPUs."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    return "GPUs" if plain in gpus else _PLAIN.get(plain, plain)


def listed(words: Iterable[str]) -> str:
    """``a, b and c``, each word once."""
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} and {last}" if most else last


def duration(seconds: float) -> str:
    """About how long, in the largest unit that fits."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = round(seconds / size)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{max(1, round(seconds))} seconds"
