"""Kubernetes quantities (``500m``, ``1.5``, ``16Gi``) as exact fractions, and amounts as text.

Fractions, because ``0.1`` as a float is more than ``100m`` and a limit must not depend on that. GPUs are counted in
thousandths, so that shares of a GPU fit; files, forms and sentences have whole GPUs.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

# The grammar of k8s.io/apimachinery/pkg/api/resource/quantity.go without negative numbers; of so many digits at most.
_QUANTITY = re.compile(
    r"\+?(?=\.?[0-9])([0-9]{0,40}\.?[0-9]{0,40})(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_LARGEST = 2**63 - 1


def parse_quantity(text: str) -> Fraction | None:
    """The number that a quantity means, ``None`` for what is no quantity or more than Kubernetes can hold."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        value *= Fraction(10) ** int(exponent)
    elif suffix in _BINARY:
        value *= 1024 ** _BINARY[suffix]
    elif suffix:
        value *= Fraction(10) ** _DECIMAL[suffix]
    return value if value <= _LARGEST else None


def cpu_milli(value: Fraction) -> int:
    """Thousandths of a CPU, rounded up as Kubernetes does."""
    return -(-value.numerator * 1000 // value.denominator)


def memory_bytes(value: Fraction) -> int:
    """Whole bytes, rounded up as Kubernetes does."""
    return -(-value.numerator // value.denominator)


def cpu(milli: int) -> str:
    """Returns thousandths of a CPU as Kubernetes and users write them: ``4`` or ``500m``."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def memory(count: int) -> str:
    """Returns bytes as Kubernetes and users write them: in the largest binary unit that needs no fraction."""
    for suffix, power in reversed(_BINARY.items()):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{suffix}"
    return str(count)


def size(count: int) -> str:
    """So much memory for people, as the command line says it: in MiB, GiB or TiB, with two decimals at most."""
    unit = "TiB" if count >= 2**40 else "GiB" if count >= 2**30 else "MiB"
    return f"{round(count / 1024 ** _BINARY[unit.removesuffix('B')], 2):g} {unit}"


def at_most(count: int) -> int:
    """No more bytes than these, as people write them: whole GiB where there are many, whole MiB otherwise."""
    unit = 2**30 if count >= 10 * 2**30 else 2**20
    return max(0, count // unit * unit)


GPU = 1000  # milli-GPUs of a whole one


def shown(milli: int) -> str:
    """Returns milli-GPUs as users write them: ``2``, ``0.5``."""
    return f"{milli / GPU:.3f}".rstrip("0").rstrip(".")


def counted(milli: int, what: str = "GPU") -> str:
    """The amount with its word: ``1 GPU``, ``3 GPUs``, ``0.5 GPUs``."""
    return f"{shown(milli)} {what}{'' if milli == GPU else 's'}"


def free_of_them(milli: int) -> str:
    """Returns the phrase for the free part of a named amount: ``1 of them is free``, ``3 of them are free``."""
    return f"{shown(milli)} of them {'is' if milli == GPU else 'are'} free"


Manifest = dict[str, Any]
