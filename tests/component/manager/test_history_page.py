"""The page of GPU-hours: empty, full and wrong, its plots with the same numbers as its tables, for who may see them."""

from __future__ import annotations

import asyncio
import html
import json
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from sqlalchemy import Connection

from dlspawner.core import accounting
from dlspawner.core.accounting import GpuTime
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.http.api import history
from dlspawner.manager.http.api.history import GpuHoursReport
from dlspawner.manager.http.portal import history as portal_history
from dlspawner.manager.http.portal.charts import HEIGHT, OTHERS, ChartSeries, axis_end, sparkline, stacked
from dlspawner.manager.http.portal.history import MOST_ROWS, _plots
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy
from tests.component.manager.history import Past, put_past
from tests.component.manager.portals import Portal, browsing, portals
from tests.component.manager.world import World

PATIENCE_SECONDS = 20
AMOUNTS = ("requested", "allocated", "used", "reclaimed")
HOSTILE = "<script>alert(1)</script>"

# Plots


@pytest.mark.parametrize(
    ("value", "end"),
    [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (7, 10), (11, 20), (21, 25), (26, 50), (99, 100), (100, 100), (101, 200)],
)
def test_an_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert axis_end(value) == pytest.approx(end)


def rects(text: str) -> list[dict[str, float]]:
    root = ET.fromstring(text)  # noqa: S314 - ours
    names = ("x", "y", "width", "height")
    return [{name: float(one.attrib[name]) for name in names} for one in root.iter("rect")]


def test_bars_are_as_high_as_their_numbers_and_stand_on_each_other() -> None:
    found = rects(stacked([ChartSeries("a", (1.0, 4.0)), ChartSeries("b", (3.0, 0.0))], "Title", "What it shows."))
    assert [one["height"] / HEIGHT for one in found] == pytest.approx([0.2, 0.6, 0.8])
    assert [one["y"] / HEIGHT for one in found] == pytest.approx([0.8, 0.2, 0.2])
    assert found[0]["x"] == found[1]["x"] < found[2]["x"]


def test_a_plot_says_what_it_is_and_a_name_in_it_is_text() -> None:
    root = ET.fromstring(stacked([ChartSeries("a", (1.0,))], HOSTILE, f"{HOSTILE} & more", "allocated"))  # noqa: S314 - ours
    assert root.attrib["role"] == "img"
    assert (root.attrib["aria-labelledby"], root.attrib["aria-describedby"]) == ("allocated-title", "allocated-desc")
    assert root.find("title").text == HOSTILE  # type: ignore[union-attr]
    assert root.find("desc").text == f"{HOSTILE} & more"  # type: ignore[union-attr]


def test_a_plot_of_nothing_is_empty() -> None:
    assert rects(stacked([], "Title", "Nothing.")) == []
    assert rects(stacked([ChartSeries("a", (0.0, 0.0))], "Title", "Nothing.")) == []


def report_of(people: int) -> GpuHoursReport:
    """Two days of people who had as many hours as their number says, and one."""
    days = (date(2026, 1, 1), date(2026, 1, 2))
    rows = [
        {"day": day.isoformat(), "user": f"s{number}"}
        | {"requested": hours, "allocated": hours, "used": None, "reclaimed": 0.0}
        for number in range(people)
        for day, hours in zip(days, (float(number), 1.0), strict=True)
    ]
    totals = [
        {**row, "requested": 1 + row["requested"], "allocated": 1 + row["allocated"]}  # type: ignore[operator]
        for row in rows
        if row["day"] == "2026-01-01"
    ]
    return GpuHoursReport(GpuHoursQuery(GroupBy.USER, *days), tuple(rows), tuple(totals), ())


def test_many_people_are_those_with_the_most_and_the_others() -> None:
    told = report_of(10)
    asked, held, used, reclaimed = _plots(told, {})
    assert [one.name for one in asked.series] == ["s9", "s8", "s7", "s6", "s5", "s4", OTHERS]
    assert asked.series[-1].values == (6.0, 4.0)
    assert sum(one.total for one in asked.series) == sum(range(10)) + 10
    assert (held.series, used.empty, reclaimed.empty) == (asked.series, True, True)
    (one, *_) = _plots(report_of(7), {})
    assert len(one.series) == 7, "one alone is no others"
    assert OTHERS not in [series.name for series in one.series]


