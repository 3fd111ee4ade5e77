"""Charts in Chromium: drawn from the tables of their pages, which stay without JavaScript."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.component.manager.portals import Portal, browsing
from tests.component.manager.test_history_page import fill
from tests.harness.accessible import JAVASCRIPT, JUMPS, MOST_JAVASCRIPT, SEEN_ONCE


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
