"""Reports of gateways on their sessions, one after the other on one job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.core.idle import SSH_REPORT_TIMEOUT
from dlspawner.manager.model.activity import ActivityStore, SshSessionReport

START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATE = SSH_REPORT_TIMEOUT + MINUTE


def session(*, is_open: bool) -> dict[str, SshSessionReport]:
    return {"j-1": SshSessionReport("alice", "train", 0.0, open=is_open)}


# The second report after one of an open session: when, by which gateway, of which sessions; and what is known then.
ROWS: dict[str, tuple[timedelta, str, dict[str, SshSessionReport], tuple[bool, str, datetime]]] = {
    "its gateway reports the end": (MINUTE, "one", session(is_open=False), (False, "", START + MINUTE)),
    "its gateway does not have it any more": (MINUTE, "one", {}, (False, "", START)),
    "another gateway does not have it": (MINUTE, "two", {}, (True, "one", START)),
    "another gateway has it": (MINUTE, "two", session(is_open=True), (True, "two", START + MINUTE)),
    "another gateway reports the end of one": (MINUTE, "two", session(is_open=False), (True, "one", START + MINUTE)),
    "its gateway is silent, another one reports": (LATE, "two", {}, (False, "", START + LATE)),
}


@pytest.mark.parametrize(("after", "gateway", "told", "known"), ROWS.values(), ids=ROWS)
def test_open_session_stays_until_its_end_is_known(
    after: timedelta, gateway: str, told: dict[str, SshSessionReport], known: tuple[bool, str, datetime]
) -> None:
    store = ActivityStore(START)
    store.report_ssh("one", session(is_open=True), START)
    store.report_ssh(gateway, told, START + after)
    found = store.of("j-1")
    assert (found.ssh_open, found.ssh_gateway, found.ssh) == known
