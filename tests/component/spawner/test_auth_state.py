"""Numbers that a real Hub keeps, encrypted, from a login, and what a start makes of them."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator

import pytest

from dlspawner.core import naming
from dlspawner.spawner import pod_builder
from tests.harness.spawner_hub import Hub, Person, running

pytestmark = pytest.mark.slow
EXTRA = """
from jupyterhub.auth import Authenticator

TOLD = {{
    "alice": {{"uidNumber": ["5012"], "gidNumber": ["5100"], "groups": {{"lab": 7001}}}},
    "bob": {{"mail": "bob@example.org"}},
    "boss": {{"uidNumber": 5099}},
}}

class Directory(Authenticator):
    async def authenticate(self, handler, data):
        return {{"name": data["username"], "auth_state": TOLD[data["username"]]}}

c.JupyterHub.authenticator_class = Directory
c.Authenticator.allow_all = c.Authenticator.enable_auth_state = True
c.Authenticator.admin_users = {{"boss"}}
c.CryptKeeper.keys = [bytes.fromhex({key!r})]
c.DLSpawner.account_keys = {{"uid": "uidNumber", "gid": "gidNumber", "groups": "groups"}}
"""
KEY, OTHER_KEY = secrets.token_hex(32), secrets.token_hex(32)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running(Hub(tmp_path_factory.mktemp("hub"), extra=EXTRA.format(key=KEY))) as started:
        yield started


def restart(hub: Hub, key: str) -> None:
    hub.stop("hub")
    hub.extra = EXTRA.format(key=key)
    hub.start_hub()


def test_a_login_decides_whose_files_they_are_also_after_a_restart(hub: Hub) -> None:
    alice = Person(hub, "alice")
    restart(hub, KEY)
    alice.launch("a", template="ssh")
    pod = json.loads(hub.kubectl("get", "pod", alice.pod_name("a"), "-o", "json"))
    secret = json.loads(hub.kubectl("get", "secret", naming.ssh_object(alice.pod_name("a")), "-o", "json"))
    alice.stop("a")
    context = pod["spec"]["securityContext"]
    files = {name: base64.b64decode(secret["data"][name]).decode() for name in ("passwd", "group")}

    assert [context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [5012, 5100, 5100]
    assert context["supplementalGroups"] == [7001]
    assert "\nalice:x:5012:5100:alice:/home/alice:" in files["passwd"]
    assert "\nlab:x:7001:alice\n" in files["group"]


def test_who_is_told_of_without_a_uid_starts_nothing(hub: Hub) -> None:
    bob = Person(hub, "bob")
    answer = bob.start("b", template="ssh")

    assert (answer.status_code, answer.json()["message"]) == (403, pod_builder.UNTOLD)
    assert "account user=bob uid=none: auth_state has no uid" in hub.log
    assert bob.pod_name("b") not in hub.kubectl("get", "pods", "-o", "name")


def test_an_administrator_cannot_start_a_job_for_who_has_never_logged_in(hub: Hub) -> None:
    boss = Person(hub, "boss")
    assert boss.api("POST", "/users/carol").status_code == 201
    answer = boss.api("POST", "/users/carol/servers/c", {"user_options": {"template": "ssh"}})

    assert (answer.status_code, answer.json()["message"]) == (403, pod_builder.UNTOLD)


def test_a_key_that_was_changed_hides_the_number_and_nobody_gets_another(hub: Hub) -> None:
    alice = Person(hub, "alice")
    restart(hub, OTHER_KEY)
    try:
        answer = alice.start("d", template="ssh")
    finally:
        restart(hub, KEY)

    assert (answer.status_code, answer.json()["message"]) == (403, pod_builder.UNUSABLE)
    assert "account user=alice uid=none: auth_state cannot be decrypted" in hub.log
