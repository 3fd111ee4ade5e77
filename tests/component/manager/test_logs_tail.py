"""The end of a log in bounded memory, and reading on where the last reading ended."""

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


def test_tail_buffer_keeps_the_end_from_the_beginning_of_a_line() -> None:
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
def test_known_lines_are_not_read_again(size: int) -> None:
    log = line(1, "one") + line(2, "two") + line(2, "two")
    first, mark = read(log, size=size)
    assert first == b"one\ntwo\ntwo\n"
    assert read(log, mark, size=size) == (b"", mark)
    more, _ = read(log + line(2, "a third of that moment") + line(3, "four"), mark, size=size)
    assert more == b"a third of that moment\nfour\n"
    begun = line(1, "one") + line(2, "half of it", end="")
    first, mark = read(begun, size=size)
    assert first == b"one\n"
    assert read(begun + b", and the rest\n", mark)[0] == b"half of it, and the rest\n"
    assert read(begun, mark, ended=True)[0] == b"half of it"


KEY = "-----BEGIN PRIVATE KEY-----", *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDKx0+yZ1nSbV7g"] * 5, "Zm9v"
WITH_KEY = ["hello", *KEY, "-----END PRIVATE KEY-----", "goodbye"]


@pytest.mark.parametrize("later", [0, 1], ids=["all at one moment", "one after the other"])
def test_private_key_is_hidden_wherever_readings_end(later: int) -> None:
    log = [line(1 + later * number, text) for number, text in enumerate(WITH_KEY)]
    for first in range(len(log)):
        for second in range(first, len(log)):
            kept, mark = read(b"".join(log[:first]))
            for upto in (second, len(log)):
                new, mark = read(b"".join(log[:upto]), mark)
                kept += new
            assert kept == b"hello\n[secret]\ngoodbye\n", (first, second)


def test_private_key_is_hidden_after_log_rotation() -> None:
    log = [line(1 + number, text) for number, text in enumerate(WITH_KEY)]
    _, mark = read(log[0])
    assert read(b"".join(log[3:]), mark)[0] == b"[secret]\ngoodbye\n"
    assert b"MII" not in read(b"".join(log[3:5]), mark)[0]


def test_unfinished_key_is_hidden_unless_it_is_too_long() -> None:
    begun = b"".join(line(number, text) for number, text in enumerate(KEY))
    assert read(begun, ended=True) == (b"[secret]", LogMark(f"{SECOND}.{len(KEY) - 1:09}Z", 1))
    assert read(begun) == (b"", NOTHING)
    endless = begun + b"".join(line(100 + number, "no key at all") for number in range(5000))
    assert read(endless)[0].endswith(b"no key at all\n")


def test_any_sequence_of_readings_gives_the_same_log() -> None:
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


def test_time_stamps_of_all_zones_sort_by_time() -> None:
    assert in_utc("2024-05-01T12:00:00.5+02:00") == "2024-05-01T10:00:00.500000000Z"
    assert in_utc("2024-05-01T10:00:00Z") == "2024-05-01T10:00:00.000000000Z"
    assert in_utc("0001-01-01T00:00:00+14:00") == "0001-01-01T00:00:00+14:00", "a clock that was never set"
    assert in_utc("2024-05-01T10:00:00.123456789Z") < in_utc("2024-05-01T10:00:00.2Z")
