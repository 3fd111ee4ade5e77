"""A Hub with several teams: which team a job counts for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dlspawner.core import naming
from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import PATIENT, QuotaHub, running
from tests.component.manager.test_queue_hub import Plain
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]
SECONDS = 120.0
TEAMS = """
teams:
  default: {title: Everybody}
  wide: {title: Wide, quota: {gpu: %d}}
  vision: {title: Vision, quota: {gpu: 2}}
  text: {title: Text, quota: {gpu: 2}}
"""
MORE = """
c.JupyterHub.load_roles[-1]["scopes"] += ["groups", "admin:groups"]
"""


class TeamsHub(QuotaHub):
    def team_of(self, user: str, **options: Any) -> str:
        """Starts and stops a server; the team of its pod."""
        assert self.start_server(user, **options).status_code in {201, 202}
        wait_for(lambda: f"{user}/" in self.ready(), f"{user} has a server", SECONDS)
        pod = json.loads(self.kubectl("get", "pod", f"jupyter-{user}", "-o", "json"))
        self.api("DELETE", f"/users/{user}/server")
        wait_for(lambda: f"{user}/" not in self.servers() and not self.jobs(), "it has ended", SECONDS)
        return str(pod["metadata"]["labels"][naming.TEAM_LABEL])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamsHub]:
    extra = PATIENT + MORE
    with running(TeamsHub(tmp_path_factory.mktemp("teams"), settings=SETTINGS, extra=extra, teams=TEAMS)) as made:
        made.add_users(["nobody", "both"])
        for team in ("vision", "text"):
            made.api("POST", f"/groups/{team}", {})
            assert made.api("POST", f"/groups/{team}/users", {"users": ["both"]}).status_code == 200
        yield made
        made.check_logs()


def test_job_counts_for_the_team_that_was_chosen_last(hub: TeamsHub) -> None:
    for team in ("text", "vision"):
        assert hub.team_of("both", gpus=1, team=team) == team
        assert hub.team_of("both") == team, "the next start is charged likewise"
        with Plain(hub, "both") as person:
            form = person.visit("/hub/spawn/both/another").text
        assert re.findall(r'<option value="(text|vision)"\s+selected', form) == [team]
    assert hub.start_server("both", gpus=1, team="wide").status_code == 400
    assert hub.team_of("nobody", gpus=0) == "default"
    assert hub.refusal("nobody", hub.start_server("nobody", gpus=1)).startswith("Team Everybody")
