"""People who are removed or renamed, in a real Hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlspawner.spawner.spawner import KEPT_BY_MANAGER
from tests.e2e import people
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


def test_without_a_manager_that_keeps_the_account_no_person_is_renamed(hub: Hub, admin: people.Person) -> None:
    carol = Person(hub, new_name("carol"))
    answer = admin.api("PATCH", f"/users/{carol.name}", {"name": new_name("caroline")})
    assert (answer.status_code, answer.json()["message"]) == (409, KEPT_BY_MANAGER)


def test_a_person_who_becomes_an_administrator_on_the_admin_page_keeps_the_name(hub: Hub, admin: people.Person) -> None:
    dora = Person(hub, new_name("dora"))
    answer = admin.api("PATCH", f"/users/{dora.name}", {"name": dora.name, "admin": True})
    assert (answer.json()["name"], answer.json()["admin"]) == (dora.name, True)
