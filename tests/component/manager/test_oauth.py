"""Login at an OAuth provider, which is another JupyterHub, by oauthenticator; its groups are teams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from dlspawner.local.processes import find_proxy
from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import answers, free_port

pytestmark = pytest.mark.slow
TEAMS = "teams: {default: {title: Everybody}, vision: {title: Vision, quota: {gpu: 8}}}"
PROVIDER = """
c.JupyterHub.bind_url = "http://localhost:{port}/"  # cookies know no ports: another host than the Hub's
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.ConfigurableHTTPProxy.pid_file = "{state}/provider.pid"
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.cookie_secret = b"0123456789abcdef0123456789abcdef"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.load_groups = {{"vision": {{"users": ["alice"]}}}}
c.JupyterHub.services = [
    {{
        "name": "dlspawner",
        "oauth_client_id": "service-dlspawner",
        "api_token": "the-client-s-secret",
        "oauth_redirect_uri": "{hub}/hub/oauth_callback",
        "oauth_client_allowed_scopes": ["read:users:name", "read:users:groups"],
        "oauth_no_confirm": True,
    }}
]
c.JupyterHub.load_roles = [{{"name": "user", "scopes": ["self", "access:services!service=dlspawner"]}}]
"""
CLIENT = """
c.JupyterHub.authenticator_class = "oauthenticator.generic.GenericOAuthenticator"
c.GenericOAuthenticator.update(
    client_id="service-dlspawner",
    client_secret="the-client-s-secret",
    oauth_callback_url="{hub}/hub/oauth_callback",
    authorize_url="{at}/hub/api/oauth2/authorize",
    token_url="{at}/hub/api/oauth2/token",
    userdata_url="{at}/hub/api/user",
    username_claim="name",
    manage_groups=True,
    auth_state_groups_key="oauth_user.groups",
    allow_all=True,
    enable_auth_state=True,
)
c.CryptKeeper.keys = ["{key}"]
"""


@dataclass
class OAuthHub(QuotaHub):
    provider_port: int = field(default_factory=free_port)

    def start_hub(self) -> None:
        at = f"http://localhost:{self.provider_port}"
        config = self.state / "provider.py"
        ports = {"port": self.provider_port, "hub_port": free_port(), "api_port": free_port()}
        config.write_text(PROVIDER.format(**ports, hub=self.url, proxy=find_proxy(), state=self.state))
        self.run("provider", "jupyterhub", f"--config={config}")
        wait_for(lambda: answers(f"{at}/hub/health"), "the provider", 180)
        self.extra = CLIENT.format(hub=self.url, at=at, key="5" * 64)
        super().start_hub()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[OAuthHub]:
    with running(OAuthHub(tmp_path, teams=TEAMS)) as made:
        yield made


def test_a_person_of_the_provider_logs_in_and_its_groups_are_teams(hub: OAuthHub) -> None:
    with requests.Session() as alice:
        login = alice.get(f"{hub.url}/hub/oauth_login", timeout=60)
        assert login.url.startswith(f"http://localhost:{hub.provider_port}/hub/login")
        form = {"username": "alice", "password": "x", "_xsrf": alice.cookies.get("_xsrf", domain="localhost.local")}
        done = alice.post(login.url, form, timeout=60)
        assert (done.status_code, done.url) == (200, f"{hub.url}/hub/home"), done.text
        assert 'content="0; url=/services/jobs/"' in done.text
        jobs = alice.get(f"{hub.url}/services/jobs/", timeout=60)
        assert (jobs.status_code, jobs.url) == (200, f"{hub.url}/services/jobs/"), jobs.text
        page = alice.get(f"{hub.url}/hub/spawn/alice", timeout=60).text
    assert hub.api("GET", "/users/alice").json()["groups"] == ["vision"]
    assert "Team Vision: " in " ".join(page.split())
