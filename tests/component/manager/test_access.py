"""Rights to see jobs and to act on them, of users, administrators, services and narrow tokens."""

from __future__ import annotations

import pytest

from dlspawner.clients.hub import HubIdentity, IdentityKind
from dlspawner.core.config import Team
from dlspawner.manager.model.access import AccessRight, actor_name, may_read_metrics, viewer_of

TEAMS = (Team("vision", admins=("vera",)), Team("language", admins=("lars",)))
OWN = frozenset({"servers!user=vera", "read:servers!user=vera"})
ALL = frozenset({"servers", "read:servers"})
IN_JOB = frozenset({"access:servers!server=vera/train", "users:activity!user=vera"})


def person(scopes: frozenset[str] = frozenset(), *, name: str = "vera", admin: bool = False) -> HubIdentity:
    return HubIdentity(name, IdentityKind.USER, scopes, admin)


def service(*scopes: str) -> HubIdentity:
    return HubIdentity("reports", IdentityKind.SERVICE, frozenset(scopes))


# Whose jobs: their own, a member's of the team vision, of language, and of a team that is gone.
RIGHTS = {
    "a team admin sees the team's jobs": (person(), False, AccessRight.SEE, ("vera", "vision")),
    "a team admin acts on the team's jobs": (person(), False, AccessRight.ACT, ("vera", "vision")),
    "an ordinary user has own jobs": (person(name="ann"), False, AccessRight.ACT, ("ann",)),
    "an administrator acts on all jobs, those of removed teams, too": (
        person(admin=True),
        False,
        AccessRight.ACT,
        ("vera", "vision", "language", "gone"),
    ),
    "a token of a team admin with the scopes acts on them, too": (
        person(OWN),
        True,
        AccessRight.ACT,
        ("vera", "vision"),
    ),
    "a token that may read sees": (
        person(frozenset({"read:servers!user=vera"})),
        True,
        AccessRight.SEE,
        ("vera", "vision"),
    ),
    "a token that may read does not act": (person(frozenset({"read:servers!user=vera"})), True, AccessRight.ACT, None),
    "a token for the service alone sees nothing": (
        person(frozenset({"access:services!service=jobs"})),
        True,
        AccessRight.SEE,
        None,
    ),
    "a token for the servers of another user does nothing": (
        person(frozenset({"servers!user=ann"})),
        True,
        AccessRight.ACT,
        None,
    ),
    "the token inside a job sees nothing": (person(IN_JOB), True, AccessRight.SEE, None),
    "the token inside a job sees nothing even with scopes that an administrator granted": (
        person(IN_JOB | ALL, admin=True),
        True,
        AccessRight.SEE,
        None,
    ),
    "an administrator's token for their own servers is not an administrator's": (
        person(OWN, admin=True),
        True,
        AccessRight.ACT,
        ("vera", "vision"),
    ),
    "an administrator's token with all scopes reaches all": (
        person(ALL, admin=True),
        True,
        AccessRight.ACT,
        ("vera", "vision", "language", "gone"),
    ),
    "a service that may read all servers sees all": (
        service("read:servers"),
        True,
        AccessRight.SEE,
        ("vera", "vision", "language", "gone"),
    ),
    "a service that may read all servers acts on none": (service("read:servers"), True, AccessRight.ACT, None),
    "a service that may read one user's servers sees nothing": (
        service("read:servers!user=vera"),
        True,
        AccessRight.SEE,
        None,
    ),
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
