"""Bad input, and files that change under jobs: what users read through the real Hub.

Another job holds half of the GPUs: after each test it is unchanged and counted once, and all other GPUs are free.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.component.manager import crowds
from tests.component.manager.quota import GPUS, QuotaHub, running
from tests.component.manager.test_faults_hub import plain
from tests.component.manager.test_queue_hub import ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person, alert, new_name

pytestmark = [pytest.mark.slow, pytest.mark.real]

HELD = GPUS // 2
VISION = "  vision: {title: Vision, members: [mia, noa, ole], quota: {gpu: %d}}\n"
MEMBERS = ("mia", "noa", "ole")
TEAMS = "teams:\n  default: {title: Everybody, quota: {gpu: %d}}\n"
# The Hub cannot make the pods of users whose name begins so.
MORE = """
async def invalid(spawner, pod):
    if spawner.user.name.startswith("unmade"):
        pod.spec.containers[0].name = "Not a name"
    return pod
c.KubeSpawner.modify_pod_hook = invalid
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 30}
"""
SETTINGS = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=60")


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


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamsHub]:
    folder = tmp_path_factory.mktemp("inputs")
    made = TeamsHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=SETTINGS, extra=MORE)
    with running(made):
        yield made


@pytest.fixture(scope="module")
def holder(hub: TeamsHub) -> Person:
    """Somebody whose job nothing here concerns."""
    made = Person(hub, new_name("holder"))
    made.launch("", gpus=HELD)
    return made


@pytest.fixture(autouse=True)
def nothing_lost(hub: TeamsHub, holder: Person) -> Iterator[None]:
    """What runs is the same pod, never restarted; nobody else holds anything, and all of the rest can be had."""
    before = hub.pods()[holder.pod_name("")]["metadata"]["uid"]
    yield
    hub.set_quota(GPUS)

    def alone() -> bool:
        for name in hub.ready():
            if name != f"{holder.name}/":
                hub.api("DELETE", f"/users/{name.rstrip('/')}/server")
        return hub.servers() == {f"{holder.name}/": "ready"} and hub.jobs() == {holder.name: "running"}

    wait_for(alone, "only the holder's job is left", 120)
    (pod,) = hub.pods().values()
    assert pod["metadata"]["uid"] == before
    assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]
    assert hub.held() == HELD
    assert "Traceback" not in hub.log
    assert "Traceback" not in hub.manager_log


def new_person(hub: TeamsHub, name: str) -> Person:
    return Person(hub, new_name(f"{name}-"))


def sentence(answer: requests.Response) -> str:
    """What somebody reads who has sent the form or asked by REST."""
    if answer.headers["Content-Type"].startswith("text/html"):
        return html.unescape(alert(answer.content.decode())).removeprefix("Error: ")
    content = answer.json()
    return str(content.get("detail") or content["message"])


def by_form(user: Person, **options: str) -> requests.Response:
    """What the browser shows in the end."""
    template = options.pop("template", "tiny")
    given = {f"{template}--{name}": value for name, value in options.items()}
    fields = {"template": template, **given, "_xsrf": user.xsrf}
    return user.http.post(f"{user.hub.url}/hub/spawn/{user.name}", data=fields, timeout=60)


def by_rest(user: Person, **options: str) -> requests.Response:
    """SubmitJob."""
    url, headers = f"{user.hub.url}/services/jobs/api/jobs", {"Authorization": f"token {user.token}"}
    return requests.post(url, json={"options": {"template": "tiny", **options}}, headers=headers, timeout=60)


def refusal(user: Person, **options: str) -> str:
    """The sentence, which is the same from the form, the Hub's REST API and the Manager's."""
    answers = [by_form(user, **options), user.start("", template="tiny", **options), by_rest(user, **options)]
    assert all(answer.status_code in {400, 403, 422} for answer in answers)
    (said,) = {sentence(answer) for answer in answers}
    return said


REFUSALS: dict[str, tuple[dict[str, str], str]] = {
    "a foreign team": ({"gpus": "1", "team": "vision"}, "Team must be one of default; you chose “vision”."),
    "too many GPUs": ({"gpus": "9"}, "GPUs must be between 0 and 8; you asked for 9."),
    "no number": ({"gpus": "many"}, "GPUs must be a whole number between 0 and 8; you gave “many”."),
}


def test_refusal_of_form_and_both_rest_apis_is_the_same_sentence(hub: TeamsHub) -> None:
    user = new_person(hub, "asks")
    for case, (options, expected) in REFUSALS.items():
        assert refusal(user, **options) == expected, case
    user.launch("", gpus=GPUS - HELD)
    assert hub.held() == GPUS


def waiting(user: Person) -> dict[str, Any]:
    """What programs are told about a job that waits."""
    return dict(wait_for(lambda: (answer := ask(user, "GET")).ok and answer.json(), "it waits", 60))


def waits(hub: TeamsHub, user: Person, gpus: int = 1, **options: object) -> dict[str, Any]:
    """Somebody asks, and what they are told about it on the page of its place in the queue."""
    said = hub.refusal(user.name, user.start("", gpus=gpus, **options))
    where = f"/services/jobs/wait/{user.name}/"
    assert said.endswith(f"It is number 1 in the queue and starts by itself. Its place in the queue: {where}")
    found = waiting(user)
    assert found["position"] == 1
    assert said.startswith(found["why"])
    assert found["why"] in plain(user.get(found["page"]).text)
    return found


def has_started(user: Person) -> None:
    wait_for(lambda: user.server("").get("ready"), "who waited has started by itself", 90)


PAGES = ("/hub/home", "/services/jobs/", "/services/jobs/notices")


def shown(user: Person, sentence: str) -> list[bool]:
    """Whether the Hub's home page, the portal and the page of notices show it."""
    return [sentence in plain(user.get(page).content.decode()) for page in PAGES]


