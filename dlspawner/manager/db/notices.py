"""Notices in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from dlspawner.manager.db.tables import notices
from dlspawner.manager.model.notice import Notice, NoticeChange, NoticeKind

_SAME = [field.name for field in fields(Notice) if field.name not in {"user", "server", "kind"}]


def read_notices(connection: Connection) -> list[Notice]:
    found = connection.execute(select(notices))
    return [
        Notice(
            **{name: getattr(row, name) for name in _SAME},
            user=row.user_name,
            server=row.server_name,
            kind=NoticeKind(row.kind),
        )
        for row in found
    ]


def write_notices(connection: Connection, changes: Sequence[NoticeChange]) -> None:
    """Stores changed notices in the caller's transaction."""
    latest = {change.notice.key: change for change in changes}
    for job, kind in latest:
        connection.execute(delete(notices).where((notices.c.job == job) & (notices.c.kind == kind.value)))
    rows = [_row(change.notice) for change in latest.values() if not change.gone]
    if rows:
        connection.execute(insert(notices), rows)


def _row(notice: Notice) -> dict[str, Any]:
    same = {name: getattr(notice, name) for name in _SAME}
    return {**same, "user_name": notice.user, "server_name": notice.server, "kind": notice.kind.value}
