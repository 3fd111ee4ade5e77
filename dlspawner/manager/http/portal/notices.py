"""The Manager's page of what a person is told, with the buttons that belong to it.

GET   notices              the page
POST  notices/{id}/keep    *keep alive*, answered by the page with what became of it
POST  notices/settings     where messages outside the pages go, and about what; with ``test`` one is sent there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from dlspawner.clients.hub import HubIdentity, IdentityKind, own_server
from dlspawner.core.config import Notifications
from dlspawner.manager.db import outbox
from dlspawner.manager.http.api.notices import GONE, check_may_answer, keep_alive
from dlspawner.manager.http.auth import recipient_of
from dlspawner.manager.http.handlers import NOTHING_HERE, HttpProblem, PageHandler
from dlspawner.manager.http.portal.base import notices_for
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.message import LONGEST_TARGET, Channel, News, NotificationSettings, Topic

TEST = "This is a test: messages about your jobs arrive here."
_TO = {Channel.EMAIL: "E-mail", Channel.WEBHOOK: "Webhook", Channel.NTFY: "ntfy"}


class NoticesPageBase(PageHandler):
    def person(self) -> HubIdentity:
        if self.caller.kind is not IdentityKind.USER or own_server(self.caller) is not None:
            raise HttpProblem(404, NOTHING_HERE)
        self.viewer(AccessRight.SEE)
        return self.caller

    @property
    def allowed(self) -> Notifications:
        leader = self.manager.leader
        return leader.settings.cluster.notifications if leader is not None else Notifications()

    async def wishes(self) -> NotificationSettings:
        name = self.person().name
        return (await self.manager.database.read(lambda connection: outbox.read_settings(connection, {name})))[name]

    async def show_notices(
        self, status: int = 200, typed: NotificationSettings | None = None, **values: object
    ) -> None:
        settings = typed or await self.wishes()
        more = {"settings": settings, "allowed": self.allowed, "topics": [*Topic]}
        self.show("told.html", status, told=notices_for(self), **more, **values)


class NoticesPage(NoticesPageBase):
    async def get(self) -> None:
        said = {"saved": "Saved.", "tested": "Saved. A test message is on its way."}
        await self.show_notices(said=said.get(self.get_query_argument("done", "")))


class NotificationSettingsButton(NoticesPageBase):
    def get(self) -> None:
        self.redirect(f"{self.manager.service.prefix}notices")

    async def post(self) -> None:
        person, known = self.person(), await self.wishes()
        self.viewer(AccessRight.ACT)
        typed = {channel.value: self.get_body_argument(channel.value, "") for channel in Channel}
        asked = self.get_body_arguments("topic")
        wanted = replace(known, topics=frozenset(one for one in Topic if one in asked), problem="", **typed)
        problems = self._problems(wanted)
        if problems:
            await self.show_notices(422, wanted, problem=" ".join(problems))
            return
        test = [News(topic, person.name, "Test", TEST, "", self.manager.now()) for topic in sorted(wanted.topics)[:1]]
        testing = bool(self.get_body_argument("test", "") and test and wanted.targets)

        def save(connection: Connection) -> None:
            outbox.write_settings(connection, person.name, wanted)
            outbox.put(connection, test if testing else ())

        await self.manager.database.write(save)
        self.redirect(f"{self.manager.service.prefix}notices?done={'tested' if testing else 'saved'}", status=303)

    def _problems(self, wanted: NotificationSettings) -> Sequence[str]:
        """Returns the sentences about targets to which nothing is sent."""
        found = []
        for channel, target in wanted.targets.items():
            if len(target) > LONGEST_TARGET:
                problem: str | None = "It is too long."
            elif channel is Channel.EMAIL:
                on = self.allowed.mail is not None
                problem = self.allowed.mail_problem(target, wanted.email_told) if on else "There is no mail here."
            else:
                problem = self.allowed.url_problem(target)
            found += [f"{_TO[channel]}: {problem}"] if problem else []
        return found


class KeepAliveButton(NoticesPageBase):
    def get(self, id_: str) -> None:
        self.redirect(f"{self.manager.service.prefix}notices")

    async def post(self, id_: str) -> None:
        person, admission = self.person(), self.manager.leader.admission if self.manager.leader else None
        open_ = (
            admission.store.notices.read(recipient_of(person, by_token=self.by_token), self.manager.now())
            if admission
            else ()
        )
        notice = next((one for one in open_ if one.id == id_), None)
        if notice is None:
            await self.show_notices(404, problem=GONE)
            return
        check_may_answer(self)
        try:
            await self.show_notices(said=await keep_alive(self.manager, notice))
        except HttpProblem as problem:
            await self.show_notices(problem.status_code, problem=problem.detail)
