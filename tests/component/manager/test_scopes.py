"""The scopes of the Manager's token."""

from __future__ import annotations

import pytest

from dlspawner.manager.cluster.orphans import NEEDED
from dlspawner.manager.controllers import leader as leader_module
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager.manager_harness import ManagerHarness, until


async def test_administrators_are_told_of_missing_scopes(
    harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "_SCOPES_SECONDS", 0.05)
    harness.hub.allows = frozenset({*NEEDED} - {"read:servers"} | {"read:servers!user=alice"})
    async with harness.manager() as leader:
        notices = leader.service.store.notices
        await until(lambda: notices.pending(("", NoticeKind.HUB_FORBIDS)), "they are notified")
        notice = notices.pending(("", NoticeKind.HUB_FORBIDS))
        assert notice is not None
        assert "its token lacks read:servers." in notice.text
        harness.hub.allows = frozenset(NEEDED)
        await until(lambda: notices.pending(("", NoticeKind.HUB_FORBIDS)) is None, "it is withdrawn")
