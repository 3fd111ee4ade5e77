"""Numbers of people: which are believed, how their groups are called, what passwd and group say."""

from __future__ import annotations

import pytest

from dlspawner.core import unix_account
from dlspawner.core.link import derive_hub_token
from dlspawner.core.unix_account import AuthStateKeys, InvalidIds, UnixAccount, UnixGroup, UnixIds

LDAP = AuthStateKeys("uidNumber", "gidNumber", "memberOf")

READ: dict[str, tuple[dict[str, object], AuthStateKeys, object]] = {
    "nothing is said": ({"token": "x"}, AuthStateKeys(), None),
    "a uid alone is its own group": ({"uid": 5012}, AuthStateKeys(), UnixIds(5012, 5012)),
    "uid, gid and numbers of groups": (
        {"uid": 5012, "gid": 100, "supplementary_groups": [7001, 7002]},
        AuthStateKeys(),
        UnixIds(5012, 100, (UnixGroup("", 7001), UnixGroup("", 7002))),
    ),
    "groups with their names": (
        {"uid": 5012, "supplementary_groups": {"lab": 7001}},
        AuthStateKeys(),
        UnixIds(5012, 5012, (UnixGroup("lab", 7001),)),
    ),
    "what LDAP answers": ({"uidNumber": ["5012"], "gidNumber": ["100"]}, LDAP, UnixIds(5012, 100)),
    "an inner object": (
        {"oauth_user": {"unix": {"uid": "5012"}}},
        AuthStateKeys("oauth_user.unix.uid"),
        UnixIds(5012, 5012),
    ),
    "an inner object that is none": ({"oauth_user": "alice"}, AuthStateKeys("oauth_user.uid"), None),
}


@pytest.mark.parametrize(("state", "keys", "expected"), READ.values(), ids=READ)
def test_read(state: dict[str, object], keys: AuthStateKeys, expected: object) -> None:
    assert unix_account.read_unix_ids(state, keys, 1000) == expected


@pytest.mark.parametrize(
    "uid",
    [0, "0", -1, 999, True, 5012.0, "5012x", "", "٥٠١٢", [], [5012, 5013], {"a": 1}, 65534, 65535, 2**31],
    ids=repr,
)
def test_invalid_uid_is_refused(uid: object) -> None:
    found = unix_account.read_unix_ids({"uid": uid}, AuthStateKeys(), 1000)
    assert isinstance(found, InvalidIds)
    assert "not a uid of 1000 or more" in found.why


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"gid": 100}, "has gid but no uid"),
        ({"uid": 5012, "gid": 0}, "gid is 0, not a gid"),
        ({"uid": 5012, "supplementary_groups": ["lab"]}, "is ['lab'], not a list of gids"),
        ({"uid": 5012, "supplementary_groups": [0]}, "is [0], not a list of gids"),
        ({"uid": 5012, "supplementary_groups": {"lab": -3}}, "not a list of gids"),
        ({"uid": 5012, "supplementary_groups": "lab"}, "not a list of gids"),
    ],
)
def test_incomplete_account_is_refused(state: dict[str, object], why: str) -> None:
    found = unix_account.read_unix_ids(state, AuthStateKeys(), 1000)
    assert isinstance(found, InvalidIds)
    assert why in found.why


def test_teams_add_groups_that_are_not_there_yet() -> None:
    numbers = UnixIds(5012, 5012, (UnixGroup("lab", 7001),))
    assert numbers.joining([UnixGroup("vision", 7001), UnixGroup("language", 7002)]).groups == (
        UnixGroup("lab", 7001),
        UnixGroup("language", 7002),
    )


def test_group_names_are_safe_and_different() -> None:
    groups = (
        UnixGroup("vision", 7001),
        UnixGroup("alice", 7002),
        UnixGroup("tty", 7003),
        UnixGroup("", 7004),
        UnixGroup("a:x:0:root\n", 7005),
        UnixGroup("vision", 7006),
    )
    names = [group.name for group in unix_account.account("alice", UnixIds(5012, 5012, groups), "/home/alice").groups]

    assert names[:4] == ["vision", "alice-7002", "tty-7003", "g7004"]
    assert names[4].startswith("a-x-0-root--")
    assert names[5] == "vision-7006"


def test_passwd_and_group_name_the_person_and_their_groups() -> None:
    alice = UnixAccount("alice", 5012, 5012, (UnixGroup("vision", 7001),), "/home/alice")
    assert "alice:x:5012:5012:alice:/home/alice:/bin/bash\n" in unix_account.passwd(alice, "/bin/bash")
    assert "\nalice:x:5012:\nvision:x:7001:alice\n" in unix_account.group(alice)


def test_root_by_permission_keeps_the_user_name() -> None:
    alice = UnixAccount("alice", 0, 0, (), "/home/alice")
    assert unix_account.passwd(alice, "/bin/bash").splitlines() == [
        "root:x:0:0:root:/root:/bin/sh",
        "alice:x:0:0:alice:/home/alice:/bin/bash",
        "sshd:x:65533:65534:sshd:/run/sshd:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ]
    assert "sshd:" not in unix_account.passwd(UnixAccount("alice", 5012, 5012, (), "/home/alice"), "/bin/bash")


def test_an_own_group_that_has_a_name_keeps_it() -> None:
    staff = unix_account.account("alice", UnixIds(5012, 100, (UnixGroup("users", 100),)), "/home/alice")
    assert unix_account.group(staff) == "root:x:0:\nusers:x:100:alice\nnogroup:x:65534:\n"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "b"}', '{"a": 0}', "null"])
def test_foreign_annotation_has_no_groups(text: str) -> None:
    assert unix_account.read_groups(text) == ()


def test_written_groups_are_read_back() -> None:
    groups = (UnixGroup("vision", 7001), UnixGroup("Ann’s “lab”", 7002))
    assert unix_account.read_groups(unix_account.write_groups((*groups, UnixGroup("", 7003)))) == groups


def test_derived_hub_token_hides_the_service_s() -> None:
    assert derive_hub_token("secret") == derive_hub_token("secret") != derive_hub_token("secret2")
    assert "secret" not in derive_hub_token("secret")
