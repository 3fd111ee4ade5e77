"""Messages outside the pages: which events and notices become one, as a person's settings say. PURE.

Texts are those of notices and of a job's end, without the last words of a program: a log stays where its readers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from dlspawner.core.job import JobState
from dlspawner.core.text import WHEN, without_last_words
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import end_sentence, outcome, size_text
from dlspawner.manager.model.notice import LONGEST_TEXT, Notice, NoticeChange, NoticeKind, clean
from dlspawner.manager.model.records import JobEvent

LONGEST_TARGET = 1000


class Channel(StrEnum):
    EMAIL = "email"
    WEBHOOK = "webhook"
    NTFY = "ntfy"


class Topic(StrEnum):
    """The kinds of messages that a person may choose; the values are those of the database and of the page's form."""

    label: str

    def __new__(cls, value: str, label: str) -> Topic:
        topic = str.__new__(cls, value)
        topic._value_, topic.label = value, label
        return topic

    STARTED = "started", "A job started, or needs your login to start"
    IDLE = "idle", "A job will be stopped because it is idle or at the end of its lifetime"
    PREEMPTION = "preemption", "A job will be preempted or stopped for maintenance, or goes on after all"
    APPROVAL = "approval", "A request was approved or denied"
    FAILED = "failed", "A job failed, or cannot start"


_TOPICS = {
    NoticeKind.LOGIN_REQUIRED: (Topic.STARTED, "needs your login"),
    NoticeKind.IDLE: (Topic.IDLE, "is idle"),
    NoticeKind.LIFETIME: (Topic.IDLE, "reaches the end of its lifetime"),
    NoticeKind.PREEMPTED: (Topic.PREEMPTION, "will be stopped"),
    NoticeKind.MAINTENANCE: (Topic.PREEMPTION, "will be stopped for maintenance"),
    NoticeKind.QUOTA_LOWERED: (Topic.PREEMPTION, "is over a lowered quota"),
    NoticeKind.PREEMPTION_CANCELLED: (Topic.PREEMPTION, "goes on"),
    NoticeKind.APPROVED: (Topic.APPROVAL, "was approved"),
    NoticeKind.DENIED: (Topic.APPROVAL, "was denied"),
    NoticeKind.CANNOT_START: (Topic.FAILED, "cannot start"),
}


@dataclass(frozen=True, slots=True)
class News:
    """An event or a notice, before the settings of its person are read."""

    topic: Topic
    user: str
    title: str
    text: str
    job: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """``email_told``: the address that the authenticator knows; ``problem``: why the latest message was given up."""

    topics: frozenset[Topic] = frozenset(Topic)
    email: str = ""
    webhook: str = ""
    ntfy: str = ""
    email_told: str = ""
    problem: str = ""

    @property
    def targets(self) -> dict[Channel, str]:
        found = {Channel.EMAIL: self.email, Channel.WEBHOOK: self.webhook, Channel.NTFY: self.ntfy}
        return {channel: target for channel, target in found.items() if target}


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message that was not sent yet; ``id`` is the same at every attempt."""

    id: str
    user: str
    channel: Channel
    target: str
    title: str
    text: str
    job: str
    posted: datetime
    attempts: int
    due: datetime


def news_of_events(entries: Iterable[JobEvent]) -> list[News]:
    """Returns the news in these events: jobs that run, and jobs that have failed."""
    found = []
    for entry in entries:
        job, stop = entry.record.job, entry.record.stop
        if not job.user:
            continue
        if entry.reason is EventReason.RUNNING and job.state is JobState.RUNNING:
            text = f"Your job runs, with {size_text(job)}."
            found.append(News(Topic.STARTED, job.user, f"{_name(job.server)} started", text, job.id, entry.at))
        elif job.state is JobState.ENDED and outcome(entry.reason, stop) == "failed":
            text = without_last_words(end_sentence(entry.reason, entry.detail, stop))
            title = f"{_name(job.server)} failed"
            found.append(News(Topic.FAILED, job.user, title, clean(text, LONGEST_TEXT), job.id, entry.at))
    return found


def posted_notices(changes: Sequence[NoticeChange]) -> list[Notice]:
    """Returns the notices that are open after these changes and that a person may want to be told of."""
    latest = {change.notice.key: change for change in changes}
    return [one.notice for one in latest.values() if not one.gone and one.notice.user and one.notice.kind in _TOPICS]


def news_of_notice(notice: Notice) -> News:
    topic, what = _TOPICS[notice.kind]
    when = "" if notice.until is None else f"{notice.until:at %H:%M UTC on %d %B}"
    text = notice.text.replace(WHEN, when) if WHEN in notice.text or not when else f"{notice.text} ({when})"
    return News(topic, notice.user, f"{_name(notice.server)} {what}", text, notice.job, notice.posted)


def _name(server: str) -> str:
    return server or "Default server"
