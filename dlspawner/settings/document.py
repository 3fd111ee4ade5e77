"""A YAML file with its line numbers: every value has its place in the file, and every wrong one becomes a problem.

Reading continues after a problem with a substitute value, so that an administrator sees all problems at once. Only
plain YAML is read: no tags, no merge keys, no key twice; a timestamp stays text.

Refused: a schema library: its errors have the path but not the line, and its sentences are about schemas.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dlspawner.core import units
from dlspawner.core.text import show
from dlspawner.errors import Problem

_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset({"str", "int", "float", "bool", "null", "timestamp"})
_DEEPEST, _LARGEST = 60, 50_000
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # unfit for pages and for programs
_LARGEST_NUMBER = 10**18

_UNWRITABLE = "holds a character that no text may hold (\\0, or half of one)."

_Kind = TypeVar("_Kind", bound=Enum)


@dataclass(slots=True)
class Problems:
    """All problems so far, in all files. With a ``wrong_cluster`` file what contradicts it is ``left_out``."""

    found: list[Problem] = field(default_factory=list)
    wrong_cluster: bool = False
    left_out: bool = False

    def in_order(self) -> list[Problem]:
        """Returns the problems file by file in the order of reading, each from its top to its end."""
        files = list(dict.fromkeys(problem.file for problem in self.found))
        return sorted(self.found, key=lambda problem: (files.index(problem.file), problem.line))

    def add(self, file: str, line: int, path: str, sentence: str) -> None:
        problem = Problem(file, line, path or ".", sentence)
        if problem not in self.found:
            self.found.append(problem)


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and its place; ``value`` is a scalar, a mapping of entries or a list of entries."""

    value: Any
    file: str
    line: int
    path: str
    problems: Problems = field(repr=False, compare=False)

    def problem(self, sentence: str, *, against_cluster: bool = False) -> None:
        """Adds a problem, unless the cluster file, which contradicts, is wrong itself."""
        if against_cluster and self.problems.wrong_cluster:
            self.problems.left_out = True
        else:
            self.problems.add(self.file, self.line, self.path, sentence)

    def expect(self, word: object, known: Collection[str], what: str, *, against_cluster: bool = False) -> None:
        """Adds a problem if a text is none of the ``known`` names of ``what``; what is no text has one already."""
        if isinstance(word, str) and word not in known:
            there = f"There are: {', '.join(known)}." if known else "There are none."
            near = did_you_mean(word, known)
            self.problem(f"there is no {what} “{word}”{near}. {there}", against_cluster=against_cluster)

    def plain(self) -> Any:
        """Returns the value without places, as in the YAML."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value

    def walk(self) -> Iterator[Entry]:
        yield self
        children = self.value.values() if isinstance(self.value, dict) else self.value
        if isinstance(self.value, dict | list):
            for child in children:
                yield from child.walk()

    def entries(self) -> dict[str, Entry]:
        """Returns a mapping with keys chosen by the administrator."""
        if isinstance(self.value, dict):
            return self.value
        if self.value is not None:
            self.problem(f"must be a mapping, not {_called(self.value)}.")
        return {}

    def items(self) -> list[Entry]:
        if isinstance(self.value, list):
            return self.value
        if self.value is not None:
            self.problem(f"must be a list, not {_called(self.value)}.")
        return []

    def section(self, known: Collection[str]) -> Section:
        """Returns a mapping with the format's keys; other keys are problems."""
        entries = self.entries()
        for key in entries.keys() - set(known):
            self.problems.add(
                self.file,
                entries[key].line,
                entries[key].path,
                f"there is no such key{did_you_mean(key, known)}. Known here: {', '.join(sorted(known))}.",
            )
        return Section(self, entries)

    def text(self, pattern: str | None = None, hint: str = "") -> str:
        if not isinstance(self.value, str):
            self.problem(f"must be text, not {_called(self.value)}.")
            return ""
        if pattern is not None and not re.fullmatch(pattern, self.value):
            self.problem(f"{show(self.value)} must be {hint or f'text that matches {pattern}'}.")
        return self.value

    def named(self, name: str, pattern: str, hint: str) -> None:
        """Checks that the key of this entry looks like a name."""
        Entry(name, self.file, self.line, self.path, self.problems).text(pattern, hint)

    def integer(self, low: int, high: int) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.problem(f"must be a whole number, not {_called(self.value)}.")
            return low
        if not low <= self.value <= high:
            self.problem(f"must be between {low} and {high}, not {show(self.value)}.")
            return low
        return self.value

    def gpus(self, low: int, high: int) -> Fraction:
        """Returns a number of GPUs: whole, or with parts, such as 0.5 or “2/7”."""
        text = str(self.value) if isinstance(self.value, str | int | float) and not isinstance(self.value, bool) else ""
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3}|/[1-9][0-9]{0,2})?", text):
            self.problem(f"must be a number of GPUs, such as 4, 0.5 or 2/7, not {_called(self.value)}.")
            return Fraction(1)
        if not low <= Fraction(text) <= high:
            self.problem(f"must be between {low} and {high}, not {show(self.value)}.")
            return Fraction(1)
        return Fraction(text)

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            self.problem(f"must be true or false, not {_called(self.value)}.")
            return False
        return self.value

    def quantity(self) -> Fraction:
        """Returns an amount above 0, written as a number or in Kubernetes' notation."""
        text = str(self.value) if isinstance(self.value, str | int | float) else ""
        parsed = None if isinstance(self.value, bool) else units.parse_quantity(text)
        if parsed is None or parsed == 0:
            self.problem(f"must be an amount such as 4, 500m or 16Gi, not {_called(self.value)}.")
            return Fraction(1)
        return parsed

    def one_of(self, kind: type[_Kind]) -> _Kind:
        members = {str(member.value): member for member in kind}
        if isinstance(self.value, str) and self.value in members:
            return members[self.value]
        given = self.value if isinstance(self.value, str) else ""
        self.problem(
            f"must be one of {', '.join(members)}, not {_called(self.value)}{did_you_mean(given, list(members))}."
        )
        return next(iter(kind))

    def seconds(self, low: int, high: int) -> timedelta:
        return timedelta(seconds=self.integer(low, high))


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with the format's keys; ``null`` counts as left out."""

    entry: Entry
    entries: dict[str, Entry]

    def get(self, key: str) -> Entry | None:
        found = self.entries.get(key)
        return found if found is not None and found.value is not None else None

    def need(self, key: str) -> Entry | None:
        found = self.get(key)
        if found is None:
            path = f"{self.entry.path}.{key}" if self.entry.path else key
            self.entry.problems.add(self.entry.file, self.entry.line, path, "is missing.")
        return found

    def section(self, key: str, known: Collection[str]) -> Section | None:
        found = self.get(key)
        return None if found is None else found.section(known)

    def text(self, key: str, default: str = "", pattern: str | None = None, hint: str = "") -> str:
        found = self.get(key)
        return default if found is None else found.text(pattern, hint)

    def need_text(self, key: str, pattern: str | None = None, hint: str = "") -> str:
        found = self.need(key)
        return "" if found is None else found.text(pattern, hint)

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        found = self.get(key)
        return default if found is None else found.integer(low, high)

    def maybe_integer(self, key: str, low: int, high: int) -> int | None:
        found = self.get(key)
        return None if found is None else found.integer(low, high)

    def maybe_seconds(self, key: str, low: int, high: int) -> timedelta | None:
        found = self.get(key)
        return None if found is None else found.seconds(low, high)

    def boolean(self, key: str, default: bool) -> bool:
        found = self.get(key)
        return default if found is None else found.boolean()

    def one_of(self, key: str, default: _Kind) -> _Kind:
        found = self.get(key)
        return default if found is None else found.one_of(type(default))

    def items(self, key: str) -> list[Entry]:
        found = self.get(key)
        return [] if found is None else found.items()

    def children(self, key: str) -> dict[str, Entry]:
        found = self.get(key)
        return {} if found is None else found.entries()

    def texts(self, key: str, pattern: str | None = None, hint: str = "") -> tuple[str, ...]:
        seen: dict[str, Entry] = {}
        for entry in self.items(key):
            text = entry.text(pattern, hint)
            if text in seen:
                entry.problem(f"{show(text)} is already in line {seen[text].line}.")
            seen.setdefault(text, entry)
        return tuple(seen)


