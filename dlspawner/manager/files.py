"""The administrators' files as the Manager sees them: read at start, and again whenever one of them changes.

A file that breaks while the Manager runs changes nothing: the last good version stays, the log says what is wrong, and
administrators are told that something is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from dlspawner import settings
from dlspawner.errors import InvalidConfiguration, Problem

log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Files:
    """Where the files are, and their last good version."""

    templates: Path
    cluster: Path
    teams: Path
    problems: tuple[Problem, ...] = ()  # of the version that is there now and not used
    _seen: tuple[tuple[int, int], ...] = field(default=())

    def load(self) -> settings.Settings:
        """Read them now; InvalidConfiguration has every problem of all of them."""
        self._seen = self._stamps()
        found = settings.load(self.templates, self.cluster, self.teams)
        self.problems = ()
        return found

    def changed(self) -> settings.Settings | None:
        """The new version, if there is one and it is good."""
        if self._stamps() == self._seen:
            return None
        try:
            found = self.load()
        except InvalidConfiguration as wrong:
            self.problems = wrong.problems
            log.error(  # noqa: TRY400 - a file with mistakes is no fault of ours
                "the files were changed and are not used, the last good version stays:\n%s", wrong
            )
            return None
        log.info("cluster=%s teams=%s read anew", self.cluster, self.teams)
        return found

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        """When each file was changed; one that is being replaced is looked at again."""
        found = []
        for file in (self.cluster, self.teams, *sorted(self.templates.glob("*.y*ml"))):
            try:
                status = file.stat()
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size))
        return tuple(found)
