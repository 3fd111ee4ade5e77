"""The page of a job that waits, for its owner and for administrators: why, which place, what would start at once.

    GET   wait/{user}/{server}          the page; leads to the job when that has started
    POST  wait/{user}/{server}/cancel   end the request, wherever it is on its way
    POST  wait/{user}/{server}/go-on    after a fresh login

All others get the answer of an unknown address. The page works without JavaScript, and looks again
by itself; with it, only what has changed is replaced.
"""

from __future__ import annotations

from urllib.parse import quote

from dlspawner.core.job import JobState
from dlspawner.core.units import counted
from dlspawner.manager.admission.explain import QueueStatus, alternative_text
from dlspawner.manager.cluster.termination import RUNS, CancelResult, cancel_server_start
from dlspawner.manager.http.api.base import check_owner, page_path
from dlspawner.manager.http.handlers import NOTHING_HERE, HttpProblem
from dlspawner.manager.http.portal.base import PortalPage, notices_for
from dlspawner.manager.model import notice as notice_model
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.state.lifecycle import log_in

_SAID_HERE = frozenset(
    {notice_model.NoticeKind.LOGIN_REQUIRED, notice_model.NoticeKind.CANNOT_START, notice_model.NoticeKind.DENIED}
)


class PendingPageBase(PortalPage):
    def page(self, user: str, server: str) -> str:
        return page_path(self.manager.service.prefix, user, server)


class PendingPage(PendingPageBase):
    async def get(self, user: str, server: str) -> None:
        check_owner(self, user, AccessRight.SEE)
        admission = self.admission()
        record = admission.starting_or_pending(user, server)
        if record is not None:
            lost = not record.is_pending and not await self._is_going(user, server)
            if lost or record.is_pending:
                self._show(user, server, look=admission.explainer.explain(record), lost=lost)
                return
        if any(job.state in {JobState.STARTING, JobState.RUNNING} for job in admission.store.on(user, server)):
            self.redirect(self.hub("spawn-pending", user, server))
            return
        last = await self.leader().repository.last_event(user, server)
        if last is None:
            raise HttpProblem(404, NOTHING_HERE)
        self._show(user, server, ended=end_sentence(*last, None))

    async def _is_going(self, user: str, server: str) -> bool:
        """True if the Hub answers and starts this server, so that the Hub's page says more than this one."""
        found = await self.hub_user(user)
        known = found.servers.get(server) if found is not None else None
        return known is not None and bool(known.pending or known.ready)

    def _show(
        self, user: str, server: str, *, look: QueueStatus | None = None, ended: str = "", lost: bool = False
    ) -> None:
        team = self.admission().store.cluster_state.team(look.job.team) if look else None
        self.show(
            "wait.html",
            look=look,
            team=(team.title or team.name) if team else "",
            ended=ended,
            lost=lost,
            server=server,
            title=server or "Default server",
            owner=user,
            gpus=counted(look.job.request.gpus) if look and look.job.request.gpus else "",
            alternatives=[alternative_text(one) for one in look.advice] if look else [],
            now=self.admission().store.now(),
            page=self.page(user, server),
            form_url=self.hub("spawn", user, server),
            login_url=f"{self.manager.service.hub_host}{self.manager.service.base_url}hub/login?next="
            + quote(self.page(user, server), safe=""),
            every=4,
            told=notices_for(self, besides=_SAID_HERE),
        )


class CancelButton(PendingPageBase):
    async def post(self, user: str, server: str) -> None:
        check_owner(self, user, AccessRight.ACT)
        store, hub = self.admission().store, self.leader().hub
        found = await cancel_server_start(store, hub, user, server, self.caller.name)
        if found is CancelResult.RUNS:
            raise HttpProblem(409, RUNS)
        self.redirect(self.page(user, server), status=303)


class StartAgainButton(PendingPageBase):
    """The button after a fresh login."""

    async def post(self, user: str, server: str) -> None:
        check_owner(self, user, AccessRight.ACT)
        await self.admission().store.transact(lambda transaction: log_in(transaction, user, server))
        self.redirect(self.page(user, server), status=303)
