"""One value of one option: what a string of a form or a JSON value means, or the sentence that says what is wrong.

Accepted are exactly the value's own type and a string that spells it. Refused on purpose: ``true`` as the number 1,
``2.0`` as a whole number, ``NaN``, lists and objects, control characters, also those of the direction of writing, half
surrogate pairs, and what is too long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from dlspawner.core import quantity
from dlspawner.core.template import Option, OptionKind, Value

LONGEST = {OptionKind.STRING: 4096, OptionKind.PATH: 1024, OptionKind.IMAGE: 512}

_IMAGE = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_TRUE, _FALSE = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0"})
# Control characters other than tab and line ends; what turns the direction of writing, so that a text reads otherwise
# than it is; Unicode's own line ends; halves of surrogate pairs, which JSON can carry and UTF-8 can not.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_Number = TypeVar("_Number", int, float)


class WrongValueError(Exception):
    """A value is wrong; the text is the rest of a sentence that begins with the option's title."""


def read_value(option: Option, value: object) -> Value | None:
    """The value in the option's own type; its default, or ``None`` without one, where nothing was given."""
    if value is None or value == "":
        if option.default is None:
            return None
        value = option.default
    if not isinstance(value, bool | int | float | str):
        raise WrongValueError(f"must be one plain value, not {show(value)}.")
    return _READERS[option.kind](option, value)


def check_value(option: Option, value: object) -> str | None:
    """What is wrong with a value of an option as a sentence, ``None`` when it is right; for defaults in files."""
    try:
        read_value(replace(option, default=None), value)
    except WrongValueError as wrong:
        return f"{option.title or option.name} {wrong}"
    return None


def show(value: object) -> str:
    """A value of unknown origin, short and without control characters, for a sentence."""
    if isinstance(value, str):
        text = "".join(letter if letter.isprintable() else "�" for letter in value[:41])
        return f"“{text[:40]}…”" if len(text) > 40 else f"“{text}”"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else "a huge number"
    if isinstance(value, float):
        return f"{value:g}"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def _integer(option: Option, value: Value) -> int:
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value, re.ASCII):
        number = int(value)
    if number is None:
        raise WrongValueError(f"must be a whole number{_range(option)}; you gave {show(value)}.")
    return _within(option, number, "asked for")


def _number(option: Option, value: Value) -> float:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.nan
    elif isinstance(value, str) and re.fullmatch(
        r"\s*[+-]?[0-9]{0,20}\.?[0-9]{1,20}([eE][+-]?[0-9]{1,2})?\s*", value, re.ASCII
    ):
        number = float(value)
    if not math.isfinite(number):
        raise WrongValueError(f"must be a number{_range(option)}; you gave {show(value)}.")
    return _within(option, number, "gave")


def _within(option: Option, number: _Number, verb: str) -> _Number:
    low, high = option.minimum, option.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise WrongValueError(f"must be{_range(option)}; you {verb} {show(number)}.")
    return number


def _range(option: Option) -> str:
    low, high = (None if bound is None else _bound(option, bound) for bound in (option.minimum, option.maximum))
    if low is not None and high is not None:
        return f" between {low} and {high}"
    if low is not None:
        return f" at least {low}"
    return f" at most {high}" if high is not None else ""


def _bound(option: Option, bound: int | float | Fraction) -> str:
    if option.kind is OptionKind.QUANTITY:
        exact = Fraction(bound)
        return (
            quantity.memory(int(exact))
            if exact >= 1024 and exact.denominator == 1
            else quantity.cpu(quantity.cpu_milli(exact))
        )
    return f"{float(bound):g}" if isinstance(bound, float) else str(bound)


def _boolean(_: Option, value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise WrongValueError(f"must be yes or no; you gave {show(value)}.")


def _choice(option: Option, value: Value) -> str:
    text = value if isinstance(value, str) else show(value)
    names = [choice.value for choice in option.choices]
    if text not in names:
        one_of = f"must be one of {', '.join(names)}" if names else "has nothing to choose from"
        raise WrongValueError(f"{one_of}; you chose {show(value)}.")
    return text


def _quantity(option: Option, value: Value) -> str:
    text = value.strip() if isinstance(value, str) else show(value)
    number = None if isinstance(value, bool) else quantity.parse_quantity(text)
    if number is None:
        raise WrongValueError(f"must be an amount such as 4, 500m or 16Gi; you gave {show(value)}.")
    low, high = option.minimum, option.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise WrongValueError(f"must be{_range(option)}; you asked for {text}.")
    return text


def _text(option: Option, value: Value) -> str:
    if not isinstance(value, str):
        raise WrongValueError(f"must be text; you gave {show(value)}.")
    longest = LONGEST[option.kind]
    if len(value) > longest:
        raise WrongValueError(f"must be at most {longest} characters long; yours has {len(value)}.")
    if _UNPRINTABLE.search(value) or (not option.multiline and re.search(r"[\t\r\n]", value)):
        raise WrongValueError(f"must {'be printable text' if option.multiline else 'be one line of printable text'}.")
    if option.pattern is not None and not re.fullmatch(option.pattern, value):
        raise WrongValueError(f"must match {option.pattern}; you gave {show(value)}.")
    if option.choices:
        return _choice(option, value)
    if option.kind is OptionKind.IMAGE and not _IMAGE.fullmatch(value):
        raise WrongValueError(f"must be an image such as registry.example.org/team/name:tag; you gave {show(value)}.")
    if option.kind is OptionKind.PATH and ".." in value.split("/"):
        raise WrongValueError(f"must not contain “..”; you gave {show(value)}.")
    return value


_READERS: dict[OptionKind, Callable[[Option, Value], Value]] = {
    OptionKind.INTEGER: _integer,
    OptionKind.NUMBER: _number,
    OptionKind.BOOLEAN: _boolean,
    OptionKind.CHOICE: _choice,
    OptionKind.QUANTITY: _quantity,
    OptionKind.STRING: _text,
    OptionKind.PATH: _text,
    OptionKind.IMAGE: _text,
}
