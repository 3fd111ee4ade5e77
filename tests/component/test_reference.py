"""The configuration reference says what the traits say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from traitlets.config import Configurable

from tests import labextension
from tests.reference import PATH, configurables, reference


def test_the_reference_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == reference(), "run `make reference`"


@pytest.mark.parametrize("cls", configurables(), ids=lambda cls: cls.__name__)
def test_every_trait_has_help(cls: type[Configurable]) -> None:
    silent = [name for name, trait in cls.class_own_traits(config=True).items() if len(trait.help or "") < 20]
    assert silent == []


def test_the_module_for_jupyterlab_is_built_from_its_sources() -> None:
    assert labextension.NOTE.read_text(encoding="utf-8").strip() == labextension.digest(), "run `make labextension`"


def test_the_tests_that_the_threats_name_are_there() -> None:
    root = Path(__file__).parents[2]
    named = set(re.findall(r"(test_\w+\.py)", (root / "hub_config" / "THREATS.md").read_text()))
    assert len(named) > 10
    assert named <= {file.name for file in (root / "tests").rglob("test_*.py")}