def did_you_mean(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word[:64], list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def parse(text: str, file: str, problems: Problems) -> Entry | None:
    """Returns the root of a YAML text; ``None`` (and a problem) if it cannot be read at all."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(file, mark.line + 1 if mark else 1, "", f"this is not YAML: {error.problem or error.context}.")
        return None
    except yaml.YAMLError as error:
        problems.add(file, 1, "", f"this is not YAML: {str(error).splitlines()[0]}.")
        return None
    except RecursionError:
        problems.add(file, 1, "", "the file has too many lists and mappings inside each other.")
        return None
    if node is None:
        problems.add(file, 1, "", "the file is empty.")
        return None
    return _Builder(file, problems).build(node, "", 0)


def read(path: Path, problems: Problems) -> Entry | None:
    """Returns the root of a YAML file; ``None`` (and a problem) if it cannot be read at all."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        problems.add(str(path), 1, "", "the file is not UTF-8 text.")
    except OSError as error:
        problems.add(str(path), 1, "", f"the file can not be read: {error.strerror or error}.")
    else:
        return parse(text, str(path), problems)
    return None


@dataclass(slots=True)
class _Builder:
    """Turns YAML nodes into entries; counts them, because aliases can make a small file endless."""

    file: str
    problems: Problems
    count: int = 0

    def build(self, node: yaml.Node, path: str, depth: int) -> Entry:
        self.count += 1
        if depth > _DEEPEST or self.count > _LARGEST:
            if self.count <= _LARGEST + 1 or depth > _DEEPEST:
                self._problem(node, path, "the file is too large or too deep here (an alias of itself?).")
            return self._entry(None, node, path)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._entry(self._mapping(node, path, depth), node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            children = [self.build(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(node.value)]
            return self._entry(children, node, path)
        return self._entry(self._scalar(node, path), node, path)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Entry]:
        built: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key_node.tag == _TAG + "merge":
                self._problem(key_node, path, "a key must be plain text; merge keys (<<) are not read.")
                continue
            below = f"{path}.{key}" if path else key
            if key in built:
                self._problem(key_node, below, f"this key is already in line {built[key].line}.")
                continue
            child = self.build(value_node, below, depth + 1)
            if _NO_TEXT.search(key):
                self._problem(key_node, path, _UNWRITABLE)
                continue
            built[key] = Entry(child.value, self.file, key_node.start_mark.line + 1, below, self.problems)
        return built

    def _scalar(self, node: yaml.Node, path: str) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if not isinstance(node, yaml.ScalarNode) or kind not in _SCALARS:
            self._problem(node, path, f"the tag {node.tag.replace(_TAG, '!!')} is not read here.")
            return None
        if _NO_TEXT.search(node.value):
            self._problem(node, path, _UNWRITABLE)
            kind = "null"
        if kind == "null":
            return None
        if kind in {"str", "timestamp"}:
            return node.value
        try:
            value = yaml.SafeLoader("").construct_object(node)
        except (ValueError, OverflowError, LookupError):  # `!!bool perhaps` is the last
            return node.value
        if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
            self._problem(node, path, "the number is too large.")
        elif isinstance(value, float) and not math.isfinite(value):
            self._problem(node, path, "must be a finite number.")
        else:
            return value
        return None

    def _entry(self, value: Any, node: yaml.Node, path: str) -> Entry:
        return Entry(value, self.file, node.start_mark.line + 1, path, self.problems)

    def _problem(self, node: yaml.Node, path: str, sentence: str) -> None:
        self.problems.add(self.file, node.start_mark.line + 1, path, sentence)


def _called(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else show(value)
