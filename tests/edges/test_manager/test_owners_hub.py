"""A server that the real Hub has forgotten, and a Hub that does not let the Manager see any."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.e2e.people import wait_for
from tests.edges.test_manager.quota import QuotaHub, running

pytestmark = pytest.mark.slow
SETTINGS = ("--Manager.orphan_check_seconds=1", "--Manager.orphan_seconds=5")
ASKED = "GET /hub/api/user (jobs@"
LESS = """
for role in c.JupyterHub.load_roles:
    if role["name"] == "jobs":
        role["scopes"].remove("servers")
"""


def forget(hub: QuotaHub, user: str) -> None:
    """The Hub's database is that of a moment before this person's server was started."""
    statement = (
        "UPDATE spawners SET server_id = NULL, state = '{}' WHERE user_id = (SELECT id FROM users WHERE name = ?)"
    )
    connection = sqlite3.connect(hub.state / "hub.sqlite", timeout=30)
    with connection:
        assert connection.execute(statement, (user,)).rowcount == 1
    connection.close()


def test_a_forgotten_servers_pod_is_stopped_but_not_while_the_hub_does_not_show_servers(tmp_path: Path) -> None:
    hub = QuotaHub(tmp_path, db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}", settings=SETTINGS)
    with running(hub):
        hub.add_users(["alice", "bob"])
        for user in ("alice", "bob"):
            assert hub.start_server(user, gpus=1).status_code in {201, 202}
        wait_for(lambda: set(hub.ready()) == {"alice/", "bob/"}, "both run", 60)

        def said(words: str) -> int:
            return (tmp_path / "manager.log").read_text().count(words)

        hub.kill("hub")
        forget(hub, "alice")
        hub.extra = LESS
        hub.start_hub()
        wait_for(lambda: said("kind=hub-refuses") == 1, "administrators are told", 120)
        asked = hub.log.count(ASKED)
        wait_for(lambda: hub.log.count(ASKED) > asked + 7, "the Manager has looked for longer than five seconds", 120)
        wait_for(lambda: hub.ready() == ["bob/"], "the Hub has looked after what ran", 60)
        assert hub.held() == 2

        hub.kill("hub")
        hub.extra = ""
        hub.start_hub()
        wait_for(lambda: hub.held() == 1, "the forgotten one is stopped", 120)
        wait_for(lambda: hub.ready() == ["bob/"], "the Hub has looked after what ran", 60)
        assert said("user=alice server= the Hub has no such server; it is stopped after 5 s") >= 1
        assert "Traceback" not in hub.log
