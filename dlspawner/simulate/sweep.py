"""Many replays of one trace with other settings, on all cores: the sweep of idle windows, and advice.

Advice compares settings by one number, in GPU-hours: what culling gave back, less what preemption threw away, less an
hour of a session's GPUs for each stop of a session that was used again, less the hours that jobs waited for their GPUs.
Refused: a search that learns; some dozens of settings are played, and every one of them can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import product
from os import cpu_count

from dlspawner.core.config import IdleWindows
from dlspawner.core.units import GPU
from dlspawner.simulate.report import span_text
from dlspawner.simulate.scenario import Scenario, quota_gpus
from dlspawner.simulate.trace import Trace

WINDOWS = tuple(timedelta(minutes=minutes) for minutes in (15, 30, 60, 120, 240, 480, 960))
NOTICES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15))
MIN_RUNS = tuple(timedelta(minutes=minutes) for minutes in (0, 10, 60))
BORROWS = (None, 1.0, 0.5)  # of the team's quota
BEST = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """Changes of the files' settings; ``None`` changes nothing. ``borrow``: the limit as a part of the team's quota."""

    window: timedelta | None = None
    notice: timedelta | None = None
    min_run: timedelta | None = None
    borrow: float | None = None

    def on(self, scenario: Scenario) -> Scenario:
        cluster, teams = scenario.cluster, scenario.teams
        if self.window is not None:
            culling = replace(cluster.culling, window=self.window, preemptible_window=None, dry_run=False)
            cluster = replace(cluster, culling=culling)
            teams = replace(teams, teams=tuple(replace(team, idle=IdleWindows()) for team in teams.teams))
        rules = cluster.scheduling
        rules = rules if self.notice is None else replace(rules, notice=self.notice)
        rules = rules if self.min_run is None else replace(rules, min_run=self.min_run)
        if self.borrow is not None:
            limited = (replace(team, borrow_limit=int(self.borrow * quota_gpus(team) * GPU)) for team in teams.teams)
            teams = replace(teams, teams=tuple(limited))
        return replace(scenario, cluster=replace(cluster, scheduling=rules), teams=teams)

    @property
    def title(self) -> str:
        parts = [
            f"{name} {span_text(value.total_seconds())}"
            for name, value in (("idle window", self.window), ("notice", self.notice), ("minimum run", self.min_run))
            if value is not None
        ]
        if self.borrow is not None:
            parts.append(f"borrow up to {100 * self.borrow:.0f} % of the quota")
        return ", ".join(parts) or "as it is"


@dataclass(frozen=True, slots=True)
class Point:
    """The result of one setting; GPU-hours, and stops by number."""

    setting: Setting
    reserved: float  # what sessions would hold from their start to their end
    held: float
    active: float
    reclaimed: float
    culls: int
    unwanted: int
    interrupted: float  # an hour of the session's GPUs for each unwanted stop
    sessions: int
    preemptions: int
    lost: float
    waited: float  # the wait of each job, times its GPUs
    wait_mean: float

    @property
    def score(self) -> float:
        return self.reclaimed - self.lost - self.interrupted - self.waited

    @property
    def reclaimed_share(self) -> float:
        return self.reclaimed / self.reserved if self.reserved else 0.0


def play(scenario: Scenario, trace: Trace, setting: Setting) -> Point:
    replay = setting.on(scenario).replay(trace)
    replay.run()
    outcomes = list(replay.outcomes.values())
    sessions = [one for one in outcomes if one.job.activity is not None]
    waited = [one.waited for one in outcomes if one.started is not None]
    return Point(
        setting,
        reserved=sum(one.job.seconds * one.job.gpus for one in sessions) / 3600,
        held=sum(one.held for one in sessions) / 3600,
        active=sum(one.active for one in sessions) / 3600,
        reclaimed=sum(one.reclaimed for one in sessions) / 3600,
        culls=sum(one.culled for one in sessions),
        unwanted=sum(one.unwanted for one in sessions),
        interrupted=float(sum(one.unwanted * one.job.gpus for one in sessions)),
        sessions=len(sessions),
        preemptions=sum(one.preempted for one in outcomes),
        lost=sum(one.lost for one in outcomes) / 3600,
        waited=sum(one.waited * one.job.gpus for one in outcomes) / 3600,
        wait_mean=sum(waited) / max(1, len(waited)),
    )


def play_all(
    scenario: Scenario, trace: Trace, settings: Sequence[Setting], told: Callable[[int], None] = lambda _: None
) -> Iterator[Point]:
    """Plays the settings on all cores; yields the points in the order of the settings, each as soon as it is known."""
    workers = min(len(settings), cpu_count() or 1)
    with ProcessPoolExecutor(workers, initializer=_share, initargs=(scenario, trace)) as pool:
        try:
            for number, point in enumerate(pool.map(_play_shared, settings), 1):
                told(number)
                yield point
        finally:
            pool.shutdown(cancel_futures=True)


_shared: list[tuple[Scenario, Trace]] = []  # of a worker process


def _share(scenario: Scenario, trace: Trace) -> None:
    _shared[:] = [(scenario, trace)]


def _play_shared(setting: Setting) -> Point:
    return play(*_shared[0], setting)


def windows() -> list[Setting]:
    return [Setting(window=one) for one in WINDOWS]


def candidates(trace: Trace) -> list[Setting]:
    """The settings that may matter for the trace: windows with sessions, the others with preemptible jobs."""
    idle = WINDOWS if any(one.activity is not None for one in trace.jobs) else ()
    lends = any(one.preemptible for one in trace.jobs)
    found = [Setting()]
    for window, notice, run, borrow in product(
        (None, *idle), *(((None,), (None,), (None,)) if not lends else (NOTICES, MIN_RUNS, BORROWS))
    ):
        found.append(Setting(window, notice, run, borrow))
    return list(dict.fromkeys(found))


def best(points: Sequence[Point]) -> list[Point]:
    """The points with the highest scores; of settings with equal ones the first, and not the present settings."""
    others = {point.score: point for point in reversed(points) if point.setting != Setting()}
    return [others[score] for score in sorted(others, reverse=True)[:BEST]]


HEADS = ("setting", "reclaimed", "share", "culls", "unwanted", "per session", "preempt.", "lost", "wait", "score")


def cells(point: Point) -> list[str]:
    """The point as people read it: GPU-hours, percent, numbers."""
    return [
        point.setting.title,
        f"{point.reclaimed:,.0f}",
        f"{100 * point.reclaimed_share:.1f} %",
        f"{point.culls}",
        f"{point.unwanted}",
        f"{point.unwanted / max(1, point.sessions):.2f}",
        f"{point.preemptions}",
        f"{point.lost:,.0f}",
        span_text(point.wait_mean),
        f"{point.score:,.0f}",
    ]


def document(point: Point) -> dict[str, object]:
    """The point for programs; times in seconds."""
    settings = {
        key: value.total_seconds() if isinstance(value, timedelta) else value
        for key, value in asdict(point.setting).items()
    }
    numbers = {key: value for key, value in asdict(point).items() if key != "setting"}
    return {**settings, **numbers, "score": point.score}
