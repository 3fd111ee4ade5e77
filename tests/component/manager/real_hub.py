"""A real JupyterHub with its real proxy, and the Manager as its external service, started first."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from dlspawner.local.processes import find_proxy
from tests.e2e.people import answers, wait_for
from tests.harness.ports import free_port

ROOT = Path(__file__).parents[3]
STUB = Path(__file__).with_name("stub_server.py")
# Another JupyterHub to test with, for Hub and Manager alike, such as 5.5 in an environment of its own.
PYTHON = os.environ.get("TEST_JUPYTERHUB_PYTHON", sys.executable)

CONFIG = """
c.JupyterHub.bind_url = {public!r}
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.auth_token = "proxy-token"
c.ConfigurableHTTPProxy.pid_file = {proxy_pid!r}
c.JupyterHub.last_activity_interval = 0  # else the Hub takes back, every five minutes, where tests have led its proxy
c.JupyterHub.db_url = "sqlite:///{directory}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{directory}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"root-admin"}}
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.allow_named_servers = True
c.SimpleLocalProcessSpawner.home_dir_template = "{directory}/home-{{username}}"
c.Spawner.cmd = {stub!r}
c.Spawner.environment = {{"STUB_TOKENS": {directory!r}}}
c.Spawner.server_token_scopes = ["users:activity!user", "access:servers!server", "access:services!service=jobs"]
c.JupyterHub.custom_scopes = {{
    "custom:ssh-keys:read": {{"description": "Read everybody's SSH public keys"}},
    "custom:notices:read": {{"description": "Read everybody's notices"}},
    "custom:ssh-starts": {{"description": "Start what people log in to"}},
    "custom:ssh-sessions:write": {{"description": "Say who uses SSH"}},
}}
c.JupyterHub.services = [
    {{"name": "jobs", "url": {manager!r}, "api_token": {tokens[manager]!r}, "oauth_no_confirm": True}},
    {{"name": "ssh-gateway", "api_token": {tokens[gateway]!r}}},
    {{"name": "other", "api_token": {tokens[other]!r}}},
    {{"name": "setup", "api_token": {tokens[setup]!r}}},
]
c.JupyterHub.load_roles = [
    {{"name": "jobs", "services": ["jobs"], "scopes": ["list:users", "read:users", "servers"]}},
    {{
        "name": "ssh-gateway",
        "services": ["ssh-gateway"],
        "scopes": [
            "users:activity", "list:users", "read:users", "read:servers", "access:services!service=jobs",
            "custom:ssh-keys:read", "custom:notices:read",
            "custom:ssh-sessions:write", "custom:ssh-starts",
        ],
    }},
    {{"name": "other", "services": ["other"], "scopes": ["access:services!service=jobs", "read:users"]}},
    {{"name": "setup", "services": ["setup"], "scopes": ["admin:users", "tokens", "servers", "access:servers"]}},
    {{"name": "user", "scopes": ["self", "access:services!service=jobs"]}},
]
"""


@dataclass
class RealHub:
    """Where everything is, and the tokens to ask with."""

    directory: Path
    public: str
    manager: str
    hub_port: int
    proxy_port: int
    tokens: dict[str, str]
    _user_tokens: dict[str, str] = field(default_factory=dict)

    @property
    def hub_api(self) -> str:
        return f"http://127.0.0.1:{self.hub_port}/hub/api"

    @property
    def jobs(self) -> str:
        """The Manager through the Hub's proxy."""
        return f"{self.public}/services/jobs"

    def setup(self, method: str, path: str, **arguments: Any) -> requests.Response:
        headers = {"Authorization": f"token {self.tokens['setup']}"}
        return requests.request(method, self.hub_api + path, headers=headers, timeout=30, **arguments)

    def token(self, user: str, scopes: tuple[str, ...] = ()) -> str:
        """A token that this user could have made on the Hub's page; with all their rights unless scopes are given."""
        key = " ".join((user, *scopes))
        if key not in self._user_tokens:
            self.setup("POST", f"/users/{user}")
            answer = self.setup("POST", f"/users/{user}/tokens", json={"scopes": list(scopes)} if scopes else {})
            assert answer.status_code == 201, answer.text
            self._user_tokens[key] = answer.json()["token"]
        return self._user_tokens[key]

    def server_token(self, user: str, server: str) -> str:
        """The token inside a running server of this user."""
        self.token(user)
        file = self.directory / f"{user}-{server}"
        if not file.exists():
            assert self.setup("POST", f"/users/{user}/servers/{server}").status_code in {201, 202}
            there = f"/users/{user}"
            wait_for(lambda: self.setup("GET", there).json()["servers"].get(server, {}).get("ready"), "the server")
        return file.read_text()


def manager_environment(url: str, hub_api: str, token: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("JUPYTERHUB", "DLSPAWNER"))},
        "JUPYTERHUB_API_TOKEN": token,
        "JUPYTERHUB_API_URL": hub_api,
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_SERVICE_NAME": "jobs",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/jobs/",
        "JUPYTERHUB_SERVICE_URL": url,
    }


@contextlib.contextmanager
def process(command: list[str], log: Path, **arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child with its output in a file, stopped as a service manager stops it."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **arguments)
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextlib.contextmanager
def running(directory: Path, settings: tuple[str, ...] = (), **of_manager: str) -> Iterator[RealHub]:
    """Start everything, in the order in which a launcher must; with more settings and environment of the Manager's."""
    roles = ("manager", "gateway", "other", "setup")
    real_hub = RealHub(
        directory,
        f"http://127.0.0.1:{free_port()}",
        f"http://127.0.0.1:{free_port()}",
        free_port(),
        free_port(),
        {role: secrets.token_hex(16) for role in roles},
    )
    config = directory / "jupyterhub_config.py"
    config.write_text(
        CONFIG.format(
            public=real_hub.public,
            hub_port=real_hub.hub_port,
            proxy_port=real_hub.proxy_port,
            proxy=find_proxy(),
            proxy_pid=str(directory / "proxy.pid"),
            directory=str(directory),
            stub=[sys.executable, str(STUB)],
            manager=real_hub.manager,
            tokens=real_hub.tokens,
        )
    )
    manager = [PYTHON, "-m", "dlspawner.manager"]
    environment = {**manager_environment(real_hub.manager, real_hub.hub_api, real_hub.tokens["manager"]), **of_manager}
    database = f"--Manager.db_url=sqlite:///{directory / 'manager.sqlite'}"
    with process([*manager, database, *settings], directory / "manager.log", cwd=directory, env=environment):
        wait_for(lambda: answers(f"{real_hub.manager}/services/jobs/health"), "the Manager")
        hub = [PYTHON, "-m", "jupyterhub", f"--config={config}"]
        with process(hub, directory / "hub.log", cwd=directory):
            wait_for(lambda: answers(f"{real_hub.public}/hub/health"), "the Hub")
            wait_for(lambda: answers(f"{real_hub.jobs}/health"), "the way to the Manager")
            yield real_hub
