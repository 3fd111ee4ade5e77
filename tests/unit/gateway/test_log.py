"""Lines of the log and their budget."""

from __future__ import annotations

import logging
import re

import pytest

from ssh_gateway import log
from ssh_gateway import log as core_log
from ssh_gateway.log import BURST, LogBudget, line, say_failed
from tests.unit.gateway.test_audit import LINE


def test_log_budget_has_a_burst_and_a_rate() -> None:
    budget = core_log.LogBudget(at=100.0)
    assert sum(budget.take(100.0) for _ in range(10_000)) == core_log.BURST
    assert budget.suppressed == 10_000 - core_log.BURST
    assert sum(budget.take(101.0) for _ in range(10_000)) == core_log.PER_SECOND
    assert sum(budget.take(1e9) for _ in range(10_000)) == core_log.BURST, "no more than that is saved up"


SECRET = "a token\nevent=open"  # as errors quote it that are about values


def test_internal_errors_have_a_log_budget(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(log, "_failures", LogBudget())
    for _ in range(3 * BURST):
        say_failed(raised(KeyError("again")), conn="x")
    assert BURST <= len(caplog.records) < 2 * BURST
    log._failures.left = 1.0
    say_failed(raised(KeyError("once more")), conn="x")
    left_out = sum(int(said) for text in caplog.messages for said in re.findall(r" unlogged=(\d+) ", text))
    assert len(caplog.records) + left_out == 3 * BURST + 1


def raised(*problems: Exception) -> Exception:
    """The last of these errors, raised because of those before it."""
    found: Exception | None = None
    for problem in problems:
        try:
            raise problem from found
        except type(problem) as error:
            found = error
    assert found is not None
    return found


def deep(calls: int) -> None:
    if calls:
        deep(calls - 1)
    raise ValueError(SECRET)


def test_line_of_an_error_is_short_and_has_no_values(caplog: pytest.LogCaptureFixture) -> None:
    say_failed(raised(ValueError(SECRET), RuntimeError(SECRET)), conn="1-1")
    say_failed(raised(AttributeError("'Visit' object has no attribute 'x'")))
    try:
        deep(500)
    except ValueError as error:
        say_failed(error)
    values, code, long = (record.getMessage() for record in caplog.records if record.name == "ssh_gateway")
    assert values.startswith(line("failed", conn="1-1", error="RuntimeError") + ' traceback="ValueError: ')
    assert "; RuntimeError: " in values
    assert "why=\"'Visit' object has no attribute 'x'\"" in code
    assert long.count("deep") < 20
    for written in (values, code, long):
        assert LINE.fullmatch(written)
        assert "token" not in written
        assert len(written) < 1000
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_line_quotes_what_is_not_plain() -> None:
    assert line("auth", conn=3, login="alice+train", why=None) == "event=auth conn=3 login=alice+train"
    assert line("auth", login="a\nevent=x \x1b") == 'event=auth login="a\\nevent=x \\u001b"'
    assert len(line("auth", login="x" * 10_000)) < 300
