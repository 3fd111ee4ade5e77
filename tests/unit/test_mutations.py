"""The known faults of the nightly run can be made: the code has the text that each of them changes."""

from __future__ import annotations

import pytest

from tests.mutations import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_the_place_of_a_known_fault_is_there(fault: Fault) -> None:
    assert (ROOT / fault.path).read_text(encoding="utf-8").count(fault.right) == 1
    assert (ROOT / fault.tests).is_file()
