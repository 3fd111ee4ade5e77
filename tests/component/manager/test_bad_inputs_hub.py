"""Bad input, and files and nodes that change under jobs: what people read through the real Hub.

Nothing is lost by any of it. Somebody's job holds half of the GPUs the whole time: at the end of every test it is as it
was, counted once, and the GPUs of all others are free again. Faults of the machinery are in `test_faults_hub`, and
those of a minute in `test_minute_hub`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from dlspawner.core import naming
from tests.component.manager.bad_inputs import MEMBERS, Forger, TeamsHub, by_form, by_rest, live_jobs, refusal
from tests.component.manager.quota import GPUS, TEMPLATE, running
from tests.component.manager.test_faults_hub import plain
from tests.component.manager.test_queue_hub import ADMIN, Plain, ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person, new_name

pytestmark = [pytest.mark.slow, pytest.mark.real]

HELD = GPUS // 2
# Whose name says so gets another number of GPUs than the form says.
MORE = """
HOOKED = {{"minus": "-1", "half": "500m", "greedy": "9", "huge": "99999999999999999999"}}

async def hooked(spawner, pod):
    asked = HOOKED.get(spawner.user.name.partition("-")[0])
    if asked:
        pod.spec.containers[0].resources.limits[{resource!r}] = asked
        pod.spec.containers[0].resources.requests[{resource!r}] = asked
    if spawner.user.name.startswith("unmade"):
        pod.spec.containers[0].name = "Not a name"
    return pod
c.KubeSpawner.modify_pod_hook = hooked
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 30}}
"""
SETTINGS = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=60")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamsHub]:
    folder = tmp_path_factory.mktemp("inputs")
    made = TeamsHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=SETTINGS)
    made.extra = MORE.format(resource=made.resource)
    with running(made):
        yield made


@pytest.fixture(scope="module")
def admin(hub: TeamsHub) -> Iterator[Plain]:
    with Plain(hub, "admin", ADMIN) as made:
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


def person(hub: TeamsHub, name: str) -> Person:
    return Person(hub, new_name(f"{name}-"))


def starts(hub: TeamsHub, who: Person) -> None:
    """The next good start works, with all that is not the holder's."""
    who.launch("", gpus=GPUS - HELD)
    assert hub.held() == GPUS
    who.stop("")


def test_who_asks_for_a_team_that_is_not_theirs_reads_which_ones_are(hub: TeamsHub) -> None:
    who = person(hub, "asks")
    assert refusal(who, gpus="1", team="nobodys") == "Team must be one of default; you chose “nobodys”."
    assert refusal(who, gpus="1", team="vision") == "Team must be one of default; you chose “vision”."
    starts(hub, who)


NUMBERS = {
    "-1": "GPUs must be between 0 and 8; you asked for -1.",
    "9": "GPUs must be between 0 and 8; you asked for 9.",
    **{
        number: f"GPUs must be a whole number between 0 and 8; you gave “{number}”."
        for number in ("-99999999999999999999", "99999999999999999999", "1e3", "0.5", "many")
    },
}


def test_an_impossible_number_of_gpus_is_refused_with_what_is_possible(hub: TeamsHub) -> None:
    who = person(hub, "asks")
    assert {number: refusal(who, gpus=number) for number in NUMBERS} == NUMBERS
    starts(hub, who)


HOOKED = {
    "minus": "GPUs ({resource}) must be a whole number from 0 to 1,000,000; the pod asks for “-1”.",
    "half": "GPUs ({resource}) must be a whole number; the pod asks for “500m”.",
    "greedy": "A job may have 8 GPUs of type gpu; this one asks for 9.",
    "huge": "GPUs ({resource}) must be a whole number from 0 to 1,000,000; the pod asks for “99999999999999999999”.",
}


def test_what_a_hook_makes_of_the_number_is_judged_like_what_a_person_asks_for(hub: TeamsHub) -> None:
    told = {name: refusal(person(hub, name), gpus="1") for name in HOOKED}
    assert told == {name: said.format(resource=hub.resource) for name, said in HOOKED.items()}
    starts(hub, person(hub, "asks"))


