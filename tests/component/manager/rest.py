"""A Hub and its Manager for tests of the REST resources: two teams with four GPUs each, and people with real tokens.

alice and vera are in vision, which vera administers; bob and lars in language, which is lars's; admin administers the
Hub. Jobs are of the template tiny and start at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.component.manager import described
from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for

PEOPLE = ("alice", "vera", "bob", "lars")
TEAMS = """
teams:
  vision: {title: Vision, admins: [vera], members: [alice], quota: {gpu: 4}}
  language: {title: Language, admins: [lars], members: [bob], quota: {gpu: 4}, borrow_limit: 2}
blocked: [mallory]
"""
# Who would hold more than six GPUs in vision asks vera.
CAPPED = TEAMS.replace("members: [alice],", "members: [alice], user_caps: {soft: 6, hard: 8},")
SCOPES = '\nc.JupyterHub.load_roles[-1]["scopes"] += ["tokens", "access:servers"]\n'


@dataclass
class RestHub(QuotaHub):
    """The whole product without a gateway."""

    tokens: dict[str, str] = field(default_factory=dict)
    teams: str = TEAMS

    def move_in(self) -> None:
        """Everybody is known to the Hub, and the Manager acts."""
        self.add_users([*PEOPLE, "mallory"])
        answer = self.api("POST", "/users/admin", {"admin": True})
        assert answer.status_code in {201, 409}, answer.text
        wait_for(lambda: self.ask("admin", "GET", "jobs").status_code == 200, "the Manager acts", 60)

    def token(self, user: str, *scopes: str) -> str:
        """A token that this user could have made on the Hub's page; with all their rights unless scopes are given."""
        key = " ".join((user, *scopes))
        if key not in self.tokens:
            answer = self.api("POST", f"/users/{user}/tokens", {"scopes": list(scopes)} if scopes else {})
            assert answer.status_code == 201, answer.text
            self.tokens[key] = str(answer.json()["token"])
        return self.tokens[key]

    def ask(self, user: str, method: str, path: str, body: Any = None) -> requests.Response:
        """Straight at the Manager, below api/; the answer is a described one."""
        headers, url = {"Authorization": f"token {self.token(user)}"}, f"{self.manager_url()}/services/jobs/api/{path}"
        answer = requests.request(method, url, headers=headers, json=body, timeout=60, allow_redirects=False)
        described.check(method, f"api/{path}", answer.status_code, answer.headers.get("Content-Type", ""), answer.text)
        return answer

    def items(self, user: str, path: str) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        cursor, joint = "", "&" if "?" in path else "?"
        while True:
            answer = self.ask(user, "GET", f"{path}{joint}cursor={cursor}" if cursor else path)
            assert answer.status_code == 200, answer.text
            found += answer.json()["items"]
            cursor = answer.json()["next"]
            if not cursor:
                return found

    def job(self, user: str, server: str = "") -> dict[str, Any]:
        """The newest job of a server, as its owner sees it."""
        found = self.ask(user, "GET", f"jobs?user={user}&server={server}").json()["items"]
        return dict(found[0]) if found else {}

    def until(self, user: str, state: str, server: str = "", seconds: float = 60) -> dict[str, Any]:
        """The newest job of a server once it is in this state."""
        deadline = time.monotonic() + seconds
        while (job := self.job(user, server)).get("state") != state:
            assert time.monotonic() < deadline, (state, job)
            time.sleep(0.1)
        return job

    def runs(self, user: str, gpus: int = 1, server: str = "", **options: Any) -> dict[str, Any]:
        """A job of this user's that runs, as the Hub knows as well: a start can still be cancelled."""
        path = f"/users/{user}/servers/{server}" if server else f"/users/{user}/server"
        answer = self.api("POST", path, {"user_options": {"template": "tiny", "gpus": gpus, **options}})
        assert answer.status_code in {201, 202}, answer.text
        wait_for(lambda: f"{user}/{server}" in self.ready(), "its server answers", 60)
        return self.until(user, "running", server)

    def waits(self, user: str, gpus: int, server: str, state: str = "queued") -> str:
        """The id of a job of this user's that waits."""
        body = {"server": server, "options": {"template": "tiny", "gpus": gpus}}
        answer = self.ask(user, "POST", "jobs", body)
        assert (answer.status_code, answer.json().get("state")) == (202, state), answer.text
        return str(answer.json()["id"])

    def clear(self) -> None:
        """Nothing runs, and nothing waits."""
        for job in self.items("admin", "jobs?state=queued&state=pending-approval"):
            self.ask("admin", "DELETE", f"users/{job['user']}/servers/{job['server']}/pending-job")
        super().clear()


def made(folder: Any, **more: Any) -> Iterator[RestHub]:
    """One for the tests of a module."""
    settings = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=20", *more.pop("settings", ()))
    extra = SCOPES + more.pop("extra", "")
    url = more.pop("db_url", f"sqlite:///{folder / 'manager.sqlite'}")
    with running(RestHub(folder, db_url=url, settings=settings, extra=extra, **more)) as hub:
        hub.move_in()
        yield hub
