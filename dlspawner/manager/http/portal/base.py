"""The base of every page of the portal: the viewer, their links, and the way back with a sentence.

Notices as the Manager's pages show them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from tornado.httputil import url_concat

from dlspawner.clients.hub import HubError, HubIdentity, HubUser, IdentityKind, own_server
from dlspawner.core.config import Team
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.text import with_time
from dlspawner.core.units import GPU, counted, shown
from dlspawner.manager.admission.approvals import pending_notice
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.http.api.base import ONLY_SEEN
from dlspawner.manager.http.api.notices import level_of, page
from dlspawner.manager.http.auth import recipient_of
from dlspawner.manager.http.handlers import NOT_YET, NOTHING_HERE, HttpProblem, IdentityHandler, PageHandler
from dlspawner.manager.model import notice as notice_model
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.job_history import JobHistory
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.manager.state.job_store import JobStore

T = TypeVar("T")

EVERY_SECONDS = 5  # between two looks of a page that is open
NO_JOB = "There is no such job, or it has ended."
_AGAIN_SECONDS = "5"
JOB_ID = re.compile(r"j-[a-z2-7]{12}")


class PortalPage(PageHandler):
    """A page of the portal, for people; a service or a job has none."""

    def person(self) -> HubIdentity:
        """Returns the viewer, if allowed to see any job."""
        if self.caller.kind is not IdentityKind.USER:
            raise HttpProblem(404, NOTHING_HERE)
        self.viewer(AccessRight.SEE)
        return self.caller

    def leader(self) -> LeaderElector:
        if self.manager.leader is None:
            raise HttpProblem(404, NOTHING_HERE)
        return self.manager.leader

    def admission(self) -> AdmissionService:
        """Returns the admission service; on another Manager the page says so and reloads by itself."""
        admission = self.leader().admission
        if admission is None:
            raise HttpProblem(503, NOT_YET, {"Refresh": _AGAIN_SECONDS})
        return admission

    async def on_disk(self, read: Callable[[JobStore], T]) -> T:
        """Returns the job store once all of it is in the database, which is read afterwards."""
        try:
            return await self.admission().store.transact(lambda transaction: read(transaction.store))
        except NotLeader:
            raise HttpProblem(503, NOT_YET, {"Refresh": _AGAIN_SECONDS}) from None

    def record(self, job: str, right: AccessRight) -> JobRecord:
        """A job that has not ended and that this reader may see, and act on where that is wanted."""
        self.person()
        sees, record = self.viewer(AccessRight.SEE), self.admission().store.records.get(job)
        if record is None or job.startswith(EXTERNAL_POD_PREFIX) or not sees.reaches(record.job.user, record.job.team):
            raise HttpProblem(404, NO_JOB)
        if not self.viewer(right).reaches(record.job.user, record.job.team):
            raise HttpProblem(403, ONLY_SEEN)
        return record

    async def kept(self, job: str) -> JobHistory:
        """A job that this reader may see, ended ones too; 404 for any other, whether there is one or not."""
        found = await self.leader().repository.visible_job(self.viewer(AccessRight.SEE), job)
        if found is None:
            raise HttpProblem(404, NO_JOB)
        return found

    async def hub_user(self, name: str) -> HubUser | None:
        """Returns the Hub's user model; ``None`` when the Hub does not answer, so that pages show the rest."""
        if self.leader().hub_health.unreachable:
            return None
        try:
            return await self.leader().hub.user(name)
        except HubError:
            return None

    def hub(self, path: str, user: str, server: str) -> str:
        """The Hub's page of that kind about a server."""
        return self._of_server(f"hub/{path}", user, server)

    def server_page(self, user: str, server: str) -> str:
        """The server itself, which is there also while the Hub is not."""
        return f"{self._of_server('user', user, server)}/"

    def _of_server(self, path: str, user: str, server: str) -> str:
        service = self.manager.service
        parts = (path, quote(user, safe="@"), *((quote(server, safe=""),) if server else ()))
        return f"{service.hub_host}{service.base_url}{'/'.join(parts)}"

    def back(self, to: str = "", **said: str) -> None:
        """Redirect to a page of the portal, which says what has happened."""
        self.redirect(url_concat(f"{self.manager.service.prefix}{to}", said), status=303)

    def show_page(self, template: str, status: int = 200, **values: object) -> None:
        """Render a page with what every page of the portal has.

        ``path``: where to look again, when this is the answer to a button and its own address is none of a page.
        """
        usual = {"told": notices_for(self), "now": self.admission().store.now(), "every": EVERY_SECONDS}
        self.show(template, status, **{**usual, **values})


