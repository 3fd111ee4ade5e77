"""The administrators' files in the Hub: read at the first use, and again whenever one of them changes.

The Manager reads the same files by the same rule, within a second, so the form offers only what the Manager admits.
Files that become invalid while the Hub runs change nothing: the last good version stays, and the problems are logged.
The Hub's configuration reads the files first (``demand``), so there is a good version from its start on: theirs, or,
where they are invalid, the one that the Manager has stored.

Once the files have had limits, the spawner keeps sending requests to the Manager, also when the limits are removed:
that is never wrong.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dlspawner import settings
from dlspawner.errors import InvalidConfiguration

log = logging.getLogger("dlspawner.spawner")

LOOK_SECONDS = 0.05  # between two checks: a page with many jobs reads the files many times


@dataclass(slots=True)
class CurrentConfig:
    """The paths of the files, and their last good version."""

    templates: Path
    cluster: Path
    teams: Path
    demands: Mapping[str, Any] = field(default_factory=dict)  # the Hub's arguments of `settings.load`
    _good: settings.Settings | None = None
    _limited: bool = False
    _seen: settings.Stamps = field(default=())
    _looked: float = 0.0

    def demand(self, stored: Callable[[], Mapping[str, str]] = dict, **demands: Any) -> settings.Settings:
        """Reads the files at the Hub's start; ``demands`` are the arguments of `settings.load`, now and later.

        ``stored`` returns the texts of the last good version, which is used while the files are invalid.
        """
        self.demands = demands
        try:
            return self._read(self._stamps())
        except InvalidConfiguration as wrong:
            before = self._good
            try:
                good = self._use(settings.load_texts(stored(), **demands))
            except InvalidConfiguration:  # there is none, or it is not good any more
                raise wrong from None
            if good != before:
                log.error("the files are not used, the last good version, the Manager's, is:\n%s", wrong)  # noqa: TRY400
            return good

    def now(self) -> settings.Settings:
        """Returns the last good version; ``InvalidConfiguration`` if there has been none."""
        if self._good is None:
            return self._read(self._stamps())
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look(self._good)
        return self._good

    def limited(self) -> bool:
        """True if the files have had limits at any read."""
        self.now()
        return self._limited

    def _look(self, before: settings.Settings) -> None:
        stamps = self._stamps()
        self._looked = time.monotonic()
        if stamps == self._seen:
            return
        was_limited = self._limited
        try:
            found = self._read(stamps)
        except InvalidConfiguration as wrong:
            log.error(  # noqa: TRY400 - a file with mistakes is no fault of ours
                "the files were changed and are not used, the last good version stays:\n%s", wrong
            )
            return
        if found != before:
            log.info("cluster=%s teams=%s read anew", self.cluster, self.teams)
        if self._limited and not was_limited:
            log.warning(
                "teams=%s cluster=%s have limits now: the Manager is asked about every job from now on",
                *(self.teams, self.cluster),
            )

    def _read(self, stamps: settings.Stamps) -> settings.Settings:
        """Reads the files; ``stamps`` were taken before, so that a change meanwhile is noticed later."""
        self._seen = stamps
        return self._use(settings.load(self.templates, self.cluster, self.teams, **self.demands))

    def _use(self, good: settings.Settings) -> settings.Settings:
        self._good = good
        self._limited = self._limited or self._good.teams.has_limits(self._good.cluster)
        return self._good

    def _stamps(self) -> settings.Stamps:
        return settings.stamps(self.templates, self.cluster, self.teams)


@cache
def current_config(templates_dir: str, cluster_file: str, teams_file: str) -> CurrentConfig:
    """Returns the one instance for all spawners of this process."""
    return CurrentConfig(Path(templates_dir) / "jobs", Path(cluster_file), Path(teams_file))
