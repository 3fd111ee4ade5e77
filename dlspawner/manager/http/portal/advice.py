"""The page of advice on the policy, for administrators of the Hub: the history replayed with other settings.

GET  cluster/policy                            the state of the latest run, and the latest result
POST cluster/policy/run, cluster/policy/cancel the buttons, answered by a redirect to the page
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from dlspawner.clients.hub import HubIdentity
from dlspawner.manager.culling.culler import span_text
from dlspawner.manager.db.advice import RUNNING, read_advice
from dlspawner.manager.history.advice import MOST_JOBS, Advisor
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem
from dlspawner.manager.http.portal.base import PortalPage
from dlspawner.manager.model.access import AccessRight, actor_name

PAGE = "cluster/policy"
NOT_ADMIN = "This page is for administrators of the Hub."
INTERRUPTED = "interrupted"  # the state of a run whose Manager has gone


class AdvicePage(PortalPage):
    def advisor(self, right: AccessRight) -> tuple[Advisor, HubIdentity]:
        """Returns the advisor and the viewer; 403 for all but administrators of the Hub."""
        identity = self.person()
        if not self.viewer(right).all:
            raise HttpProblem(403, NOT_ADMIN)
        self.admission()
        found = self.leader().advisor
        if found is None:
            raise HttpProblem(503, NOT_YET)
        return found, identity

    async def get(self) -> None:
        advisor, _ = self.advisor(AccessRight.SEE)
        run = await self.leader().repository.read(read_advice)
        state = "none" if run is None else INTERRUPTED if run.state == RUNNING else run.state
        state = RUNNING if advisor.running else state
        self.show_page(
            "policy.html",
            state=state,
            run=run,
            progress=advisor.progress,
            found=_shown(run.result) if run and run.result else None,
            most=MOST_JOBS,
        )


class _AdviceButton(AdvicePage):
    async def get(self) -> None:
        self.back(PAGE)


class RunButton(_AdviceButton):
    def post(self) -> None:
        advisor, identity = self.advisor(AccessRight.ACT)
        advisor.start(actor_name(identity))
        self.back(PAGE)


class CancelRunButton(_AdviceButton):
    async def post(self) -> None:
        advisor, identity = self.advisor(AccessRight.ACT)
        await advisor.cancel(actor_name(identity))
        self.back(PAGE)


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """The stored result with its times as the page shows them."""
    today, now = result["today"], {**result["now"], "title": "As it is today"}
    spans = {key: _span(today[key]) for key in ("window", "notice", "min_run")}
    return {
        **result,
        "today": {**today, **spans},
        "rows": [now, *result["best"]],
        "windows": [{**one, "title": _span(one["window"])} for one in result["windows"]],
        **{key: datetime.fromisoformat(result[key]) for key in ("first", "last")},
    }


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span_text(timedelta(seconds=seconds))
