"""The configuration reference says what the traits say."""

from __future__ import annotations

import pytest
from traitlets.config import Configurable

from tests.reference import PATH, configurables, reference


def test_the_reference_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == reference(), "run `make reference`"


@pytest.mark.parametrize("cls", configurables(), ids=lambda cls: cls.__name__)
def test_every_trait_has_help(cls: type[Configurable]) -> None:
    silent = [name for name, trait in cls.class_own_traits(config=True).items() if len(trait.help or "") < 20]
    assert silent == []
