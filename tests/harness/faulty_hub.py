"""A real Hub whose API server is behind the fault proxy, and logs everything.

Users are made by a service's token, so that many can start at once. Their names select settings of their servers:
"stock…" have no templates, "…brief…" give up soon.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.bench.spawn import RESPONDER
from tests.e2e.people import events_of, wait_for
from tests.harness import faults
from tests.harness.spawner_hub import Hub, answers, running

CONFIG = f"""
import logging
logging.basicConfig(level=logging.DEBUG)  # of aiohttp, kubernetes_asyncio and all others
logging.getLogger("sqlalchemy").setLevel(logging.WARNING)
RESPONDER = {RESPONDER!r}

async def as_named(spawner, auth_state):
    name = spawner.user.name
    if name.startswith("stock"):
        spawner.templates_dir = ""
        spawner.cmd = ["python3", "-S", "-c", RESPONDER]
    spawner.k8s_api_request_retry_timeout = 2 if "brief" in name else 300

c.Spawner.auth_state_hook = as_named
c.Spawner.poll_interval = 1
c.Spawner.consecutive_failure_limit = 1
c.JupyterHub.log_level = "DEBUG"
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0.1, "slow_stop_timeout": 0.1}}
c.KubeSpawner.k8s_api_request_timeout = 2
c.JupyterHub.services.append({{"name": "tests", "api_token": "token-of-the-tests"}})
c.JupyterHub.load_roles.append(
    {{"name": "tests", "scopes": ["admin:users", "admin:servers"], "services": ["tests"]}}
)
"""
SENTENCE = "The cluster cannot start jobs at the moment: try again soon."
_TOKEN = re.compile(rb'"JUPYTERHUB_API_TOKEN", *"value": *"([^"]+)"')


@dataclass
class FaultyHub(Hub):
    """The Hub's processes; only the Hub itself reaches the cluster through ``api``."""

    proxied: Path | None = None
    template: str = "ssh"
    bodies: list[bytes] = field(default_factory=list)

    def env(self) -> dict[str, str]:
        return {**super().env(), **({"KUBECONFIG": str(self.proxied)} if self.proxied else {})}

    def start_hub(self) -> None:
        self.proxied = self.state / "proxied"
        try:
            super().start_hub()
        finally:
            self.proxied = None

    def rest(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": "token token-of-the-tests"}
        return requests.request(method, f"{self.url}/hub/api{path}", headers=headers, json=body, timeout=120)

    def start(self, user: str, **options: object) -> None:
        """Ask for a start; `outcome` returns its result."""
        self.rest("POST", f"/users/{user}")
        given = options or ({} if user.startswith("stock") else {"template": self.template})
        answer = self.rest("POST", f"/users/{user}/server", {"user_options": given} if given else None)
        assert answer.status_code in {201, 202, 400, 403, 422, 429}, answer.text

    def outcome(self, user: str) -> str:
        """ "" when it runs, or why it does not; waits for the end of the start."""
        return wait_for(lambda: self._outcome(user), f"an outcome for {user}: {self.log[-3000:]}", 120).removeprefix(
            "!"
        )

    def _outcome(self, user: str) -> str:
        with contextlib.suppress(requests.RequestException):  # of a stream that is not read to its end
            headers = {"Authorization": "token token-of-the-tests", "Accept": "text/event-stream"}
            url = f"{self.url}/hub/api/users/{user}/server/progress"
            with requests.get(url, headers=headers, stream=True, timeout=120) as answer:
                for event in events_of(answer):
                    if event.get("ready"):
                        return "!"
                    if event.get("failed"):
                        return f"!{event['message']}"
        return ""

    def outcomes(self, *users: str) -> dict[str, str]:
        """Start all of them at once, and return the outcome of each."""
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(self.start, users))
            return dict(zip(users, threads.map(self.outcome, users), strict=True))

    def server(self, user: str) -> dict[str, Any]:
        return dict(self.rest("GET", f"/users/{user}").json().get("servers", {}).get("", {}))

    def stop_server(self, user: str) -> None:
        answer = self.rest("DELETE", f"/users/{user}/server")
        assert answer.status_code in {202, 204}, answer.text

    def stopped(self, *users: str) -> None:
        """Wait until these have no server and nothing of it is in the cluster."""
        for user in users:
            wait_for(lambda: not self.server(user), f"{user}'s server has stopped: {self.log[-3000:]}", 120)  # noqa: B023
        left = {name for user in users for name in (f"jupyter-{user}", f"jupyter-{user}-ssh")}
        wait_for(lambda: not left & set(self.names()), "nothing is left of it", 60)

    def names(self) -> list[str]:
        """Returns the present pods, Secrets and Services."""
        return [line.partition("/")[2] for line in self.kubectl("get", "pod,secret,service", "-o", "name").splitlines()]

    def check_log(self) -> None:
        """The log has no secrets and no traceback, and the Hub runs."""
        assert self.running["hub"].poll() is None, self.log[-3000:]
        assert answers(f"{self.url}/hub/health")
        log = self.log
        tokens = {token.decode() for body in self.bodies for token in _TOKEN.findall(body)}
        held = any(b"JUPYTERHUB_API_TOKEN" in body for body in self.bodies)
        assert bool(tokens) == held, "there is something to look for, once a pod was asked for"
        keys = {
            value
            for body in self.bodies
            if b"ssh_host_ed25519_key" in body
            for value in (json.loads(body).get("data") or {}).values()
            if len(value) > 100
        }
        for word in (*tokens, *keys, faults.TOKEN, faults.HEADER, "terminationGracePeriodSeconds", "PRIVATE KEY"):
            assert word not in log, f"{word}: {log[max(0, log.find(word) - 500) : log.find(word) + 500]}"
        at = log.find("Traceback")
        assert at < 0, log[max(0, at - 500) : at + 3000]


@contextlib.contextmanager
def faulty(hub: FaultyHub) -> Iterator[tuple[FaultyHub, faults.Proxy]]:
    """The Hub and the fault proxy in front of its API server."""
    hub.extra += CONFIG
    try:
        if hub.cluster is None:
            hub.start_cluster()
        with faults.before(hub.kubeconfig, hub.state / "proxied") as api:
            api.bodies = hub.bodies
            with running(hub, cluster=False):
                yield hub, api
    finally:
        if "cluster" in hub.running:
            hub.stop("cluster")