def until_shown(user: Person, sentence: str) -> None:
    wait_for(lambda: all(shown(user, sentence)), f"all pages show: {sentence}", 60)


LOWERED = "Your team's quota was lowered: the job goes on as a preemptible one, which others may stop. (at "


def test_lowered_quota_stops_no_job_and_tells_the_owner_of_the_newest(hub: TeamsHub, holder: Person) -> None:
    newest, other = new_person(hub, "newest"), new_person(hub, "other")
    newest.launch("", gpus=1)
    hub.set_quota(HELD)
    until_shown(newest, LOWERED)
    assert not any(shown(holder, LOWERED)), "without the newest it is enough"
    assert f"{HELD + 1} of {HELD} GPUs used, 1 more than the quota" in plain(newest.get("/services/jobs/").text)
    assert (
        waits(hub, other)["why"] == f"Team Everybody uses {HELD + 1} of its {HELD} GPUs of type gpu; this job needs 1."
    )
    assert newest.server("").get("ready")
    hub.set_quota(GPUS)
    has_started(other)
    until_shown(newest, "Your team has enough quota for it again: the job stays guaranteed.")
    assert not any(shown(newest, LOWERED))
    assert newest.server("").get("ready")


REMOVED = "Your team “vision” was removed: the job goes on as a preemptible one, which others may stop. (at "
NEVER = "It cannot start as things are: There is no team “vision” any more; choose another one. It keeps its place;"


def test_jobs_of_a_removed_team_go_on_and_their_users_are_told(hub: TeamsHub) -> None:
    runs, queued, asks = (Person(hub, name) for name in MEMBERS)
    hub.set_teams(GPUS, vision=1)
    wait_for(lambda: "of 1 GPU used" in plain(runs.get("/services/jobs/").text), "it is read", 60)
    runs.launch("", team="vision", gpus=1)
    place = waits(hub, queued, team="vision")
    hub.set_teams(GPUS, vision=None)
    until_shown(runs, REMOVED)
    until_shown(queued, NEVER)
    assert refusal(asks, team="vision", gpus="1") == "Team must be one of default; you chose “vision”."
    asks.launch("", team="default", gpus=1)
    asks.stop("")
    assert runs.server("").get("ready")
    assert hub.held() == HELD + 1
    assert waiting(queued)["job"] == place["job"]
    hub.set_teams(GPUS, vision=2)
    has_started(queued)
    until_shown(runs, "Your team has enough quota for it again: the job stays guaranteed.")
    assert not any([*shown(runs, REMOVED), *shown(queued, NEVER)])


def test_queued_job_that_the_cluster_refuses_ends_with_the_reason(hub: TeamsHub) -> None:
    runs, queued = new_person(hub, "runs"), new_person(hub, "unmade")
    runs.launch("", gpus=GPUS - HELD)
    place = waits(hub, queued)
    runs.stop("")
    why = "The cluster refused its pod: "
    wait_for(lambda: why in plain(queued.get(place["page"]).text), "its turn has come", 60)
    job = f"/services/jobs/api/jobs/{place['job']}"
    view = requests.get(hub.url + job, headers={"Authorization": f"token {queued.token}"}, timeout=30).json()
    assert view["state"] == "ended"
    reason = "The cluster does not accept this job (spec.containers[0].name): ask an administrator."
    assert view["why"] == why + reason
    assert view["why"] in plain(queued.get(place["page"]).text)
    assert view["why"] in plain(queued.get(f"/services/jobs/jobs/{place['job']}").text)
