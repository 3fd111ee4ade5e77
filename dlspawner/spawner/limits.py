"""Whether jobs are counted by now, in a Hub that read its files when it started.

What people are offered needs a restart of the Hub. The Manager reads the files whenever they change, so the first
limits that they get would be kept by nobody until then: jobs would be made without a question. So the Hub looks whether
the files were changed, as long as they had no limits when it read them, and asks from the first limits on. Files with
mistakes change nothing, as in the Manager. Whoever has begun to ask goes on asking: that is never wrong.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dlspawner import settings
from dlspawner.errors import InvalidConfiguration

log = logging.getLogger("dlspawner.spawner")


@dataclass(slots=True)
class Limits:
    """Of these files; ``have_come`` asks nothing but when they were changed, unless they were."""

    templates: Path
    cluster: Path
    teams: Path
    come: bool = False
    _seen: settings.Stamps = field(default=())

    def __post_init__(self) -> None:
        self._seen = self._stamps()

    def have_come(self) -> bool:
        """Whether the files have had limits at any look since they were read."""
        stamps = self._stamps()
        if self.come or stamps == self._seen:
            return self.come
        self._seen = stamps
        try:
            found = settings.load(self.templates, self.cluster, self.teams)
        except InvalidConfiguration as wrong:
            log.error("the files were changed, and have mistakes:\n%s", wrong)  # noqa: TRY400 - no fault of ours
            return False
        self.come = found.teams.has_limits(found.cluster)
        if self.come:
            log.warning(
                "teams=%s cluster=%s have limits now: the Manager is asked about every job from now on. What the forms "
                "offer and say is as before until the Hub is restarted",
                *(self.teams, self.cluster),
            )
        return self.come

    def _stamps(self) -> settings.Stamps:
        return settings.stamps(self.templates, self.cluster, self.teams)


@cache
def of(templates_dir: str, cluster_file: str, teams_file: str) -> Limits:
    """One for all spawners of this process; to be made before the files are read."""
    return Limits(Path(templates_dir) / "jobs", Path(cluster_file), Path(teams_file))