def waiting(who: Person) -> dict[str, Any]:
    """What programs are told about a job that waits."""
    return dict(wait_for(lambda: (answer := ask(who, "GET")).ok and answer.json(), "it waits", 60))


def waits(hub: TeamsHub, who: Person, gpus: int = 1, **options: object) -> dict[str, Any]:
    """Somebody asks, and what they are told about it on the page of its place in the queue."""
    said = hub.refusal(who.name, who.start("", gpus=gpus, **options))
    where = f"/services/jobs/wait/{who.name}/"
    assert said.endswith(f"It is number 1 in the queue and starts by itself. Its place in the queue: {where}")
    found = waiting(who)
    assert found["position"] == 1
    assert said.startswith(found["why"])
    assert found["why"] in plain(who.get(found["page"]).text)
    return found


def has_started(who: Person) -> None:
    wait_for(lambda: who.server("").get("ready"), "who waited has started by itself", 90)


PAGES = ("/hub/home", "/services/jobs/", "/services/jobs/notices")


def told(who: Person | Plain, sentence: str) -> list[bool]:
    """Whether somebody reads it: on the Hub's home page, in the portal, and on the page of what they are told."""
    get = who.visit if isinstance(who, Plain) else who.get
    return [sentence in plain(get(page).content.decode()) for page in PAGES]


def until_told(who: Person | Plain, sentence: str) -> None:
    wait_for(lambda: all(told(who, sentence)), f"everywhere is said: {sentence}", 60)


def test_a_file_that_breaks_changes_nothing_and_administrators_read_of_it(hub: TeamsHub, admin: Plain) -> None:
    runs, other = person(hub, "runs"), person(hub, "other")
    broken = "teams.yaml has a mistake: the last good version of all files stays in use. The first one is in line 1 of"
    hub.write_teams("teams: [")
    until_told(admin, broken)
    assert "the files were changed and are not used, the last good version stays:" in hub.manager_log
    assert f"{hub.config / 'teams.yaml'}:1" in hub.manager_log
    assert not any(told(other, "teams.yaml")), "it is nobody else's"
    runs.launch("", gpus=GPUS - HELD)
    assert "the files were changed and are not used, the last good version stays:" in hub.log
    assert f"{hub.config / 'teams.yaml'}:1" in hub.log
    assert waits(hub, other)["why"] == "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1."
    hub.set_quota(GPUS)
    wait_for(lambda: not any(told(admin, "teams.yaml")), "it is taken back", 60)
    runs.stop("")
    has_started(other)


LOWERED = "Your team's quota was lowered: the job goes on as a preemptible one, which others may stop. (at "


def test_a_quota_below_what_is_used_stops_nobody_and_who_is_concerned_reads_so(hub: TeamsHub, holder: Person) -> None:
    newest, other = person(hub, "newest"), person(hub, "other")
    newest.launch("", gpus=1)
    hub.set_quota(HELD)
    until_told(newest, LOWERED)
    assert not any(told(holder, LOWERED)), "without the newest it is enough"
    assert f"{HELD + 1} of {HELD} GPUs used, 1 more than the quota" in plain(newest.get("/services/jobs/").text)
    assert (
        waits(hub, other)["why"] == f"Team Everybody uses {HELD + 1} of its {HELD} GPUs of type gpu; this job needs 1."
    )
    assert newest.server("").get("ready")
    hub.set_quota(GPUS)
    has_started(other)
    until_told(newest, "Your team has enough quota for it again: the job stays guaranteed.")
    assert not any(told(newest, LOWERED))
    assert newest.server("").get("ready")


@contextlib.contextmanager
def cordoned(hub: TeamsHub, reader: Person, but: str = "") -> Iterator[None]:
    """No node takes anything new, with one exception; everybody can read so."""
    names = hub.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    nodes = [name for name in names if name != but]
    hub.kubectl("cordon", *nodes)
    try:
        closed = [f"{name} cordoned: nothing new starts there, what runs goes on" for name in nodes]
        page = "/services/jobs/cluster"
        wait_for(lambda: all(one in plain(reader.get(page).text) for one in closed), "they are seen to be closed", 60)
        yield
    finally:
        hub.kubectl("uncordon", *nodes)


