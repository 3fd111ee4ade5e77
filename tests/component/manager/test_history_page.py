"""The page of GPU-hours: its tables, which the browser draws."""

from __future__ import annotations

import asyncio
import html
import json
import re
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from dlspawner.core import accounting
from dlspawner.core.scheduling.usage_report import node_statuses
from dlspawner.core.units import GPU
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.http.api import history
from dlspawner.manager.http.api.history import GpuHoursReport
from dlspawner.manager.http.portal import history as portal_history
from dlspawner.manager.http.portal.history import MOST_ROWS, OTHERS, _plots
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy
from tests.component.manager.history import Past, put_past
from tests.component.manager.portals import Portal, browsing
from tests.harness.accessible import JAVASCRIPT, JUMPS, MOST_JAVASCRIPT, SEEN_ONCE

AMOUNTS = ("requested", "allocated", "used", "reclaimed")
HOSTILE = "<script>alert(1)</script>"


def report_of(people: int) -> GpuHoursReport:
    """Two days of users: as many hours as the number in the name, then one."""
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


def test_plot_of_many_users_groups_the_smallest_as_others() -> None:
    report = report_of(10)
    asked, held, used, reclaimed = _plots(report, {})
    assert [one.name for one in asked.series] == ["s9", "s8", "s7", "s6", "s5", "s4", OTHERS]
    assert asked.series[-1].values == (6.0, 4.0)
    assert sum(one.total for one in asked.series) == sum(range(10)) + 10
    assert (held.series, used.empty, reclaimed.empty) == (asked.series, True, True)
    (one, *_) = _plots(report_of(7), {})
    assert len(one.series) == 7, "one alone is no others"
    assert OTHERS not in [series.name for series in one.series]


async def fill(portal: Portal, days: int = 20) -> None:
    """Hours of three users, one with a hostile name; free GPUs, some unschedulable or fragmented."""
    store = portal.served.leader.repository._database
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
        use = {(jobs[0], (noon - timedelta(days=1)).date()): accounting.GpuTime(measured=8 * hour, used=2 * hour)}
        gpu_hours.add_free_gpus(connection, free)
        gpu_hours.add_gpu_use(connection, use)
        gpu_hours.aggregate(connection, datetime.now(UTC), 1000)

    await store.write(write)


def cells(body: str, name: str) -> dict[tuple[str, str], float]:
    """What a table says that is not 0, by day and column."""
    table = re.search(f'<table [^>]*id="{name}-table">.*?</table>', body, re.DOTALL)
    assert table is not None, name
    columns = re.findall(r'<th scope="col" class="name">([^<]*)', table[0])
    days = re.findall(r'<th scope="row"><time datetime="([^"]*)">.*?</th>(.*)</tr>', table[0])
    rows = {day: re.findall(r"<td>([\d.]+|–)</td>", row) for day, row in days}
    every = {
        (day, one): float(hours) if hours != "–" else 0.0
        for day, row in rows.items()
        for one, hours in zip(columns, row, strict=True)
    }
    return {key: hours for key, hours in every.items() if hours}


async def test_viewer_reads_own_hours_and_admins_those_of_others(portal: Portal) -> None:
    assert "No job requested GPUs in this period." in (await portal.read("alice", "history")).text
    await fill(portal, days=2)
    alice, vera, admin = [await portal.read(who, "history?by=user") for who in ("alice", "vera", "root-admin")]
    assert "alice 25.0 20.0 2.0 (25 %) 0.0" in alice.text
    assert "bob" not in alice.text
    assert "Reclaimed None in this period." in alice.text
    assert "bob 12.0 12.0 not known" in vera.text
    assert "script" not in vera.text, "another team's"
    assert "Total 45.0 40.0 2.0 (25 %)" in admin.text
    assert HOSTILE not in admin.body
    assert html.escape(HOSTILE) in admin.body
    teams = await portal.read("root-admin", "history?by=team")
    assert re.findall(r'<th scope="col" class="name">([^<]*)', teams.body)[:2] == ["Everybody", "Language"]
    wrong = await portal.read("alice", "history?since=soon")
    assert (wrong.status, "“From”: must be a day such as 2026-11-22." in wrong.text) == (422, True)
    wrong = await portal.read("alice", "history?since=2030-01-02&until=2030-01-01")
    assert "“From” is after “To”." in wrong.text


async def test_tables_and_json_have_the_same_hours(portal: Portal) -> None:
    await fill(portal, days=3)
    page = await portal.read("root-admin", "history?by=gpu_type")
    content = json.loads((await portal.read("root-admin", "api/history/gpu-hours?by=gpu_type")).body)
    for amount in AMOUNTS:
        known = {(one["day"], one["gpu_type"].replace("gpu", "GPU")): one[amount] for one in content["items"]}
        known = {key: hours for key, hours in known.items() if hours}
        assert cells(page.body, amount) == pytest.approx(known, abs=0.05), amount
    for number, kind in enumerate(("big", "gpu")):
        known = {}
        for one in (one for one in content["free"] if one["gpu_type"] == kind):
            known[one["day"], "usable"] = one["free"] - one["unschedulable"] - one["fragmented"]
            known[one["day"], "on closed nodes"] = one["unschedulable"]
            known[one["day"], "fragmented"] = one["fragmented"]
        assert len(known) == 9
        assert cells(page.body, f"free-{number}") == pytest.approx(known, abs=0.05), kind


