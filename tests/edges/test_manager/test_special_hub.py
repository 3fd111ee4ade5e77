"""A job with special permissions through the real Hub: asked for, approved by a Hub admin, made in its namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.e2e.people import wait_for
from tests.edges.test_manager.quota import TEMPLATE, QuotaHub, running

pytestmark = pytest.mark.slow
SECOND = "jobs-special"
MORE = """
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 30}
c.JupyterHub.api_tokens = {"token-of-admin": "admin", "token-of-alice": "alice"}
c.JupyterHub.load_roles.append(
    {"name": "alices", "users": ["alice"], "scopes": ["self", "access:services!service=jobs"]}
)
c.KubeSpawner.storage_pvc_ensure = True

def hook(spawner, pod):
    if spawner.user.name == "sly":
        pod.spec.host_network = True
    return pod
c.KubeSpawner.modify_pod_hook = hook
"""


@dataclass
class SpecialHub(QuotaHub):
    """A Hub with a second namespace and a template whose jobs see a directory of their node."""

    def prepare(self) -> None:
        super().prepare()
        scratch = self.state / "scratch"
        scratch.mkdir()
        pod = {
            "volumes": [{"name": "scratch", "hostPath": {"path": str(scratch), "type": "Directory"}}],
            "containers": [{"name": "notebook", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
        }
        template = {**TEMPLATE, "title": "Scratch", "special_permissions": ["host_paths"], "pod": pod}
        (self.templates / "jobs" / "scratch.yaml").write_text(json.dumps(template))
        cluster = self.config / "cluster.yaml"
        cluster.write_text(f"{cluster.read_text()}special_permissions: [host_paths]\n")

    def env(self) -> dict[str, str]:
        return {**super().env(), "DLSPAWNER_SPECIAL_NAMESPACE": SECOND}

    def ask(self, who: str, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"token token-of-{who}"}
        return requests.request(method, f"{self.url}/services/jobs/api/{path}", headers=headers, json=body, timeout=60)

    def requests(self) -> list[dict[str, Any]]:
        """What an administrator of the Hub has to decide."""
        answer = self.ask("admin", "GET", "approvals?mine=decide")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def made(self, kind: str = "pods", name: str = "") -> dict[str, set[str]]:
        """What there is of a kind, or of this name, by namespace."""
        found = json.loads(self.kubectl("get", kind, "-A", "-o", "json"))["items"]
        found = [one for one in found if name in {"", one["metadata"]["name"]}]
        names: dict[str, set[str]] = {}
        for one in found:
            names.setdefault(one["metadata"]["namespace"], set()).add(one["metadata"]["name"])
        return {namespace: names[namespace] for namespace in names if namespace in {"jobs", SECOND}}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpecialHub]:
    folder = tmp_path_factory.mktemp("special")
    settings = ("--Manager.lease_seconds=3", f"--Manager.special_namespace={SECOND}")
    made = SpecialHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=settings, extra=MORE)
    with running(made):
        made.kubectl("create", "namespace", SECOND)
        made.add_users(["bob", "sly"])
        yield made


def waits(hub: SpecialHub, user: str) -> dict[str, Any]:
    """The request of a start that somebody has to approve."""
    answer = hub.start_server(user, template="scratch", gpus=0)
    assert answer.status_code == 429, answer.text
    assert "It needs special permissions (host paths)" in answer.json()["message"]
    (request,) = [one for one in hub.requests() if one["user"] == user]
    return request


def ready(hub: SpecialHub, user: str) -> None:
    wait_for(lambda: f"{user}/" in hub.ready(), f"{user}'s server", 60)


def stopped(hub: SpecialHub, user: str) -> None:
    hub.api("DELETE", f"/users/{user}/server")
    wait_for(lambda: f"{user}/" not in hub.servers() and not hub.made(), f"the end of {user}'s server", 60)


def test_from_the_start_to_the_pod_and_what_comes_after(hub: SpecialHub) -> None:
    request = waits(hub, "alice")
    assert (request["kind"], request["what"].partition(" for the image ")[0]) == (
        "special",
        "Special permissions (host paths)",
    )
    assert (hub.made(), hub.made("persistentvolumeclaims", "home-alice")) == ({}, {}), "nothing is made before"
    assert hub.ask("alice", "POST", f"jobs/{request['job']}/approve").status_code == 403
    approve = hub.ask("admin", "POST", f"jobs/{request['job']}/approve", {"reason": "For the driver."})
    assert approve.status_code == 200, approve.text
    ready(hub, "alice")

    assert hub.made() == {SECOND: {"jupyter-alice"}}
    assert hub.made("persistentvolumeclaims", "home-alice") == {SECOND: {"home-alice"}}
    script = "import pathlib; pathlib.Path('/scratch/was-here').write_text('x')"
    hub.kubectl("-n", SECOND, "exec", "jupyter-alice", "-c", "notebook", "--", "python3", "-c", script)
    assert (hub.state / "scratch" / "was-here").read_text() == "x"
    told = hub.ask("alice", "GET", f"approvals?job={request['job']}")
    assert told.status_code == 200, told.text
    (row,) = told.json()["items"]
    assert (row["state"], row["by"], row["reason"]) == ("approved", "admin", "For the driver.")

    hub.kill("hub")
    hub.start_hub()
    ready(hub, "alice")
    stopped(hub, "alice")
    again = waits(hub, "alice")["job"]
    assert again != request["job"], "a restart asks again"

    answer = hub.start_server("alice", template="tiny", gpus=0)
    assert answer.status_code in {201, 202}, answer.text
    ready(hub, "alice")
    assert hub.made() == {"jobs": {"jupyter-alice"}}
    assert hub.made("persistentvolumeclaims", "home-alice") == {"jobs": {"home-alice"}, SECOND: {"home-alice"}}
    assert not [one for one in hub.requests() if one["job"] == again], "the person wants something else now"
    stopped(hub, "alice")


def test_what_is_denied_leaves_an_ordinary_job_where_it_belongs(hub: SpecialHub) -> None:
    request = waits(hub, "bob")
    assert hub.ask("admin", "POST", f"jobs/{request['job']}/deny", {"reason": "No."}).status_code == 200
    answer = hub.start_server("bob", template="tiny", gpus=0)
    assert answer.status_code in {201, 202}, answer.text
    ready(hub, "bob")
    assert hub.made() == {"jobs": {"jupyter-bob"}}
    stopped(hub, "bob")


@pytest.mark.parametrize("template", ["tiny", "scratch"])
def test_what_a_hook_adds_is_refused_before_anybody_is_asked(hub: SpecialHub, template: str) -> None:
    answer = hub.start_server("sly", template=template, gpus=0)
    assert answer.status_code == 403, answer.text
    assert "hostNetwork (the host's network)" in answer.json()["message"]
    assert not [one for one in hub.requests() if one["user"] == "sly"]
    assert hub.made() == {}
    assert "Traceback" not in hub.log