CLOSED = re.compile(
    r"Idle GPUs of type gpu: 0, at most 0 on one node; this job needs 1\. "
    r"(A node|\d+ nodes) with GPUs of type gpu (is|are) closed for maintenance\."
)


def test_more_quota_than_the_nodes_have_is_what_the_nodes_have(hub: TeamsHub, holder: Person) -> None:
    runs, other = person(hub, "runs"), person(hub, "other")
    hub.set_quota(1000)
    node = hub.kubectl("get", "pod", holder.pod_name(""), "-o", "jsonpath={.spec.nodeName}")
    with cordoned(hub, runs, but=node):
        wait_for(lambda: "of 1000 GPUs used" in plain(runs.get("/services/jobs/").text), "it is read", 60)
        runs.launch("", gpus=GPUS - HELD)
        assert CLOSED.fullmatch(waits(hub, other)["why"])
        runs.stop("")
        has_started(other)


def test_while_all_nodes_are_cordoned_jobs_go_on_and_who_waits_reads_why(hub: TeamsHub, holder: Person) -> None:
    other = person(hub, "other")
    with cordoned(hub, other):
        assert CLOSED.fullmatch(waits(hub, other)["why"])
        assert holder.server("").get("ready")
    has_started(other)


@pytest.fixture(scope="module")
def vision(hub: TeamsHub) -> list[Person]:
    """The members of the other team."""
    return [Person(hub, name) for name in MEMBERS]


REMOVED = "Your team “vision” was removed: the job goes on as a preemptible one, which others may stop. (at "
NO_TEMPLATE = "There is no template “other” any more; choose another one. It keeps its place; cancel it if you do not"
NEVER = "It cannot start as things are: There is no team “vision” any more; choose another one. It keeps its place;"


def test_the_jobs_of_a_team_that_is_removed_go_on_and_its_people_read_what_became_of_it(
    hub: TeamsHub, vision: list[Person]
) -> None:
    runs, queued, asks = vision
    hub.set_teams(GPUS, vision=1)
    wait_for(lambda: "of 1 GPU used" in plain(runs.get("/services/jobs/").text), "it is read", 60)
    runs.launch("", team="vision", gpus=1)
    place = waits(hub, queued, team="vision")
    hub.set_teams(GPUS, vision=None)
    until_told(runs, REMOVED)
    until_told(queued, NEVER)
    assert refusal(asks, team="vision", gpus="1") == "Team must be one of default; you chose “vision”."
    asks.launch("", team="default", gpus=1)
    asks.stop("")
    assert runs.server("").get("ready")
    assert hub.held() == HELD + 1
    assert waiting(queued)["job"] == place["job"]
    hub.set_teams(GPUS, vision=2)
    has_started(queued)
    until_told(runs, "Your team has enough quota for it again: the job stays guaranteed.")
    assert not any([*told(runs, REMOVED), *told(queued, NEVER)])


def test_whose_turn_comes_in_the_moment_in_which_their_team_is_removed_keeps_the_place(
    hub: TeamsHub, vision: list[Person]
) -> None:
    runs, queued, _ = vision
    hub.set_teams(GPUS, vision=1)
    wait_for(lambda: "of 1 GPU used" in plain(runs.get("/services/jobs/").text), "it is read", 60)
    runs.launch("", team="vision", gpus=1)
    place = waits(hub, queued, team="vision")
    hub.set_teams(GPUS, vision=None)
    hub.kubectl("delete", "pod", runs.pod_name(""), "--grace-period=0", "--force", "--wait=false")
    until_told(queued, NEVER)
    time.sleep(6)  # longer than the pause after which the Hub would be asked again
    assert waiting(queued)["job"] == place["job"]
    hub.set_teams(GPUS, vision=1)
    has_started(queued)


