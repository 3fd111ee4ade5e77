"""Logs through a real Hub, on the embedded cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edges.test_manager.logs_story import its_log_outlives_a_job_and_holds_no_token, offer
from tests.edges.test_manager.quota import running
from tests.edges.test_manager.rest import SCOPES, RestHub

pytestmark = pytest.mark.slow


class NoisyHub(RestHub):
    """One with the template that prints its environment."""

    def prepare(self) -> None:
        super().prepare()
        offer(self)


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoisyHub]:
    state = tmp_path_factory.mktemp("noisy")
    made = NoisyHub(state, db_url=f"sqlite:///{state / 'manager.sqlite'}", extra=SCOPES)
    with running(made):
        made.move_in()
        yield made


def test_its_log_outlives_a_job_and_holds_no_token(hub: NoisyHub) -> None:
    its_log_outlives_a_job_and_holds_no_token(hub)
