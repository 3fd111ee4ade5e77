"""Hostile texts in every place that shows texts of other users."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dlspawner.client import text as terminal
from dlspawner.core import text as core_text
from dlspawner.core.text import escape_hidden
from dlspawner.manager.logs.redaction import readable
from dlspawner.manager.model.notice import clean
from dlspawner.manager.model.ssh_keys import clean_name

HOSTILE = {
    "writing from right to left": "train\u202eexe.gpj\u2066\u2069\u061c",
    "no width": "tr\u200bai\u2060n\ufeff",
    "a terminal's sequences": "\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x1b\\\x9b1m\x1bP1$r0m\x1b\\",
    "a bell, a backspace and a carriage return": "good\rbad\x07\x08\x08",
    "what closes a script": "</script></title><script>alert(1)</script>",
    "much of it": "x" * 2**16,
    "NUL": "a\0b",
    "halves of letters": "\ud800x\udfff",
    "other line ends": "a\u2028b\u2029c\x85d\x0be",
    "a formula": "=cmd|' /C calc'!A0",
    "a formula in wide letters": "＝1+1",
}
SHOWN: dict[str, Callable[[str], str]] = {
    "on a page": escape_hidden,
    "in a log": lambda text: readable(text.encode(errors="surrogatepass")),
    "in a notice or a reason": lambda text: clean(text, 200),
    "as a key's name": clean_name,
    "as a cluster's word": core_text.quoted,
    "as a program's last word": core_text.last_words,
    "in a terminal": terminal.printable,
    "in a terminal's table": lambda text: terminal.table(("JOB", "WHY"), [(text, text)]),
    "among a terminal's facts": lambda text: terminal.facts([("Why", text)]),
}
ONE_LINE = {"in a notice or a reason", "as a key's name", "as a cluster's word", "as a program's last word"}
# What a program prints is kept as it is, as long as it moves nothing and turns nothing around.
ZERO_WIDTH_OF_LOGS = {"'\\u200b'", "'\\u2060'"}


@pytest.mark.parametrize("way", SHOWN)
@pytest.mark.parametrize("kind", HOSTILE)
def test_shown_text_has_no_effect(kind: str, way: str) -> None:
    shown = SHOWN[way](HOSTILE[kind])
    shown.encode()  # UTF-8 can hold it
    lines = shown.replace("\n", "").replace("\t", "")
    moves = [ascii(one) for one in lines if not one.isprintable() and one not in "\u200c\u200d"]
    assert [one for one in moves if one not in ZERO_WIDTH_OF_LOGS or way != "in a log"] == []
    if way in ONE_LINE:
        assert "\n" not in shown
        assert len(shown) <= 256
    if way == "in a terminal's table":
        assert len(shown.split("\n")) == 2, "a row stays one row"
