"""``dlspawner events``: what became of a job and what was told of its pods, in one order; the service searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlspawner import cli
from tests.component.client.test_said import ID, JOB
from tests.component.client.test_service import Scripted, server

__all__ = ["server"]
RAN = {"at": "2026-01-02T12:00:05.5Z", "state": "running", "reason": "running", "detail": ""}
QUEUED = {"at": "2026-01-02T12:00:00Z", "state": "queued", "reason": "queued", "detail": ""}
MOUNT = {"at": "2026-01-02T12:00:03Z", "reason": "FailedMount", "sentence": "A volume\x1b[2J cannot.", "count": 3}
NOT_YOURS = {"status": 403, "title": "Forbidden", "detail": "Logs, and events of pods, are for the job's owner."}


def answer(*items: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"items": list(items), "next": None, **more}


@pytest.fixture(autouse=True)
def here(server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DLSPAWNER_URL", server.url)
    monkeypatch.setenv("DLSPAWNER_TOKEN", "secret")


def test_both_are_told_in_their_order(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [(200, JOB), answer(QUEUED, RAN, shortened=True), answer(MOUNT)]
    assert cli.main(["events", ID]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert [line.split()[3 if "UTC" in line else 2] for line in lines[1:]] == ["queued", "Kubernetes", "running"]
    assert "(3 times)" in lines[2]
    assert "\x1b" not in told.out
    assert "only the latest" in told.err


def test_the_service_searches_both(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [(200, JOB), answer(), answer()]
    assert cli.main(["events", ID, "--search", "a place"]) == 0
    assert capsys.readouterr().out == "Nothing has these words.\n"
    assert [path.rpartition("/")[2] for _, path, *_ in server.asked[1:]] == [
        "events?search=a+place",
        "pod-events?search=a+place",
    ]


def test_who_may_not_read_those_of_pods_reads_the_others(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [(200, JOB), answer(QUEUED), (403, NOT_YOURS)]
    assert cli.main(["events", ID, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"events": [QUEUED], "events_shortened": False, "pod_events": []}
    assert NOT_YOURS["detail"] in told.err
