"""Texts for people and programs: amounts, times, notices, and characters that hide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dlspawner.core.text import amount, escape_hidden, minutes, moment, with_time

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
WHEN = {
    "a moment that has passed": (timedelta(seconds=-5), "now"),
    "seconds": (timedelta(seconds=59), "in less than a minute"),
    "a minute": (timedelta(seconds=70), "at 12:01 UTC, in 1 minute"),
    "minutes": (timedelta(minutes=5), "at 12:05 UTC, in 5 minutes"),
    "an hour and a half": (timedelta(minutes=89), "at 13:29 UTC, in 89 minutes"),
    "hours": (timedelta(hours=3), "at 15:00 UTC, in 3 hours"),
    "tomorrow, as a date": (timedelta(hours=14), "on 05 May at 02:00 UTC, in 14 hours"),
    "days": (timedelta(days=3), "on 07 May at 12:00 UTC, in 3 days"),
}


@pytest.mark.parametrize(("ahead", "words"), WHEN.values(), ids=WHEN)
def test_moment_has_the_clock_time_and_the_distance(ahead: timedelta, words: str) -> None:
    assert moment(NOW + ahead, NOW) == words


@pytest.mark.parametrize(("seconds", "words"), [(60, "1 minute"), (90, "1.5 minutes"), (300, "5 minutes")])
def test_span_is_in_minutes(seconds: int, words: str) -> None:
    assert minutes(timedelta(seconds=seconds)) == words


def test_time_of_another_zone_is_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    assert moment(datetime(2026, 5, 4, 14, 5, tzinfo=there), NOW) == "at 12:05 UTC, in 5 minutes"


def test_time_is_put_in_its_place_or_at_the_end() -> None:
    until = NOW + timedelta(minutes=5)
    assert with_time("It stops {when}.", until, NOW) == "It stops at 12:05 UTC, in 5 minutes."
    assert with_time("It stops.", until, NOW) == "It stops. (at 12:05 UTC, in 5 minutes)"
    assert with_time("It stops {when} or so.", None, NOW) == "It stops or so."


@pytest.mark.parametrize(
    ("milli", "expected"),
    [
        pytest.param(2000, 2, id="whole units have no point"),
        pytest.param(500, 0.5, id="a half"),
        pytest.param(1, 0.001, id="the smallest"),
        pytest.param(0, 0, id="nothing"),
    ],
)
def test_amounts_are_numbers_of_whole_units(milli: int, expected: float) -> None:
    told = amount(milli)
    assert (told, type(told)) == (expected, type(expected))


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