async def test_cluster_history_tells_use_queue_and_waits_by_hour(portal: Portal) -> None:
    noon = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=30)
    past = [Past("Q0 T1 R1 E3", "alice", "default", 4, noon=noon), Past("Q0.5 T1 E2", "bob", "default", 2, noon=noon)]
    await portal.served.leader.repository._database.write(lambda connection: put_past(connection, *past))
    body = (await portal.read("alice", "cluster/history")).body
    at = [f"{noon + timedelta(hours=number):%Y-%m-%dT%H:%MZ}" for number in range(3)]
    total = sum(one.gpus[0].total for one in node_statuses(portal.served.store.cluster_state)) // GPU
    use = {at[1]: 600 / total, at[2]: 400 / total}
    assert cells(body, "types") == pytest.approx({(hour, "GPU"): value for hour, value in use.items()}, abs=0.05)
    assert cells(body, "nodes") == pytest.approx({(hour, "gpu-1"): value for hour, value in use.items()}, abs=0.05)
    assert cells(body, "queue") == {(at[0], "Jobs"): 1.5}
    assert cells(body, "waits") == {(at[1], "Median"): 45, (at[1], "Longest"): 60}


async def test_long_table_has_the_users_with_most_hours_and_a_link_to_all(portal: Portal) -> None:
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    users = MOST_ROWS + 2
    past = [Past("T0 R0 E1", f"p{number:04}", "default", number + 1, noon=noon) for number in range(users)]
    await portal.served.leader.repository._database.write(lambda connection: put_past(connection, *past))
    page = await portal.read("root-admin", "history?by=user")
    table = re.search('<table [^>]*id="totals">.*?</table>', page.body, re.DOTALL)
    assert table is not None
    assert re.findall(r'<th scope="row" class="name">(p\d+)', table[0]) == [f"p{n:04}" for n in range(101, 1, -1)]
    assert "2 others 3.0 3.0 not known 0.0 Total 5253.0 5253.0 not known 0.0" in page.text
    link = re.search('held the most; <a href="/services/jobs/([^"]+)">the CSV has all 102</a>', page.body)
    assert link is not None
    table = await portal.read("root-admin", html.unescape(link[1]))
    assert table.body.count('"p0') == 102
    assert table.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert table.headers["Content-Disposition"].startswith('attachment; filename="gpu-hours-user-')


@pytest.mark.parametrize(
    ("path", "where", "name"),
    [("api/history/gpu-hours?by=user", history, "as_json"), ("history?by=user", portal_history, "_plots")],
    ids=["REST", "page"],
)
async def test_other_requests_are_answered_while_a_report_is_written(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, path: str, where: Any, name: str
) -> None:
    await fill(portal, days=1)
    begun, done, real = threading.Event(), threading.Event(), getattr(where, name)

    def held(*given: Any) -> Any:
        begun.set()
        assert done.wait(20)
        return real(*given)

    monkeypatch.setattr(where, name, held)
    answer = asyncio.create_task(portal.read("root-admin", path))
    assert await asyncio.to_thread(begun.wait, 20)
    assert (await portal.read("", "static/nothing")).status == 404
    done.set()
    assert (await answer).status == 200


# Charts in Chromium: drawn from the tables of their pages, which stay without JavaScript


@pytest.mark.browser
async def test_chart_tells_the_numbers_of_its_table(portal: Portal) -> None:
    await fill(portal, days=3)
    async with browsing(portal, "root-admin") as page:
        await page.context.add_init_script(JUMPS)
        await page.goto(f"{portal.real_hub.jobs}/history?by=team")
        chart = page.locator("[data-chart=requested-table]")
        await chart.locator("canvas").wait_for()
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
        numbers = await page.locator(f"#requested-table tr:has(time[datetime='{yesterday}']) td").all_text_contents()
        assert any(float(one) for one in numbers)
        await chart.locator(".plot").focus()
        await page.keyboard.press("End")
        await page.keyboard.press("ArrowLeft")
        assert await chart.locator("output").all_text_contents() == numbers, "by keyboard"
        assert await page.evaluate("window.jumped") <= SEEN_ONCE
        box = await chart.locator(".u-over").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] * 28.5 / 30, box["y"] + box["height"] / 2)
        assert await chart.locator("output").all_text_contents() == numbers, "by mouse"
        assert await page.evaluate(JAVASCRIPT) < MOST_JAVASCRIPT


@pytest.mark.browser
async def test_tables_remain_without_javascript(portal: Portal) -> None:
    await fill(portal, days=3)
    async with browsing(portal, "root-admin", java_script_enabled=False) as page:
        await page.goto(f"{portal.real_hub.jobs}/history")
        await page.get_by_text("GPU-hours requested by day as a table").click()
        assert await page.locator("#requested-table tbody tr").first.is_visible()
        assert await page.locator("[data-chart]:visible").count() == 0
