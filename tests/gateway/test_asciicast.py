"""How a recording is written: every line is an event, whatever bytes a job shows and however they are cut."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway import asciicast
from ssh_gateway.asciicast import Happening, Kind, Terminal, Writer

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ALICE = Terminal("alice", "train", "1f0c9a2e-7", 0)


def texts(parts: list[bytes]) -> list[str]:
    writer = Writer()
    lines = [writer.line(Happening(Kind.OUTPUT, 0.5, part)) for part in parts]
    written = b"".join([*lines, writer.last(1.0)])
    assert all(line.count(b"\n") <= 1 for line in lines)
    return [json.loads(line)[2] for line in written.splitlines()]


@given(st.lists(st.binary(max_size=20)))
def test_any_bytes_in_any_parts_are_what_they_are_in_one(parts: list[bytes]) -> None:
    assert "".join(texts(parts)) == b"".join(parts).decode("utf-8", "replace")


@given(st.text(), st.integers(1, 5))
def test_letters_that_packets_share_stay_whole(text: str, step: int) -> None:
    content = text.encode("utf-8", "replace")
    parts = [content[at : at + step] for at in range(0, len(content), step)]
    assert "".join(texts(parts)) == content.decode("utf-8")


def test_no_line_is_broken_by_what_other_programs_take_for_the_end_of_one() -> None:
    assert texts(["a\u2028\x85\r\n\x0b\x1b[31m".encode()]) == ["a\u2028\x85\r\n\x0b\x1b[31m"]


def test_a_header_and_events_are_as_asciinema_writes_them() -> None:
    assert json.loads(asciicast.header(ALICE, (120, 40), b"xterm-256color", NOON)) == {
        "version": 2,
        "width": 120,
        "height": 40,
        "timestamp": 1777896000,
        "title": "alice+train 1f0c9a2e-7",
        "env": {"TERM": "xterm-256color"},
    }
    writer = Writer()
    assert writer.line(Happening(Kind.OUTPUT, 0.25, b"hi\r\n")) == b'[0.25, "o", "hi\\r\\n"]\n'
    assert writer.line(Happening(Kind.RESIZE, 1.5, asciicast.size((100, 50)))) == b'[1.5, "r", "100x50"]\n'


@pytest.mark.parametrize(
    ("said", "shown"),
    [((0, 0), (80, 24)), ((132, 43), (132, 43)), ((2**32 - 1, 1), (9999, 1))],
    ids=["a client that knows no size", "a size", "a size that no screen has"],
)
def test_a_size_can_be_shown(said: tuple[int, int], shown: tuple[int, int]) -> None:
    header = json.loads(asciicast.header(ALICE, said, b"", NOON))
    assert (header["width"], header["height"]) == shown


@given(st.text(), st.text(), st.binary())
def test_hostile_names_are_in_the_header_as_values_and_in_no_file_name(user: str, server: str, term: bytes) -> None:
    whose = Terminal(user, server, "1f0c9a2e-7", 3, 2)
    name = asciicast.name(whose, NOON)
    assert re.fullmatch(r"20260504T120000Z_[a-z0-9-]{1,63}_[a-z0-9-]{1,63}_1f0c9a2e-7_3_2\.cast", name)
    assert asciicast.header(whose, (80, 24), term, NOON).count(b"\n") == 1
    assert json.loads(asciicast.header(whose, (80, 24), term, NOON))["version"] == 2


def test_half_a_letter_in_a_name_is_spelled_out() -> None:
    header = asciicast.header(Terminal("a\ud800", "", "1-1", 0), (80, 24), b"", NOON)
    assert json.loads(header)["title"].startswith("a\ud800")
