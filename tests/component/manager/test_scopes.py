"""The scopes of the Manager's token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.devcluster.api import start
from dlspawner.manager.cluster.orphans import NEEDED
from dlspawner.manager.controllers import leader
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.job_store import JobStore
from tests.component.manager.manager_harness import Office, make_namespace, prepare, until


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    monkeypatch.setattr(leader, "_SCOPES_SECONDS", 0.05)
    prepare(tmp_path)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        made = Office(tmp_path, f"sqlite:///{tmp_path / 'manager.sqlite'}", cluster)
        await made.make_node()
        yield made
    await api.stop()


def book(acting: LeaderElector) -> JobStore:
    assert acting.admission is not None
    return acting.admission.store


async def test_administrators_are_notified_while_the_token_lacks_a_scope(office: Office) -> None:
    office.hub.allows = frozenset({*NEEDED} - {"read:servers"} | {"read:servers!user=alice"})
    async with office.manager() as acting:
        await until(lambda: book(acting).notices.pending(("", NoticeKind.HUB_FORBIDS)), "they are notified")
        notice = book(acting).notices.pending(("", NoticeKind.HUB_FORBIDS))
        assert notice is not None
        assert "its token lacks read:servers." in notice.text
        office.hub.allows = frozenset(NEEDED)
        await until(lambda: book(acting).notices.pending(("", NoticeKind.HUB_FORBIDS)) is None, "it is withdrawn")
