"""Sends the messages of the outbox, as the leader.

**At least once**: a message is removed when its receiver has taken it. It is sent twice only if this process dies, or
cannot reach the database before it ends, between these two; SMTP and webhooks know no transaction that would close that
gap, and a preemption notice that never comes is worse than one that comes twice. Receivers know the second copy by the
message's id (`clients.messages`). Neither a restart nor a take-over sends a second copy: an attempt is written down,
with the time of the next one, before it is made, and no attempt lasts until then.

A server that does not answer delays only its own messages: each kind of receiver has workers of its own, one at most
for a person, and no transaction waits for any. An attempt that fails is repeated after one minute, two, four, up to an
hour; after ten the message is given up, and its person reads why on the page of notifications.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from dlspawner.clients.messages import DeliveryFailed, Message, post_webhook, publish_ntfy, send_mail
from dlspawner.core.config import Notifications
from dlspawner.manager.controllers.workqueue import WorkQueue, periodic
from dlspawner.manager.db import outbox
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.model.message import Channel, OutboxMessage

_LOOK_SECONDS = 2.0
_WORKERS = 10
_ATTEMPTS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)  # longer than an attempt lasts
log = logging.getLogger("dlspawner.manager")
Key = tuple[Channel, str]  # and the person


@dataclass(slots=True)
class OutboxSender:
    """``page``: the address of this service for links in messages; empty, if that is not known."""

    repository: JobRepository
    term: int
    allowed: Callable[[], Notifications]
    now: Callable[[], datetime]
    password: str = field(default="", repr=False)
    page: str = ""
    _due: dict[Key, list[OutboxMessage]] = field(default_factory=dict)
    _done: dict[str, str] = field(default_factory=dict)  # messages that were sent or given up and are still there

    def queues(self) -> Iterator[WorkQueue[Key] | WorkQueue[str]]:
        yield periodic("outbox", self.look, _LOOK_SECONDS)
        for channel in Channel:
            yield WorkQueue(f"{channel} to", partial(self.due, channel), self.deliver, workers=_WORKERS)

    async def look(self) -> None:
        now, found = self.now(), dict[Key, list[OutboxMessage]]()
        for one in await self.repository.read(lambda connection: outbox.read_due(connection, now)):
            found.setdefault((one.channel, one.user), []).append(one)
        self._due = found

    def due(self, channel: Channel) -> list[Key]:
        return [key for key in self._due if key[0] is channel]

    async def deliver(self, key: Key) -> float:
        """Makes an attempt for each message of this person that is due."""
        for message in self._due.pop(key, ()):
            pause = min(_FIRST_PAUSE * 2 ** min(message.attempts, 10), _LONGEST_PAUSE)
            claim = partial(outbox.claim, message=message, due=self.now() + pause)
            if not await self.repository.write_as_leader(self.term, claim):
                continue
            if message.id not in self._done:
                problem = await self._attempt(message)
                if problem is None:
                    continue
                self._done[message.id] = problem
            end = partial(outbox.remove, message=message, problem=self._done[message.id])
            await self.repository.write_as_any(end)
            del self._done[message.id]
        return 0.0

    async def _attempt(self, message: OutboxMessage) -> str | None:
        """Returns "" when the message was sent, why it is given up, or ``None``: there will be another attempt."""
        told = f"message={message.id} user={message.user} channel={message.channel} job={message.job or '-'}"
        try:
            await self._send(message)
        except DeliveryFailed as no:
            last = no.for_good or message.attempts + 1 >= _ATTEMPTS
            log.warning("%s %s: %s", told, "given up" if last else "will be sent again", no)
            return f"“{message.title}” ({message.posted:%d %B, %H:%M UTC}): {no}" if last else None
        log.info("%s sent", told)
        return ""

    async def _send(self, message: OutboxMessage) -> None:
        allowed = self.allowed()
        link = f"{self.page}jobs/{message.job}" if self.page and message.job else ""
        content = Message(message.id, message.title, message.text, message.posted, link)
        match message.channel:
            case Channel.EMAIL:
                if allowed.mail is None:
                    raise DeliveryFailed("mail is not set up here any more", for_good=True)
                await send_mail(allowed.mail, self.password, message.target, content)
            case Channel.WEBHOOK:
                await post_webhook(allowed, message.target, content)
            case Channel.NTFY:
                await publish_ntfy(allowed, message.target, content)
