"""Static files of the pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from dlspawner.manager import http
from dlspawner.manager.http.static_files import static_files
from tests.component.manager.portals import Portal


def test_chart_library_is_that_of_the_pinned_npm_package() -> None:
    package = Path(sys.prefix) / "node_modules" / "uplot"
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert static_files()[name].content == (package / "dist" / name).read_bytes()
    assert (Path(http.__file__).parent / "static" / "uPlot.LICENSE").read_bytes() == (package / "LICENSE").read_bytes()


async def test_files_of_a_page_are_served_and_cached(portal: Portal) -> None:
    page = (await portal.read("alice")).body
    loads = re.findall(r'(?:href|src)="([^"]*/static/[^"]*)"', page)
    assert len(loads) == 4
    for place in loads:
        path = place.removeprefix("/services/jobs/")
        assert path != place, "it does not come from the Hub"
        answer = await portal.read("", path)
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")


@pytest.mark.parametrize("version", ["", "?v=", "?v=0123456789abcdef"])
async def test_other_versions_are_not_cached(portal: Portal, version: str) -> None:
    answer = await portal.read("", f"static/css/style.min.css{version}")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")
    assert answer.headers["Content-Type"] == "text/css"


@pytest.mark.parametrize("path", ["js/admin-react.js", "css/../../templates/page.html", "css/style.min.css.map", "css"])
async def test_no_other_files_are_served(portal: Portal, path: str) -> None:
    assert path not in static_files()
    assert (await portal.read("", f"static/{quote(path, safe='/')}")).status == 404
