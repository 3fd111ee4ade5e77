"""The metrics for Prometheus: GET api/metrics.

For a token with the Hub's scope ``read:metrics``, as the Hub's own /hub/metrics, or an administrator's browser; for
every client of the Manager where ``Manager.authenticate_prometheus`` is off. It names teams and GPU types, and no
person. A Manager that does not act answers, too: `dlspawner_leader` is 0 there.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST

from dlspawner.manager.http.auth import identify
from dlspawner.manager.http.handlers import ApiHandler, ManagerHandler
from dlspawner.manager.model.access import may_read_metrics


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
        self.finish(self.manager.meters.text())
