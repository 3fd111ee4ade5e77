"""Reloads the administrators' files: read at start, and again after every change.

An invalid file changes nothing while the Manager runs: the last good version stays, the log has the problems, and
administrators are notified. The leader stores the texts of that version in the database, all files together because
they are checked together, so that a Manager that starts, or takes over, while a file is invalid continues with the
version that was in use (``initial``, ``newer``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dlspawner import settings
from dlspawner.errors import InvalidConfiguration, Problem
from dlspawner.manager.db import config_versions
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import DatabaseUnavailable

log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class ConfigReloader:
    """The files and their last good version."""

    templates: Path
    cluster: Path
    teams: Path
    demands: Mapping[str, Any] = field(default_factory=dict)  # arguments of `settings.load`, as the Hub has them
    problems: tuple[Problem, ...] = ()  # of the present version, which is not used
    texts: Mapping[str, str] = field(default_factory=dict)  # of the last good version
    _seen: settings.Stamps = field(default=())

    def load(self) -> settings.Settings:
        """Reads the files; InvalidConfiguration has every problem of all of them."""
        self._seen = self._stamps()
        found = settings.load(self.templates, self.cluster, self.teams, **self.demands)
        self.problems = ()
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts = {name: file.read_text(encoding="utf-8") for name, file in self._named().items()}
            if self._stamps() == self._seen:  # else they are read again soon
                self.texts = texts
        return found

    def parse_stored(self, texts: Mapping[str, str]) -> settings.Settings | None:
        """Returns the settings of stored texts; ``None`` without any, or if they are not valid any more."""
        if not texts:
            return None
        try:
            return settings.load_texts(texts, **self.demands)
        except InvalidConfiguration as wrong:
            log.error("the last good version of the files is not good any more:\n%s", wrong)  # noqa: TRY400
            return None

    def changed(self) -> settings.Settings | None:
        """Returns the new version, if there is one and it is valid."""
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
        log.info("cluster=%s teams=%s reloaded", self.cluster, self.teams)
        return found

    def _named(self) -> dict[str, Path]:
        """Returns every file by its name in the database."""
        templates = {f"jobs/{file.name}": file for file in sorted(self.templates.glob("*.y*ml"))}
        return {"cluster": self.cluster, "teams": self.teams, **templates}

    def _stamps(self) -> settings.Stamps:
        return settings.stamps(self.templates, self.cluster, self.teams)


async def initial(files: ConfigReloader, repository: JobRepository) -> settings.Settings:
    """Returns the settings at start; InvalidConfiguration if neither the files nor the stored version are valid."""
    try:
        return await asyncio.to_thread(files.load)
    except InvalidConfiguration as wrong:
        try:
            kept = await asyncio.to_thread(files.parse_stored, await repository.read(config_versions.read_versions))
        except DatabaseUnavailable:
            kept = None
        if kept is None:
            raise
        files.problems = wrong.problems
        log.error("the files are not used, the last good version, from the database, is:\n%s", wrong)  # noqa: TRY400
        return kept


async def newer(files: ConfigReloader, repository: JobRepository) -> settings.Settings | None:
    """Returns the settings that a new leader uses instead of those it read before; ``None`` to keep them."""
    found = await asyncio.to_thread(files.changed)
    if found is None and files.problems:
        return await asyncio.to_thread(files.parse_stored, await repository.read(config_versions.read_versions))
    return found


async def persist(files: ConfigReloader, repository: JobRepository, term: int) -> None:
    """Stores the version that is in use, unless it is stored already."""
    texts = files.texts
    if not files.problems and texts and await repository.read(config_versions.read_versions) != texts:
        await repository.write_as_leader(term, partial(config_versions.write_versions, texts=texts))
