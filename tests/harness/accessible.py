"""Checks of pages: three ways to see a page, its accessibility problems, and the moves of its layout."""

from __future__ import annotations

from typing import Any

WIDE, PHONE = {"width": 1100, "height": 900}, {"width": 360, "height": 780}
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": WIDE},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
    "phone": {"viewport": PHONE},
}
PHONE_AT_NIGHT: dict[str, Any] = {"viewport": PHONE, "color_scheme": "dark"}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Whether it can be seen that this has the keyboard; a choice that is drawn as a card shows it there.
SHOWN = """(one) => {
  const style = getComputedStyle(one.matches(".btn-check") ? one.nextElementSibling : one);
  return style.outlineStyle !== "none" || style.boxShadow !== "none";
}"""
# Adds up what moves by itself, as the browser counts it (0.1 and less is good), and what that was: before the page is
# opened.
JUMPS = """
window.jumped = 0;
window.moved = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) {
    window.jumped += one.value;
    window.moved.push(...one.sources.map(({ node }) => (node?.outerHTML ?? node?.textContent ?? "").slice(0, 80)));
  }
}).observe({ type: "layout-shift", buffered: true });
"""
# Bytes of JavaScript before compression that the page has loaded or brings itself.
JAVASCRIPT = """
performance.getEntriesByType("resource").filter(({ name }) => name.includes(".js"))
  .reduce((sum, one) => sum + one.decodedBodySize, 0)
  + [...document.scripts].filter(({ type }) => !type.includes("json")).reduce((sum, one) => sum + one.text.length, 0)
"""
MOST_JAVASCRIPT = 300_000
# Nothing jumps: but once in hundreds of looks, on a machine with ten times the work that it can do, 0.0057 were counted
# on the portal's page of keys, of unknown origin, and 0.013 on the queue, whose first part was painted before the
# script at its end wrote the times in the reader's own zone, without UTC. A button or a line that moves counts more.
SEEN_ONCE = 0.02
# What is shown by now is drawn, and its jumps are counted.
DRAWN = """
document.fonts.ready.then(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))))
"""


def violations(answer: dict[str, Any]) -> list[str]:
    """Returns axe's complaints: the rule, the element, and the remedy."""
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in answer["violations"]
        for node in one["nodes"]
    ]
