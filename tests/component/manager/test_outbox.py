"""Messages outside the pages, to a real SMTP server and a real HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import email
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email.message import Message
from email.policy import SMTP as POLICY
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope
from sqlalchemy import func, select

from dlspawner.clients.messages import DeliveryFailed, post_webhook
from dlspawner.clients.messages import Message as Content
from dlspawner.core.config import MailSecurity, MailServer, Notifications
from dlspawner.core.job import Job, JobState
from dlspawner.manager.controllers import outbox as sending
from dlspawner.manager.db import outbox
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.db.tables import outbox as rows
from dlspawner.manager.model.message import Channel, NotificationSettings, OutboxMessage, Topic
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.notify import post
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants
from tests.component.manager.noticing import NOW
from tests.component.manager.portals import Portal


@dataclass
class Receivers:
    """A mail server and an HTTP server, and what they got; ``status`` is the HTTP server's answer."""

    mails: list[Message] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # path, id, body
    status: int = 200
    mail_port: int = 0
    http_port: int = 0
    server: asyncio.Server | None = None

    async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:  # noqa: N802
        self.mails.append(email.message_from_bytes(envelope.content, policy=POLICY))  # type: ignore[arg-type]
        return "250 OK"

    async def open_mail(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: SMTP(self, loop=loop), "127.0.0.1", self.mail_port)
        self.mail_port = self.server.sockets[0].getsockname()[1]

    async def close_mail(self) -> None:
        assert self.server is not None
        self.server.close()
        await self.server.wait_closed()

    async def answer(self, request: web.Request) -> web.Response:
        told = request.headers.get("Idempotency-Key") or request.headers.get("X-Sequence-ID") or ""
        body = (await request.json())["text"] if request.path == "/hook" else await request.text()
        self.requests.append((request.path, told, f"{request.query.get('title', '')}|{body}"))
        return web.Response(status=self.status, headers={"Location": "/elsewhere"} if self.status == 302 else {})

    @property
    def allowed(self) -> Notifications:
        mail = MailServer("127.0.0.1", "hub@example.org", self.mail_port, MailSecurity.NONE)
        return Notifications(mail, private_hosts=(f"127.0.0.1:{self.http_port}",))

    @property
    def wishes(self) -> NotificationSettings:
        here = f"http://127.0.0.1:{self.http_port}"
        return NotificationSettings(email="alice@example.org", webhook=f"{here}/hook", ntfy=f"{here}/topic")


@pytest.fixture
async def receivers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receivers]:
    monkeypatch.setattr(sending, "_LOOK_SECONDS", 0.05)
    made = Receivers()
    await made.open_mail()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.http_port = runner.addresses[0][1]
    yield made
    await runner.cleanup()
    await made.close_mail()


@contextlib.asynccontextmanager
async def leading(harness: ManagerHarness, receivers: Receivers, **wishes: Any) -> AsyncIterator[Leader]:
    async with harness.manager() as leader:
        cluster = replace(leader.settings.cluster, notifications=receivers.allowed)
        leader.settings = replace(leader.settings, cluster=cluster)
        wanted = replace(receivers.wishes, **wishes)
        await leader.repository.write_as_any(lambda connection: outbox.write_settings(connection, "alice", wanted))
        yield leader


async def left(leader: Leader) -> int:
    return await leader.repository.read(
        lambda connection: connection.scalar(select(func.count()).select_from(rows)) or 0
    )


async def until_sent(leader: Leader) -> None:
    await leader.settled()

    async def empty() -> bool:
        return await left(leader) == 0

    await until(empty, "the outbox is empty")


async def tell(leader: Leader, job: Job, text: str, cause: str = "j-1") -> None:
    when = leader.service.store.now() + timedelta(minutes=5)
    await leader.transact(post, job, NoticeKind.PREEMPTED, text, cause=cause, until=when)


