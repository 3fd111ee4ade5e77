"""The page of GPU-hours: empty, full and wrong, its plots with the same numbers as its tables, for who may see them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import expect

from dlspawner.manager.history import hoursrows
from dlspawner.manager.history.plots import HEIGHT, OTHERS, Series, largest, sparkline, stacked, top
from tests.edges.test_manager.history import Past, write_past
from tests.edges.test_manager.portals import Portal, browsing, portals
from tests.edges.test_manager.world import World

HOSTILE = "<script>alert(1)</script>"

# Plots


@pytest.mark.parametrize(
    ("value", "end"),
    [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (7, 10), (11, 20), (21, 25), (26, 50), (99, 100), (100, 100), (101, 200)],
)
def test_an_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert top(value) == pytest.approx(end)


def rects(text: str) -> list[dict[str, float]]:
    root = ET.fromstring(text)  # noqa: S314 - ours
    names = ("x", "y", "width", "height")
    return [{name: float(one.attrib[name]) for name in names} for one in root.iter("rect")]


def test_bars_are_as_high_as_their_numbers_and_stand_on_each_other() -> None:
    found = rects(stacked([Series("a", (1.0, 4.0)), Series("b", (3.0, 0.0))], "Title", "What it shows."))
    assert [one["height"] / HEIGHT for one in found] == pytest.approx([0.2, 0.6, 0.8])
    assert [one["y"] / HEIGHT for one in found] == pytest.approx([0.8, 0.2, 0.2])
    assert found[0]["x"] == found[1]["x"] < found[2]["x"]


def test_a_plot_says_what_it_is_and_a_name_in_it_is_text() -> None:
    root = ET.fromstring(stacked([Series("a", (1.0,))], HOSTILE, f"{HOSTILE} & more", "held"))  # noqa: S314 - ours
    assert root.attrib["role"] == "img"
    assert (root.attrib["aria-labelledby"], root.attrib["aria-describedby"]) == ("held-title", "held-desc")
    assert root.find("title").text == HOSTILE  # type: ignore[union-attr]
    assert root.find("desc").text == f"{HOSTILE} & more"  # type: ignore[union-attr]


def test_a_plot_of_nothing_is_empty() -> None:
    assert rects(stacked([], "Title", "Nothing.")) == []
    assert rects(stacked([Series("a", (0.0, 0.0))], "Title", "Nothing.")) == []


def test_many_series_are_the_largest_and_the_others() -> None:
    many = [Series(f"s{number}", (float(number), 1.0)) for number in range(10)]
    found = largest(many)
    assert [one.name for one in found] == ["s9", "s8", "s7", "s6", "s5", "s4", OTHERS]
    assert found[-1].values == (6.0, 4.0)
    assert sum(one.total for one in found) == sum(one.total for one in many)
    assert len(largest(many[:7])) == 7, "one alone is no others"


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


async def fill(portal: Portal, days: int = 20) -> None:
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
        ((noon - timedelta(days=number)).date(), "gpu"): {
            "total": 192 * hour,
            "free": (40 + number) * hour,
            "closed": 8 * hour,
            "fragmented": 3 * hour,
        }
        for number in range(1, days + 1)
    }
    jobs = await write_past(store, *past)
    use = {(jobs[0], (noon - timedelta(days=1)).date()): hoursrows.Amounts(measured=8 * hour, used=2 * hour)}
    await store.write(lambda connection: hoursrows.add_free(connection, free))
    await store.write(lambda connection: hoursrows.add_use(connection, use))
    await store.write(lambda connection: hoursrows.fold(connection, datetime.now(UTC), 1000))


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


async def test_the_tables_have_the_numbers_of_the_plots(portal: Portal) -> None:
    await fill(portal, days=3)
    page = await portal.read("root-admin", "history?by=user")
    plots = re.findall(r'<svg class="plot".*?</svg>', page.body, re.DOTALL)
    assert len(plots) == 2
    tables = re.findall(r'<table class="table table-sm hours".*?</table>', page.body, re.DOTALL)
    for plot, table in zip(plots, tables, strict=True):
        cells = [float(one) for one in re.findall(r"<td>([\d.]+)</td>", table)]
        heights = [one["height"] for one in rects(plot)]
        shown = [one for one in cells if one]
        assert len(heights) == len(shown)
        assert max(heights) / max(shown) == pytest.approx(min(heights) / min(shown), rel=0.02)


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
    assert "since and until are days, such as 2026-11-22." in page.text
    assert "alice" in (await portal.read("alice", "history?by=user")).text
    assert (await portal.read("", "history")).status == 302
    service = await portal.read("", "history", token=portal.world.tokens["gateway"])
    assert service.status == 404


async def test_while_the_database_is_away_it_says_so(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise hoursrows_away()

    monkeypatch.setattr(hoursrows, "read", away)
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
        plot = page.get_by_role("img", name="GPU-hours held by day", exact=True)
        assert await plot.is_visible()
        fill_of = await page.evaluate("getComputedStyle(document.querySelector('.plot .s0')).fill")
        assert fill_of == "rgb(59, 130, 246)"
        await page.get_by_text("GPU-hours held by day as a table").click()
        assert await page.locator("#held-table tbody tr").count() == 30
        await page.get_by_label("By", exact=True).select_option("team")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("#totals tbody tr")).to_have_count(2)
