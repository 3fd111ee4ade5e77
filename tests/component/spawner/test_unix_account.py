"""The uid and gid of a job: from the authenticator, the Manager, or KubeSpawner's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from traitlets import TraitError

from dlspawner.core.config import Team, TeamsConfig
from dlspawner.core.unix_account import UidRange, UnixIds
from dlspawner.settings import Settings
from dlspawner.spawner import StartRefused, owned_objects, pod_builder
from dlspawner.spawner import spawner as spawner_module
from tests.component.spawner.test_pod import launched
from tests.harness.spawner_builders import CLUSTER, SETTINGS, make_spawner

MANAGER = {"manager_url": "http://manager/services/jobs", "manager_token": "token"}


class Manager:
    """Gives uid 20000 and records the users."""

    def __init__(self) -> None:
        self.users: list[str] = []

    def __call__(self, *_: object, **__: object) -> Manager:
        return self

    async def account(self, user: str) -> str:
        return "alice" if user == "alicia" else user

    async def unix_account(self, user: str, uids: UidRange) -> tuple[str, UnixIds]:
        self.users.append(user)
        return await self.account(user), UnixIds(uids.first, uids.first)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    asked = Manager()
    monkeypatch.setattr(spawner_module, "ManagerLink", asked)
    return asked


def with_state(spawner: Any, state: Mapping[str, object] | None) -> Any:
    async def get() -> Mapping[str, object] | None:
        return state

    spawner.user.get_auth_state, spawner.user.encrypted_auth_state = get, b"encrypted"
    return spawner


async def test_the_pod_has_the_uid_and_gids_of_the_auth_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manager: Manager
) -> None:
    state = {"uid": 5012, "gid": 100, "supplementary_groups": {"lab": 7001}}
    spawner = with_state(make_spawner(monkeypatch, config={**MANAGER, "uid": 1, "gid": 1, "fs_gid": 1}), state)
    context = (await launched(spawner, tmp_path, template="ipython"))["spec"]["securityContext"]

    assert [context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [5012, 100, 100]
    assert context["supplementalGroups"] == [7001]
    assert manager.users == []


async def test_without_a_uid_in_the_auth_state_the_manager_gives_one_at_each_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manager: Manager
) -> None:
    for server in ("one", "two"):
        spawner = make_spawner(monkeypatch, server=server, config=MANAGER)
        if server == "two":  # otherwise the Hub keeps no auth_state
            with_state(spawner, {"token": "x"})
        pod = await launched(spawner, tmp_path, template="ipython")
        assert pod["spec"]["securityContext"]["runAsUser"] == 20_000

    assert manager.users == ["alice", "alice"]


@pytest.mark.parametrize("numbers", [None, {"uid": 5012}], ids=repr)
async def test_a_renamed_person_keeps_uid_home_and_unix_name(
    numbers: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manager: Manager
) -> None:
    home = {"storage_pvc_ensure": True, "pvc_name_template": "home-{username}"}
    home |= {"volume_mounts": [{"name": "all", "mountPath": "/all", "subPath": "{username}"}]}
    spawner = make_spawner(monkeypatch, name="alicia", server="one", config={**MANAGER, **home})
    if numbers:
        with_state(spawner, numbers)
    pod = await launched(spawner, tmp_path, template="ipython")

    assert manager.users == ([] if numbers else ["alicia"])
    assert [one["persistentVolumeClaim"]["claimName"] for one in pod["spec"]["volumes"] if one["name"] == "home"] == [
        "home-alice"
    ]
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert [one["subPath"] for one in mounts if one["name"] == "all"] == ["alice"]
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert (env["HOME"], env["USER"], env["JUPYTERHUB_USER"]) == ("/home/alice", "alice", "alicia")
    assert pod["metadata"]["annotations"]["dlspawner.dev/ssh-login"] == "alice"


@pytest.mark.parametrize("state", [None, {}, {"token": "x"}], ids=repr)
async def test_with_account_keys_only_the_auth_state_gives_a_uid(
    state: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manager: Manager
) -> None:
    """Also for users without a login, whose server an administrator starts."""
    spawner = with_state(make_spawner(monkeypatch, config={**MANAGER, "account_keys": {"uid": "uid"}}), state)
    spawner.user.encrypted_auth_state = None
    with pytest.raises(StartRefused) as refused:
        await launched(spawner, tmp_path, template="ipython")

    assert refused.value.sentences == (pod_builder.UNTOLD,)
    assert manager.users == []


@pytest.mark.parametrize("strict", [False, True])
async def test_strict_groups_set_the_policy(strict: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pod = await launched(make_spawner(monkeypatch, config={"strict_groups": strict}), tmp_path, template="ipython")

    assert pod["spec"]["securityContext"].get("supplementalGroupsPolicy") == ("Strict" if strict else None)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ({"uid": 0}, "auth_state's uid is 0"),
        ({"uid": 20_005}, "in the range that the Manager gives from"),
        ({"uid": 5012, "gid": 20_005}, "in the range that the Manager gives from"),
        ({"uid": 5012, "supplementary_groups": [7001, 20_005]}, "in the range that the Manager gives from"),
        ({"uid": 5012, "supplementary_groups": {"bob": 20_005}}, "in the range that the Manager gives from"),
        (None, "cannot be decrypted"),
    ],
)
async def test_an_invalid_uid_or_gid_is_refused(  # noqa: PLR0917  (fixtures)
    state: dict[str, object] | None,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    manager: Manager,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spawner = with_state(make_spawner(monkeypatch, config=MANAGER), state)
    with pytest.raises(StartRefused) as refused:
        await launched(spawner, tmp_path, template="ipython")

    assert refused.value.sentences == (pod_builder.UNUSABLE,)
    assert line in caplog.text
    assert refused.value.log_message == pod_builder.UNUSABLE, "JupyterHub 5.5 shows it"
    assert manager.users == []


async def test_the_groups_of_all_teams_are_supplemental(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    teams = TeamsConfig((Team("vision", members=("alice",), gid=5001), Team("language", admins=("alice",), gid=5002)))
    settings = Settings(SETTINGS.templates, CLUSTER, teams)
    spawner = make_spawner(monkeypatch, settings=settings, config={"uid": 1000, "gid": 1000})
    pod = await launched(spawner, tmp_path, template="ipython", team="language")
    account = owned_objects.account(pod, "alice")

    assert pod["spec"]["securityContext"]["supplementalGroups"] == [5001, 5002]
    assert [(group.name, group.gid) for group in account.groups] == [("vision", 5001), ("language", 5002)]
    assert (account.name, account.uid, account.gid, account.home) == ("alice", 1000, 1000, "/home/alice")


def test_an_unknown_account_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraitError, match="account_keys has uidNumber; known are uid, gid, groups"):
        make_spawner(monkeypatch, config={"account_keys": {"uidNumber": "uid"}})


@pytest.mark.parametrize(
    ("state", "key", "address"),
    [
        ({"email": "al@uni.edu"}, "email", "al@uni.edu"),
        ({"oauth_user": {"email": "al@uni.edu"}}, "oauth_user.email", "al@uni.edu"),
        ({"mail": ["al@uni.edu", "al@home.org"]}, "mail", "al@uni.edu"),
        ({"email": 3}, "email", ""),
        ({"email": "al@uni.edu"}, "", ""),
        (None, "email", ""),
    ],
)
async def test_the_mail_address_is_that_of_the_auth_state(
    monkeypatch: pytest.MonkeyPatch, state: Mapping[str, object] | None, key: str, address: str
) -> None:
    spawner = with_state(make_spawner(monkeypatch, config={"email_key": key}), state)
    assert await pod_builder.mail_address(spawner) == address