async def test_person_is_told_once_at_every_place_over_restarts(
    db_url: str, harness: ManagerHarness, receivers: Receivers
) -> None:
    request = wants("alice", server="train")
    async with leading(harness, receivers) as leader:
        await leader.run_job(request)
        await tell(leader, leader.record(request).job, "It will be stopped {when}.")
        await tell(leader, leader.record(request).job, "It will be stopped {when}, in other words.")
        await until_sent(leader)
    async with leading(harness, receivers) as leader:
        await harness.finish("jupyter-alice", 1, "Error")
        await leader.until_state(request, JobState.ENDED)
        await until_sent(leader)
    subjects = ["train started", "train will be stopped", "train failed"]
    assert [mail["Subject"] for mail in receivers.mails] == subjects
    assert {mail["To"] for mail in receivers.mails} == {"alice@example.org"}
    assert "It will be stopped at " in receivers.mails[1].get_payload()
    for path in ("/hook", "/topic"):
        bodies = [body for where, _, body in receivers.requests if where == path]
        assert [any(word in body for word in subjects) for body in bodies] == [True] * 3, bodies
    ids = [mail["Message-ID"] for mail in receivers.mails] + [told for _, told, _ in receivers.requests]
    assert len(set(ids)) == 9


async def test_only_the_chosen_topics_are_told(harness: ManagerHarness, receivers: Receivers) -> None:
    request = wants("alice")
    async with leading(harness, receivers, topics=frozenset({Topic.FAILED}), webhook="", ntfy="") as leader:
        await leader.run_job(request)
        await harness.finish("jupyter-alice", 1, "Error")
        await leader.until_state(request, JobState.ENDED)
        await until_sent(leader)
    assert [mail["Subject"] for mail in receivers.mails] == ["Default server failed"]


async def test_dead_mail_server_delays_nothing_else_and_gets_the_mail_later(
    harness: ManagerHarness, receivers: Receivers
) -> None:
    request = wants("alice")
    await receivers.close_mail()
    async with leading(harness, receivers) as leader:
        await leader.run_job(request)
        await until(lambda: len(receivers.requests) == 2, "webhook and ntfy have it")

        async def one_left() -> bool:
            return await left(leader) == 1

        await until(one_left, "only the mail waits")
        assert receivers.mails == []
        await receivers.open_mail()
        harness.clock.moved += timedelta(minutes=1)
        await until_sent(leader)
    assert [mail["Subject"] for mail in receivers.mails] == ["Default server started"]
    assert len(receivers.requests) == 2


async def test_message_of_a_process_that_dies_before_its_end_is_sent_again_with_the_same_id(
    harness: ManagerHarness, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = asyncio.Event()

    async def away(*_: object) -> None:
        sent.set()
        raise DatabaseUnavailable("the database is away")

    async with leading(harness, receivers, webhook="", ntfy="") as leader:
        with monkeypatch.context() as patched:
            patched.setattr(JobRepository, "write_as_any", away)
            await leader.run_job(wants("alice"))
            await asyncio.wait_for(sent.wait(), 60)
    async with leading(harness, receivers) as leader:
        await leader.settled()
        assert (len(receivers.mails), await left(leader)) == (1, 1), "no take-over repeats an attempt that may go on"
        harness.clock.moved += timedelta(minutes=1)
        await until_sent(leader)
    assert len({mail["Message-ID"] for mail in receivers.mails}) == 1
    assert len(receivers.mails) == 2


@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (302, 1), (503, 10)])
async def test_message_that_is_not_taken_is_given_up_and_its_person_reads_why(
    harness: ManagerHarness, receivers: Receivers, status: int, attempts: int
) -> None:
    receivers.status = status
    async with leading(harness, receivers, email="", ntfy="") as leader:
        await leader.run_job(wants("alice"))
        for attempt in range(1, attempts + 1):
            await until(lambda count=attempt: len(receivers.requests) == count, f"attempt {attempt}")
            harness.clock.moved += timedelta(hours=1)
        await until_sent(leader)
        shown = []
        for channel in (Channel.EMAIL, Channel.WEBHOOK):
            sent = OutboxMessage("1", "alice", channel, "", "", "", "", NOW, 1, NOW)
            await leader.repository.write_as_any(partial(outbox.remove, message=sent))
            found = await leader.repository.read(lambda connection: outbox.read_settings(connection, {"alice"}))
            shown.append(found["alice"].problem)
    assert shown[0].startswith("webhook, “"), "a mail that was sent says nothing of it"
    assert f": 127.0.0.1 answered {status}" in shown[0]
    assert shown[1] == "", "the webhook works again"
    assert {path for path, _, _ in receivers.requests} == {"/hook"}, "no redirect is followed"