def test_who_waits_for_a_template_that_is_removed_keeps_the_place_until_it_is_back(
    hub: TeamsHub, vision: list[Person]
) -> None:
    runs, queued, _ = vision
    folder = hub.templates / "jobs"
    hub.set_teams(GPUS, vision=1)
    shutil.copy(folder / "tiny.yaml", folder / "other.yaml")
    wait_for(lambda: "other--gpus" in runs.get("/hub/spawn").text, "the template is offered", 60)
    wait_for(lambda: "of 1 GPU used" in plain(runs.get("/services/jobs/").text), "the quota is read", 60)
    runs.launch("", team="vision", gpus=1)
    place = waits(hub, queued, template="other", team="vision")
    (folder / "other.yaml").unlink()
    until_told(queued, NO_TEMPLATE)
    runs.stop("")
    wait_for(lambda: "1 free" in plain(runs.get("/services/jobs/").text), "the GPU is free", 60)
    time.sleep(6)  # longer than the pause after which the Hub would be asked again
    assert waiting(queued)["job"] == place["job"]
    shutil.copy(folder / "tiny.yaml", folder / "other.yaml")
    has_started(queued)
    assert live_jobs(queued) == [place["job"]]
    assert not any(told(queued, NO_TEMPLATE))
    (folder / "other.yaml").unlink()


def test_who_waits_for_a_template_that_breaks_starts_by_its_last_good_version(
    hub: TeamsHub, admin: Plain, vision: list[Person]
) -> None:
    runs, queued, _ = vision
    folder = hub.templates / "jobs"
    hub.set_teams(GPUS, vision=1)
    shutil.copy(folder / "tiny.yaml", folder / "other.yaml")
    wait_for(lambda: "other--gpus" in runs.get("/hub/spawn").text, "the template is offered", 60)
    wait_for(lambda: "of 1 GPU used" in plain(runs.get("/services/jobs/").text), "the quota is read", 60)
    runs.launch("", team="vision", gpus=1)
    place = waits(hub, queued, template="other", team="vision")
    (folder / "other.yaml").write_text("title: [")
    until_told(admin, "other.yaml has a mistake: the last good version of all files stays in use.")
    assert not any(told(queued, "other.yaml"))
    assert waiting(queued) == place
    runs.stop("")
    has_started(queued)
    assert live_jobs(queued) == [place["job"]]
    (folder / "other.yaml").unlink()
    wait_for(lambda: not any(told(admin, "other.yaml")), "it is taken back", 60)


REFUSED = (
    {"gpus": "-1"},
    {"gpus": "9"},
    {"gpus": "many"},
    {"gpus": "1", "team": "vision"},
    {"gpus": "7"},  # more than the quota, which the Manager refuses
    {"gpus": "1", "nonsense": "1"},
    {"template": "nonsense"},
)


def test_a_request_that_is_refused_changes_nothing_of_what_waits_there(hub: TeamsHub) -> None:
    runs, other = person(hub, "runs"), person(hub, "other")
    hub.set_quota(HELD + 2)
    wait_for(lambda: f"of {HELD + 2} GPUs used" in plain(runs.get("/services/jobs/").text), "it is read", 60)
    runs.launch("", gpus=2)
    place = waits(hub, other, gpus=2)
    for options in REFUSED:
        for ask_so in (by_form, by_rest, lambda who, **more: who.start("", **{"template": "tiny", **more})):
            answer = ask_so(other, **options)
            assert answer.status_code in {400, 403, 422}, (options, answer.text)
            assert waiting(other) == place
    hub.stop("hub")
    hub.start_hub()
    wait_for(lambda: runs.server("").get("ready"), "the Hub has looked after what ran", 60)
    runs.stop("")
    has_started(other)
    assert live_jobs(other) == [place["job"]]
    (container,) = hub.pods()[other.pod_name("")]["spec"]["containers"]
    assert container["resources"]["limits"][hub.resource] == "2"


LESS = "GPUs must be between 0 and 1; you asked for 2. It keeps its place; cancel it if you do not want it any more."


