"""What tests of bad input share: a Hub with two teams, the ways in which somebody asks, and pods that are forged."""

from __future__ import annotations

import html
import json
from typing import Any

import requests

from tests.component.manager import crowds
from tests.component.manager.quota import QuotaHub
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person, alert

VISION = "  vision: {title: Vision, members: [mia, noa, ole], quota: {gpu: %d}}\n"
MEMBERS = ("mia", "noa", "ole")
TEAMS = "teams:\n  default: {title: Everybody, quota: {gpu: %d}}\n"


class TeamsHub(QuotaHub):
    """One with two teams; the second one's quota is in the file as long as there is one."""

    def set_quota(self, gpus: int) -> None:
        self.set_teams(gpus, vision=gpus)

    def set_teams(self, gpus: int, vision: int | None) -> None:
        self.write_teams(TEAMS % gpus + ("" if vision is None else VISION % vision))

    def write_teams(self, text: str) -> None:
        new = self.config / "teams.new"
        new.write_text(text)
        new.replace(self.config / "teams.yaml")

    def jobs(self) -> dict[str, str]:
        """The state of every job that has not ended, by its user."""
        return {user: state for user, state, _ in crowds.live(self)}

    def pods(self) -> dict[str, dict[str, Any]]:
        items = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    @property
    def manager_log(self) -> str:
        return (self.state / "manager.log").read_text()


def sentence(answer: requests.Response) -> str:
    """What somebody reads who has sent the form or asked by REST."""
    if answer.headers["Content-Type"].startswith("text/html"):
        return html.unescape(alert(answer.content.decode())).removeprefix("Error: ")
    told = answer.json()
    return str(told.get("detail") or told["message"])


def by_form(who: Person, **options: str) -> requests.Response:
    """What the browser shows in the end."""
    template = options.pop("template", "tiny")
    given = {f"{template}--{name}": value for name, value in options.items()}
    fields = {"template": template, **given, "_xsrf": who.xsrf}
    return who.http.post(f"{who.hub.url}/hub/spawn/{who.name}", data=fields, timeout=60)


def by_rest(who: Person, **options: str) -> requests.Response:
    """SubmitJob."""
    url, headers = f"{who.hub.url}/services/jobs/api/jobs", {"Authorization": f"token {who.token}"}
    return requests.post(url, json={"options": {"template": "tiny", **options}}, headers=headers, timeout=60)


def refusal(who: Person, **options: str) -> str:
    """The sentence, which is the same from the form, the Hub's REST API and the Manager's."""
    answers = [by_form(who, **options), who.start("", template="tiny", **options), by_rest(who, **options)]
    assert all(answer.status_code in {400, 403, 422} for answer in answers)
    (said,) = {sentence(answer) for answer in answers}
    return said


ENOUGH = "until [ -e /enough/now ]; do sleep 0.1; done"


class Forger:
    """Somebody who may make and change pods; theirs take their time when they are stopped."""

    def __init__(self, hub: TeamsHub, like: Person) -> None:
        self._hub, self._real = hub, hub.pods()[like.pod_name("")]

    def forge(self, name: str, gpus: int, **claims: str) -> None:
        """A pod that runs, and then says to be that person's job, or what it ``claims`` to be."""
        self.run(name, gpus)
        self.claim(name, gpus, **claims)

    def run(self, name: str, gpus: int) -> None:
        """A pod that says nothing of itself, and runs."""
        self._hub.apply("v1", "Pod", name, spec=self._spec(gpus))
        self._hub.kubectl("wait", "--for=jsonpath={.status.phase}=Running", f"pod/{name}", "--timeout=60s")

    def claim(self, name: str, gpus: int = 0, **claims: str) -> None:
        """A pod says whose job it is, until it is asked to end."""
        hub = self._hub
        said = {
            kind: {key: claims.get(key, value) for key, value in self._real["metadata"][kind].items()}
            for kind in ("labels", "annotations")
        }
        hub.apply("v1", "Pod", name, metadata={"name": name, **said}, spec=self._spec(gpus))
        wait_for(lambda: "deletionTimestamp" in hub.pods()[name]["metadata"], f"{name} is stopped", 60)

    def end(self, *names: str) -> None:
        for name in names:
            self._hub.kubectl("exec", name, "--", "touch", "/enough/now")

    def _spec(self, gpus: int) -> dict[str, Any]:
        real, first = self._real["spec"], self._real["spec"]["containers"][0]
        limits = {self._hub.resource: gpus, "cpu": "10m", "memory": "16Mi"}
        container = {
            **{key: first[key] for key in ("image", "imagePullPolicy", "securityContext") if key in first},
            **{"name": "main", "command": ["sh", "-c", ENOUGH], "resources": {"limits": limits, "requests": limits}},
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", ENOUGH]}}},
            "volumeMounts": [{"name": "enough", "mountPath": "/enough"}],
        }
        return {
            **{key: real[key] for key in ("securityContext", "tolerations", "nodeSelector") if key in real},
            "containers": [container],
            "volumes": [{"name": "enough", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 600,
        }


def live_jobs(who: Person) -> list[str]:
    """The ids of somebody's jobs that have not ended, as they see them."""
    url, headers = f"{who.hub.url}/services/jobs/api/jobs?state=live", {"Authorization": f"token {who.token}"}
    return [str(one["id"]) for one in requests.get(url, headers=headers, timeout=60).json()["items"]]
