"""The page of GPU-hours: /services/jobs/history. What it shows is the REST resource's answer, with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from markupsafe import Markup

from dlspawner.core.visible import visible
from dlspawner.manager.access import Right
from dlspawner.manager.history.api import AMOUNTS, Report, Row, report
from dlspawner.manager.history.plots import Series, largest, stacked, top
from dlspawner.manager.history.questions import By, Question, read_question
from dlspawner.manager.notices_shown import told_to
from dlspawner.manager.portal_page import Page
from dlspawner.manager.web import Routes

TITLES = {By.TEAM: "Team", By.USER: "Person", By.GPU_TYPE: "GPU type"}
NOBODY = "(none)"
_SAME: Mapping[str, str] = {}
_EVERY_SECONDS = 300  # between two looks of a page that is open: days change slowly


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with what its axes say, and the same numbers for a table."""

    svg: Markup
    end: float
    days: tuple[str, ...]
    series: tuple[Series, ...]


class HistoryPage(Page):
    """GPU-hours of whoever looks, or of more, by day."""

    async def get(self) -> None:
        self.person()
        self.acting()
        by, since, until = (self.get_query_argument(name, "") for name in ("by", "since", "until"))
        found = read_question(by, since, until, self.manager.now())
        problem = found if isinstance(found, str) else ""
        question = read_question("", "", "", self.manager.now()) if isinstance(found, str) else found
        assert isinstance(question, Question)  # noqa: S101 - what is usual can be asked
        viewer = self.viewer(Right.SEE)
        told = await report(self.manager, question, viewer)
        query = {"by": question.by.value, "since": question.since, "until": question.until}
        names = self._names(question.by)
        self.show(
            "history.html",
            422 if problem else 200,
            problem=problem,
            question=question,
            ways=[(one.value, TITLES[one]) for one in By],
            title=TITLES[question.by],
            rows=[{**row, "name": _name(row[question.by.value], names)} for row in told.totals],
            total=_sum(told.totals),
            held=_held(told, names),
            free=_free(told),
            csv=f"{self.manager.service.prefix}api/history/gpu-hours.csv?{urlencode(query)}",
            whose="everybody’s"
            if viewer.all
            else "yours, and those of the teams you look after"
            if viewer.teams
            else "yours",
            now=self.manager.now(),
            every=_EVERY_SECONDS,
            told=told_to(self),
        )

    def _names(self, by: By) -> dict[str, str]:
        """What people call what the rows are of, where that is not its name."""
        titles = self.acting().settings.teams.titles if by is By.TEAM else {}
        return {team: visible(title) for team, title in titles.items()}  # a plot is markup, which pages take as it is


def _name(key: object, names: Mapping[str, str]) -> str:
    return names.get(str(key), str(key)) or NOBODY


def _sum(rows: Sequence[Row]) -> dict[str, float]:
    return {name: sum(_number(row[name]) for row in rows) for name in AMOUNTS}


def _held(told: Report, names: Mapping[str, str]) -> Plot:
    """What was held, by day, the largest apart."""
    key = told.question.by.value
    by_key: dict[str, dict[str, float]] = {}
    for row in told.days:
        by_key.setdefault(str(row[key]), {})[str(row["day"])] = _number(row["held"])
    return _plot("GPU-hours held by day", "held", told.question, by_key, names)


def _free(told: Report) -> Plot:
    """GPUs that were free and of use, and those of none: the mean of each day, of all types."""
    by_name: dict[str, dict[str, float]] = {"usable": {}, "on closed nodes": {}, "fragmented": {}}
    for row in told.free:
        day = str(row["day"])
        closed, fragmented = _number(row["closed"]), _number(row["fragmented"])
        amounts = (_number(row["free"]) - closed - fragmented, closed, fragmented)
        for name, amount in zip(by_name, amounts, strict=True):
            by_name[name][day] = by_name[name].get(day, 0.0) + amount
    return _plot("Free GPU-hours by day", "free", told.question, by_name if told.free else {})


def _plot(
    title: str, name: str, question: Question, by_key: Mapping[str, dict[str, float]], names: Mapping[str, str] = _SAME
) -> Plot:
    days = tuple(day.isoformat() for day in question.days)
    all_ = [Series(_name(key, names), tuple(of.get(day, 0.0) for day in days)) for key, of in by_key.items()]
    series = largest(one for one in all_ if one.total) if name == "held" else tuple(all_)
    sums = [sum(one.values[at] for one in series) for at in range(len(days))]
    most = max(sums, default=0.0)
    parts = ", ".join(f"{one.name} {one.total:.1f}" for one in series) or "nothing"
    described = f"{days[0]} to {days[-1]}, at most {most:.1f} a day. In all: {parts}. The table below has every number."
    return Plot(stacked(series, title, described, name), top(most), days, series)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


ROUTES: Routes = (("history", HistoryPage),)
TEMPLATES = ("history.html",)
