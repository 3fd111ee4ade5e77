"""What is known of the use of jobs with `make run`, where this machine has a Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.component.manager.metrics import program
from tests.e2e.people import Person, Stack, wait_for

pytestmark = [pytest.mark.launcher, pytest.mark.slow]


def test_idle_report_has_gpus_and_ssh_use(stack: Stack, alice: Person, tmp_path: Path) -> None:
    program("prometheus")
    admin = stack.person("admin")
    alice.launch("metered", template="ssh", gpus=2)

    def job() -> dict[str, Any]:
        headers = {"Authorization": f"token {admin.token}"}
        answer = requests.get(f"{stack.url}/services/jobs/api/idle", headers=headers, timeout=60)
        jobs = answer.json()["jobs"] if answer.status_code == 200 else ()
        return next((one for one in jobs if one["server"] == "metered" and len(one["gpus"]) == 2), {})

    found = wait_for(job, "its two GPUs are known", 180)
    assert {gpu["memory_bytes"] for gpu in found["gpus"]} == {512 * 1024**2}
    assert found["used"]["ssh"] is None

    assert alice.ssh(tmp_path).run("metered", "echo hello").stdout == "hello\n"
    wait_for(lambda: job().get("used", {}).get("ssh"), "the bytes of the session are known", 180)
    wait_for(lambda: job().get("used", {}).get("ssh_open") is False, "its end is known", 180)
    alice.stop("metered")
