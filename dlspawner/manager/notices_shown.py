"""Notices as the Manager's pages show them."""

from __future__ import annotations

from dataclasses import dataclass

from dlspawner.core.telling import with_time
from dlspawner.hubapi import IdentityKind, own_server
from dlspawner.manager import notices
from dlspawner.manager.approval.told import pending_notice
from dlspawner.manager.identity import recipient_of
from dlspawner.manager.notices_api import level_of, page
from dlspawner.manager.web import IdentityHandler


@dataclass(frozen=True, slots=True)
class NoticeView:
    """A notice as a page shows it; ``server`` is ``None`` in what administrators are told."""

    id: str
    server: str | None
    level: str
    text: str
    keep: bool
    page: str = ""  # of ours, that says more


def notices_for(handler: IdentityHandler, *, besides: frozenset[notices.NoticeKind] = frozenset()) -> list[NoticeView]:
    """What whoever asks is told now; nothing where nobody knows it, or a job asks with its token."""
    manager, identity = handler.manager, handler.identity
    desk = manager.leader.admission if manager.leader else None
    if desk is None or identity is None or identity.kind is not IdentityKind.USER or own_server(identity) is not None:
        return []
    now, book = manager.now(), desk.store
    reader = recipient_of(identity, by_token=handler.by_token)
    asked = pending_notice(book, identity.name, admin=reader.admin)
    return [
        NoticeView(
            one.id,
            one.server if one.user else None,
            level_of(one),
            with_time(one.text, one.until, now),
            one.keep,
            page(one) or "",
        )
        for one in (*book.notices.read(reader, now), *asked)
        if one.kind not in besides
    ]
