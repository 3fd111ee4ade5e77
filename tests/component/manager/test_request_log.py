"""Log lines as JSON, and one request followed from the Hub's REST API to the pod."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from dlspawner import request_log
from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for


@pytest.mark.parametrize(
    ("given", "kept"),
    [("4bf92f3577b34da6", True), ("req_1.a-b", True), (None, False), ("", False), ("a b", False), ("a\nb", False)],
)
def test_only_an_id_is_taken_as_one(given: str | None, kept: bool) -> None:
    found = request_log.accept(given)
    assert (found == given) is kept
    assert request_log.request_id.get() == found


def test_a_line_has_the_fields_of_its_message_and_its_exception() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "", 0, 'job=%s why="a \\"b\\" c" x', ("j-1",), sys.exc_info())
    line = json.loads(request_log.JsonFormatter().format(record))
    assert line["fields"] == {"job": "j-1", "why": 'a "b" c'}
    assert line["level"] == "error"
    assert "two\nlines" in line["exception"]


@dataclass
class JsonHub(QuotaHub):
    def env(self) -> dict[str, str]:
        return {**super().env(), "DLSPAWNER_LOG_FORMAT": "json"}


@pytest.mark.slow
def test_a_request_is_found_in_both_logs_and_at_the_pod(tmp_path: Path) -> None:
    hub = JsonHub(tmp_path, settings=("--log-format=json",))

    def lines(name: str) -> list[dict[str, Any]]:
        text = (tmp_path / f"{name}.log").read_text().splitlines()
        found: list[dict[str, Any]] = [json.loads(line) for line in text if line.startswith("{")]
        return [one for one in found if one.get("request") == "from-the-page"]

    with running(hub):
        hub.add_users(["alice"])
        headers = {"Authorization": "token tests-token", "X-Request-ID": "from-the-page"}
        body = {"user_options": {"gpus": 1}}
        where = f"http://{hub.address}:{hub.hub_port}/hub/api/users/alice/server"
        assert requests.post(where, headers=headers, json=body, timeout=120).status_code in {201, 202}
        wait_for(lambda: "alice/" in hub.ready(), "it runs", 120)
        command = [hub.kubectl_program, "-n", hub.namespace, "get", "pods", "-o", "json"]
        (pod,) = json.loads(subprocess.check_output(command, env=hub.env()))["items"]
        assert pod["metadata"]["annotations"][request_log.ANNOTATION] == "from-the-page"
        assert any("starts" in one["message"] for one in lines("hub"))
        assert any("status=200" in one["message"] for one in lines("manager")), "the admission request"
