"""The exceptions of the product, in one tree::

    DLSpawnerError
    └── InvalidConfiguration    the files of the administrator are wrong: carries every problem, stops the start

    dlspawner.spawner.Refused   a launch was refused in a sentence; lives there because it has to be one of JupyterHub's

Decisions are values, not exceptions (``core.decisions``). Each owner of an outside thing translates that thing's
errors at once and keeps its own small tree beside itself. This module imports nothing, so everybody may import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong in a file: where a person looks for it, and a sentence."""

    file: str
    line: int
    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: {self.sentence}"


class DLSpawnerError(Exception):
    """The root of the tree."""


class InvalidConfiguration(DLSpawnerError):
    """The configuration can not be used; ``problems`` are all of them, in the order of the files."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the configuration:"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])