def test_a_sparkline_has_gaps_where_nothing_is_known() -> None:
    root = ET.fromstring(sparkline([0, 50, None, 100, None, 25, 150], "GPU use", 100))  # noqa: S314 - ours
    lines = [one.attrib["points"] for one in root.iter("polyline")]
    assert lines == ["0.0,200.0 120.0,100.0", "360.0,0.0 362.0,0.0", "600.0,150.0 720.0,0.0"]
    assert root.find("desc").text == "From 0 to 150, last 150."  # type: ignore[union-attr]
    nothing = ET.fromstring(sparkline([None], "GPU use", 100))  # noqa: S314 - ours
    assert list(nothing.iter("polyline")) == []
    assert nothing.find("desc").text == "Nothing is known."  # type: ignore[union-attr]


# The page


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


async def fill(portal: Portal, days: int = 20, used: int = 2) -> None:
    """Hours of the last days, of three people, one with a hostile name; free GPUs, some of no use."""
    store = portal.served.acting.ledger._store
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    past = [
        one
        for number in range(1, days + 1)
        for one in (
            Past("Q0 T1 R1 E5", "alice", "default", 1 + number % 4, noon=noon - timedelta(days=number)),
            Past("T0 R0 X2 E3", "bob", "default", 2, reason="idle", noon=noon - timedelta(days=number)),
            Past("T0 R0 E4", HOSTILE, "language", 1, "big", noon=noon - timedelta(days=number)),
        )
    ]
    hour = 3_600_000
    free = {
        ((noon - timedelta(days=number)).date(), kind): {
            "total": 192 * hour,
            "free": (least + number) * hour,
            "unschedulable": 8 * hour,
            "fragmented": 3 * hour,
        }
        for number in range(1, days + 1)
        for kind, least in (("gpu", 40), ("big", 12))
    }

    def write(connection: Connection) -> None:
        jobs = put_past(connection, *past)
        use = {(jobs[0], (noon - timedelta(days=1)).date()): accounting.GpuTime(measured=8 * hour, used=used * hour)}
        gpu_hours.add_free_gpus(connection, free)
        gpu_hours.add_gpu_use(connection, use)
        gpu_hours.aggregate(connection, datetime.now(UTC), 1000)

    await store.write(write)


async def test_without_any_hours_it_says_so(portal: Portal) -> None:
    page = await portal.read("alice", "history")
    assert page.status == 200
    assert "No job asked for GPUs in these days." in page.text
    assert '<svg class="plot"' not in page.body


async def test_people_see_their_own_and_admins_more(portal: Portal) -> None:
    await fill(portal, days=2)
    alice, vera, admin = [await portal.read(who, "history?by=user") for who in ("alice", "vera", "root-admin")]
    assert "alice 25.0 20.0 2.0 (25 %) 0.0" in alice.text
    assert "bob" not in alice.text
    assert "Hours of one GPU: yours. Days are UTC’s." in alice.text
    assert "bob 12.0 12.0 not known" in vera.text
    assert "script" not in vera.text, "another team's"
    assert "Together 45.0 40.0 2.0 (25 %)" in admin.text
    assert HOSTILE not in admin.body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in admin.body


@pytest.mark.parametrize(("by", "free"), [("user", 1), ("gpu_type", 2)])
async def test_the_tables_have_the_numbers_of_the_plots(portal: Portal, by: str, free: int) -> None:
    await fill(portal, days=3)
    page = await portal.read("root-admin", f"history?by={by}")
    plots = re.findall(r'<svg class="plot".*?</svg>', page.body, re.DOTALL)
    assert len(plots) == len(AMOUNTS) + free
    tables = re.findall(r'<table class="table table-sm hours".*?</table>', page.body, re.DOTALL)
    for plot, table in zip(plots, tables, strict=True):
        cells = [float(one) for one in re.findall(r"<td>([\d.]+)</td>", table)]
        heights = [one["height"] for one in rects(plot)]
        shown = [one for one in cells if one]
        assert [one / max(heights) for one in heights] == pytest.approx([one / max(shown) for one in shown], abs=0.01)


