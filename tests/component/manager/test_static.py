"""Static files of the pages."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from dlspawner.manager.http.static_files import static_files
from tests.component.manager.portals import Portal


async def test_files_of_a_page_are_served_and_cached(portal: Portal) -> None:
    page = (await portal.read("alice")).body
    loads = re.findall(r'(?:href|src)="([^"]*/static/[^"]*)"', page)
    assert len(loads) == 5
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
