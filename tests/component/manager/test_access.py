"""Rights to see jobs and to act on them, of users, administrators, services and narrow tokens."""

from __future__ import annotations

import pytest

from dlspawner.clients.hub import HubIdentity, IdentityKind
from dlspawner.core.config import Team
from dlspawner.manager.model.access import AccessRight, actor_name, may_read_metrics, viewer_of

TEAMS = (Team("vision", admins=("vera",)), Team("language", admins=("lars",)))
OWN = frozenset({"servers!user=vera", "read:servers!user=vera"})
ALL = frozenset({"servers", "read:servers"})
READER = frozenset({"read:servers!user=vera"})
SEE, ACT = AccessRight.SEE, AccessRight.ACT
EVERY, VISION = ("vera", "vision", "language", "gone"), ("vera", "vision")
IN_JOB = frozenset({"access:servers!server=vera/train", "users:activity!user=vera"})


def person(scopes: frozenset[str] = frozenset(), *, name: str = "vera", admin: bool = False) -> HubIdentity:
    return HubIdentity(name, IdentityKind.USER, scopes, admin)


def service(*scopes: str) -> HubIdentity:
    return HubIdentity("reports", IdentityKind.SERVICE, frozenset(scopes))


# Whose jobs: their own, a member's of the team vision, of language, and of a team that is gone.
RIGHTS = {
    "a team admin sees the team's jobs": (person(), False, SEE, VISION),
    "a team admin acts on the team's jobs": (person(), False, ACT, VISION),
    "an ordinary user has own jobs": (person(name="ann"), False, ACT, ("ann",)),
    "an administrator acts on all, of removed teams, too": (person(admin=True), False, ACT, EVERY),
    "a token of a team admin acts, too": (person(OWN), True, ACT, VISION),
    "a token that may read sees": (person(READER), True, SEE, VISION),
    "a token that may read does not act": (person(READER), True, ACT, None),
    "a token for the service alone sees nothing": (
        person(frozenset({"access:services!service=jobs"})),
        True,
        SEE,
        None,
    ),
    "a token for foreign servers": (person(frozenset({"servers!user=ann"})), True, ACT, None),
    "the token inside a job sees nothing": (person(IN_JOB), True, SEE, None),
    "not even with granted scopes": (person(IN_JOB | ALL, admin=True), True, SEE, None),
    "an administrator's token for own servers": (person(OWN, admin=True), True, ACT, VISION),
    "an administrator's token with all scopes reaches all": (person(ALL, admin=True), True, ACT, EVERY),
    "a service that may read all servers sees all": (service("read:servers"), True, SEE, EVERY),
    "a service that may read all servers acts on none": (service("read:servers"), True, ACT, None),
    "a service that may read one user's servers sees nothing": (service("read:servers!user=vera"), True, SEE, None),
}


@pytest.mark.parametrize(("identity", "by_token", "right", "reached"), RIGHTS.values(), ids=RIGHTS)
def test_jobs_within_a_right(
    identity: HubIdentity, by_token: bool, right: AccessRight, reached: tuple[str, ...] | None
) -> None:
    found = viewer_of(identity, TEAMS, right, by_token=by_token)
    if isinstance(found, str):
        assert reached is None
        return
    everything = {identity.name: (identity.name, "other"), "vision": ("bob", "vision")}
    everything |= {"language": ("bob", "language"), "gone": ("bob", "gone")}
    if identity.kind is IdentityKind.SERVICE:
        everything = {"vera": ("vera", "other"), **{k: v for k, v in everything.items() if k != identity.name}}
    assert tuple(name for name, job in everything.items() if found.reaches(*job)) == reached


METRICS = {
    "a service with the scope": (service("read:metrics"), True, True),
    "a service with other scopes": (service("read:servers", "access:services!service=jobs"), True, False),
    "an administrator in a browser": (person(admin=True), False, True),
    "an administrator's token without the scope": (person(admin=True), True, False),
    "a user's token with the scope": (person(frozenset({"read:metrics"})), True, True),
    "a user in a browser": (person(), False, False),
}


@pytest.mark.parametrize(("identity", "by_token", "allowed"), METRICS.values(), ids=METRICS)
def test_right_to_read_metrics(identity: HubIdentity, by_token: bool, allowed: bool) -> None:
    assert (may_read_metrics(identity, by_token=by_token) is None) == allowed


def test_name_of_a_service_in_records() -> None:
    assert [actor_name(one) for one in (person(), HubIdentity("vera", IdentityKind.SERVICE, frozenset()))] == [
        "vera",
        "the service vera",
    ]
