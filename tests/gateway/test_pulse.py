"""When a worker is taken for dead."""

from __future__ import annotations

import pytest

from ssh_gateway.pulse import BEATS, BEATS_AT_START, Finding, Pulse

ALIVE, SILENT, DEAD = Finding.ALIVE, Finding.SILENT, Finding.DEAD


@pytest.mark.parametrize(
    ("ready", "answers", "found"),
    [
        (True, "yyyyyyyyy", [ALIVE] * 9),
        (True, "nnnnnnn", [ALIVE, ALIVE, SILENT, ALIVE, ALIVE, ALIVE, DEAD]),
        (True, "nnnnnynn", [ALIVE, ALIVE, SILENT, ALIVE, ALIVE, ALIVE, ALIVE, ALIVE]),
        (True, "nynynynynynyny", [ALIVE] * 14),
        (False, "n" * (BEATS_AT_START + 1), [*[ALIVE] * BEATS_AT_START, DEAD]),
    ],
    ids=[
        "who answers lives",
        "who answers nothing is noticed, and dead after six questions",
        "who answers before that lives, and is asked anew",
        "who misses every second one lives",
        "who has not served yet has more time, and no line in the log",
    ],
)
def test_a_worker_is_judged_by_its_answers(ready: bool, answers: str, found: list[Finding]) -> None:
    pulse, seen = Pulse(), []
    for answer in answers:
        seen.append(pulse.ask(ready=ready))
        if answer == "y":
            pulse.answered()
    assert seen == found


def test_an_answer_after_a_silence_is_worth_a_line() -> None:
    pulse = Pulse()
    pulse.ask(ready=True)
    assert not pulse.answered()
    for _ in range(BEATS):
        pulse.ask(ready=True)
    assert pulse.answered()
    assert not pulse.answered()
