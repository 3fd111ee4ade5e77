"""Kubernetes quantities as exact numbers (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{name: Fraction(1000) ** power for power, name in enumerate("kMGTPE", 1)},
    **{name: Fraction(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?[0-9]+)|([a-zA-Z]*))\Z")


def parse(quantity: str | float) -> Fraction:
    """``"1500m"`` is 3/2, ``"1Gi"`` is 2**30; raises `ValueError` for anything that is no quantity."""
    match = _QUANTITY.match(str(quantity).strip())
    if not match or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a quantity")
    return Fraction(match[1]) * (Fraction(10) ** int(match[2]) if match[2] else _SUFFIXES[match[3] or ""])


def in_units(quantity: str | float, divisor: str) -> str:
    """As a resourceFieldRef gives it: whole divisors, rounded up; a divisor of 0 means 1."""
    return str(math.ceil(parse(quantity) / (parse(divisor) or 1)))


def qos_class(spec: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, by the rules of the pod's CPU and memory."""
    guaranteed, any_set = True, False
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            limit, request = parse(limits.get(name, 0)), parse(requests.get(name, limits.get(name, 0)))
            any_set = any_set or bool(limit or request)
            guaranteed = guaranteed and bool(limit) and limit == request
    return "Guaranteed" if guaranteed else "Burstable" if any_set else "BestEffort"
