"""The end of a log in bounded memory, and a log that is read again."""

from __future__ import annotations

import random

import pytest

from dlspawner.manager.logs.collector import StampedLog, TailBuffer
from dlspawner.manager.model.log_mark import LogMark, in_utc

SECOND = "2024-05-01T10:00:00"
NOTHING = LogMark()


def line(at: int, text: str, end: str = "\n") -> bytes:
    return f"{SECOND}.{at:09}Z {text}{end}".encode()


def read(
    log: bytes, known: LogMark = NOTHING, *, ended: bool = False, most: int = 2**20, size: int = 100
) -> tuple[bytes, LogMark]:
    reader = StampedLog(known, [b"a secret token"], most)
    for at in range(0, len(log), size):
        reader.feed(log[at : at + size])
    text, mark, _ = reader.take(ended=ended)
    return text, mark


def test_the_ring_keeps_the_end_and_begins_with_a_line() -> None:
    ring = TailBuffer(10)
    for part in (b"one\n", b"two\n", b"three\n", b"four\n"):
        ring.put(part)
    assert ring.take() == b"four\n"
    assert ring.lost
    whole = TailBuffer(10)
    whole.put(b"0123456789")
    assert (whole.take(), whole.lost) == (b"0123456789", False)
    endless = TailBuffer(10)
    endless.put(b"x" * 99)
    assert (endless.take(), endless.lost) == (b"x" * 10, True)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_what_was_read_before_is_not_read_again(size: int) -> None:
    log = line(1, "one") + line(2, "two") + line(2, "two")
    first, mark = read(log, size=size)
    assert first == b"one\ntwo\ntwo\n"
    assert read(log, mark, size=size) == (b"", mark)
    more, _ = read(log + line(2, "a third of that moment") + line(3, "four"), mark, size=size)
    assert more == b"a third of that moment\nfour\n"


def test_a_line_that_is_not_over_is_read_when_it_is() -> None:
    begun = line(1, "one") + line(2, "half of it", end="")
    first, mark = read(begun)
    assert first == b"one\n"
    assert read(begun + b", and the rest\n", mark)[0] == b"half of it, and the rest\n"
    assert read(begun, mark, ended=True)[0] == b"half of it"


def test_ten_mebibytes_in_one_line_are_its_last_mebibyte() -> None:
    log = line(1, "before") + line(2, "x" * (10 * 2**20) + "the end")
    text, mark = read(log, size=65536)
    assert len(text) <= 2**20 + 65536
    assert text.endswith(b"the end\n")
    assert mark.stamp.endswith("2Z")


def test_secrets_are_hidden() -> None:
    assert read(line(1, "it is a secret token."))[0] == b"it is [secret].\n"


KEY = "-----BEGIN PRIVATE KEY-----", *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDKx0+yZ1nSbV7g"] * 5, "Zm9v"
WITH_KEY = ["hello", *KEY, "-----END PRIVATE KEY-----", "goodbye"]


@pytest.mark.parametrize("later", [0, 1], ids=["all at one moment", "one after the other"])
def test_wherever_a_reading_ends_in_a_private_key_nothing_of_it_is_read(later: int) -> None:
    log = [line(1 + later * number, text) for number, text in enumerate(WITH_KEY)]
    for first in range(len(log)):
        for second in range(first, len(log)):
            kept, mark = read(b"".join(log[:first]))
            for upto in (second, len(log)):
                new, mark = read(b"".join(log[:upto]), mark)
                kept += new
            assert kept == b"hello\n[secret]\ngoodbye\n", (first, second)


def test_a_log_whose_earlier_lines_the_node_has_thrown_away_may_begin_in_a_private_key() -> None:
    log = [line(1 + number, text) for number, text in enumerate(WITH_KEY)]
    _, mark = read(log[0])
    assert read(b"".join(log[3:]), mark)[0] == b"[secret]\ngoodbye\n"
    assert b"MII" not in read(b"".join(log[3:5]), mark)[0]


def test_a_key_that_is_never_over_is_hidden_and_what_is_longer_than_any_is_none() -> None:
    begun = b"".join(line(number, text) for number, text in enumerate(KEY))
    assert read(begun, ended=True) == (b"[secret]", LogMark(f"{SECOND}.{len(KEY) - 1:09}Z", 1))
    assert read(begun) == (b"", NOTHING)
    endless = begun + b"".join(line(100 + number, "no key at all") for number in range(5000))
    assert read(endless)[0].endswith(b"no key at all\n")


def test_however_often_and_wherever_a_log_is_read_it_is_the_same() -> None:
    chance = random.Random(3)
    for _ in range(50):
        at, log = 0, b""
        for number in range(60):
            at += chance.choice([0, 0, 1])
            log += line(at, f"line {number}")
        kept, mark, size = b"", LogMark(), 0
        while size < len(log):
            size = min(len(log), size + chance.randrange(1, 400))
            new, mark = read(log[:size], mark, size=chance.randrange(1, 200))
            kept += new
        assert kept == b"".join(f"line {number}\n".encode() for number in range(60))


def test_stamps_of_any_time_zone_sort_by_time() -> None:
    assert in_utc("2024-05-01T12:00:00.5+02:00") == "2024-05-01T10:00:00.500000000Z"
    assert in_utc("2024-05-01T10:00:00Z") == "2024-05-01T10:00:00.000000000Z"
    assert in_utc("0001-01-01T00:00:00+14:00") == "0001-01-01T00:00:00+14:00", "a clock that was never set"
    assert in_utc("2024-05-01T10:00:00.123456789Z") < in_utc("2024-05-01T10:00:00.2Z")
