"""What the page of a job that waits says of the advice."""

from __future__ import annotations

import pytest

from dlspawner.core.amounts import GPU
from dlspawner.core.decisions import Alternative
from dlspawner.manager.looks import Look
from tests.core.worlds import queues

LESS, LENT = Alternative("a100", 2 * GPU, False), Alternative("a100", 4 * GPU, True)
OTHER = Alternative("v100", 4 * GPU, False)


@pytest.mark.parametrize(
    ("advice", "keeps", "loses"),
    [
        ((), False, False),
        ((LESS,), True, False),
        ((LENT,), False, True),
        ((OTHER,), False, True),
        ((LESS, OTHER), True, True),
    ],
)
def test_only_fewer_gpus_of_the_same_kind_keep_the_place(
    advice: tuple[Alternative, ...], keeps: bool, loses: bool
) -> None:
    look = Look(queues("j", "a", 4), "queued", 1, 1, "", advice)
    assert (look.keeps_place, look.loses_place) == (keeps, loses)
