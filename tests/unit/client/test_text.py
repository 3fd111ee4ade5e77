"""Texts that the client prints."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from dlspawner.client import text
from dlspawner.core import units

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_table_is_as_wide_as_its_widest_cells() -> None:
    assert text.table(("JOB", "GPUS"), [("train", "2 a100"), ("x", None)]) == "JOB    GPUS\ntrain  2 a100\nx      -"


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [("\x1b[2J", "\\x1b[2J"), ("a\rb", "a\\rb"), ("\x9b1m", "\\x9b1m"), ("\u202eexe", "\\u202eexe"), ("ü 字", "ü 字")],
    ids=["an escape", "a carriage return", "a C1 control", "writing from right to left", "letters of any language"],
)
def test_control_characters_of_a_name_are_escaped(hostile: str, shown: str) -> None:
    assert text.printable(hostile) == shown
    assert text.table(("JOB",), [(hostile,)]) == f"JOB\n{shown}"
    assert shown in text.facts([("Job", hostile)])


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (None, "-"),
        ("2026-01-02T11:59:30Z", "30s"),
        ("2026-01-02T11:59:00Z", "60s"),
        ("2026-01-02T11:57:00Z", "3m"),
        ("2026-01-01T09:00:00Z", "27h"),
        ("2025-12-31T11:00:00Z", "2d"),
        ("2026-01-02T13:00:00Z", "0s"),
    ],
)
def test_age_has_one_unit(at: str | None, shown: str) -> None:
    assert text.age(at, NOW) == shown


MIB = 2**20


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        *((None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (30 * 2**30, "30 GiB")),
        *((30336 * MIB, "29.62 GiB"), (1264 * MIB, "1.23 GiB"), (1000 * MIB, "1000 MiB")),
    ],
)
def test_memory_is_in_binary_units(count: int | None, shown: str) -> None:
    assert text.size(count) == shown


@pytest.mark.parametrize("mib", [1, 512, 1000, 1264, 2048, 30336, 1024 * 1024, 1600 * 1024])
def test_memory_reads_as_on_the_page_of_the_job(mib: int) -> None:
    assert text.size(mib * MIB) == units.size(mib * MIB)


def test_job_of_another_user_is_named_with_its_owner() -> None:
    job = {"user": "alice", "server": ""}
    assert (text.title(job, "alice"), text.title(job, "bob")) == ("(default)", "alice/(default)")


@pytest.mark.parametrize(
    ("begin", "end", "shown"),
    [
        ("2026-01-02T13:00:00Z", "2026-01-02T14:30:00Z", "13:00 to 14:30"),
        ("2026-01-02T13:00:00Z", "2026-01-02T13:00:20Z", "about 13:00"),
        ("2026-01-02T12:00:00Z", "2026-01-02T12:00:20Z", "within a minute"),
        ("2026-01-02T23:00:00Z", "2026-01-03T08:00:00Z", "02 Jan 23:00 to 03 Jan 08:00"),
    ],
    ids=["a range", "the same minute", "now", "another day"],
)
def test_estimate_is_in_local_time(begin: str, end: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    job = {"estimate": {"from": begin, "to": end, "basis": "an estimate"}}
    assert text.probably(job, NOW) == f"probably {shown}; an estimate"


def test_missing_estimate_is_empty() -> None:
    assert text.between(None, NOW) == text.probably({"estimate": None}, NOW) == ""


@pytest.mark.parametrize(
    ("some", "others", "said"),
    [
        pytest.param(False, 0, "The queue is empty.", id="an empty queue"),
        pytest.param(False, 1, "None of your jobs is queued; 1 job of others is queued.", id="only jobs of others"),
        pytest.param(True, 4, "Besides these, 4 jobs of others are queued.", id="both"),
    ],
)
def test_queue_counts_the_jobs_of_others(some: bool, others: int, said: str) -> None:
    assert text.waiting(some, others) == said