ALLOWED = Notifications(None, (), ("hooks.example.com", "*.office.com", "10.0.0.1"), ("ntfy.lan:8080", "*.lan"))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://hooks.example.com/x?y=z", ""),
        ("https://a.b.office.com/x", ""),
        ("https://HOOKS.example.com./x", ""),
        ("http://ntfy.lan:8080/topic", ""),
        ("http://other.lan/topic", ""),
        ("http://hooks.example.com/x", "needs https"),
        ("https://hooks.example.com:8443/x", "not among the hosts"),
        ("https://office.com/x", "not among the hosts"),
        ("https://evil-office.com/x", "not among the hosts"),
        ("https://evil.example.com/x", "not among the hosts"),
        ("http://other.lan:8080/topic", "not among the hosts"),
        ("https://10.0.0.1/x", "private network"),
        ("https://hooks.example.com@evil.example.com/", "no user name"),
        ("https://evil.example.com\\@hooks.example.com/", "no user name"),
        ("https://hooks.example.com\\.evil.com/", "not among the hosts"),
        ("file:///etc/passwd", "begins with https://"),
        ("https://hooks.example.com/ x", "begins with https://"),
        ("https://[::1", "begins with https://"),
        ("", "begins with https://"),
    ],
)
def test_addresses_that_the_administrators_do_not_allow_are_refused(url: str, problem: str) -> None:
    found = ALLOWED.url_problem(url)
    assert problem in found if problem and found else not problem and found is None, found


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]", "169.254.169.254"])
async def test_no_name_leads_into_a_private_network(receivers: Receivers, host: str) -> None:
    url = f"https://{host}:{receivers.http_port}/hook"
    allowed = Notifications(hosts=(f"*:{receivers.http_port}",))
    with pytest.raises(DeliveryFailed, match=r"cannot be reached|private network"):
        await post_webhook(allowed, url, Content("1", "Title", "Text", NOW))
    assert receivers.requests == []


async def test_settings_are_one_page_and_a_test_message_arrives(portal: Portal, receivers: Receivers) -> None:
    assert "Messages outside these pages" not in (await portal.read("alice", "notices")).text, "nothing is allowed"
    leader = portal.served.leader
    allowed = replace(receivers.allowed, mail_domains=("example.org",))
    leader.settings = replace(leader.settings, cluster=replace(leader.settings.cluster, notifications=allowed))
    wishes = dict(receivers.wishes.targets)
    form = {**wishes, "topic": Topic.FAILED.value}
    for wrong, said in (
        ({"email": "boss@elsewhere.org"}, "Mail goes to"),
        ({"webhook": "https://intranet/hook"}, "intranet is not among the hosts that the administrators allow"),
    ):
        refused = await portal.read("alice", "notices/settings", "POST", {**form, **wrong})
        assert (refused.status, said in refused.text) == (422, True), refused.text
        assert next(iter(wrong.values())) in refused.body, "the input stays"
    saved = await portal.read("alice", "notices/settings", "POST", {**form, "test": "1"})
    assert (saved.status, saved.location) == (303, "/services/jobs/notices?done=tested")
    await until(lambda: receivers.mails and len(receivers.requests) == 2, "the test message is there")
    assert receivers.mails[0]["Subject"] == "Test"
    page = await portal.read("alice", "notices?done=tested")
    assert "A test message is on its way" in page.text
    assert [page.body.count(target) for target in wishes.values()] == [1, 1, 1]
    assert page.body.count(" checked") == 1
    assert "alice@example.org" not in (await portal.read("bob", "notices")).body


async def test_address_of_the_login_is_known_from_the_start(portal: Portal) -> None:
    """The Hub tells it with the admission request."""
    leader = portal.served.leader
    leader.settings = replace(
        leader.settings,
        cluster=replace(leader.settings.cluster, notifications=Notifications(MailServer("mail.lan", "hub@lan"))),
    )
    request = wants("alice")
    fields = ("user", "server", "team", "template", "preemptible", "priority", "requeue", "namespace", "pods", "nonce")
    body = {**{name: getattr(request, name) for name in fields}, "request_milliseconds": 3000, "email": "al@uni.edu"}
    status, _ = await portal.served.ask(portal.served.hubs_token, f"internal/jobs/{request.job}/admission", "PUT", body)
    assert status == 200
    assert "The address of your login: al@uni.edu." in (await portal.read("alice", "notices")).text
    saved = await portal.read("alice", "notices/settings", "POST", {"email": "al@uni.edu", "topic": "failed"})
    assert saved.status == 303
