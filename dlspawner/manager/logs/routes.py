"""The addresses of logs."""

from __future__ import annotations

from dlspawner.manager.logs import log_api, log_page
from dlspawner.manager.web import Routes

_LOG_JOB = r"(j-[a-z2-7]{12})"
LOG_ROUTES: Routes = (
    (f"api/jobs/{_LOG_JOB}/logs", log_api.LogsHandler),
    (f"api/jobs/{_LOG_JOB}/log", log_api.LogHandler),
    (f"api/jobs/{_LOG_JOB}/log-kept", log_api.LogCollectedHandler),
    (f"api/jobs/{_LOG_JOB}/pod-events", log_api.PodEventsHandler),
    (f"jobs/{_LOG_JOB}/log", log_page.LogPage),
)
LOG_TEMPLATES = ("job_log.html",)
