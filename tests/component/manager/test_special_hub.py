"""Jobs with special permissions through the real Hub: approved by a Hub admin, and by a team admin beyond a cap."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from tests.component.manager.api_client import TEAMS
from tests.component.manager.quota import GPU, TEMPLATE, QuotaHub, running
from tests.component.manager.test_approval_hub import at, chromium
from tests.e2e.people import wait_for

__all__ = ["chromium"]

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

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text(TEAMS % (2, 6))

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
    settings = ("--Manager.lease_seconds=3", f"--Manager.special_namespace={SECOND}")
    with running(SpecialHub(tmp_path_factory.mktemp("special"), settings=settings, extra=MORE)) as made:
        assert isinstance(made, SpecialHub)
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


def test_special_job_from_the_start_to_the_pod_and_the_next_start(hub: SpecialHub) -> None:
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


@pytest.mark.parametrize("template", ["tiny", "scratch"])
def test_permission_that_a_hook_adds_is_refused_without_a_request(hub: SpecialHub, template: str) -> None:
    answer = hub.start_server("sly", template=template, gpus=0)
    assert answer.status_code == 403, answer.text
    assert "hostNetwork (the host's network)" in answer.json()["message"]
    assert not [one for one in hub.requests() if one["user"] == "sly"]
    assert hub.made() == {}
    assert "Traceback" not in hub.log


# A job that two have to approve


def request_both(page: Page, hub: SpecialHub, user: str) -> None:
    """The form of a template with special permissions, and more GPUs than the soft cap; nothing starts."""
    page.goto(f"{hub.url}/hub/spawn/{user}")
    page.check("#template-scratch", force=True)
    page.locator(".job-panel:not([hidden]) [data-option=gpus]").fill("3")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="needs approval")).to_be_visible()
    main = page.locator("main")
    expect(main).to_contain_text("vera or victor can approve it for team Everybody.")
    expect(main).to_contain_text("It needs special permissions (host paths)")


def decide(page: Page, hub: SpecialHub, button: str, reason: str = "") -> None:
    """An admin decides one request, whose button has these words."""
    page.goto(f"{hub.url}/services/jobs/approvals")
    pressed = page.get_by_role("button", name=re.compile(f"^{button}$"))
    if reason:
        page.locator("article", has=pressed).get_by_label(re.compile("^Reason, for")).fill(reason)
    pressed.click()
    expect(page.get_by_text(f"You have {'approved' if button.startswith('Approve') else 'denied'} ")).to_be_visible()


@pytest.mark.browser
def test_job_that_needs_two_approvals_starts_when_both_have_approved(hub: SpecialHub, chromium: Browser) -> None:
    with at(chromium, hub, "carol") as carol, at(chromium, hub, "vera") as vera, at(chromium, hub, "admin") as admin:
        request_both(carol, hub, "carol")
        vera.goto(f"{hub.url}/services/jobs/approvals")
        assert vera.get_by_role("button", name=re.compile("^Approve")).count() == 1, "special permissions are not hers"
        decide(vera, hub, "Approve 3 GPUs.* for carol", "The paper is due.")
        expect(carol.locator("main")).to_contain_text("It needs special permissions (host paths)")
        expect(carol.locator("main")).not_to_contain_text("vera or victor can approve it")
        assert hub.made() == {}, "one of them is not enough"
        decide(admin, hub, "Approve Special permissions.* for carol", "For the driver.")
        carol.wait_for_url(re.compile(r"/(user/carol|hub/spawn-pending/carol|hub/user/carol)"))
    ready(hub, "carol")
    assert hub.made() == {SECOND: {"jupyter-carol"}}
    (pod,) = json.loads(hub.kubectl("-n", SECOND, "get", "pods", "-o", "json"))["items"]
    assert [one["resources"]["limits"][GPU] for one in pod["spec"]["containers"] if one["name"] == "notebook"] == ["3"]
    stopped(hub, "carol")
