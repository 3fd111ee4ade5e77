"""Is this process alive, does it lead, and the metrics for Prometheus: GET health, ready and api/metrics.

``health`` and ``ready`` are for all clients. The metrics are for a token with the Hub's scope ``read:metrics``, as the
Hub's own /hub/metrics, or an administrator's browser; for every client of the Manager where
``Manager.authenticate_prometheus`` is off. They name teams and GPU types, and no user. A Manager that does not lead
answers, too: `dlspawner_leader` is 0 there.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST

from dlspawner.manager.http.auth import identify
from dlspawner.manager.http.handlers import ApiHandler, HttpProblem, ManagerHandler
from dlspawner.manager.model.access import may_read_metrics


class HealthHandler(ManagerHandler):
    """Answers if this process is alive. Asks neither the Hub nor the database: a restart would cure neither."""

    async def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish('{"status": "ok"}')


class ReadyHandler(ManagerHandler):
    """Ready on the leader; the other Managers stand by."""

    async def get(self) -> None:
        leader = self.manager.leader
        if leader is not None and not leader.is_leader:
            raise HttpProblem(503, "This Manager stands by: another one acts.")
        self.set_header("Content-Type", "application/json")
        self.finish('{"status": "ok"}')


class MetricsHandler(ApiHandler):
    async def prepare(self) -> None:
        # Not ApiHandler's: a scraper needs no access to this service beyond this.
        ManagerHandler.prepare(self)
        self.current_user = None
        if self.manager.authenticate_prometheus:
            self.current_user = self.identity = await identify(self.manager.auth, self)
            self.refuse(may_read_metrics(self.caller, by_token=self.by_token))

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(self.manager.metrics.text())
