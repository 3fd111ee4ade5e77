"""Where jobs are: the ordinary namespace, and the second one of jobs with special permissions. PURE.

The Manager counts, stops and looks for pods in both alike. What is kept of a pod names the second one only, so that
what was written before there was one reads as it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobNamespaces:
    """``special``: of jobs with special permissions; empty where there are none."""

    ordinary: str
    special: str = ""

    @property
    def all(self) -> Sequence[str]:
        return (self.ordinary, self.special) if self.special and self.special != self.ordinary else (self.ordinary,)

    @property
    def elsewhere(self) -> str:
        """The field selector of everything that is in none of them."""
        return ",".join(f"metadata.namespace!={one}" for one in self.all)

    def to_key(self, namespace: str) -> str:
        """Returns the stored form of a namespace: empty for the ordinary one."""
        return "" if namespace == self.ordinary else namespace

    def from_key(self, kept: str) -> str:
        """The namespace that was kept like this."""
        return kept or self.ordinary

    def of(self, *, special: bool) -> str:
        """Returns the namespace that a job must be in; empty for none."""
        return self.special if special else self.ordinary
