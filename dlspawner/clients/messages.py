"""Messages to people outside the pages: by SMTP, to webhooks with ``{"text": …}`` (Slack, Teams, Mattermost), by ntfy.

Addresses were typed by people, so a request goes only where `core.config.Notifications` allows, with no redirect, and
connects to no address of a private network, whatever a name resolves to, unless the administrators allow that for the
host. A proxy of the environment is not used: it would resolve names by itself. Answers are never shown.

Every attempt of a message has the same id: mail as its Message-ID, by which mail systems drop a second copy, webhooks
as ``Idempotency-Key``, ntfy as ``X-Sequence-ID``, which replaces a message that was delivered before.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

import aiohttp
import aiosmtplib
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from dlspawner.core.config import MailSecurity, MailServer, Notifications, is_public

DEADLINE_SECONDS = 20.0  # of one attempt
_TRIED_AGAIN = frozenset({408, 425, 429})  # and 500 and more


@dataclass(frozen=True, slots=True)
class Message:
    """``title`` and ``text`` are one line each; ``link``: a page that says more, or empty."""

    id: str
    title: str
    text: str
    posted: datetime
    link: str = ""

    @property
    def body(self) -> str:
        return f"{self.text}\n{self.link}".strip()


class DeliveryFailed(Exception):
    """Why, for the person; ``for_good``: another attempt would fail the same way."""

    def __init__(self, sentence: str, *, for_good: bool = False) -> None:
        super().__init__(sentence)
        self.for_good = for_good


async def send_mail(server: MailServer, password: str, to: str, message: Message) -> None:
    """Returns when the server has taken the mail; DeliveryFailed."""
    mail = EmailMessage()
    sender = Address("dlspawner", addr_spec=server.sender)
    mail["From"], mail["To"], mail["Subject"] = sender, Address(addr_spec=to), message.title
    mail["Date"], mail["Message-ID"] = format_datetime(message.posted), f"<{message.id}@{sender.domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.body)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await aiosmtplib.send(
                mail,
                hostname=server.host,
                port=server.port,
                use_tls=server.security is MailSecurity.TLS,
                start_tls=server.security is MailSecurity.STARTTLS,
                timeout=DEADLINE_SECONDS,
                username=server.user or None,
                password=password if server.user else None,
            )
    except aiosmtplib.SMTPRecipientsRefused as no:
        for_good = all(one.code >= 500 for one in no.recipients)
        raise DeliveryFailed("the mail server does not take this address", for_good=for_good) from no
    except aiosmtplib.SMTPResponseException as no:
        raise DeliveryFailed(f"the mail server answered {no.code}") from no
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as no:
        raise DeliveryFailed("the mail server does not answer") from no


async def post_webhook(allowed: Notifications, url: str, message: Message) -> None:
    content = {"text": f"{message.title}. {message.body}"}
    await _post(allowed, url, headers={"Idempotency-Key": message.id}, json=content)


async def publish_ntfy(allowed: Notifications, url: str, message: Message) -> None:
    query = {"title": message.title, **({"click": message.link} if message.link else {})}
    await _post(allowed, url, query, headers={"X-Sequence-ID": message.id}, data=message.text.encode())


async def _post(allowed: Notifications, url: str, query: Mapping[str, str] | None = None, **more: Any) -> None:
    try:
        target = URL(url)
        problem = allowed.url_problem(str(target))
    except ValueError as no:
        raise DeliveryFailed("this is no address", for_good=True) from no
    if problem is not None:
        raise DeliveryFailed(problem, for_good=True)
    resolver = _Resolver(private=allowed.may_be_private(str(target)))
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=resolver),
                timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            session.post(target.update_query(query or {}), allow_redirects=False, **more) as answer,
        ):
            status = answer.status
    except (aiohttp.ClientError, OSError, TimeoutError) as no:
        raise DeliveryFailed(f"{target.host} cannot be reached") from no
    if not 200 <= status < 300:
        raise DeliveryFailed(f"{target.host} answered {status}", for_good=status < 500 and status not in _TRIED_AGAIN)


class _Resolver(AbstractResolver):
    """Resolves names to addresses of the internet, unless ``private`` ones are allowed too."""

    def __init__(self, *, private: bool) -> None:
        self._inner, self._private = aiohttp.ThreadedResolver(), private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        kept = [one for one in found if self._private or is_public(one["host"])]
        if not kept:
            raise OSError(f"{host} is at an address of a private network")
        return kept

    async def close(self) -> None:
        await self._inner.close()
