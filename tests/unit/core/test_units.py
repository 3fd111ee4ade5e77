"""Quantities: exact, as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dlspawner.core import units

READ = {
    "a whole number": ("4", Fraction(4)),
    "thousandths": ("500m", Fraction(1, 2)),
    "a decimal fraction is exact": ("0.1", Fraction(1, 10)),
    "binary units": ("16Gi", Fraction(16 * 1024**3)),
    "E alone is a unit": ("1E", Fraction(10**18)),
    "a fraction of nothing": ("1073741824.0", Fraction(2**30)),
    "an exponent with a sign": ("1e+9", Fraction(10**9)),
    "a negative exponent": ("15E-1", Fraction(3, 2)),
    "no digit before the point": (".5", Fraction(1, 2)),
    "no digit behind the point": ("1.Gi", Fraction(2**30)),
    "a plus": ("+2", Fraction(2)),
    "as many bytes as there may be": (str(2**63 - 1), Fraction(2**63 - 1)),
    "e alone is no unit": ("5e", None),
    "an exponent and a unit": ("1e3k", None),
    "a point alone": (".", None),
    "more digits than anybody writes": ("0" * 5000, None),
    "nothing": ("", None),
    "a sign": ("-1", None),
    "a word": ("lots", None),
    "more than 64 bits hold": ("9E99", None),
    "a line end": ("4\n", None),
}


@pytest.mark.parametrize(("text", "value"), READ.values(), ids=READ)
def test_parse(text: str, value: Fraction | None) -> None:
    assert units.parse_quantity(text) == value


def test_base_units_are_rounded_up() -> None:
    assert units.cpu_milli(Fraction(1, 3)) == 334
    assert units.memory_bytes(Fraction(3, 2)) == 2


@pytest.mark.parametrize("text", ["4", "500m", "16Gi", "64Mi", "1001"])
def test_written_quantity_reads_back(text: str) -> None:
    parsed = units.parse_quantity(text)
    assert parsed is not None
    cpu, memory = units.cpu_milli(parsed), units.memory_bytes(parsed)
    assert units.parse_quantity(units.cpu(cpu)) == Fraction(cpu, 1000)
    assert units.parse_quantity(units.memory(memory)) == memory
