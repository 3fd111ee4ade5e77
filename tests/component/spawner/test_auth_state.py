"""The uid and gids in the encrypted auth_state of a real Hub."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator

import pytest

from dlspawner.core import naming
from tests.harness.spawner_hub import Hub, Person, running

pytestmark = pytest.mark.slow
EXTRA = """
from jupyterhub.auth import Authenticator

STATE = {{"uidNumber": ["5012"], "gidNumber": ["5100"], "groups": {{"lab": 7001}}}}

class Directory(Authenticator):
    async def authenticate(self, handler, data):
        return {{"name": data["username"], "auth_state": STATE}}

c.JupyterHub.authenticator_class = Directory
c.Authenticator.allow_all = c.Authenticator.enable_auth_state = True
c.CryptKeeper.keys = [bytes.fromhex({key!r})]
c.DLSpawner.account_keys = {{"uid": "uidNumber", "gid": "gidNumber", "groups": "groups"}}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running(Hub(tmp_path_factory.mktemp("hub"), extra=EXTRA.format(key=secrets.token_hex(32)))) as started:
        yield started


def test_a_login_sets_uid_and_gids_also_after_a_restart(hub: Hub) -> None:
    alice = Person(hub, "alice")
    hub.stop("hub")
    hub.start_hub()
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
