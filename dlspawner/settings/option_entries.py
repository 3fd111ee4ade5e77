"""The ``options:`` of a template, typed; defaults must themselves be permitted values."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from dlspawner.core import units
from dlspawner.core.config import ClusterConfig
from dlspawner.core.launch.options import BUILT_IN, TEMPLATE_KEY, check_value
from dlspawner.core.launch.rendering import (
    CHOICE_PLACEHOLDERS,
    CONTEXT_PLACEHOLDERS,
    PATH_PLACEHOLDERS,
)
from dlspawner.core.template import Option, OptionChoice, OptionKind
from dlspawner.settings.document import Entry, Section

_KEYS = ("type", "title", "help", "default", "min", "max", "choices", "pattern", "multiline")
_RANGED = frozenset({OptionKind.INTEGER, OptionKind.NUMBER, OptionKind.QUANTITY})
_TEXTUAL = frozenset({OptionKind.STRING, OptionKind.PATH, OptionKind.IMAGE})
_NAME = r"[a-z][a-z0-9_]{0,39}"
_OWN_MEANING = CONTEXT_PLACEHOLDERS | PATH_PLACEHOLDERS | CHOICE_PLACEHOLDERS | {TEMPLATE_KEY}


def read_options(template: Section, cluster: ClusterConfig) -> tuple[Option, ...]:
    """Returns the options in the order of the file, which is the form's."""
    options = []
    for name, entry in template.children("options").items():
        base = BUILT_IN.get(name)
        if base is None and name in _OWN_MEANING:
            entry.problem(f"“{name}” already means something else in every template; choose another name.")
            continue
        if not re.fullmatch(_NAME, name, re.ASCII):
            entry.problem("an option's name is made of small letters, digits and underscores, at most 40.")
        option = _option(name, entry, base)
        _check_default(option, entry, cluster)
        options.append(option)
    return tuple(options)


def _option(name: str, entry: Entry, base: Option | None) -> Option:
    section = entry.section(_KEYS)
    kind = _kind(section, base)
    own = base or Option(name, kind, title=name.replace("_", " ").capitalize())
    low, high = _bound(section, "min", kind), _bound(section, "max", kind)
    option = replace(
        own,
        default=_default(section),
        minimum=own.minimum if low is None else low,
        maximum=own.maximum if high is None else high,
        choices=_choices(section, kind),
        pattern=_pattern(section, kind),
        multiline=section.boolean("multiline", default=False),
    )
    option = replace(option, title=section.text("title", option.title), help=section.text("help", option.help))
    low, high = option.minimum, option.maximum
    if low is not None and high is not None and low > high:
        entry.problem("min is more than max.")
    if option.multiline and kind is not OptionKind.STRING:
        entry.problem("multiline is only for options of type string.")
    return option


def _kind(section: Section, base: Option | None) -> OptionKind:
    if base is None:
        found = section.need("type")
        return found.one_of(OptionKind) if found else OptionKind.STRING
    found = section.get("type")
    if found is not None and found.value != base.kind.value:
        found.problem(f"“{base.name}” is always of type {base.kind.value}; leave the type out.")
    return base.kind


def _default(section: Section) -> bool | int | float | str | None:
    found = section.get("default")
    if found is None:
        return None
    if isinstance(found.value, bool | int | float | str):
        return found.value
    found.problem("must be one plain value.")
    return None


def _bound(section: Section, key: str, kind: OptionKind) -> int | float | Fraction | None:
    found = section.get(key)
    if found is None:
        return None
    if kind not in _RANGED:
        found.problem(f"{key} is only for options of type {', '.join(sorted(one.value for one in _RANGED))}.")
        return None
    if kind is OptionKind.QUANTITY:
        return units.parse_quantity("0") if found.value == 0 else found.quantity()
    if kind is OptionKind.INTEGER:
        return found.integer(-(10**15), 10**15)
    if isinstance(found.value, int | float) and not isinstance(found.value, bool):
        return found.value
    found.problem("must be a number.")
    return None


def _choices(section: Section, kind: OptionKind) -> tuple[OptionChoice, ...]:
    found = section.get("choices")
    if found is None:
        name = section.entry.path.rpartition(".")[2]
        if kind is OptionKind.CHOICE and name not in BUILT_IN:
            section.need("choices")
        return ()
    if kind not in _TEXTUAL | {OptionKind.CHOICE}:
        found.problem(f"choices are not for options of type {kind.value}.")
        return ()
    if isinstance(found.value, dict):
        return tuple(OptionChoice(value, title.text()) for value, title in found.value.items())
    return tuple(OptionChoice(text, text) for text in section.texts("choices"))


def _pattern(section: Section, kind: OptionKind) -> str | None:
    found = section.get("pattern")
    if found is None:
        return None
    if kind not in _TEXTUAL:
        found.problem(f"a pattern is not for options of type {kind.value}.")
        return None
    pattern = found.text()
    try:
        re.compile(pattern)
    except re.error as error:
        found.problem(f"is not a regular expression: {error}.")
        return None
    return pattern


def _check_default(option: Option, entry: Entry, cluster: ClusterConfig) -> None:
    of_cluster = {
        "gpu_type": ("GPU type", [kind.name for kind in cluster.gpu_types]),
        "priority": ("priority", [level.name for level in cluster.priorities]),
    }
    if option.name in of_cluster:
        what, names = of_cluster[option.name]
        for choice in option.choices:
            entry.expect(choice.value, names, what, against_cluster=True)
        option = replace(option, choices=option.choices or tuple(OptionChoice(name, name) for name in names))
    for choice in option.choices if option.kind in _TEXTUAL else ():
        wrong = check_value(replace(option, choices=()), choice.value)
        if wrong is not None:
            entry.problem(f"the choice “{choice.value}” is not allowed: {wrong}")
    if option.name == "team" and option.default is not None:
        entry.problem("team has no default: it is the person's own.")
    elif option.default is not None:
        wrong = check_value(option, option.default)
        if wrong is not None:
            entry.problem(
                f"the default is not allowed: {wrong}", against_cluster=option.name in {"gpu_type", "priority"}
            )
