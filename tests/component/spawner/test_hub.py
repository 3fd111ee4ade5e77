"""DLSpawner in a real Hub, behind its real proxy, on the embedded cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import requests

from dlspawner.spawner.spawner import KEPT_BY_MANAGER
from tests.e2e import people
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, alert, form_back, new_name, running

EXTRA = """
import asyncio
from dlspawner.spawner import StartRefused

async def hook(spawner):
    if spawner.name.startswith("late"):
        await asyncio.sleep(1.5)
        raise StartRefused("No GPU is free <now>.", reason="test", status=409)
    if spawner.name == "slow":
        await asyncio.sleep(600)

c.Spawner.pre_spawn_hook = hook
c.Spawner.poll_interval = 1
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 10}}  # longer than a refusal takes on a busy machine
c.Spawner.consecutive_failure_limit = {limit}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """JUPYTERHUB_PATH puts another JupyterHub in front of the installed one."""
    other = os.environ.get("JUPYTERHUB_PATH", "")
    # JupyterHub 5.5 counts refusals; from 6 on a Hub that counts one would exit in these tests.
    extra = EXTRA.format(limit=0 if other else 2)
    if other:
        extra += f"c.JupyterHub.data_files_path = '{other}/share/jupyterhub'\n"
    with running(Hub(tmp_path_factory.mktemp("hub"), extra=extra, python_path=other)) as started:
        yield started


@pytest.fixture(scope="module")
def alice(hub: Hub) -> Person:
    return Person(hub, "alice")


@pytest.fixture(scope="module")
def bob(hub: Hub) -> Person:
    return Person(hub, "bob")


@pytest.fixture(scope="module")
def shell(alice: Person) -> str:
    """A running ssh job of alice."""
    alice.launch("shell", template="ssh")
    return "shell"


def objects(hub: Hub, name: str) -> str:
    """The objects whose name contains a text."""
    return "".join(
        line for line in hub.kubectl("get", "pod,secret,service", "-o", "name").splitlines(True) if name in line
    )


def page(answer: requests.Response) -> str:
    return answer.content.decode()


class TestRefusal:
    """The same sentence in form, page and REST; no object, no counted failure, no traceback."""

    def test_the_form_comes_back_with_its_values(self, hub: Hub, alice: Person) -> None:
        server = new_name("form")
        answer = form_back(alice, server, template="ssh", **{"ssh--gpus": "77"})

        assert answer.status_code == 400
        assert "GPUs must be between 0 and 8; you asked for 77." in alert(page(answer))
        assert f"<strong>{server}</strong>" in page(answer)
        assert 'value="77"' in page(answer)
        self.check_nothing_happened(hub, server)

    def test_a_late_refusal_is_on_the_page_of_the_failed_start(self, hub: Hub, alice: Person) -> None:
        server = new_name("late")
        answer = alice.post(f"/hub/spawn/alice/{server}", template="ssh")
        assert answer.status_code == 302
        pending = answer.headers["Location"]

        status, shown = wait_for(lambda: failed(alice.get(pending)), "the page of the failed start")
        assert status == 409
        assert "No GPU is free &lt;now&gt;." in shown
        self.check_nothing_happened(hub, server)

    def test_rest_answers_with_the_sentence(self, hub: Hub, alice: Person) -> None:
        server = new_name("rest")
        first = alice.start(server, template="tensorboard", gpus=1)
        again = alice.start(server)

        assert first.status_code == again.status_code == 400
        assert "“TensorBoard” has no option “gpus”" in first.json()["message"]
        assert again.json() == first.json()
        self.check_nothing_happened(hub, server)

    def check_nothing_happened(self, hub: Hub, server: str) -> None:
        assert objects(hub, server) == ""
        assert "Traceback" not in hub.log
        assert "consecutive spawns failed" not in hub.log


def failed(answer: requests.Response) -> tuple[int, str] | None:
    return (answer.status_code, page(answer)) if "The job was not started" in page(answer) else None


class TestJob:
    def test_a_second_start_of_it_leads_to_it(self, alice: Person, shell: str) -> None:
        answer = alice.post(f"/hub/spawn/alice/{shell}", template="ssh")

        assert (answer.status_code, "shell is already running" in page(answer)) == (400, True)
        assert 'href="/hub/spawn-pending/alice/shell">Open</a>' in page(answer)

    def test_its_page_is_for_its_owner_only(self, hub: Hub, alice: Person, bob: Person, shell: str) -> None:
        path = f"/user/alice/{shell}/"

        assert "ssh -p 2222 alice+shell@127.0.0.1" in page(alice.get(path))
        home = page(alice.get("/hub/home"))
        assert f'data-server-name="{shell}"' in home
        assert f'href="{path}"' in home
        assert "ssh -p 2222 alice+shell@127.0.0.1" in home
        assert bob.get(path).status_code == 403
        assert "/hub/login" in requests.get(hub.url + path, timeout=30).url


def test_a_custom_job_has_no_token_and_ends_with_its_command(hub: Hub, alice: Person) -> None:
    server = new_name("batch")
    command = "until [ -e $HOME/go-$(basename $HOME) ]; do sleep 0.1; done; exit 3"
    alice.launch(server, template="custom", image="debian:12", command=command)
    name = alice.pod_name(server)
    environment = hub.kubectl("exec", name, "-c", "main", "--", "env")
    hub.kubectl("exec", name, "-c", "main", "--", "touch", "/home/alice/go-alice")

    assert "TOKEN" not in environment
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    wait_for(lambda: not alice.server(server).get("ready"), "the end of the job", 60)
    wait_for(lambda: "failed with exit code 3" in page(alice.get("/hub/home")), "the reason on the home page")
    wait_for(lambda: objects(hub, name) == "", "pod, Secret and Service are gone")


class TestRemovalAndRenaming:
    @pytest.fixture
    def admin(self, hub: Hub) -> people.Person:
        return people.Person(hub, "admin", "an admin password of thirty-two letters")  # type: ignore[arg-type]

    @pytest.fixture
    def carol(self, hub: Hub) -> Person:
        return Person(hub, new_name("carol"))

    def test_a_person_with_servers_that_run_and_start_is_removed(
        self, hub: Hub, admin: people.Person, carol: Person
    ) -> None:
        carol.launch("", template="ssh")
        carol.launch("two", template="ssh")
        assert carol.start("slow", template="ssh").status_code == 202
        carol.api("POST", f"/users/{carol.name}/servers/never", {"user_options": {"template": "no such"}})
        assert admin.api("DELETE", f"/users/{carol.name}").status_code == 204
        assert admin.api("GET", f"/users/{carol.name}").status_code == 404
        assert carol.name not in hub.kubectl("get", "pods", "-o", "name")

    def test_without_a_manager_that_keeps_the_account_no_person_is_renamed(
        self, admin: people.Person, carol: Person
    ) -> None:
        answer = admin.api("PATCH", f"/users/{carol.name}", {"name": new_name("caroline")})
        assert (answer.status_code, answer.json()["message"]) == (409, KEPT_BY_MANAGER)

    def test_a_person_who_becomes_an_administrator_on_the_admin_page_keeps_the_name(
        self, admin: people.Person, carol: Person
    ) -> None:
        answer = admin.api("PATCH", f"/users/{carol.name}", {"name": carol.name, "admin": True})
        assert (answer.json()["name"], answer.json()["admin"]) == (carol.name, True)
