"""Plots as SVG, made on the server, without a script. PURE.

Every plot has a title and a description for screen readers, and belongs beside a table of the same numbers. It holds
no text of its own: axes are labelled by the page, so that they stay legible on a phone. Colours are classes (``s0`` to
``s6``) that `plots.html` gives values to, for light pages and dark ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

SERIES = 6  # in a plot; what is more is one series, "others"
OTHERS = "others"
WIDTH, HEIGHT = 720, 200


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A name and a number for each step of the plot."""

    name: str
    values: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.values)


def axis_end(value: float) -> float:
    """Returns the end of an axis that has to hold a value: a round number that is no less."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size < value:
        size *= 10
    while size / 10 >= value:
        size /= 10
    return next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1.0) if size * part >= value)


def stacked(series: Sequence[ChartSeries], title: str, description: str, name: str = "plot") -> Markup:
    """Bars of several series on each other, one bar a step; ``name`` makes its ids, one of a kind on its page."""
    steps = len(series[0].values) if series else 0
    end = axis_end(max((sum(one.values[step] for one in series) for step in range(steps)), default=0))
    bars = []
    for step in range(steps):
        at = 0.0
        for number, one in enumerate(series):
            if one.values[step] > 0:
                bars.append(_bar(step, steps, at / end, one.values[step] / end, number))
                at += one.values[step]
    return _svg("plot", name, title, description, _grid(), *bars)


def _bar(step: int, steps: int, begin: float, length: float, number: int) -> Markup:
    width = WIDTH / steps
    gap = min(2.0, width / 5)
    return Markup('<rect class="s{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" />').format(
        number, step * width + gap / 2, HEIGHT * (1 - begin - length), width - gap, HEIGHT * length
    )


def _grid() -> Markup:
    lines = (
        Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}" />').format(WIDTH, y, y)
        for y in (0.5, HEIGHT / 2, HEIGHT - 0.5)
    )
    return Markup("").join(lines)


def sparkline(values: Sequence[float | None], title: str, end: float, name: str = "spark") -> Markup:
    """A small line from 0 to ``end``, with gaps where nothing is known; the description says its range."""
    known = [value for value in values if value is not None]
    description = f"From {min(known):.3g} to {max(known):.3g}, last {known[-1]:.3g}." if known else "Nothing is known."
    paths = Markup("").join(_line(values, end, part) for part in _unbroken(values))
    return _svg("spark", name, title, description, paths)


def _unbroken(values: Sequence[float | None]) -> Iterable[range]:
    begin: int | None = None
    for at, value in enumerate([*values, None]):
        if value is not None and begin is None:
            begin = at
        elif value is None and begin is not None:
            yield range(begin, at)
            begin = None


def _line(values: Sequence[float | None], end: float, part: range) -> Markup:
    step = WIDTH / max(1, len(values) - 1)
    points = [(at * step, HEIGHT * (1 - min(1.0, max(0.0, (values[at] or 0.0) / (end or 1.0))))) for at in part]
    if len(points) == 1:  # a line needs a length to be seen
        points.append((points[0][0] + 2, points[0][1]))
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline class="s0" points="{}" />').format(text)


def _svg(kind: str, name: str, title: str, description: str, *content: Markup) -> Markup:
    attributes: Mapping[str, object] = {"kind": kind, "name": name, "width": WIDTH, "height": HEIGHT}
    head = Markup(
        '<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        'aria-labelledby="{name}-title" aria-describedby="{name}-desc" focusable="false">'
    ).format(**attributes)
    said = Markup('<title id="{0}-title">{1}</title><desc id="{0}-desc">{2}</desc>').format(name, title, description)
    return Markup("").join((head, said, *content, Markup("</svg>")))