def cells(body: str, name: str) -> dict[tuple[str, str], float]:
    """What a table says that is not 0, by day and column."""
    table = re.search(f'<table [^>]*id="{name}-table">.*?</table>', body, re.DOTALL)
    assert table is not None, name
    columns = re.findall(r'<th scope="col" class="name">([^<]*)', table[0])
    days = re.findall(r'<th scope="row">([^<]*)</th>(.*)</tr>', table[0])
    rows = {day: re.findall(r"<td>([\d.]+)</td>", row) for day, row in days}
    every = {(day, one): float(hours) for day, row in rows.items() for one, hours in zip(columns, row, strict=True)}
    return {key: hours for key, hours in every.items() if hours}


async def test_each_amount_is_plotted_by_day_and_what_was_free_by_type(portal: Portal) -> None:
    await fill(portal, days=3)
    page = await portal.read("root-admin", "history?by=gpu_type")
    told = json.loads((await portal.read("root-admin", "api/history/gpu-hours?by=gpu_type")).body)
    for amount in AMOUNTS:
        known = {(one["day"], one["gpu_type"]): one[amount] for one in told["items"] if one[amount]}
        assert cells(page.body, amount) == pytest.approx(known, abs=0.05), amount
    for number, kind in enumerate(("big", "gpu")):
        known = {}
        for one in (one for one in told["free"] if one["gpu_type"] == kind):
            known[one["day"], "usable"] = one["free"] - one["unschedulable"] - one["fragmented"]
            known |= {
                (one["day"], "on closed nodes"): one["unschedulable"],
                (one["day"], "fragmented"): one["fragmented"],
            }
        assert len(known) == 9
        assert cells(page.body, f"free-{number}") == pytest.approx(known, abs=0.05), kind
        assert f"Free GPU-hours of type {kind} by day as a table" in page.text


async def test_what_was_free_is_of_all_types_together_where_nobody_asks_by_type(portal: Portal) -> None:
    await fill(portal, days=1)
    page = await portal.read("root-admin", "history?by=team")
    day = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    known = {(day, "usable"): 32.0, (day, "on closed nodes"): 16.0, (day, "fragmented"): 6.0}
    assert cells(page.body, "free-0") == pytest.approx(known)
    assert 'id="free-1-table"' not in page.body


async def test_whoever_it_is_has_one_colour_in_every_plot(portal: Portal) -> None:
    """Bob alone was stopped as unused, and alice alone was measured: alone, each would have the first colour."""
    await fill(portal, days=3)
    page = await portal.read("root-admin", "history?by=user")
    colours = {
        amount: set(re.findall(r'class="(s\d)" x', re.search(f'"{amount}-title".*?</svg>', page.body, re.DOTALL)[0]))  # type: ignore[index]
        for amount in AMOUNTS
    }
    three = {"s0", "s1", "s2"}
    assert colours == {"requested": three, "allocated": three, "used": {"s1"}, "reclaimed": {"s0"}}


async def test_what_is_not_known_or_did_not_happen_is_a_sentence(portal: Portal) -> None:
    await fill(portal, days=3)
    bob, alice = [await portal.read(who, "history") for who in ("bob", "alice")]
    assert "Used Not known: nothing was measured in these days. Reclaimed" in bob.text
    assert "Reclaimed Nothing in these days." in alice.text
    assert [len(re.findall('<svg class="plot"', one.body)) for one in (bob, alice)] == [4, 4]


async def test_gpus_that_were_measured_and_did_nothing_are_not_unknown(portal: Portal) -> None:
    await fill(portal, days=3, used=0)
    assert "Used Nothing in these days. Reclaimed" in (await portal.read("alice", "history")).text


async def test_teams_are_called_as_on_other_pages(portal: Portal) -> None:
    await fill(portal, days=1)
    page = await portal.read("root-admin", "history?by=team")
    assert re.search(r"Everybody \d+\.\d \d+\.\d", page.text)
    assert "default" not in page.text
    assert re.findall(r'<th scope="col" class="name">([^<]*)', page.body)[:2] == ["Everybody", "Language"]


async def test_a_wrong_question_is_answered_with_what_is_wrong_and_the_usual_days(portal: Portal) -> None:
    await fill(portal, days=1)
    page = await portal.read("alice", "history?since=soon")
    assert page.status == 422
    assert "must be a day such as 2026-11-22." in page.text
    assert "alice" in (await portal.read("alice", "history?by=user")).text
    assert (await portal.read("", "history")).status == 302
    service = await portal.read("", "history", token=portal.world.tokens["gateway"])
    assert service.status == 404


