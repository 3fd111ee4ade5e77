"""The report as one page: HTML with charts as inline SVG, without scripts, styles or images from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dlspawner.simulate import report as reports
from dlspawner.simulate import sweep as sweeps
from dlspawner.simulate.report import Report
from dlspawner.simulate.sweep import Point

_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 240, 60, 16
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8886 }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: currentColor }
"""


def page(title: str, found: Sequence[tuple[str, Report]], points: Sequence[Point] = ()) -> str:
    """One page of several reports, each with its name, and of a sweep."""
    parts = []
    for name, report in found:
        parts += [
            f"<h2>{escape(name)}</h2>",
            _paragraphs(report),
            _table(reports.HEADS.values(), map(reports.cells, report.rows)),
        ]
        if report.samples:
            parts += [
                _line_chart("GPUs held (%)", [(hour, 100 * held) for hour, held, _ in report.samples]),
                _line_chart("jobs that wait", [(hour, float(many)) for hour, _, many in report.samples]),
            ]
    if points:
        parts += ["<h2>Settings</h2>", _table(sweeps.HEADS, map(sweeps.cells, points))]
        parts.append(
            _point_chart(
                "reclaimed (% of what sessions reserve) and unwanted stops per session",
                [(p.unwanted / max(1, p.sessions), 100 * p.reclaimed_share, p.setting.title) for p in points],
            )
        )
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _paragraphs(report: Report) -> str:
    head = reports.text(report).split("\n\n")[0].splitlines()
    return "".join(f"<p>{escape(line)}</p>" for line in head)


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _scale(values: Iterable[float], size: float) -> tuple[float, float]:
    """The largest value of an axis, and pixels for each unit."""
    most = max((*values, 1e-9))
    return most, size / most


def _frame(title: str, x_most: float, y_most: float, x_name: str, inside: str) -> str:
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    return (
        f'<svg viewBox="0 0 {right + 20} {bottom + 40}" role="img" aria-label="{escape(title)}">'
        f'<text x="{_LEFT}" y="12">{escape(title)}</text>'
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{y_most:,.4g}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{x_most:,.4g} {escape(x_name)}</text>{inside}</svg>'
    )


def _line_chart(title: str, values: Sequence[tuple[float, float]]) -> str:
    x_most, across = _scale((x for x, _ in values), _WIDTH)
    y_most, up = _scale((y for _, y in values), _HEIGHT)
    line = " ".join(f"{_LEFT + x * across:.1f},{_TOP + _HEIGHT - y * up:.1f}" for x, y in values)
    return _frame(title, x_most, y_most, "h", f'<polyline points="{line}" fill="none" stroke="#2a7de1"/>')


def _point_chart(title: str, values: Sequence[tuple[float, float, str]]) -> str:
    x_most, across = _scale((x for x, _, _ in values), _WIDTH * 0.8)
    y_most, up = _scale((y for _, y, _ in values), _HEIGHT)
    inside = "".join(
        f'<circle cx="{_LEFT + x * across:.1f}" cy="{_TOP + _HEIGHT - y * up:.1f}" r="4" fill="#2a7de1"/>'
        f'<text x="{_LEFT + x * across + 7:.1f}" y="{_TOP + _HEIGHT - y * up + 4:.1f}">{escape(name)}</text>'
        for x, y, name in values
    )
    return _frame(title, x_most / 0.8, y_most, "stops per session", inside)
