"""What the gateway tells of a session's bytes counts as use, in containers as well; `test_idle` has the launcher's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.people import Person, Stack, wait_for

pytestmark = pytest.mark.kubernetes


def test_the_bytes_of_a_session_and_its_end_are_known(stack: Stack, alice: Person, tmp_path: Path) -> None:
    admin = stack.person("admin")
    alice.launch("typed-in", seconds=180, template="ssh")

    def used() -> dict[str, Any]:
        headers = {"Authorization": f"token {admin.token}"}
        answer = requests.get(f"{stack.url}/services/jobs/api/idle", headers=headers, timeout=60)
        jobs = answer.json()["jobs"] if answer.status_code == 200 else ()
        return next((one["used"] for one in jobs if one["server"] == "typed-in"), {})

    assert wait_for(used, "the job is known", 180)["ssh"] is None
    assert alice.ssh(tmp_path).run("typed-in", "echo hello", seconds=60).stdout == "hello\n"
    wait_for(lambda: used().get("ssh"), "the bytes of the session are known", 180)
    wait_for(lambda: used().get("ssh_open") is False, "its end is known", 180)
    alice.stop("typed-in")
    admin.close()
