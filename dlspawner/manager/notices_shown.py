"""Notices as the Manager's pages show them."""

from __future__ import annotations

from dataclasses import dataclass

from dlspawner.core.telling import told
from dlspawner.hubapi import Kind, own_server
from dlspawner.manager import notices
from dlspawner.manager.approval.told import waiting_for
from dlspawner.manager.identity import audience
from dlspawner.manager.notices_api import level, page
from dlspawner.manager.web import Asking


@dataclass(frozen=True, slots=True)
class Told:
    """A notice as a page shows it; ``server`` is ``None`` in what administrators are told."""

    id: str
    server: str | None
    level: str
    text: str
    keep: bool
    page: str = ""  # of ours, that says more


def told_to(handler: Asking, *, besides: frozenset[notices.Kind] = frozenset()) -> list[Told]:
    """What whoever asks is told now; nothing where nobody knows it, or a job asks with its token."""
    manager, identity = handler.manager, handler.identity
    desk = manager.acting.desk if manager.acting else None
    if desk is None or identity is None or identity.kind is not Kind.USER or own_server(identity) is not None:
        return []
    now, book = manager.now(), desk.book
    reader = audience(identity, by_token=handler.by_token)
    asked = waiting_for(book, identity.name, admin=reader.admin)
    return [
        Told(
            one.id,
            one.server if one.user else None,
            level(one),
            told(one.text, one.until, now),
            one.keep,
            page(one) or "",
        )
        for one in (*book.board.read(reader, now), *asked)
        if one.kind not in besides
    ]
