"""The delays of every retry of the product."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

# For requests between processes of the product, while a user waits: delays in seconds, and the retried statuses.
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0
RETRIED = frozenset({429, 500, 502, 503, 504})


def delays(first: float = 0.2, most: float = 15.0) -> Iterator[float]:
    """Seconds before each next try: doubling up to ``most``, each drawn from its upper half to spread clients out."""
    return (min(first * 2.0 ** min(n, 60), most) * random.uniform(0.5, 1.0) for n in count())  # noqa: S311 - no secret
