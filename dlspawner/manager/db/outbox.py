"""Messages outside the pages in the database: the settings of people, and the messages that were not sent yet.

A message is written in the transaction of its event. `claim` counts an attempt before it is made and says when the next
one is due; `remove` ends it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from dlspawner.manager.db.tables import notices, notification_settings, outbox
from dlspawner.manager.model.message import (
    Channel,
    News,
    NotificationSettings,
    OutboxMessage,
    Topic,
    news_of_events,
    news_of_notice,
    posted_notices,
)
from dlspawner.manager.model.notice import LONGEST_TEXT, NoticeChange, clean
from dlspawner.manager.model.records import JobEvent

_AT_ONCE = 500  # of the due messages that are read
_SETTINGS = notification_settings.c


def read_settings(connection: Connection, users: Collection[str]) -> dict[str, NotificationSettings]:
    """Returns the settings of these users; of those without any the usual ones."""
    found = connection.execute(select(notification_settings).where(_SETTINGS.user_name.in_(users)))
    return {**dict.fromkeys(users, NotificationSettings()), **{row.user_name: _settings(row) for row in found}}


def write_settings(connection: Connection, user: str, wanted: NotificationSettings) -> None:
    connection.execute(delete(notification_settings).where(_SETTINGS.user_name == user))
    fields = ("email", "webhook", "ntfy", "email_told", "problem")
    values = {name: getattr(wanted, name) for name in fields}
    topics = ",".join(sorted(wanted.topics))
    connection.execute(insert(notification_settings).values(user_name=user, topics=topics, **values))


def note_email(connection: Connection, user: str, email: str) -> None:
    """The authenticator knows this address of the user."""
    write_settings(connection, user, replace(read_settings(connection, {user})[user], email_told=email))


def write_messages(connection: Connection, entries: Iterable[JobEvent], told: Sequence[NoticeChange]) -> None:
    """Writes the messages about these events and notices; called before the notices are, to know which are new."""
    posted = posted_notices(told)
    known: set[str] = set()
    if posted:
        known = set(connection.scalars(select(notices.c.id).where(notices.c.id.in_([one.id for one in posted]))))
    put(connection, [*news_of_events(entries), *(news_of_notice(one) for one in posted if one.id not in known)])


def put(connection: Connection, news: Sequence[News]) -> None:
    """Writes a message for each of these news and each place where its person wants to be told."""
    wanted = read_settings(connection, {one.user for one in news}) if news else {}
    rows = [
        {
            "id": secrets.token_hex(16),
            "user_name": one.user,
            "channel": channel.value,
            "target": target,
            **{"title": one.title, "text": one.text, "job": one.job},
            **{"posted": one.at, "attempts": 0, "due": one.at},
        }
        for one in news
        for channel, target in wanted[one.user].targets.items()
        if one.topic in wanted[one.user].topics
    ]
    if rows:
        connection.execute(insert(outbox), rows)


def read_due(connection: Connection, now: datetime) -> list[OutboxMessage]:
    """Returns the messages whose next attempt is due, oldest first."""
    rows = connection.execute(select(outbox).where(outbox.c.due <= now).order_by(outbox.c.due).limit(_AT_ONCE))
    return [
        OutboxMessage(
            *(row.id, row.user_name, Channel(row.channel), row.target, row.title, row.text, row.job),
            *(row.posted, row.attempts, row.due),
        )
        for row in rows
    ]


def claim(connection: Connection, message: OutboxMessage, due: datetime) -> bool:
    """Counts an attempt, with the time of the next one; False if the message is gone, or another attempt began."""
    same = (outbox.c.id == message.id) & (outbox.c.attempts == message.attempts)
    changed = update(outbox).where(same).values(attempts=message.attempts + 1, due=due)
    return connection.execute(changed).rowcount == 1


def remove(connection: Connection, message: OutboxMessage, problem: str = "") -> None:
    """The message was sent, or with a ``problem`` is given up; its person reads why until this channel sends one."""
    connection.execute(delete(outbox).where(outbox.c.id == message.id))
    shown = _SETTINGS.user_name == message.user
    if not problem:
        shown &= _SETTINGS.problem.startswith(f"{message.channel}, ")
    text = clean(f"{message.channel}, {problem}", LONGEST_TEXT) if problem else ""
    connection.execute(update(notification_settings).where(shown).values(problem=text))


def _settings(row: Row[Any]) -> NotificationSettings:
    topics = frozenset(topic for topic in Topic if topic in row.topics.split(","))
    return NotificationSettings(topics, row.email, row.webhook, row.ntfy, row.email_told, row.problem)
