"""The settings that say how much is kept of what jobs print."""

from __future__ import annotations

from traitlets import Integer
from traitlets.config import Configurable

from dlspawner.known_settings import Float
from dlspawner.manager.logs.keeper import LogRetention


class JobLogs(Configurable):
    """How much the Manager keeps, in its database, of what jobs print."""

    kib = Integer(
        1024,
        min=64,
        max=65536,
        help="""KiB that are kept of the log of one run of a container: its end. What a database holds of it is
        compressed, to a fifth or a tenth. Default: 1024.""",
    ).tag(config=True)
    days = Float(
        7.0,
        min=0.0,
        max=3660.0,
        help="""Days for which the logs and events of a job are kept after its end. 0: none are kept, and a log is there
        as long as its pod is. Default: 7.""",
    ).tag(config=True)
    seconds = Float(
        60.0,
        min=1.0,
        max=3600.0,
        help="""How often the log of a running container is read, in seconds; of one that prints nothing four times as
        seldom at most. So much is missing when a job's node is lost, or its pod deleted by force: an ordinary stop
        loses nothing. Default: 60.""",
    ).tag(config=True)

    def keeping(self) -> LogRetention:
        return LogRetention(self.kib * 1024, self.days, self.seconds)
