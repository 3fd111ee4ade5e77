"""The scopes of the Manager's token."""

from __future__ import annotations

import pytest

from dlspawner.manager.cluster.orphans import NEEDED
from dlspawner.manager.controllers import leader
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager.manager_harness import Office, until
from tests.component.manager.noticing import book_of


async def test_administrators_are_told_of_missing_scopes(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_SCOPES_SECONDS", 0.05)
    office.hub.allows = frozenset({*NEEDED} - {"read:servers"} | {"read:servers!user=alice"})
    async with office.manager() as acting:
        notices = book_of(acting).notices
        await until(lambda: notices.pending(("", NoticeKind.HUB_FORBIDS)), "they are notified")
        notice = notices.pending(("", NoticeKind.HUB_FORBIDS))
        assert notice is not None
        assert "its token lacks read:servers." in notice.text
        office.hub.allows = frozenset(NEEDED)
        await until(lambda: notices.pending(("", NoticeKind.HUB_FORBIDS)) is None, "it is withdrawn")
