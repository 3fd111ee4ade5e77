"""Quota through the real Hub: what people see, and that eight GPUs are eight however they are asked for.

The storms are in test_quota_storm.py.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import requests
from sqlalchemy import create_engine, text

from dlspawner import doctor
from dlspawner.doctor import Installation
from dlspawner.spawner.manager_link import TAKEN
from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for

pytestmark = pytest.mark.real
MORE = """
import asyncio
from tornado import web

async def hook(spawner, pod):
    name, (first, *_) = spawner.user.name, pod.spec.containers
    if "greedy" in name:
        first.resources.limits["nvidia.com/gpu"] = "9" if "very" in name else "2"
    return pod
c.KubeSpawner.modify_pod_hook = hook

async def tidies_up(spawner):
    if spawner.user.name.startswith("tidy"):
        await asyncio.sleep(4)
c.Spawner.post_stop_hook = tidies_up

async def unlucky(spawner):
    if spawner.user.name.endswith("unlucky"):
        raise web.HTTPError(403, "The hook says no.")
c.Spawner.pre_spawn_hook = unlucky
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    with running(QuotaHub(tmp_path_factory.mktemp("quota"), settings=SETTINGS, extra=MORE)) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(hub: QuotaHub) -> Iterator[None]:
    yield
    hub.clear()


def hold(hub: QuotaHub, gpus: int) -> None:
    """Lets a server of the user *modest* hold these GPUs."""
    assert hub.start_server("modest", gpus=gpus).status_code in {201, 202}
    wait_for(lambda: "modest/" in hub.ready(), "it runs", 60)


def test_final_manifest_counts_and_not_the_form(hub: QuotaHub) -> None:
    hub.add_users(["greedy", "very-greedy", "modest"])
    hold(hub, gpus=7)
    said = hub.refusal("greedy", hub.start_server("greedy", gpus=1))
    assert "this job needs 2" in said, "the hook asks for two"
    said = hub.refusal("very-greedy", hub.start_server("very-greedy", gpus=1))
    assert said == "A job may have 8 GPUs of type gpu; this one asks for 9."
    assert hub.held() == 7


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ("tidy-very-greedy", "A job may have 8 GPUs of type gpu; this one asks for 9."),
        ("tidy-waits", "Number 1 in the queue"),
        ("tidy-unlucky", "The hook says no."),
    ],
    ids=["refused", "in the queue", "refused by a hook"],
)
def test_reason_of_a_failed_start_is_shown_while_the_hub_clears_up(hub: QuotaHub, user: str, sentence: str) -> None:
    """After a second it looks what became of the start: of an end without a reason it makes an internal error."""
    hub.add_users([user, "modest"])
    hold(hub, gpus=8)
    assert sentence in hub.refusal(user, hub.start_server(user, gpus=1))
    path = f"/users/{user}/server/progress"
    assert sentence in wait_for(lambda: (told := hub.api("GET", path)).ok and told.text, "it is told", 60), "later, too"


def test_a_new_person_gets_nothing_of_one_who_was_renamed_and_removed(hub: QuotaHub) -> None:
    def account(name: str) -> tuple[int, str]:
        assert hub.start_server(name).status_code in {201, 202}
        wait_for(lambda: f"{name}/" in hub.ready(), "it runs", 60)
        [spec] = [pod["spec"] for pod in hub.pods()]
        [home] = [one["value"] for one in spec["containers"][0]["env"] if one["name"] == "HOME"]
        assert rename(name, "never").status_code == 409, "its pod has the old name"
        hub.clear()
        return spec["securityContext"]["runAsUser"], home

    def rename(old: str, new: str) -> requests.Response:
        return hub.api("PATCH", f"/users/{old}", {"name": new})

    hub.add_users(["eva"])
    first = account("eva")
    assert rename("eva", "modest/").status_code == 400, "no name"
    assert rename("eva", "evy").ok
    assert account("evy") == first
    with create_engine(hub.db_url).begin() as connection:
        connection.execute(text("INSERT INTO ssh_settings VALUES ('evy', true)"))
    assert hub.api("DELETE", "/users/evy").status_code == 204
    assert hub.rows("SELECT * FROM ssh_settings") == []

    hub.add_users(["eva"])
    assert hub.refusal("eva", hub.start_server("eva")) == TAKEN
    assert rename("eva", "evy").status_code == 409, "evy had jobs"
    assert [rename("eva", "eva-2").status_code, rename("eva-2", "eva").status_code] == [200, 200]
    another = account("eva")
    assert (another[0] != first[0], another[1]) == (True, "/home/eva-2")


async def test_doctor_reads_the_scopes_of_the_services_from_the_hub(hub: QuotaHub) -> None:
    def secrets(**tokens: str) -> dict[str, dict[str, dict[str, str]]]:
        return {
            f"{name}-token": {"data": {"token": base64.b64encode(token.encode()).decode()}}
            for name, token in tokens.items()
        }

    held = await doctor._held(hub.url, secrets(manager="manager-token", gateway="gateway-token"))
    assert list(doctor.scopes(Installation("", datetime.now(UTC), held=held))) == []
    held = await doctor._held(hub.url, secrets(manager="gateway-token", gateway="another"))
    problems = [one.problem for one in doctor.scopes(Installation("", datetime.now(UTC), held=held))]
    assert problems == [
        "the service jobs lacks the scopes list:groups, read:groups, servers",
        "the Hub does not know the token of the service ssh-gateway",
    ]
    assert await doctor._held("http://jobs.example.org/", secrets(manager="manager-token")) == {}, "not in the clear"
