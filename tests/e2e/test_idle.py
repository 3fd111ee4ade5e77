"""Who uses GPUs is known with `make run`, where this machine has a Prometheus."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from tests.e2e.people import Person, Stack, wait_for
from tests.edges.test_manager.metrics import program

pytestmark = [pytest.mark.launcher, pytest.mark.slow]


def test_the_report_for_administrators_knows_the_pretended_gpus_of_a_job(stack: Stack, alice: Person) -> None:
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
    alice.stop("metered")
    admin.close()
