"""Preemption from the owner's request to the borrower's return, on the embedded cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.component.manager.preempt_story import EXTRA, LendingHub, an_owner_gets_their_gpus_back, lendable
from tests.component.manager.quota import running
from tests.contract.client import Client

pytestmark = pytest.mark.slow
RESOURCE = "lent.example.com/gpu"


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LendingHub]:
    folder = tmp_path_factory.mktemp("lent")
    made = LendingHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", extra=EXTRA, resource=RESOURCE)
    with running(made) as started, lendable(Client(started.kubeconfig), RESOURCE):
        yield started


def test_owner_gets_gpus_back_after_notice_and_the_borrower_waits(hub: LendingHub) -> None:
    an_owner_gets_their_gpus_back(hub)