async def crowd(portal: Portal, people: int) -> None:
    """So many of yesterday, each with one hour more than the one before."""
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    past = [Past("T0 R0 E1", f"p{number:04}", "default", number + 1, noon=noon) for number in range(people)]
    await portal.served.acting.ledger._store.write(lambda connection: put_past(connection, *past))


async def test_of_very_many_people_the_table_has_those_with_the_most_and_leads_to_all(portal: Portal) -> None:
    await crowd(portal, MOST_ROWS + 2)
    page = await portal.read("root-admin", "history?by=user")
    table = re.search('<table [^>]*id="totals">.*?</table>', page.body, re.DOTALL)
    assert table is not None
    assert re.findall(r'<th scope="row" class="name">(p\d+)', table[0]) == [f"p{n:04}" for n in range(101, 1, -1)]
    assert "2 others 3.0 3.0 not known 0.0 Together 5253.0 5253.0 not known 0.0" in page.text
    link = re.search('held the most; <a href="/services/jobs/([^"]+)">the CSV has all 102</a>', page.body)
    assert link is not None
    everybody = (await portal.read("root-admin", html.unescape(link[1]))).body
    assert everybody.count('"p0') == 102


async def test_one_more_than_the_table_has_is_told_by_name(portal: Portal) -> None:
    await crowd(portal, MOST_ROWS + 1)
    page = await portal.read("root-admin", "history?by=user")
    assert '<th scope="row" class="name">p0000</th>' in page.body
    assert 'id="others"' not in page.body
    assert "the CSV has all" not in page.body


@pytest.mark.parametrize(
    ("path", "where", "name"),
    [
        ("api/history/gpu-hours?by=user", GpuTime, "hours"),
        ("api/history/gpu-hours?by=user", history, "as_json"),
        ("api/history/gpu-hours.csv?by=user", history, "as_csv"),
        ("history?by=user", portal_history, "_plots"),
    ],
    ids=["sums", "JSON", "CSV", "plots"],
)
async def test_while_an_answer_is_written_others_are_answered(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, path: str, where: Any, name: str
) -> None:
    await fill(portal, days=1)
    begun, done, real = threading.Event(), threading.Event(), getattr(where, name)
    in_vain = []

    def held(*given: Any) -> Any:
        if not begun.is_set():
            begun.set()
            in_vain.append(not done.wait(PATIENCE_SECONDS))
        return real(*given)

    monkeypatch.setattr(where, name, held)
    answer = asyncio.create_task(portal.read("root-admin", path))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    assert (await portal.read("", "static/nothing")).status == 404
    done.set()
    assert (await answer).status == 200
    assert in_vain == [False]


async def test_while_the_database_is_away_it_says_so(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise hoursrows_away()

    monkeypatch.setattr(gpu_hours, "read_gpu_hours", away)
    page = await portal.read("alice", "history")
    assert page.status == 503
    assert "The Manager's database does not answer." in page.body.replace("&#39;", "'")


def hoursrows_away() -> Exception:
    from sqlalchemy.exc import OperationalError

    return OperationalError("select", {}, Exception("away"))


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_it_can_be_read_in_a_browser_on_a_phone_and_in_the_dark(portal: Portal, scheme: str, width: int) -> None:
    await fill(portal)
    viewport = {"width": width, "height": 900}
    async with browsing(portal, "root-admin", color_scheme=scheme, viewport=viewport) as page:
        await page.goto(f"{portal.world.jobs}/history?by=user")
        assert await page.get_by_role("heading", name="GPU-hours", exact=True).is_visible()
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "nothing is wider than the window"
        hidden = await page.evaluate("(one => one.scrollWidth - one.clientWidth)(document.querySelector('.scroll'))")
        assert hidden <= 0, "all amounts are seen without scrolling"
        for amount in AMOUNTS:
            assert await page.get_by_role("img", name=f"GPU-hours {amount} by day", exact=True).is_visible()
        fill_of = await page.evaluate("getComputedStyle(document.querySelector('.plot .s0')).fill")
        assert fill_of == "rgb(59, 130, 246)"
        await page.get_by_text("GPU-hours allocated by day as a table").click()
        assert await page.locator("#allocated-table tbody tr").count() == 30
        await page.get_by_label("By", exact=True).select_option("team")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("#totals tbody tr")).to_have_count(2)
