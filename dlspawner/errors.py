"""The exception for invalid files of the administrator, which every process raises at its start.

Decisions are values, not exceptions (``core.decisions``). Each client of a foreign API translates the errors of that
API at once and defines its exceptions beside itself; `spawner.kube.errors.StartRefused` is an exception of JupyterHub.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake in a file: its place, and a sentence."""

    file: str
    line: int
    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: {self.sentence}"


class InvalidConfiguration(Exception):
    """The configuration can not be used; ``problems`` has all mistakes, in the order of the files."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the configuration:"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])
