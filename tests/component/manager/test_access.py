"""Who may see jobs, and act on them: people, administrators, services, and tokens that are less than their owner."""

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
@pytest.mark.parametrize(
    ("identity", "by_token", "right", "reached"),
    [
        (person(), False, AccessRight.SEE, ("vera", "vision")),
        (person(), False, AccessRight.ACT, ("vera", "vision")),
        (person(name="ann"), False, AccessRight.ACT, ("ann",)),
        (person(admin=True), False, AccessRight.ACT, ("vera", "vision", "language", "gone")),
        (person(OWN), True, AccessRight.ACT, ("vera", "vision")),
        (person(frozenset({"read:servers!user=vera"})), True, AccessRight.SEE, ("vera", "vision")),
        (person(frozenset({"read:servers!user=vera"})), True, AccessRight.ACT, None),
        (person(frozenset({"access:services!service=jobs"})), True, AccessRight.SEE, None),
        (person(frozenset({"servers!user=ann"})), True, AccessRight.ACT, None),
        (person(IN_JOB), True, AccessRight.SEE, None),
        (person(IN_JOB | ALL, admin=True), True, AccessRight.SEE, None),
        (person(OWN, admin=True), True, AccessRight.ACT, ("vera", "vision")),
        (person(ALL, admin=True), True, AccessRight.ACT, ("vera", "vision", "language", "gone")),
        (service("read:servers"), True, AccessRight.SEE, ("vera", "vision", "language", "gone")),
        (service("read:servers"), True, AccessRight.ACT, None),
        (service("read:servers!user=vera"), True, AccessRight.SEE, None),
    ],
    ids=[
        "a team admin in a browser sees the team's jobs",
        "a team admin in a browser acts on them",
        "who administers nothing has their own jobs",
        "an administrator of the Hub has all, those of teams that are gone too",
        "an ordinary token of a team admin is as good",
        "a token that reads may see",
        "a token that reads may not act",
        "a token for the service alone sees nothing",
        "a token for somebody else's servers is nobody's",
        "the token inside a job sees nothing",
        "the token inside a job sees nothing even with scopes that an administrator granted",
        "an administrator's token for their own servers is not an administrator's",
        "an administrator's whole token is",
        "a service that may read all servers sees all",
        "and acts on none",
        "a service that may read one person's servers sees nothing",
    ],
)
def test_over_whose_jobs_somebody_has_a_right(
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


@pytest.mark.parametrize(
    ("identity", "by_token", "allowed"),
    [
        (service("read:metrics"), True, True),
        (service("read:servers", "access:services!service=jobs"), True, False),
        (person(admin=True), False, True),
        (person(admin=True), True, False),
        (person(frozenset({"read:metrics"})), True, True),
        (person(), False, False),
    ],
    ids=[
        "a service with the scope",
        "a service with other scopes does not",
        "an administrator in a browser",
        "an administrator's token without the scope does not",
        "a person's token with the scope",
        "a person in a browser does not",
    ],
)
def test_who_reads_metrics(identity: HubIdentity, by_token: bool, allowed: bool) -> None:
    assert (may_read_metrics(identity, by_token=by_token) is None) == allowed


def test_a_service_is_recorded_as_one_whatever_it_is_called() -> None:
    assert [actor_name(one) for one in (person(), HubIdentity("vera", IdentityKind.SERVICE, frozenset()))] == [
        "vera",
        "the service vera",
    ]
