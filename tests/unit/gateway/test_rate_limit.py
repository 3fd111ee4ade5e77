"""Penalties and limits, with a clock of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ssh_gateway.auth.rate_limit import (
    AuthAttempts,
    DebtTable,
    Penalties,
    PenaltyRules,
    SessionLimit,
    UnauthenticatedLimit,
)
from ssh_gateway.core.addresses import read_networks

A, B = "192.0.2.1", "192.0.2.2"
ADDRESS = "too many failed logins from your address: try again in {} seconds"


def attempt(penalties: Penalties, address: str, name: str, now: float) -> str | None:
    refusal = penalties.token_refusal(address, name, now)
    penalties.token_failed(address, name, now, judged=refusal is None)
    return refusal


def wrong(penalties: Penalties, address: str, name: str, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        attempt(penalties, address, name, now)


def other_names(penalties: Penalties) -> None:
    for number in range(13):
        wrong(penalties, A, f"name{number}", 1)


ROWS: dict[str, tuple[Callable[[Penalties], None], float, str | None]] = {
    "an address owes nothing at first": (lambda _: None, 0.0, None),
    "twelve wrong tokens are free": (lambda p: wrong(p, A, "alice", 12), 0.0, None),
    "the thirteenth is waited for": (lambda p: wrong(p, A, "alice", 13), 0.0, ADDRESS.format(5)),
    "so it is when every name is another": (other_names, 0.0, ADDRESS.format(5)),
    "time pays": (lambda p: wrong(p, A, "alice", 13), 5.0, None),
    "the wait is at most nine minutes": (lambda p: wrong(p, A, "alice", 1000), 0.0, ADDRESS.format(540)),
    "another address owes nothing": (lambda p: wrong(p, B, "alice", 1000), 0.0, None),
}


@pytest.mark.parametrize(("happened", "now", "said"), ROWS.values(), ids=ROWS)
def test_address_waits_for_its_debt(happened: Callable[[Penalties], None], now: float, said: str | None) -> None:
    penalties = Penalties(PenaltyRules())
    happened(penalties)
    assert penalties.refusal(A, now) == penalties.arrives(A, now) == said


PLACES = {
    "an address of IPv4 is one": ("192.0.2.1", "192.0.2.1"),
    "so it is where IPv6 wraps it": ("::ffff:192.0.2.1", "192.0.2.1"),
    "a /64 of IPv6 is one": ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
    "an interface is none of our business": ("fe80::1%eth0", "fe80::/64"),
    "a shared one has no source": ("10.3.2.1", ""),
    "a shared one of IPv6": ("2001:db8:ffff::1", ""),
    "what is no address is itself": ("", ""),
}


@pytest.mark.parametrize(("address", "place"), PLACES.values(), ids=PLACES)
def test_source_of_an_address_is_its_network(address: str, place: str) -> None:
    assert (
        Penalties(PenaltyRules(shared=read_networks(["10.0.0.0/8", "2001:db8:ffff::/48"]))).source_of(address) == place
    )


HELD = "too many wrong tokens for this name: use a registered key, or try again in 5 seconds"
SHARED, SHARED_TOO = "10.0.0.1", "10.0.0.2"
GUESSED_AT: dict[str, tuple[str | None, str, str, str | None]] = {
    "from a new address it is held up": (None, A, "alice", HELD),
    "where its owner came in it is not": (B, B, "alice", None),
    "where its owner did not come in it is": (B, A, "alice", HELD),
    "from a shared address it is": (None, SHARED, "alice", HELD),
    "from a shared address at which its owner came in it is": (SHARED, SHARED, "alice", HELD),
    "another name is not": (None, A, "bob", None),
}


@pytest.mark.parametrize(("came_in", "address", "name", "said"), GUESSED_AT.values(), ids=GUESSED_AT)
def test_name_guessed_at_from_many_addresses_is_held_up(
    came_in: str | None, address: str, name: str, said: str | None
) -> None:
    penalties = Penalties(PenaltyRules(shared=read_networks(["10.0.0.0/8"])))
    if came_in is not None:
        penalties.proven(came_in, "alice", 0.0)
    for number in range(30):
        wrong(penalties, f"198.51.100.{number}", "alice", 1)
    assert penalties.token_refusal(address, name, 0.0) == said


@pytest.mark.parametrize("came_in", [False, True], ids=["before its owner came in", "after its owner came in"])
def test_guesses_from_shared_addresses_have_a_rate(came_in: bool) -> None:
    penalties = Penalties(PenaltyRules(shared=read_networks(["10.0.0.0/8"])))
    if came_in:
        penalties.proven(SHARED, "alice", 0.0)
    tried = [attempt(penalties, address, "alice", t / 10) for t in range(6000) for address in (SHARED, SHARED_TOO)]
    assert tried.count(None) == 25 + 119  # at once, and one in five seconds of ten minutes


def test_refused_guesses_do_not_extend_the_wait() -> None:
    penalties = Penalties(PenaltyRules(shared=read_networks(["10.0.0.0/8"])))
    wrong(penalties, SHARED, "alice", 1000)
    assert penalties.token_refusal(SHARED, "alice", 0.0) == HELD
    assert penalties.token_refusal(SHARED, "alice", 5.0) is None


def test_connections_of_an_address_have_a_rate() -> None:
    penalties = Penalties(PenaltyRules(connections_per_second=8.0))
    answers = [penalties.arrives(A, 0.0) for _ in range(1000)]
    assert answers.count(None) == 161
    assert answers[-1] == "too many connections from your address: try again in 1 second"
    assert [penalties.arrives(A, 0.2) is None for _ in range(2)] == [True, False]
    assert penalties.arrives(B, 0.0) is None


def test_streams_of_a_user_have_a_rate() -> None:
    penalties = Penalties(PenaltyRules(connections_per_second=8.0, shared=read_networks(["192.0.2.0/24"])))
    answers = [penalties.opens(address, "alice", 0.0) for address in (A, B) for _ in range(500)]
    assert answers.count(None) == 161
    assert answers[-1] == "too many streams: try again in 1 second"
    assert penalties.opens(A, "bob", 0.0) is None
    assert penalties.arrives(A, 0.0) is None


def test_penalised_address_opens_no_streams() -> None:
    penalties = Penalties(PenaltyRules())
    wrong(penalties, A, "alice", 13)
    assert penalties.opens(A, "bob", 0.0) == ADDRESS.format(5)
    assert penalties.opens(B, "bob", 0.0) is None


@pytest.mark.parametrize(
    "rules",
    [
        PenaltyRules(shared=read_networks(["192.0.2.0/24"])),
        PenaltyRules(penalty_seconds=0.0, connections_per_second=0.0),
    ],
    ids=["shared", "switched off"],
)
def test_shared_address_and_switched_off_penalties_are_not_waited_for(rules: PenaltyRules) -> None:
    penalties = Penalties(rules)
    wrong(penalties, A, "alice", 20)
    assert {penalties.arrives(A, 0.0) for _ in range(1000)} == {None}


def test_switched_off_penalties_refuse_no_token() -> None:
    penalties = Penalties(PenaltyRules(penalty_seconds=0.0))
    wrong(penalties, A, "alice", 1000)
    assert penalties.token_refusal(A, "alice", 0.0) is None


def test_debt_table_forgets_the_oldest_entry() -> None:
    debts = DebtTable(most=100.0, entries=3)
    for name in "abcab":
        debts.add(name, 10.0, 0.0)
    debts.add("d", 10.0, 0.0)
    assert len(debts) == 3
    assert [debts.owed(name, 0.0) for name in "abcd"] == [20.0, 20.0, 0.0, 10.0]


def test_paid_debt_takes_no_place() -> None:
    debts = DebtTable(most=100.0)
    debts.add("a", 10.0, 0.0)
    debts.add("a", -10.0, 0.0)
    debts.add("b", -1.0, 0.0)
    assert len(debts) == 0


def test_refusal_is_logged_once_a_minute() -> None:
    penalties = Penalties(PenaltyRules())
    assert [penalties.worth_a_line(A, now) for now in (0.0, 1.0, 59.0, 60.0, 61.0)] == [True, False, False, True, False]


def test_connections_of_a_user_are_limited() -> None:
    crowd = SessionLimit(2)
    assert [crowd.enter("alice"), crowd.enter("alice"), crowd.enter("bob")] == [None, None, None]
    assert crowd.enter("alice") == "you have 2 connections already: close some of them"
    crowd.leave("alice")
    assert crowd.enter("alice") is None


def test_failures_guesses_and_queries_of_a_connection_are_limited() -> None:
    attempts = AuthAttempts(6)
    assert [attempts.may_ask() for _ in range(25)] == [True] * 24 + [False]
    assert attempts.failed == 0
    assert [attempts.may_guess() for _ in range(7)] == [True] * 6 + [False], "a guess counts when it begins"
    assert [attempts.exhausted() for _ in range(6)] == [False] * 5 + [True]


@dataclass(eq=False)
class Login:
    begun: bool = False


ROOM: dict[str, tuple[str, int | None]] = {
    "nothing, while there is room": ("aab", None),
    "of its address, one that has begun no login": ("Aaa", 1),
    "the oldest of its address, if all have begun one": ("AAa", 0),
    "of the address with most, if all together are too many": ("abbcd", 1),
    "nothing of a shared address, which has no limit of its own": ("----", None),
    "the oldest of a shared address, if all together are too many": ("-----", 0),
}


@pytest.mark.parametrize(("come", "leaves"), ROOM.values(), ids=ROOM)
def test_oldest_connection_makes_room(come: str, leaves: int | None) -> None:
    """Letters are addresses, capitals of those that have begun a login."""
    door = UnauthenticatedLimit(limit=4, limit_per_source=2)
    logins = [(Login(one.isupper()), one.lower().strip("-")) for one in come]
    made = [door.enter(*one) for one in logins]
    assert made[:-1] == [None] * (len(made) - 1)
    assert made[-1] == (None if leaves is None else logins[leaves][0])
    assert len(door.waiting) == len(made) - (leaves is not None)
