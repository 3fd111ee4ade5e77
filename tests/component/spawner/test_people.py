"""People who are removed or renamed, in a real Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import people
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, new_name, running

SLOW = """
import asyncio
async def slow(spawner):
    if spawner.name == "slow":
        await asyncio.sleep(600)
c.Spawner.pre_spawn_hook = slow
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running(Hub(tmp_path_factory.mktemp("people"), extra=SLOW)) as started:
        yield started


@pytest.fixture(scope="module")
def admin(hub: Hub) -> people.Person:
    return people.Person(hub, "admin", "an admin password of thirty-two letters")  # type: ignore[arg-type]


def test_a_person_with_servers_that_run_and_start_is_removed(hub: Hub, admin: people.Person) -> None:
    bob = Person(hub, new_name("bob"))
    bob.launch("", template="ssh")
    bob.launch("two", template="ssh")
    assert bob.start("slow", template="ssh").status_code == 202
    bob.api("POST", f"/users/{bob.name}/servers/never", {"user_options": {"template": "no such"}})
    assert admin.api("DELETE", f"/users/{bob.name}").status_code == 204
    assert admin.api("GET", f"/users/{bob.name}").status_code == 404
    assert bob.name not in hub.kubectl("get", "pods", "-o", "name")


def test_a_renamed_person_keeps_the_account(hub: Hub, admin: people.Person) -> None:
    before, after = new_name("carol"), new_name("caroline")
    carol = Person(hub, before)

    def rename(old: str, new: str) -> int:
        return admin.api("PATCH", f"/users/{old}", {"name": new}).status_code

    def home(person: Person, server: str) -> Any:
        spec = json.loads(hub.kubectl("get", "pod", person.pod_name(server), "-o", "json"))["spec"]
        [work] = spec["containers"]
        env = {one["name"]: one.get("value") for one in work["env"]}
        return [one["persistentVolumeClaim"] for one in spec["volumes"] if one["name"] == "home"], env["HOME"]

    carol.launch("", template="ssh")
    assert rename(before, after) == 409, "its pod has the old name"
    was = home(carol, "")
    carol.stop("")
    assert rename(before, after) == 200
    renamed = Person(hub, after)
    renamed.launch("new", template="ssh")
    assert home(renamed, "new") == was
    assert renamed.get(f"/user/{after}/new/").ok, "it is at the new address"

    another = Person(hub, before)
    another.start("", template="ssh")
    wait_for(lambda: "refused (account): Your name was another person's before" in hub.log, "it is refused")
    between = new_name("carol")
    assert [rename(before, between), rename(between, before)] == [200, 200]
    Person(hub, before).launch("", template="ssh")
    assert home(another, "")[1] == f"/home/{between}"
