"""What hides in a text is spelled out, and nothing else is changed."""

from __future__ import annotations

import pytest

from dlspawner.core.text import escape_hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("train-2_b.c", "train-2_b.c", id="a name"),
        pytest.param("ü 字 👩‍🚀 می‌رود", "ü 字 👩‍🚀 می‌رود", id="letters of any language, and what joins them"),
        pytest.param("a\0b", "a\\x00b", id="NUL"),
        pytest.param("\x1b[2J\x9b1m\r", "\\x1b[2J\\x9b1m\\r", id="terminal sequences"),
        pytest.param("\u202eexe.\u2066x\u061c", "\\u202eexe.\\u2066x\\u061c", id="writing from right to left"),
        pytest.param("\ud800x\udfff", "\\ud800x\\udfff", id="halves of letters"),
        pytest.param("\U000e0041", "\\U000e0041", id="tags"),
        pytest.param("tr\u3164ain\uffa0\u115f\u1160", "tr\\u3164ain\\uffa0\\u115f\\u1160", id="Hangul's fillers"),
        pytest.param("\u2800x\u2801", "\\u2800x\u2801", id="the blank of Braille, and no other pattern"),
        pytest.param("e\u034f\u0301", "e\\u034f\u0301", id="the joiner of graphemes"),
        pytest.param(
            "\u1780\u17b4\u17b5\u17b6", "\u1780\\u17b4\\u17b5\u17b6", id="vowels of Khmer that are never written"
        ),
        pytest.param("tr\ufe0fai\ufe00n", "tr\\ufe0fai\\ufe00n", id="a form of a letter that has none"),
        pytest.param("❤\ufe0f ✈\ufe0e ⊕\ufe00", "❤\ufe0f ✈\ufe0e ⊕\ufe00", id="forms of emoji and of mathematics"),
        pytest.param("❤\ufe0f\ufe0f", "❤\ufe0f\\ufe0f", id="a second choice of a form"),
        pytest.param("1\ufe0f\u20e3 1\ufe0f", "1\ufe0f\u20e3 1\\ufe0f", id="a key on a keyboard, and a bare number"),
        pytest.param("葛\U000e0100城 a\U000e0100", "葛\U000e0100城 a\\U000e0100", id="forms of ideographs"),
        pytest.param("ᠠ\u180b a\u180b\u180f", "ᠠ\u180b a\\u180b\\u180f", id="forms of Mongolian letters"),
        pytest.param("<script>&", "<script>&", id="HTML is the templates'"),
    ],
)
def test_hidden_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_hidden(text) == shown
    shown.encode()