def test_whose_options_a_template_does_not_allow_any_more_keeps_the_place_and_holds_up_nobody(hub: TeamsHub) -> None:
    runs, queued, other = person(hub, "runs"), person(hub, "queued"), person(hub, "other")
    tiny = hub.templates / "jobs" / "tiny.yaml"
    allowed = tiny.read_text()
    runs.launch("", gpus=GPUS - HELD)
    place = waits(hub, queued, gpus=2)
    try:
        tiny.write_text(json.dumps({**TEMPLATE, "options": {**TEMPLATE["options"], "gpus": {"default": 1, "max": 1}}}))
        runs.stop("")
        until_told(queued, f"It cannot start as things are: {LESS}")
        other.launch("", gpus=1)
        found = waiting(queued)
        assert (found["job"], found["why"]) == (place["job"], LESS.partition(" It keeps")[0])
    finally:
        tiny.write_text(allowed)
    has_started(queued)
    assert live_jobs(queued) == [place["job"]]
    assert not any(told(queued, LESS))


def test_who_has_waited_for_what_the_cluster_refuses_reads_its_reason(hub: TeamsHub) -> None:
    runs, queued = person(hub, "runs"), person(hub, "unmade")
    runs.launch("", gpus=GPUS - HELD)
    place = waits(hub, queued)
    runs.stop("")
    why = "The cluster refused its pod: "
    wait_for(lambda: why in plain(queued.get(place["page"]).text), "its turn has come", 60)
    job = f"/services/jobs/api/jobs/{place['job']}"
    told = requests.get(hub.url + job, headers={"Authorization": f"token {queued.token}"}, timeout=30).json()
    assert told["state"] == "ended"
    reason = "The cluster does not accept this job (spec.containers[0].name): ask an administrator."
    assert told["why"] == why + reason
    assert told["why"] in plain(queued.get(place["page"]).text)
    assert told["why"] in plain(queued.get(f"/services/jobs/jobs/{place['job']}").text)


def claims_of(who: Person, job: str) -> dict[str, str]:
    """What a pod says that wants to be somebody's job."""
    return {naming.JOB_LABEL: job, naming.USER_LABEL: who.name, naming.USER_ANNOTATION: who.name}


def test_a_pod_with_forged_labels_is_counted_and_stopped_and_whose_labels_they_are_goes_on(
    hub: TeamsHub, holder: Person
) -> None:
    other, forger, before = person(hub, "other"), Forger(hub, holder), live_jobs(holder)
    forger.forge("forged", GPUS - HELD)
    place = waits(hub, other)
    assert place["why"] == "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1.", (
        "as long as it is there"
    )
    forger.forge("claims", 0, **claims_of(other, place["job"]))
    assert waiting(other) == place
    assert live_jobs(holder) == before
    assert f"{GPUS} of {GPUS} GPUs used, 0 free" in plain(holder.get("/services/jobs/").text)
    forger.end("forged", "claims")
    has_started(other)
    assert live_jobs(other) == [place["job"]]


def test_a_pod_that_says_to_be_a_job_before_the_hub_has_made_its_own_is_stopped_and_the_hubs_own_is_the_job(
    hub: TeamsHub, holder: Person
) -> None:
    other, forger = person(hub, "early"), Forger(hub, holder)
    mine = other.pod_name("")
    forger.forge(mine, 0)  # the Hub waits for the name, for pods take their time
    forger.run("quicker", 0)
    with ThreadPoolExecutor() as pool:
        start = pool.submit(other.start, "", template="tiny", gpus=1)
        wait_for(lambda: live_jobs(other), "the Hub may make its pod", 60)
        (job,) = live_jobs(other)
        forger.claim("quicker", **claims_of(other, job))
        assert live_jobs(other) == [job]
        forger.end(mine)
        assert start.result().status_code in {201, 202}
    has_started(other)
    assert live_jobs(other) == [job]
    assert hub.pods()[mine]["metadata"]["labels"][naming.JOB_LABEL] == job
    forger.end("quicker")
