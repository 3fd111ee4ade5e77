"""Stops, cancellations and kills while the Hub starts a queued job, at every stage until its server is ready.

Each stage is where a hook of the Hub's keeps the start until a file is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlspawner.manager.cluster.termination import RUNS
from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import GPUS, QuotaHub, running
from tests.component.manager.test_queue_hub import Plain, ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person

pytestmark = [pytest.mark.slow, pytest.mark.real]
HOOKS = """
import asyncio
from pathlib import Path

async def wait_at(stage, user):
    folder = Path({folder!r})
    if (folder / f"wait-{{stage}}").exists() and user != "holder":
        (folder / "here").touch()
        while (folder / f"wait-{{stage}}").exists():
            await asyncio.sleep(0.05)

async def before_start(spawner):
    await wait_at("before-start", spawner.user.name)
c.Spawner.pre_spawn_hook = before_start

async def before_admission(spawner, pod):
    await wait_at("before-admission", spawner.user.name)
    return pod
c.KubeSpawner.modify_pod_hook = before_admission

from dlspawner.spawner import DLSpawner
until_accepting = DLSpawner._until_accepting
async def before_ready(self, *more):
    await wait_at("before-ready", self.user.name)
    return await until_accepting(self, *more)
DLSpawner._until_accepting = before_ready

from dlspawner.spawner.kube.pods import PodRequests
create = PodRequests.create
async def after_admission(self, manifest, *more):
    await wait_at("after-admission", manifest["metadata"]["name"].removeprefix("jupyter-"))
    return await create(self, manifest, *more)
PodRequests.create = after_admission
"""
STAGES = ("before-start", "before-admission", "after-admission", "before-ready")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("stops")
    with running(QuotaHub(folder, settings=SETTINGS, extra=HOOKS.format(folder=str(folder)))) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_waits(hub: QuotaHub, nothing_left: None) -> Iterator[None]:
    yield
    release(hub)


def release(hub: QuotaHub) -> None:
    for stage in STAGES:
        (hub.state / f"wait-{stage}").unlink(missing_ok=True)


def start_until(hub: QuotaHub, user: str, stage: str) -> Person:
    """The user of a job that has waited, and whose start is at this stage now."""
    person = Person(hub, user)
    hub.api("POST", "/users/holder")
    hub.start_server("holder", gpus=GPUS)
    wait_for(lambda: hub.ready() == ["holder/"], "all GPUs are held", 60)
    person.start("", gpus=1)
    wait_for(lambda: hub.jobs().get(user) == "queued", "it waits", 60)
    wait_for(lambda: hub.servers() == {"holder/": "ready"}, "the Hub has let it go", 60)
    (hub.state / "here").unlink(missing_ok=True)
    (hub.state / f"wait-{stage}").touch()
    hub.api("DELETE", "/users/holder/server")
    wait_for((hub.state / "here").exists, f"its start is {stage}", 60)
    return person


def check_cancelled(hub: QuotaHub, person: Person) -> None:
    """It has ended for good, its page says why, and the next one starts."""
    wait_for(lambda: person.name not in hub.jobs() and not hub.held(), "it has ended", 20)
    release(hub)
    with Plain(hub, person.name) as reader:
        said = "It was cancelled before it started."  # until its start has ended the Hub shows how that gets on
        wait_for(lambda: said in reader.place(person.name).text, said, 60)
    assert hub.held() == 0
    person.launch("", gpus=1)


@pytest.mark.parametrize("stage", STAGES[:3])
def test_stop_of_a_server_that_is_being_started_cancels_its_job(hub: QuotaHub, stage: str) -> None:
    person = start_until(hub, f"stops-{stage}", stage)
    stopped = person.api("DELETE", person.server_path(""))
    assert stopped.status_code in {202, 204}, stopped.text
    check_cancelled(hub, person)


@pytest.mark.parametrize("stage", STAGES)
def test_job_that_is_being_started_can_be_cancelled(hub: QuotaHub, stage: str) -> None:
    person = start_until(hub, f"cancels-{stage}", stage)
    wait_for(lambda: stage != "before-ready" or hub.jobs()[person.name] == "running", "the Manager knows", 20)
    told = ask(person, "GET")
    assert (told.status_code, told.json()["state"]) == (200, "starting")
    assert ask(person, "DELETE").status_code == 204
    check_cancelled(hub, person)


def test_job_that_is_ready_cannot_be_cancelled(hub: QuotaHub) -> None:
    person = start_until(hub, "ready", "before-admission")
    release(hub)
    wait_for(lambda: hub.ready() == ["ready/"], "it runs", 60)
    wait_for(lambda: hub.jobs()[person.name] == "running", "the Manager knows", 20)
    assert ask(person, "GET").status_code == 404
    late = ask(person, "DELETE")
    assert (late.status_code, late.json()["detail"]) == (409, RUNS)
    assert hub.ready() == ["ready/"]


@pytest.mark.parametrize("stage", STAGES[:3])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_job_starts_although_the_hub_ends_during_its_start(hub: QuotaHub, stage: str, end: str) -> None:
    user = f"stays-{end}-{stage}"
    start_until(hub, user, stage)
    getattr(hub, end)("hub")
    release(hub)
    hub.start_hub()
    wait_for(lambda: hub.ready() == [f"{user}/"], "it has started all the same", 90)


@pytest.mark.parametrize("stage", STAGES[:3])
def test_stop_that_the_manager_was_not_told_of_holds_after_a_kill_of_the_hub(hub: QuotaHub, stage: str) -> None:
    """The Manager, which knows nothing of it, asks the Hub for the start again."""
    person = start_until(hub, f"untold-{stage}", stage)
    hub.kill("manager")
    stopped = person.api("DELETE", person.server_path(""))
    assert stopped.status_code in {202, 204}, stopped.text
    wait_for(lambda: not hub.servers(), "the Hub has stopped it", 60)
    assert hub.jobs(), "the Manager was not told"
    hub.kill("hub")
    release(hub)
    hub.start_manager()
    hub.start_hub()
    wait_for(lambda: not hub.jobs(), "it is cancelled", 90)
    wait_for(lambda: not hub.servers(), "the start that was asked for is refused", 60)
    check_cancelled(hub, person)
