"""How a page is looked at: three ways to see it, and what is wrong with it for somebody."""

from __future__ import annotations

from typing import Any

WIDE, PHONE = {"width": 1100, "height": 900}, {"width": 360, "height": 780}
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": WIDE},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
    "phone": {"viewport": PHONE},
}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def violations(answer: dict[str, Any]) -> list[str]:
    """What axe complains of: the rule, the element, and what would mend it."""
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in answer["violations"]
        for node in one["nodes"]
    ]
