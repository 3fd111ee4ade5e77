"""What the Manager adds to a start: from POST to ready of one job, at a Hub with a Manager and at one without any.

`python -m tests.bench.added`, for as many seconds as `--seconds` says (300). Two Hubs on a cluster each start one job
after the other, in turn, the order drawn anew for each round, because what one leaves behind is in the way of the next.
One pair says nothing on a machine that does something else as well, so there are as many as fit into the time, and what
is told is the median of their differences, and the bounds between which the true one is, 95 times of 100.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench import spawn
from tests.bench.figures import Figure, publish
from tests.component.manager.quota import QuotaHub

ALONE = 'c.DLSpawner.manager_url = ""\n'
WARM = 3  # rounds that do not count


@dataclass
class Side:
    """A Hub and the seconds that its starts took."""

    hub: spawn.Hub
    seconds: list[float] = field(default_factory=list)


@contextlib.contextmanager
def side(state: Path, *, manager: bool) -> Iterator[Side]:
    """A cluster with its Hub; without a Manager nothing of one runs."""
    state.mkdir()
    made = QuotaHub(state, db_url=f"sqlite:///{state / 'manager.sqlite'}", extra="" if manager else ALONE)
    made.prepare()
    if not manager:
        (made.config / "teams.yaml").write_text("teams: {default: {}}")  # no limits, which nobody would count
    try:
        made.start_cluster()
        if manager:
            made.start_manager()
        made.start_proxy()
        made.start_hub()
        made.add_users(["bench"])
        yield Side(spawn.Hub(made.url, "tests-token", {"user_options": {"gpus": 1}}))
    finally:
        for name in [*made.running][::-1]:
            made.stop(name)


def bounds(values: list[float]) -> tuple[float, float]:
    """Between which of the values their median is 95 times of 100, whatever their distribution is."""
    ordered, size = sorted(values), len(values)
    below = max(0, math.floor(size / 2 - 0.98 * math.sqrt(size)))
    return ordered[below], ordered[size - 1 - below]


def measure(state: Path, seconds: float) -> list[Figure]:
    """Starts in turn for so long."""
    chance = random.Random()
    with side(state / "with", manager=True) as ours, side(state / "without", manager=False) as bare:
        until, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < until or rounds < WARM + 10:
            for one in chance.sample([ours, bare], 2):
                one.seconds.append(spawn.one_at_a_time(one.hub, "bench"))
            rounds += 1
    more = [1000 * (a - b) for a, b in zip(ours.seconds[WARM:], bare.seconds[WARM:], strict=True)]
    least, most = bounds(more)
    return [
        Figure("pairs", len(more), ""),
        Figure("POST to ready with the Manager", 1000 * median(ours.seconds[WARM:]), "ms"),
        Figure("POST to ready without", 1000 * median(bare.seconds[WARM:]), "ms"),
        Figure("added by the Manager: median of the differences", median(more), "ms", "lower", 10, "no Manager"),
        Figure("added by the Manager: at least (95 %)", least, "ms"),
        Figure("added by the Manager: at most (95 %)", most, "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    wanted = parser.parse_args()
    publish("bench-added", lambda folder: measure(folder, wanted.seconds))


if __name__ == "__main__":
    main()
