"""Kubernetes quantities: `500m`, `1.5`, `128Gi`, `1e3`. Pure."""

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i))?$")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

_LONGEST = 64

RULE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"  # Kubernetes' words
)


def parse(value: object) -> Fraction:
    """The exact number; ValueError for anything that is not a quantity."""
    # Bounded: a quantity is short, and an exponent of a million digits would never end.
    found = (
        _FORM.match(str(value)[:_LONGEST])
        if isinstance(value, str | int | float) and not isinstance(value, bool)
        else None
    )
    if not found:
        raise ValueError(RULE)
    number, exponent, suffix = Fraction(found[1]), found[2], found[3]
    if exponent:
        return Fraction(number * Fraction(10) ** int(exponent[1:]))
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return Fraction(number * Fraction(10) ** _DECIMAL[suffix]) if suffix else number
