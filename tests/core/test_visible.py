"""What hides in a text is spelled out, and nothing else is changed."""

from __future__ import annotations

import pytest

from dlspawner.core.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("train-2_b.c", "train-2_b.c", id="a name"),
        pytest.param("ü 字 👩‍🚀 می‌رود", "ü 字 👩‍🚀 می‌رود", id="letters of any language, and what joins them"),
        pytest.param("a\tb\nc", "a\tb\nc", id="tabs and lines"),
        pytest.param("a\0b", "a\\x00b", id="NUL"),
        pytest.param("\x1b[2J\x9b1m\r", "\\x1b[2J\\x9b1m\\r", id="terminal sequences"),
        pytest.param("\u202eexe.\u2066x\u061c", "\\u202eexe.\\u2066x\\u061c", id="writing from right to left"),
        pytest.param("tr\u200bai\u2060n\ufeff\xad", "tr\\u200bai\\u2060n\\ufeff\\xad", id="no width"),
        pytest.param("\ud800x\udfff", "\\ud800x\\udfff", id="halves of letters"),
        pytest.param("\U000e0041", "\\U000e0041", id="tags"),
        pytest.param("<script>&", "<script>&", id="HTML is the templates'"),
    ],
)
def test_nothing_hides(text: str, shown: str) -> None:
    assert visible(text) == shown
    shown.encode()
