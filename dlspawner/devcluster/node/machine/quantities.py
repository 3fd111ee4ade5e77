"""What the node calculates with Kubernetes quantities (pure)."""

from __future__ import annotations

import math

from dlspawner.devcluster import quantity


def in_units(amount: str | float, divisor: str) -> str:
    """As a resourceFieldRef gives it: whole divisors, rounded up; a divisor of 0 means 1."""
    return str(math.ceil(quantity.parse(amount) / (quantity.parse(divisor) or 1)))