@dataclass(frozen=True, slots=True)
class NoticeView:
    """A notice as a page shows it; ``server`` is ``None`` in what administrators are told."""

    id: str
    server: str | None
    level: str
    text: str
    keep: bool
    page: str = ""  # of ours, that says more


def notices_for(
    handler: IdentityHandler, *, besides: frozenset[notice_model.NoticeKind] = frozenset()
) -> list[NoticeView]:
    """Returns the viewer's open notices; none if they are unknown, or for a job's own token."""
    manager, identity = handler.manager, handler.caller
    admission = manager.leader.admission if manager.leader else None
    if admission is None or identity.kind is not IdentityKind.USER or own_server(identity) is not None:
        return []
    now, store = manager.now(), admission.store
    reader = recipient_of(identity, by_token=handler.by_token)
    asked = pending_notice(store, identity.name, admin=reader.admin)
    return [
        NoticeView(
            one.id,
            one.server if one.user else None,
            level_of(one),
            with_time(one.text, one.until, now),
            one.keep,
            page(one) or "",
        )
        for one in (*store.notices.read(reader, now), *asked)
        if one.kind not in besides
    ]


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """One team and GPU type, in milli-GPUs, or extended resource, without a ``noun``.

    ``quota`` is ``None`` while no quotas are configured.
    """

    team: str
    title: str
    gpu_type: str
    kind: str  # the type's title
    quota: int | None
    guaranteed: int
    borrowed: int
    noun: str = "GPU"
    reserved: int = 0  # of the guaranteed ones, for queued jobs

    @property
    def free(self) -> int:
        """Returns the free part of the quota; 0 if more is held, since the quota was lowered."""
        return max(0, (self.quota or 0) - self.guaranteed)

    @property
    def sentence(self) -> str:
        lent = f", {shown(self.borrowed)} borrowed" if self.borrowed else ""
        used = self.guaranteed - self.reserved
        kept = f", {shown(self.reserved)} reserved for queued jobs" if self.reserved else ""
        if self.quota is None:
            return f"{counted(used)} used{kept}{lent}; no quota is set"
        over = self.guaranteed - self.quota
        rest = f"{shown(over)} more than the quota" if over > 0 else f"{shown(self.free)} free"
        whole = counted(self.quota, self.noun) if self.noun else shown(self.quota)
        return f"{shown(used)} of {whole} used{kept}, {rest}{lent}"

    @property
    def bars(self) -> tuple[float, float, float, float]:
        """Used, reserved, borrowed and free, in percent of the whole bar."""
        whole = max(1, self.guaranteed + self.borrowed + self.free)
        parts = (self.guaranteed - self.reserved, self.reserved, self.borrowed, self.free)
        return tuple(round(100 * part / whole, 2) for part in parts)  # type: ignore[return-value]


def quota_shares(state: ClusterState, teams: Iterable[Team]) -> tuple[QuotaShare, ...]:
    """A row for each type that a team is entitled to or uses, and for each extended resource of its quota."""
    has_quota = state.teams.has_quota
    found = []
    for team in teams:
        title = team.title or team.name
        for kind in state.cluster.gpu_types:
            held, lent = state.guaranteed(team.name, kind.name), state.borrowed(team.name, kind.name)
            quota = team.entitled(kind.name) if has_quota else None
            if quota or held or lent:
                kept, shown_kind = state.reserved(team.name, kind.name), kind.title or kind.name
                found.append(QuotaShare(team.name, title, kind.name, shown_kind, quota, held, lent, reserved=kept))
        for name, amount in team.extended_quota:
            kind_title, held = state.cluster.resource_title(name), state.extended(team.name, name)
            found.append(QuotaShare(team.name, title, name, kind_title, amount * GPU, held, 0, noun=""))
    return tuple(found)
