"""What workers count together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.access import Crowd, Doorkeeper
from ssh_gateway.penalties import FREE, Penalties, Rules
from ssh_gateway.together import Message, Together

ADDRESS = "203.0.113.7"


class One:
    """A worker, and what it has told."""

    def __init__(self) -> None:
        self.door, self.crowd, self.penalties = Doorkeeper(4, 2), Crowd(2), Penalties(Rules())
        tallies = {"door": self.door.waiting, "crowd": self.crowd.inside, "tokens": self.penalties.under_way}
        self.together = Together(tallies, self.penalties.tables(), self.tell)
        self.others: dict[int, One] = {}

    def tell(self, message: Message) -> None:
        for number, other in self.others.items():
            other.together.hear(number, json.loads(json.dumps(message)))


@pytest.fixture
def pair() -> tuple[One, One]:
    one, other = One(), One()
    one.others, other.others = {1: other}, {2: one}
    return one, other


def test_a_limit_holds_for_all_of_them(pair: tuple[One, One]) -> None:
    one, other = pair
    assert [one.door.enter(ADDRESS), other.door.enter(ADDRESS)] == [None, None]
    assert "from your address" in str(one.door.enter(ADDRESS))
    assert "from your address" in str(other.door.enter(ADDRESS))
    assert [one.door.enter("198.51.100.1"), other.door.enter("198.51.100.2")] == [None, None]
    assert one.door.enter("198.51.100.3") == "too many logins are going on: try again in a moment"
    other.door.leave(ADDRESS)
    assert one.door.enter(ADDRESS) is None
    assert [other.crowd.enter("alice"), one.crowd.enter("alice")] == [None, None]
    assert "2 connections already" in str(other.crowd.enter("alice"))


def test_what_is_guessed_at_one_is_owed_at_all(pair: tuple[One, One]) -> None:
    one, other = pair
    for number in range(FREE + 1):
        pair[number % 2].penalties.tries(ADDRESS, f"user{number}", 0.0)
    assert one.penalties.refusal(ADDRESS, 0.0) == other.penalties.refusal(ADDRESS, 0.0) is not None
    one.penalties.give_back(ADDRESS, "user0", 0.0)
    assert one.penalties.refusal(ADDRESS, 0.0) is other.penalties.refusal(ADDRESS, 0.0) is None


def test_a_token_waits_for_those_that_another_judges(pair: tuple[One, One]) -> None:
    one, other = pair
    with one.penalties.judging(ADDRESS):
        for number in range(FREE + 1):
            other.penalties.tries(ADDRESS, f"user{number}", 0.0)
        assert (other.penalties.crowded(ADDRESS, "user", 0.0), other.penalties.refusal(ADDRESS, 0.0)) == (True, None)
    assert not other.penalties.crowded(ADDRESS, "user", 0.0)
    assert other.penalties.refusal(ADDRESS, 0.0) is not None


def test_what_one_that_died_had_counted_is_forgotten_and_a_new_one_hears_of_the_rest(pair: tuple[One, One]) -> None:
    one, other = pair
    one.crowd.enter("alice")
    other.crowd.enter("alice")
    one.together.left(2)
    assert one.crowd.inside["alice"] == 1
    new = One()
    new.others, one.others = {3: one}, {1: new}
    one.tell(one.together.state())
    assert [new.crowd.inside["alice"], new.crowd.enter("alice")] == [1, None]
    assert one.crowd.enter("alice") is not None
    one.crowd.leave("alice")
    one.tell(one.together.state())
    assert new.crowd.inside["alice"] == 1


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.booleans()), max_size=40))
def test_all_count_the_same_whoever_comes_and_goes(steps: list[tuple[int, str, bool]]) -> None:
    one, other = pair_ = One(), One()
    one.others, other.others = {1: other}, {2: one}
    inside: list[tuple[int, str]] = []
    for worker, user, comes in steps:
        if comes and pair_[worker].crowd.enter(user) is None:
            inside.append((worker, user))
        elif not comes and (worker, user) in inside:
            pair_[worker].crowd.leave(user)
            inside.remove((worker, user))
        for name in "ab":
            expected = sum(user == name for _, user in inside)
            assert one.crowd.inside[name] == other.crowd.inside[name] == expected <= 2
