"""Holes: ``${name}`` in the texts of a template, filled leaf by leaf after the YAML is parsed.

* A text that is one hole and nothing else takes the value with its type (a number stays a number); within other text a
  hole is written out. Values are never searched for holes again and never become keys, so no value can change the
  structure that an administrator wrote.
* ``$$`` is a dollar. Any other ``$`` that does not begin ``${`` stays, so Kubernetes' ``$(POD_IP)`` and a shell's
  ``$HOME`` pass untouched.
* Kubernetes itself expands ``$(NAME)`` in commands and environment values. There a *value* has its dollars doubled, so
  that it arrives as it was typed; and what must be text (commands, environment, labels) becomes text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[a-z][a-z0-9_]*")

# Where Kubernetes wants text, and where it expands $(NAME) once more.
_TEXT_PARENTS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels"})
_EXPANDED_LISTS = frozenset({"command", "args"})


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A hole and where it is; ``name`` is ``None`` when the text after ``${`` is no name."""

    path: tuple[str | int, ...]
    name: str | None
    text: str


class MissingValueError(Exception):
    """A hole has no value at this launch."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def find_placeholders(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[Placeholder]:
    """Every hole in a tree of mappings, sequences and leaves; holes in keys are found too, to be refused."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from (Placeholder(path, None, hole.text) for hole in find_placeholders(key))
            yield from find_placeholders(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from find_placeholders(value, (*path, index))
    elif isinstance(tree, str):
        for match in _TOKEN.finditer(tree):
            if match.group() != "$$":
                name = match.group(1)
                yield Placeholder(path, name if name and _NAME.fullmatch(name) else None, match.group())


def substitute(tree: Any, values: Mapping[str, Any], path: tuple[str | int, ...] = ()) -> Any:
    """A new tree with every hole filled; ``MissingValueError`` for one whose value is ``None`` or not there."""
    if isinstance(tree, Mapping):
        return {key: substitute(value, values, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [substitute(value, values, (*path, index)) for index, value in enumerate(tree)]
    return _substitute_text(tree, values, path) if isinstance(tree, str) else tree


def escape_expansion(value: str) -> str:
    """The text that Kubernetes turns back into ``value`` where it expands ``$(NAME)`` and ``$$``."""
    return re.sub(r"\$\$+|\$(?=\(|\Z)", lambda run: run.group() * 2, value)


def _substitute_text(text: str, values: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
    expanded = _is_expanded(path)
    whole = _TOKEN.fullmatch(text)
    if whole and whole.group(1) is not None and not expanded and not _TEXT_PARENTS.intersection(path):
        return _value(whole.group(1), values)

    def one(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        written = _written(_value(match.group(1) or "", values))
        return escape_expansion(written) if expanded else written

    return _TOKEN.sub(one, text)


def _is_expanded(path: tuple[str | int, ...]) -> bool:
    parent = path[-2] if len(path) > 1 else None
    return parent in _EXPANDED_LISTS or (path[-1:] == ("value",) and "env" in path[-3:-1])


def _value(name: str, values: Mapping[str, Any]) -> Any:
    value = values.get(name)
    if value is None:
        raise MissingValueError(name)
    return value


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
