"""The OpenPAI lab's experiments through the real Hub and its Manager, on the embedded and on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager.openpai_lab import LabHub, LabStories
from tests.component.manager.preempt_story import EXTRA
from tests.component.manager.quota import running

pytestmark = [pytest.mark.slow, pytest.mark.real]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabHub]:
    made = LabHub(tmp_path, db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}", extra=EXTRA)
    with running(made):
        made.join()
        yield made
        assert "Traceback" not in made.log


class TestLab(LabStories):
    """All three of them."""
