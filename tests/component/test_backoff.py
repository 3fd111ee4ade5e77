"""The waits between tries."""

import itertools

from dlspawner.backoff import delays


def test_delays_double_up_to_a_bound_and_differ() -> None:
    drawn = [list(itertools.islice(delays(first=1, most=8), 6)) for _ in range(20)]
    for number, most in enumerate([1, 2, 4, 8, 8, 8]):
        assert all(most / 2 <= one[number] <= most for one in drawn)
    assert len({tuple(one) for one in drawn}) == 20


def test_delays_never_end() -> None:
    assert next(itertools.islice(delays(), 5_000, None)) <= 15
